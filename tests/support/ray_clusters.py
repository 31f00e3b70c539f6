"""Real Ray clusters of several nodes on this machine, and samplers on them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from support.tiny_runs import tiny_config, write_data
from vigneron.config import Config
from vigneron.policy.from_config import policy_from_config, seed_everything
from vigneron.policy.model import Policy
from vigneron.rollout.engine.request import Completions
from vigneron.run_store.samples import SampleStore

__all__ = ["Here", "assert_same", "local_cluster", "nudge", "policy_of", "ray_config", "samples_of", "write_data"]

STORE = 80 * 2**20


@contextmanager
def local_cluster(*nodes: int, connect: bool = True, gpus: int = 0) -> Iterator[Any]:
    """So many nodes with so many CPUs each; the first is the head, which has the GPUs, and which this process joins."""
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray.cluster_utils import Cluster

    common = {"object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": nodes[0], "num_gpus": gpus, **common})
    try:
        cluster.added = [cluster.add_node(num_cpus=cpus, object_store_memory=STORE) for cpus in nodes[1:]]
        if connect:
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def ray_config(folder: Path, data: Path, *, actors: int = 2, **changes: Any) -> Config:
    sampling = {"kind": "ray", "actors": actors, **changes.pop("sampling_on_ray", {})}
    scale = {"sampling": sampling, **changes.pop("scale", {})}
    options = {"model": {"name": str(folder), "device": "cpu", "dtype": "float32", **changes.pop("model", {})}}
    return tiny_config(folder, data, scale=scale, **options, **changes)


def policy_of(config: Config) -> Policy:
    seed_everything(config.seed)
    return policy_from_config(config)


def nudge(policy: Policy, by: float = 0.05) -> None:
    """What an update does: other weights, another version."""
    with torch.no_grad():
        for _, weight in policy.trainable():
            weight.add_(by * torch.randn_like(weight))
    policy.version += 1


def assert_same(actual: Completions, expected: Completions) -> None:
    """The same samples, and log-probs to rounding."""
    assert torch.equal(actual.lengths_B, expected.lengths_B)
    assert torch.equal(actual.truncated_B, expected.truncated_B)
    width = min(actual.ids_BT.shape[1], expected.ids_BT.shape[1])
    assert torch.equal(actual.ids_BT[:, :width], expected.ids_BT[:, :width])
    torch.testing.assert_close(actual.behaviour_BT[:, :width], expected.behaviour_BT[:, :width], atol=1e-5, rtol=0)
    torch.testing.assert_close(actual.prompt_hidden_BH, expected.prompt_hidden_BH, atol=1e-5, rtol=0)


class Here:
    """Watches a run, and does something after some of its steps."""

    def __init__(self, **after: Any) -> None:
        self.after = {int(name.removeprefix("step_")): act for name, act in after.items()}

    def notice(self, text: str) -> None: ...

    def step(self, run: Any, *_: Any) -> None:
        if run.step in self.after:
            self.after[run.step](run)


def samples_of(run: Path) -> list[tuple[Any, ...]]:
    store = SampleStore(run, read_only=True)
    return [
        (sample.step, sample.prompt, sample.completion)
        for part in ("train", "eval")
        for step in store.steps(part)
        for sample in store.page(step=step, kind=part)
    ]
