"""Faults of a standalone server."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Iterator

import redis

from chaos.fault import ANY, NONE, fault
from chaos.servers import eventually, stranger
from chaos.stage import Stage

# ----------------------------------------------------------- it dies, stops, restarts


@fault("standalone", forgets=1, opens_breaker=True)
def killed(stage: Stage) -> Iterator[float]:
    """Killed with SIGKILL, started again empty."""
    stage.server.kill()
    yield 1.0
    stage.server.start()


@fault("standalone+disk")
def killed_with_data_on_disk(stage: Stage) -> Iterator[float]:
    """Killed with SIGKILL, started again with its data (appendfsync always)."""
    stage.server.kill()
    yield 1.0
    stage.server.start()


@fault("standalone", forgets=5)
def restarted_again_and_again(stage: Stage) -> Iterator[float]:
    """Killed and started again five times in a row."""
    for _ in range(5):
        stage.server.kill()
        yield 0.1
        stage.server.start()
        yield 0.1


@fault("standalone", forgets=1)
def shut_down(stage: Stage) -> Iterator[float]:
    """SHUTDOWN NOSAVE, started again empty."""
    with contextlib.suppress(redis.ConnectionError):
        stage.server.do("SHUTDOWN", "NOSAVE")
    stage.server.kill()
    yield 0.6
    stage.server.start()


@fault("standalone", degraded=ANY)
def stopped_for_a_moment(stage: Stage) -> Iterator[float]:
    """Stopped with SIGSTOP for 0.2 s."""
    stage.server.signal(signal.SIGSTOP)
    yield 0.2
    stage.server.signal(signal.SIGCONT)


@fault("standalone", opens_breaker=True)
def stopped_for_long(stage: Stage) -> Iterator[float]:
    """Stopped with SIGSTOP for 3 s."""
    stage.server.signal(signal.SIGSTOP)
    yield 3.0
    stage.server.signal(signal.SIGCONT)


@fault("standalone+own", forgets=1)
def restarted_as_another(stage: Stage) -> Iterator[float]:
    """Restarted as another version, or with other settings."""
    # As the server that CHAOS_OTHER_SERVER names; else as this one with other settings.
    stage.server.kill()
    yield 0.4
    other = os.environ.get("CHAOS_OTHER_SERVER")
    if other:
        stage.server.program = other
    else:
        stage.server.arguments += ["--databases", "1", "--maxclients", "200", "--hz", "100"]
    stage.server.start()
    stage.notes["version"] = next(
        line.partition(":")[2]
        for line in stage.server.info("server").splitlines()
        if line.startswith("redis_version")
    )


@fault("standalone", forgets=1, opens_breaker=True)
def port_reused(stage: Stage) -> Iterator[float]:
    """Another program takes over its port, and answers HTTP."""
    stage.server.kill()
    with stranger(stage.server.port, b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"):
        yield 1.0
    stage.server.start()


@fault("standalone", opens_breaker=True)
def loading(stage: Stage) -> Iterator[float]:
    """Starts and answers LOADING for a second."""
    server = stage.server
    server.do("DEBUG", "POPULATE", 3000, "filler", 10)
    server.do("SAVE")
    server.kill()
    # Microseconds for each key, and a look at its clients in between.
    slow = ["--key-load-delay", "400", "--loading-process-events-interval-bytes", "1024"]
    server.arguments += slow
    server.start(wait=False)
    yield 1.0
    server.arguments = server.arguments[: -len(slow)]
    eventually(lambda: server.do("PING"))
    for key in server.do("KEYS", "filler*"):
        server.do("UNLINK", key)
    dump = server.directory / f"dump-{server.port}.rdb"
    dump.unlink()


# ----------------------------------------------------------------- it takes its time


@fault("standalone")
def client_pause(stage: Stage) -> Iterator[float]:
    """CLIENT PAUSE of all commands for 0.8 s."""
    stage.server.do("CLIENT", "PAUSE", 800, "ALL")
    yield 0.9


@fault("standalone")
def client_pause_of_writes(stage: Stage) -> Iterator[float]:
    """CLIENT PAUSE of writes for 0.8 s."""
    stage.server.do("CLIENT", "PAUSE", 800, "WRITE")
    yield 0.9


@fault("standalone")
def debug_sleep(stage: Stage) -> Iterator[float]:
    """DEBUG SLEEP for a second."""
    stage.server.do("DEBUG", "SLEEP", 1)
    yield 0.0


@fault("standalone", degraded=ANY)
def slow_server(stage: Stage) -> Iterator[float]:
    """Busy with slow commands of 30 ms for two thirds of the time."""
    for _ in range(25):
        stage.server.do("DEBUG", "SLEEP", 0.03)
        yield 0.015


@fault("standalone", opens_breaker=True)
def busy_script(stage: Stage) -> Iterator[float]:
    """Another client's script never ends: BUSY, then SCRIPT KILL."""
    server = stage.server
    server.set(lua_time_limit=50)
    endless = redis.Redis(port=server.port, protocol=2, socket_timeout=10)

    def run() -> None:
        with contextlib.suppress(redis.RedisError):
            endless.execute_command("EVAL", "while true do end", 0)

    thread = threading.Thread(target=run)
    thread.start()
    yield 1.0
    server.do("SCRIPT", "KILL")
    thread.join()
    endless.close()
    server.set(lua_time_limit=5000)


