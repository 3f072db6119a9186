"""A redis-server of the tests' own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import processes
from ports import free_port

# Long beyond any call that succeeds: a loaded machine must not fail a test.
PATIENT = "timeout=20&connect_timeout=20"
# Another Redis, or a Valkey, may be tried: its program.
PROGRAM = os.environ.get("TIDEGATE_REDIS_SERVER", "redis-server")


def speaks_tls() -> bool:
    """Whether the program was built with TLS: if so, it misses the certificate, and ends too."""
    told = subprocess.run([PROGRAM, "--port", "0", "--tls-port", "1"], capture_output=True)
    return b"tls-cert-file" in told.stdout


class RedisServer(processes.Server):
    """A redis-server of our own; ``with`` starts and kills it.

    `start` after `kill` keeps the port and loses the data.
    """

    def __init__(
        self, directory: Path, *arguments: str, environment: dict[str, str] | None = None
    ) -> None:
        self.port = free_port(bus="--cluster-enabled" in arguments)
        self.path = directory / f"redis-{self.port}.sock"
        self.map, self.dump = f"nodes-{self.port}.conf", f"redis-{self.port}.rdb"
        # An earlier server may have had the port: its slots and its keys are not those of this one.
        for name in (self.map, self.dump):
            (directory / name).unlink(missing_ok=True)
        self.arguments = arguments
        self.environment = environment
        self.password: str | None = None

    def start(self) -> None:
        self.process = processes.start(
            [
                PROGRAM,
                *("--port", str(self.port), "--bind", "127.0.0.1"),
                *("--unixsocket", str(self.path), "--save", "", "--appendonly", "no"),
                *("--cluster-config-file", self.map, "--dbfilename", self.dump),
                *("--daemonize", "no", "--dir", str(self.path.parent)),
                # A title is written over the environment, by which tests/undertaker.py finds it.
                *("--set-proc-title", "no", *self.arguments),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self.environment,
        )
        processes.await_start(self._accepts, 20, self.kill)

    def _accepts(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"{PROGRAM} has ended"
        self.connect().close()
        return True

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def command(self, *words: str | bytes) -> bytes:
        """The raw reply to one command, errors too."""
        parts = [word.encode() if isinstance(word, str) else word for word in words]
        request = b"*%d\r\n" % len(parts) + b"".join(
            b"$%d\r\n%s\r\n" % (len(part), part) for part in parts
        )
        with self.connect() as connection:
            if self.password is not None:
                secret = self.password.encode()
                connection.sendall(b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\n" % (len(secret), secret))
                assert connection.recv(100) == b"+OK\r\n"
            connection.sendall(request)
            # Half-closed no sooner: Valkey drops a CLUSTER SETSLOT that waits for replicas.
            reply = connection.recv(1 << 16)
            connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(1 << 16):
                reply += chunk
            return reply

    def only_key(self) -> bytes:
        """The name of the key, if there is one."""
        key = self.command("KEYS", "*").split(b"\r\n")[2]
        assert key
        return key

    def value_of(self, key: bytes) -> bytes:
        return self.command("GET", key).split(b"\r\n", 1)[1][:-2]

    def calls(self) -> dict[str, int]:
        """How often each command was called."""
        counts = {}
        for line in self.command("INFO", "commandstats").decode().splitlines():
            if line.startswith("cmdstat_"):
                name, _, rest = line[len("cmdstat_") :].partition(":")
                counts[name] = int(rest.split(",")[0].split("=")[1])
        return counts

    def uri(self, options: str = PATIENT) -> str:
        return f"redis://127.0.0.1:{self.port}/0?{options}"
