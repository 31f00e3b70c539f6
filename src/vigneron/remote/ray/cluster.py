"""The Ray cluster a run works on: joined, or started on this machine for the run alone."""

import importlib.util
import logging
import os
import signal
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from vigneron.config import PoolConfig
from vigneron.distributed import node_info as facts
from vigneron.errors import UserError, first_line

CONNECT_S = 10.0
# Ray frees what nobody refers to once a second. Each version of the weights would be put into memory that was never
# used yet, which costs several times the copying; freed at once, two versions take turns.
FREE_AFTER, FREE_AFTER_MS = "RAY_free_objects_period_milliseconds", "20"
# The type of a frame of HTTP/2.
SETTINGS = 4
# A node that has not answered a first question for so long has no process to spare, or is gone.
ANSWER_S = 60.0


def check_installed() -> None:
    if importlib.util.find_spec("ray") is None:
        raise UserError("scale: Ray is not installed: run `pip install ray`, or leave out what asks for it")


@dataclass(frozen=True)
class Wanted:
    """Actors of one kind; `key` is what the config calls them."""

    key: str
    pool: PoolConfig

    @property
    def each(self) -> str:
        gpus = f" and {self.pool.gpus:g} GPUs" if self.pool.gpus else ""
        return f"{self.pool.cpus:g} CPUs{gpus} each"


class Cluster:
    """`joined` before: whoever did that also leaves. Started or joined here, it is left by `close`."""

    def __init__(self, address: str | None) -> None:
        check_installed()
        import ray

        self.ray: Any = ray
        self.facts = facts.node_info()
        self.losses: list[str] = []
        """What pools say of actors that were lost, until somebody takes it."""
        self._ours = not ray.is_initialized()
        if self._ours:
            _connect(ray, address)

    def check(self, wanted: Sequence[Wanted]) -> None:
        """Room for all of them, and nodes that are alike, before anything is loaded."""
        self._check_room(wanted)
        able = [node for node in self.nodes() if any(_fit(node["Resources"], each.pool) for each in wanted)]
        self._check_alike(able)

    def nodes(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def room(self) -> str:
        """What the cluster has, a node each."""
        return "; ".join(
            f"{_named(node)}: {node['Resources'].get('CPU', 0):g} CPUs, {node['Resources'].get('GPU', 0):g} GPUs"
            for node in self.nodes()
        )

    def _check_room(self, wanted: Sequence[Wanted]) -> None:
        left = [dict(node["Resources"]) for node in self.nodes()]
        for each in wanted:
            placed = 0
            for node in left:
                while placed < each.pool.actors and _fit(node, each.pool):
                    node["CPU"] = node.get("CPU", 0) - each.pool.cpus
                    node["GPU"] = node.get("GPU", 0) - each.pool.gpus
                    placed += 1
            if placed < each.pool.actors:
                raise UserError(
                    f"{each.key}.actors: {each.pool.actors} with {each.each}, but the Ray cluster has room for "
                    f"{placed} ({self.room()}): ask for fewer, or for less of each node (`cpus`, `gpus`)"
                )

    def _check_alike(self, nodes: Sequence[dict[str, Any]]) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray = self.ray
        ray.cloudpickle.register_pickle_by_value(facts)
        try:
            ask = ray.remote(num_cpus=0, max_retries=0)(facts.node_info)
            asked = {
                ask.options(
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                ).remote(): node
                for node in nodes
            }
        finally:
            ray.cloudpickle.unregister_pickle_by_value(facts)
        answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S)
        if silent:
            raise UserError(f"scale: the Ray node {_named(asked[silent[0]])} has not answered for {ANSWER_S:g} s")
        for ref in answered:
            try:
                self.check_facts(ray.get(ref), _named(asked[ref]))
            except ray.exceptions.RayError as error:
                raise UserError(f"scale: the Ray node {_named(asked[ref])} failed: {first_line(error)}") from error

    def check_facts(self, there: dict[str, str | None], name: str) -> None:
        if (found := facts.difference(self.facts, there)) is not None:
            raise UserError(f"scale: the Ray node {name} has {found}: install the same on every node")

    def close(self) -> None:
        if self._ours and self.ray.is_initialized():
            self.ray.shutdown()
            _let_ray_speak(self.ray, True)


def _fit(resources: dict[str, float], pool: PoolConfig) -> bool:
    # Ray counts in steps of 0.0001.
    return all(
        resources.get(kind, 0.0) > need - 1e-5 for kind, need in (("CPU", pool.cpus), ("GPU", pool.gpus)) if need
    ) and bool(pool.cpus or pool.gpus or resources)


def _named(node: dict[str, Any]) -> str:
    return f"'{node['NodeManagerHostname']}' ({node['NodeManagerAddress']}, {node['NodeID'][:8]})"


def _connect(ray: Any, address: str | None) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault(FREE_AFTER, FREE_AFTER_MS)
        quiet |= {"address": "local", "include_dashboard": False}
    else:
        _check_answers(address)
        quiet |= {"address": address}
    main = threading.current_thread() is threading.main_thread()
    on_term = signal.getsignal(signal.SIGTERM)
    _let_ray_speak(ray, False)
    try:
        ray.init(**quiet)
    except Exception as error:  # the edge to somebody's cluster, or to this machine's limits
        if address is None:
            raise UserError(f"scale: Ray cannot be started: {first_line(error)}") from error
        hint = "every node needs the same Ray, and the same ~/.ray/auth_token where there is one"
        raise UserError(f"scale.ray_address: '{address}' cannot be joined: {first_line(error)} ({hint})") from error
    finally:
        if main and on_term is not None:
            signal.signal(signal.SIGTERM, on_term)  # Ray puts its own in its place


def _let_ray_speak(ray: Any, may: bool) -> None:
    """Of an actor that dies, Ray writes a page on stdout, where we write a line."""
    ray._private.worker._worker_logs_enabled = may


def _check_answers(address: str) -> None:
    """Ray itself would try for a quarter of an hour."""
    found: str | None = os.environ.get("RAY_ADDRESS") or address if address == "auto" else address
    if found == "auto":
        try:
            from ray._private.services import canonicalize_bootstrap_address

            found = canonicalize_bootstrap_address("auto")
        except ConnectionError as error:
            raise UserError(
                "scale.ray_address: 'auto' finds no Ray cluster on this machine: `ray start --head` first, or name "
                "its address"
            ) from error
        except ImportError:
            return
    host, _, port = str(found).rpartition(":")
    if "://" in host or not port.isdecimal():
        raise UserError(f"scale.ray_address: '{found}' is no address of a cluster: `auto`, or as in `10.0.0.1:6379`")
    speaks = True
    try:
        with suppress(TypeError), socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S) as opened:
            speaks = os.environ.get("RAY_USE_TLS") == "1" or _speaks_grpc(opened)
    except (OSError, OverflowError) as error:
        raise UserError(f"scale.ray_address: no Ray cluster answers at '{found}': {error}") from error
    if not speaks:
        raise UserError(f"scale.ray_address: what answers at '{found}' is no Ray cluster: its own port is 6379 mostly")


def _speaks_grpc(opened: socket.socket) -> bool:
    """Greeted in HTTP/2, a gRPC server says its settings first. Ray's dashboard, on a port beside, does not."""
    opened.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]))
    said = b""
    while len(said) < 4 and (more := opened.recv(64)):
        said += more
    return said[3:4] == bytes([SETTINGS])
