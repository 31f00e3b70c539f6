"""The Ray cluster of a run: an existing one, or one started on this machine for the run."""

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
from vigneron.distributed import node_info as node_module
from vigneron.distributed.node_info import node_info, version_mismatch
from vigneron.errors import UserError, first_line

CONNECT_S = 10.0
# Ray frees unreferenced objects once a second. Each version of the weights would then be written to fresh memory, which
# costs several times the copy itself; freed promptly, two versions reuse the same memory.
FREE_PERIOD, FREE_PERIOD_MS = "RAY_free_objects_period_milliseconds", "20"
# The SETTINGS frame type of HTTP/2.
SETTINGS = 4
# Seconds for a node to answer a first request; a node that takes longer has no free process or is down.
ANSWER_S = 60.0


def check_installed() -> None:
    if importlib.util.find_spec("ray") is None:
        raise UserError("scale: Ray is not installed: run `pip install ray`, or remove the `scale` keys that need it")


@dataclass(frozen=True)
class PoolSpec:
    """A pool of actors and its config key, such as `scale.sampling`."""

    key: str
    pool: PoolConfig

    @property
    def each(self) -> str:
        gpus = f" and {self.pool.gpus:g} GPUs" if self.pool.gpus else ""
        return f"{self.pool.cpus:g} CPUs{gpus} each"


class Cluster:
    """A connection to a Ray cluster. `close` disconnects, unless the process was connected before."""

    def __init__(self, address: str | None) -> None:
        check_installed()
        import ray

        self.ray: Any = ray
        self.node_info = node_info()
        self.warnings: list[str] = []
        """Warnings about lost actors that were not reported yet."""
        self._ours = not ray.is_initialized()
        if self._ours:
            _connect(ray, address)

    def check(self, specs: Sequence[PoolSpec]) -> None:
        """Check resources for all pools and the versions on the nodes, before anything is loaded."""
        self._check_resources(specs)
        able = [node for node in self.nodes() if any(_fit(node["Resources"], spec.pool) for spec in specs)]
        self._check_nodes(able)

    def nodes(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def resources(self) -> str:
        """CPUs and GPUs of each node, as text."""
        return "; ".join(
            f"{_named(node)}: {node['Resources'].get('CPU', 0):g} CPUs, {node['Resources'].get('GPU', 0):g} GPUs"
            for node in self.nodes()
        )

    def _check_resources(self, specs: Sequence[PoolSpec]) -> None:
        free = [dict(node["Resources"]) for node in self.nodes()]
        for spec in specs:
            placed = 0
            for node in free:
                while placed < spec.pool.actors and _fit(node, spec.pool):
                    node["CPU"] = node.get("CPU", 0) - spec.pool.cpus
                    node["GPU"] = node.get("GPU", 0) - spec.pool.gpus
                    placed += 1
            if placed < spec.pool.actors:
                raise UserError(
                    f"{spec.key}.actors: {spec.pool.actors} with {spec.each}, but the Ray cluster has room for "
                    f"{placed} ({self.resources()}): set fewer actors, or fewer `cpus` or `gpus` for each"
                )

    def _check_nodes(self, nodes: Sequence[dict[str, Any]]) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray = self.ray
        ray.cloudpickle.register_pickle_by_value(node_module)
        try:
            remote_info = ray.remote(num_cpus=0, max_retries=0)(node_info)
            pending = {
                remote_info.options(
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                ).remote(): node
                for node in nodes
            }
        finally:
            ray.cloudpickle.unregister_pickle_by_value(node_module)
        answered, silent = ray.wait(list(pending), num_returns=len(pending), timeout=ANSWER_S)
        if silent:
            raise UserError(f"scale: the Ray node {_named(pending[silent[0]])} did not answer within {ANSWER_S:g} s")
        for ref in answered:
            try:
                self.check_versions(ray.get(ref), _named(pending[ref]))
            except ray.exceptions.RayError as error:
                raise UserError(f"scale: the Ray node {_named(pending[ref])} failed: {first_line(error)}") from error

    def check_versions(self, info: dict[str, str | None], name: str) -> None:
        if (mismatch := version_mismatch(self.node_info, info)) is not None:
            raise UserError(f"scale: the Ray node {name} has {mismatch}: install the same version on every node")

    def close(self) -> None:
        if self._ours and self.ray.is_initialized():
            self.ray.shutdown()
            _set_worker_logs(self.ray, True)


def _fit(resources: dict[str, float], pool: PoolConfig) -> bool:
    # Ray counts in steps of 0.0001.
    return all(
        resources.get(kind, 0.0) > need - 1e-5 for kind, need in (("CPU", pool.cpus), ("GPU", pool.gpus)) if need
    ) and bool(pool.cpus or pool.gpus or resources)


def _named(node: dict[str, Any]) -> str:
    return f"'{node['NodeManagerHostname']}' ({node['NodeManagerAddress']}, {node['NodeID'][:8]})"


def _connect(ray: Any, address: str | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault(FREE_PERIOD, FREE_PERIOD_MS)
        options |= {"address": "local", "include_dashboard": False}
    else:
        _check_reachable(address)
        options |= {"address": address}
    main = threading.current_thread() is threading.main_thread()
    on_term = signal.getsignal(signal.SIGTERM)
    _set_worker_logs(ray, False)
    try:
        ray.init(**options)
    except Exception as error:  # an external cluster, or this machine's limits: anything can fail
        if address is None:
            raise UserError(f"scale: Ray cannot be started: {first_line(error)}") from error
        hint = "every node needs the same Ray version, and the same ~/.ray/auth_token if there is one"
        raise UserError(f"scale.ray_address: cannot join '{address}': {first_line(error)} ({hint})") from error
    finally:
        if main and on_term is not None:
            signal.signal(signal.SIGTERM, on_term)  # Ray installs its own handler


def _set_worker_logs(ray: Any, enabled: bool) -> None:
    """Ray prints a page on stdout when an actor dies; our one-line warning replaces it."""
    ray._private.worker._worker_logs_enabled = enabled


def _check_reachable(address: str) -> None:
    """Fail early: Ray itself would retry for a quarter of an hour."""
    resolved: str | None = os.environ.get("RAY_ADDRESS") or address if address == "auto" else address
    if resolved == "auto":
        try:
            from ray._private.services import canonicalize_bootstrap_address

            resolved = canonicalize_bootstrap_address("auto")
        except ConnectionError as error:
            raise UserError(
                "scale.ray_address: 'auto' finds no Ray cluster on this machine: run `ray start --head`, or give the "
                "cluster's address"
            ) from error
        except ImportError:
            return
    host, _, port = str(resolved).rpartition(":")
    if "://" in host or not port.isdecimal():
        raise UserError(f"scale.ray_address: '{resolved}' is not a cluster address: expected `auto` or `10.0.0.1:6379`")
    is_grpc = True
    try:
        with suppress(TypeError), socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S) as opened:
            is_grpc = os.environ.get("RAY_USE_TLS") == "1" or _is_grpc(opened)
    except (OSError, OverflowError) as error:
        raise UserError(f"scale.ray_address: no Ray cluster answers at '{resolved}': {error}") from error
    if not is_grpc:
        raise UserError(f"scale.ray_address: the server at '{resolved}' is not a Ray cluster: Ray's usual port is 6379")


def _is_grpc(opened: socket.socket) -> bool:
    """A gRPC server answers an HTTP/2 preface with a SETTINGS frame; Ray's dashboard does not."""
    opened.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]))
    received = b""
    while len(received) < 4 and (more := opened.recv(64)):
        received += more
    return received[3:4] == bytes([SETTINGS])
