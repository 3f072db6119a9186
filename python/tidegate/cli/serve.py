"""``tidegate serve``: answers checks until a signal ends it."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.limiter.errors import ConfigurationError

if TYPE_CHECKING:
    from tidegate.server.settings import Settings

__all__ = ["register"]

log = logging.getLogger("tidegate")

_DEFAULT_FILE = "tidegate.yaml"
# Seconds for the last counts on their way to a process that has taken over.
_PATIENCE = 5.0
_SUCCEEDED = 0  # stands among the numbers of signals, of which none is 0


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "serve",
        help="answer checks over HTTP, gRPC and Envoy's protocol",
        description="Answers checks over HTTP/1.1, HTTP/2 and gRPC, with an admin API beside. "
        "SIGHUP reloads rules, tokens and certificates; SIGUSR2 starts a new process that takes "
        "over; SIGTERM lets calls in flight end.",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"settings in YAML, TOML or JSON (default: {_DEFAULT_FILE} if it is there); "
        "environment variables such as TIDEGATE_STORAGE win over it",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="say whether it would start, and what with; make nothing, and end",
    )
    parser.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    # What a start makes is there to stay. To look for garbage in it takes a sixth of the start.
    gc.disable()
    try:
        _check_packages()
        path = arguments.config
        if path is None and os.path.exists(_DEFAULT_FILE):
            path = Path(_DEFAULT_FILE)
        return _serve_with(path, arguments.check)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        if not error.filename:
            raise
        # A file that the user named; storages and databases have errors of their own.
        where = "" if os.path.isabs(error.filename) else f" in {os.getcwd()}"
        raise ConfigurationError(f"{error.filename}: {error.strerror}{where}") from None
    finally:
        # The process ends. The interpreter would visit all objects several times more, for 0.4 s,
        # to find garbage among them.
        gc.freeze()
        gc.enable()


def _check_packages() -> None:
    try:
        import tidegate.server.settings  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"`tidegate serve` needs the package {error.name}; expected "
            "`pip install 'tidegate[server]'`"
        ) from None


def _serve_with(path: Path | None, is_check: bool) -> int:
    from tidegate.server.inherited import inherited_sockets
    from tidegate.server.logs import set_up_logging
    from tidegate.server.predecessor import predecessor_of
    from tidegate.server.service import Service
    from tidegate.server.settings import read_settings, unknown_variables

    settings = read_settings(path)
    set_up_logging(settings.log)
    predecessor = predecessor_of(os.environ)  # takes its variable out
    for name, similar in unknown_variables(os.environ).items():
        hint = "" if similar is None else f"; expected {similar}?"
        log.warning("the environment variable %s is not a setting%s", name, hint)
    if is_check:
        return _check(settings)
    service = Service(settings, inherited=inherited_sockets(os.environ), predecessor=predecessor)
    return _until_signalled(service, predecessor)


def _check(settings: Settings) -> int:
    from tidegate.server.rehearsal import rehearse

    found = rehearse(settings)
    print("\n".join(found.lines))
    if found.problems:
        raise ConfigurationError("\n".join(found.problems))
    return 0


def _until_signalled(service: Any, predecessor: Any) -> int:
    signals, writer = _signals()
    try:
        service.start()
    except BaseException:
        service.close()
        raise
    gc.freeze()
    gc.enable()
    _notify("READY=1")
    if predecessor is not None:
        predecessor.notify()
    reloading = threading.Lock()
    succession = _Succession(service, writer)
    while True:
        number = signals.recv(1)[0]
        if number == signal.SIGUSR2:
            succession.begin()
        elif number == signal.SIGHUP:
            # The thread keeps a database that does not answer from delaying SIGTERM.
            threading.Thread(target=_reload, args=(service, reloading), daemon=True).start()
        else:
            break
    # A second signal means that the user does not want to wait.
    threading.Thread(target=_end_at_once, args=(signals,), daemon=True).start()
    is_succeeded = number == _SUCCEEDED
    why = succession.reason if is_succeeded else signal.Signals(number).name
    log.info("%s: calls in flight have %g s", why, service.settings.drain)
    if is_succeeded:
        is_drained = service.stop(is_succeeded=True)
        succession.finish()
    else:
        _notify("STOPPING=1")
        succession.give_up()
        is_drained = service.stop()
    if not is_drained:
        log.warning("calls were in flight when the service ended")
    status = 0 if is_drained else 1
    sys.stderr.flush()
    if not service.has_closed or _has_threads():
        # The interpreter would wait for a thread that hangs, such as one of the admin API.
        os._exit(status)
    return status


class _Succession:
    """Starts another process, and puts _SUCCEEDED among the signals once it answers checks."""

    def __init__(self, service: Any, signals: int) -> None:
        self._service = service
        self._signals = signals
        self._lock = threading.Lock()
        self._successor: Any = None
        self.reason = ""
        """Why this process ends, once the other one has taken over."""

    def begin(self) -> None:
        """Starts a process, unless one is about to be ready."""
        from tidegate.cli.successor import Successor

        with self._lock:
            if self._successor is not None:
                log.warning(
                    "SIGUSR2: the process %d, which is to take over, has not answered checks yet; "
                    "no other one is started meanwhile",
                    self._successor.process.pid,
                )
                return
            try:
                self._successor = Successor(self._service.sockets())
            except OSError as error:
                self._service.stay()
                log.error("no process could be started that takes over: %s", error)
                return
        threading.Thread(target=self._wait, args=(self._successor,), daemon=True).start()

    def _wait(self, successor: Any) -> None:
        if successor.becomes_ready(self._service.hand_on):
            self.reason = f"the process {successor.process.pid} has taken over"
            _notify(f"MAINPID={successor.process.pid}")
            os.write(self._signals, bytes([_SUCCEEDED]))
            return
        status = successor.process.wait()
        log.error("the process that was to take over ended with status %d; this one stays", status)
        with self._lock:
            self._successor = None
            self._service.stay()
        successor.close()

    def finish(self) -> None:
        """Waits until the process that has taken over has the last counts of this one."""
        self._successor.finish(_PATIENCE)

    def give_up(self) -> None:
        """Ends a process that is not ready yet."""
        with self._lock:
            if self._successor is not None:
                self._successor.process.terminate()
                self._service.stay()


def _signals() -> tuple[socket.socket, int]:
    """Gives the number of each signal as a byte, and the descriptor by which more can be put there.

    A handler in Python would not do: it runs when the main thread does, which a signal does not
    wake if it comes just before that waits, or to another thread.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    number = writer.detach()
    signal.set_wakeup_fd(number, warn_on_full_buffer=False)
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(each, lambda number, frame: None)
    return reader, number


def _end_at_once(signals: socket.socket) -> None:
    while True:
        number = signals.recv(1)[0]
        if number in (signal.SIGTERM, signal.SIGINT):
            os._exit(128 + number)


def _reload(service: Any, reloading: threading.Lock) -> None:
    with reloading:
        _notify("RELOADING=1")
        try:
            service.reload()
        except Exception:
            log.exception("the service was not reloaded")
        _notify("READY=1")


def _has_threads() -> bool:
    main = threading.main_thread()
    return any(each is not main and not each.daemon for each in threading.enumerate())


def _notify(state: str) -> None:
    """Notifies systemd, if the unit has Type=notify."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    import time

    if state.startswith("RELOADING"):
        state += f"\nMONOTONIC_USEC={time.monotonic_ns() // 1000}"
    target = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        try:
            channel.sendto(state.encode(), target)
        except OSError as error:
            log.warning("systemd was not notified: %s", error)
