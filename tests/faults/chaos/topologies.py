"""Sentinels and clusters of the campaign's own."""

from __future__ import annotations

import itertools
from pathlib import Path

import redis
from ports import free_port
from redis.crc import key_slot

from chaos.servers import ADMIN, Server, eventually

SLOTS = 16384


# ------------------------------------------------------------------- sentinels


class Watched:
    """A master, a replica, and three sentinels that watch them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.servers = [Server(directory, "--repl-diskless-sync-delay", "0") for _ in range(2)]
        self.sentinels: list[Server] = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        for server in self.servers:
            server.arguments += ["--masteruser", ADMIN[0], "--masterauth", ADMIN[1]]
        self.servers[1].arguments += ["--replicaof", "127.0.0.1", str(self.servers[0].port)]
        for server in self.servers:
            server.start()
        eventually(lambda: "master_link_status:up" in self.servers[1].info("replication"))
        for number in range(3):
            config = self.directory / f"sentinel-{self.servers[0].port}-{number}.conf"
            sentinel = Server(self.directory, sentinel=config)
            config.write_text(
                f"port {sentinel.port}\nbind 127.0.0.1\ndir {self.directory}\n"
                f"sentinel monitor limits 127.0.0.1 {self.servers[0].port} 2\n"
                f"sentinel auth-user limits {ADMIN[0]}\nsentinel auth-pass limits {ADMIN[1]}\n"
                "sentinel down-after-milliseconds limits 500\n"
                "sentinel failover-timeout limits 3000\n"
            )
            self.sentinels.append(sentinel)
            sentinel.start()
        for sentinel in self.sentinels:
            eventually(lambda s=sentinel: "slaves=1,sentinels=3" in s.info("sentinel"))  # type: ignore[misc]

    def master(self) -> Server:
        """The master that most of the sentinels name."""
        named = [
            int(sentinel.do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "limits")[1])
            for sentinel in self.sentinels
            if sentinel.process is not None
        ]
        port = max(set(named), key=named.count)
        return next(server for server in self.servers if server.port == port)

    def await_master(self, but: Server | None = None) -> Server:
        """Until the sentinels agree on a master that is one; another than `but`."""

        def agreed() -> bool:
            master = self.master()
            return master is not but and master.process is not None and master.role() == "master"

        eventually(agreed)
        return self.master()

    def uri(self) -> str:
        hosts = ",".join(sentinel.address for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/limits/0"

    def close(self) -> None:
        for server in [*self.sentinels, *self.servers]:
            server.kill()


# --------------------------------------------------------------------- cluster


class Cluster:
    """Three masters, each with a replica."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.nodes: list[Server] = []
        try:
            for _ in range(6):
                self.add()
            self._join()
        except BaseException:
            self.close()
            raise

    def add(self) -> Server:
        """A node that belongs to no cluster yet."""
        node = Server(self.directory)
        node.arguments += [
            *("--cluster-enabled", "yes", "--cluster-config-file", f"nodes-{node.port}.conf"),
            *("--cluster-node-timeout", "700", "--cluster-require-full-coverage", "no"),
            *("--repl-diskless-sync-delay", "0", "--cluster-migration-barrier", "10"),
            *("--masteruser", ADMIN[0], "--masterauth", ADMIN[1]),
            # The default is the port and 10,000, which may be none.
            *("--cluster-port", str(free_port())),
        ]
        node.start()
        self.nodes.append(node)
        return node

    def _bus(self, node: Server) -> str:
        return node.arguments[node.arguments.index("--cluster-port") + 1]

    def meet(self, node: Server) -> None:
        self.nodes[0].do("CLUSTER", "MEET", "127.0.0.1", node.port, self._bus(node))

    def _join(self) -> None:
        for number, node in enumerate(self.nodes[:3]):
            first, last = SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1
            node.do("CLUSTER", "ADDSLOTSRANGE", first, last)
            node.do("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            self.meet(node)
        for node in self.nodes:
            eventually(lambda node=node: len(self.known(node)) == 6)  # type: ignore[misc]
        for master, replica in zip(self.nodes[:3], self.nodes[3:]):
            eventually(  # the replica has found the master by itself
                lambda master=master, replica=replica: replica.do(  # type: ignore[misc]
                    "CLUSTER", "REPLICATE", self.id_of(master)
                )
            )
        self.await_well()

    def known(self, node: Server) -> list[str]:
        """The nodes that `node` knows, as CLUSTER NODES lists them, without those it has lost."""
        text = node.do("CLUSTER", "NODES")
        lines = (text.decode() if isinstance(text, bytes) else str(text)).splitlines()
        return [line for line in lines if "fail" not in line and "noaddr" not in line]

    def await_well(self) -> None:
        """Until all nodes serve all slots, and each replica is in step with its master."""

        def well(node: Server) -> bool:
            info = node.do("CLUSTER", "INFO")
            text = info.decode() if isinstance(info, bytes) else str(info)
            if "cluster_state:ok" not in text or f"cluster_slots_ok:{SLOTS}" not in text:
                return False
            replication = node.info("replication")
            return "role:master" in replication or "master_link_status:up" in replication

        for node in self.nodes:
            if node.process is not None:
                eventually(lambda node=node: well(node))  # type: ignore[misc]

    def id_of(self, node: Server) -> str:
        return str(node.do("CLUSTER", "MYID").decode())

    def masters(self) -> list[Server]:
        """Those that are up and own slots."""
        owners = {int(master[1]) for _, _, master, *_ in self._alive().do("CLUSTER", "SLOTS")}
        return [node for node in self.nodes if node.port in owners and node.process is not None]

    def _alive(self) -> Server:
        return next(node for node in self.nodes if node.process is not None)

    def replica_of(self, master: Server) -> Server:
        name = self.id_of(master)
        for node in self.nodes:
            if node.process is not None and node is not master:
                mine = next(line for line in self.known(node) if "myself" in line)
                if name in mine.split()[3]:
                    return node
        raise LookupError(f"expected a replica of {master.address}, found none")

    def slots_of(self, node: Server) -> list[int]:
        return [
            slot
            for first, last, master, *_ in self._alive().do("CLUSTER", "SLOTS")
            for slot in range(first, last + 1)
            if int(master[1]) == node.port
        ]

    def slots_in_use(self, node: Server) -> list[int]:
        """Those of the keys that it has now."""
        return sorted({key_slot(key) for key in node.do("KEYS", "*")})

    def set_slots(self, slots: list[int], source: Server, target: Server, state: str) -> None:
        """Tells the nodes that `slots` are on their way, or (state NODE) have moved."""
        names = {node: self.id_of(node) for node in (source, target)}
        told = (
            [(target, "IMPORTING", names[source]), (source, "MIGRATING", names[target])]
            if state == "MOVING"
            # The target first, else the source would tell clients of a node that does not know yet.
            else [(node, "NODE", names[target]) for node in [target, source]]
        )
        for node, word, name in told:
            with node.admin.pipeline(transaction=False) as pipe:
                for slot in slots:
                    pipe.execute_command("CLUSTER", "SETSLOT", slot, word, name)
                # A node that has lost its last slot has become a replica, which needs no notice.
                replies = pipe.execute(raise_on_error=False)
            failed = [reply for reply in replies if isinstance(reply, redis.ResponseError)]
            if failed and not (node is source and "only with masters" in str(failed[0])):
                raise failed[0]

    def migrate(self, slots: list[int], source: Server, target: Server) -> None:
        """Moves the keys of `slots`, as they are at the moment."""
        wanted = set(slots)
        while self.move_keys(
            [k for k in source.do("KEYS", "*") if key_slot(k) in wanted], source, target
        ):
            pass

    def move_keys(self, keys: list[bytes], source: Server, target: Server) -> int:
        """Moves these keys, whose slots are on their way. How many they are."""
        for _, of_slot in itertools.groupby(sorted(keys, key=key_slot), key_slot):
            source.do(
                *("MIGRATE", "127.0.0.1", target.port, "", 0, 20000, "REPLACE"),
                *("AUTH2", *ADMIN, "KEYS", *of_slot),
            )
        return len(keys)

    def uri(self, nodes: int = 6) -> str:
        return "redis+cluster://" + ",".join(node.address for node in self.nodes[:nodes])

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