@fault("standalone", degraded=ANY)
def background_save(stage: Stage) -> Iterator[float]:
    """BGSAVE forks under load, twice."""
    for _ in range(2):
        stage.server.do("BGSAVE")
        yield 0.5
    (stage.server.directory / f"dump-{stage.server.port}.rdb").unlink(missing_ok=True)


# ------------------------------------------------------------ it refuses to do it


@fault("standalone", opens_breaker=True)
def out_of_memory(stage: Stage) -> Iterator[float]:
    """No memory left: OOM."""
    stage.server.set(maxmemory=1)
    yield 1.0
    stage.server.set(maxmemory=0)


@fault("standalone", opens_breaker=True)
def no_replicas(stage: Stage) -> Iterator[float]:
    """Too few replicas: NOREPLICAS."""
    stage.server.set(min_replicas_to_write=1)
    yield 1.0
    stage.server.set(min_replicas_to_write=0)


@fault("standalone", opens_breaker=True)
def misconfigured(stage: Stage) -> Iterator[float]:
    """Cannot save to disk: MISCONF."""
    server = stage.server
    gone = stage.directory / f"gone-{stage.run}"
    gone.mkdir()
    server.set(dir=str(gone), save="3600 1")
    shutil.rmtree(gone)
    server.do("BGSAVE")
    eventually(lambda: "rdb_last_bgsave_status:err" in server.info("persistence"))
    yield 1.0
    server.set(dir=str(server.directory), save="")


def _as_replica(stage: Stage, *, serves: str) -> Iterator[float]:
    """Makes it a replica of nobody for a second; whether it still `serves` what it has."""
    stage.server.set(replica_serve_stale_data=serves)
    stage.server.do("REPLICAOF", "127.0.0.1", 1)
    yield 1.0
    stage.server.do("REPLICAOF", "NO", "ONE")


@fault("standalone", opens_breaker=True)
def read_only(stage: Stage) -> Iterator[float]:
    """Made a replica: READONLY."""
    yield from _as_replica(stage, serves="yes")


@fault("standalone", opens_breaker=True)
def master_down(stage: Stage) -> Iterator[float]:
    """A replica that has lost its master: MASTERDOWN."""
    yield from _as_replica(stage, serves="no")
    stage.server.set(replica_serve_stale_data="yes")


@fault("standalone+own")
def max_clients(stage: Stage) -> Iterator[float]:
    """Has as many clients as it may, and new connections are refused."""
    server = stage.server
    server.set(maxclients=1)
    server.cut()
    yield 1.0
    server.set(maxclients=1000)


@fault("standalone")
def port_closed(stage: Stage) -> Iterator[float]:
    """Listens on another port for a while, its connections are cut."""
    server = stage.server
    admin = redis.Redis(
        unix_socket_path=None, port=server.port, username="chaos-admin",
        password="chaos-admin-secret", protocol=2, single_connection_client=True,
    )  # fmt: skip
    admin.execute_command("CONFIG", "SET", "port", "0")
    admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    yield 1.0
    admin.execute_command("CONFIG", "SET", "port", str(server.port))
    admin.close()


# ------------------------------------------------------------ connections and scripts


@fault("standalone", degraded=ANY)
def client_kill(stage: Stage) -> Iterator[float]:
    """CLIENT KILL of all connections, 20 times in a second."""
    for _ in range(20):
        stage.server.cut()
        yield 0.05


@fault("standalone", degraded=NONE)
def script_flush(stage: Stage) -> Iterator[float]:
    """SCRIPT FLUSH, 20 times in a second."""
    for _ in range(20):
        stage.server.do("SCRIPT", "FLUSH")
        yield 0.05


@fault("standalone", degraded=NONE)
def idle_connections_closed(stage: Stage) -> Iterator[float]:
    """Closes idle connections; nothing is asked for 3 s, then all at once."""
    stage.server.set(timeout=1)
    stage.worker.do("pause", seconds=3.0)
    stage.server.set(timeout=0)
    yield 0.2


# ----------------------------------------------------------------- users and passwords


@fault("standalone+password", opens_breaker=True)
def password_changed(stage: Stage) -> Iterator[float]:
    """The password is changed under load, all connections end."""
    stage.server.set(requirepass="second")
    stage.server.cut()
    yield 1.0
    stage.password_file.write_text("second")


@fault("standalone+password", degraded=ANY)
def password_rotated(stage: Stage) -> Iterator[float]:
    """The password is changed, and the function that returns it knows the new one."""
    for name in ("second", "third", "fourth"):
        stage.password_file.write_text(name)
        stage.server.set(requirepass=name)
        stage.server.cut()
        yield 0.3


def _with_login(stage: Stage, *rules: str) -> Iterator[float]:
    """Changes what the ACL user may do, for a second."""
    stage.allow_login(*rules)
    yield 1.0
    stage.allow_login()


@fault("standalone+login", opens_breaker=True)
def no_eval(stage: Stage) -> Iterator[float]:
    """The ACL user loses EVAL and EVALSHA: NOPERM."""
    yield from _with_login(stage, "-eval", "-evalsha")


@fault("standalone+login")
def no_evalsha(stage: Stage) -> Iterator[float]:
    """The ACL user loses EVALSHA alone: NOPERM."""
    yield from _with_login(stage, "-evalsha")


@fault("standalone+login", degraded=NONE)
def no_script_command(stage: Stage) -> Iterator[float]:
    """A user without SCRIPT, whose scripts are flushed."""
    for _ in range(10):
        stage.server.do("SCRIPT", "FLUSH")
        yield 0.05


@fault("standalone+login")
def no_ping(stage: Stage) -> Iterator[float]:
    """A user without PING, whose server stops for a while."""
    stage.allow_login("-ping")
    stage.server.signal(signal.SIGSTOP)
    yield 1.0
    stage.server.signal(signal.SIGCONT)


@fault("standalone+login", opens_breaker=True)
def no_writes(stage: Stage) -> Iterator[float]:
    """The ACL user loses the commands that its scripts call: NOPERM inside."""
    yield from _with_login(stage, "-set", "-append", "-setrange")


@fault("standalone+login", opens_breaker=True)
def no_keys(stage: Stage) -> Iterator[float]:
    """The ACL user loses its keys: NOPERM."""
    yield from _with_login(stage, "resetkeys", "~elsewhere:*")


@fault("standalone+login")
def user_deleted(stage: Stage) -> Iterator[float]:
    """The ACL user is deleted, which ends its connections."""
    stage.server.do("ACL", "DELUSER", "limits")
    yield 1.0
    stage.allow_login()


# ------------------------------------------------------------------------ data


@fault("standalone", degraded=NONE, forgets=5)
def flush_all(stage: Stage) -> Iterator[float]:
    """FLUSHALL, five times in a second."""
    for _ in range(5):
        stage.server.do("FLUSHALL")
        yield 0.2


@fault("standalone", degraded=NONE, forgets=2)
def databases_swapped(stage: Stage) -> Iterator[float]:
    """SWAPDB with an empty database, and back."""
    for _ in range(2):
        stage.server.do("SWAPDB", 0, 1)
        yield 0.5


@fault("standalone", degraded=NONE, script_errors=True)
def wrong_type(stage: Stage) -> Iterator[float]:
    """Another program puts a list at the key of a limit: WRONGTYPE for that key alone."""
    _put_foreign(stage, lambda key: stage.server.do("LPUSH", key, "x"))
    yield 0.5


@fault("standalone", degraded=NONE, script_errors=True)
def foreign_value(stage: Stage) -> Iterator[float]:
    """Another program writes text to the key of a limit, which is decided without it."""
    _put_foreign(stage, lambda key: stage.server.do("SET", key, "not a number"))
    yield 0.5


def _put_foreign(stage: Stage, put: object) -> None:
    assert callable(put)
    stage.worker.do("charge", key="foreign", times=1)
    (key,) = stage.server.do("KEYS", f"*{stage.run}-foreign*")
    stage.server.do("DEL", key)
    put(key)
    counts = stage.worker.do("charge", key="foreign", times=20)
    stage.check_counts(counts, degraded=None)
    stage.check(
        counts["degraded"] == 20,
        f"{counts['degraded']} of 20 hits of a key that holds something else were degraded",
    )


# ----------------------------------------------------------------------- its clock


@fault("standalone+server-clock", degraded=NONE, clock_seconds=3600)
def clock_jumps_ahead(stage: Stage) -> Iterator[float]:
    """Its clock jumps ahead by an hour."""
    _step(stage, 3600)
    yield 1.0


@fault("standalone+server-clock", degraded=NONE, clock_seconds=3600)
def clock_jumps_back(stage: Stage) -> Iterator[float]:
    """Its clock jumps back by an hour."""
    _step(stage, -3600)
    yield 1.0


@fault("standalone+server-clock", degraded=NONE, clock_seconds=3600)
def clock_steps(stage: Stage) -> Iterator[float]:
    """Its clock steps by an hour, there and back, ten times in a second."""
    for number in range(20):
        _step(stage, 3600 if number % 2 == 0 else 0)
        yield 0.05


@fault("standalone+server-clock", degraded=NONE, forgets=1, clock_seconds=40 * 86400)
def clock_jumps_beyond_the_period(stage: Stage) -> Iterator[float]:
    """Its clock jumps ahead by 40 days, more than the period of the limit, and back: one burst
    more."""
    _step(stage, 40 * 86400)
    yield 0.5
    _step(stage, 0)
    yield 0.5


def _step(stage: Stage, seconds: float) -> None:
    assert stage.server_clock is not None
    stage.server_clock.shift(seconds)
