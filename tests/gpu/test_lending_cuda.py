"""Ray actors on the GPU that trains read new weights where they are: nothing goes through the object store."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

sys.path.append(str(Path(__file__).parent.parent / "scale"))
from ray_clusters import assert_same, nudge, policy_of, ray_config, write_data

sys.path.append(str(Path(__file__).parent.parent / "training"))
from helpers import tiny_recipe

from vigneron.config import Config
from vigneron.core.draws import Sampling
from vigneron.policy.model import Policy
from vigneron.rollout.engine import Engine
from vigneron.rollout.request import Request
from vigneron.scale import sending
from vigneron.scale.cluster import Cluster
from vigneron.scale.ray_sampler import RaySampler

pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ON_ONE_GPU: dict[str, Any] = {"model": {"device": "cuda"}, "sampling_on_ray": {"gpus": 0.3}}
REQUEST = Request([[5 + g, 9, 33] for g in range(8) for _ in range(4)], 6, Sampling(), 7, 3, range(32), 4096)


@pytest.fixture
def config(tmp_path: Path, tiny_folder: Path) -> Config:
    return ray_config(tiny_folder, write_data(tmp_path), **ON_ONE_GPU)


@pytest.fixture
def policy(config: Config) -> Policy:
    return policy_of(config)


@pytest.fixture
def sampler(policy: Policy, config: Config) -> Iterator[RaySampler]:
    cluster = Cluster(None)
    made = RaySampler(policy, config, cluster)
    yield made
    made.close()
    cluster.close()


def check_samples(sampler: RaySampler, policy: Policy) -> None:
    assert_same(sampler.sample(REQUEST), Engine(policy).sample(REQUEST))


def stored(sampler: RaySampler) -> int:
    """Parts of the last version in the object store."""
    assert sampler._sent is not None
    return len(sampler._sent.parts)


def test_every_version_is_read_where_it_is(sampler: RaySampler, policy: Policy) -> None:
    for _ in range(4):
        check_samples(sampler, policy)
        assert stored(sampler) == 0
        nudge(policy)
    assert all(member.lent for member in sampler.pool.members)


def test_an_actor_in_a_dead_one_s_place_reads_too(sampler: RaySampler, policy: Policy) -> None:
    check_samples(sampler, policy)
    victim = sampler.pool.members[0]
    os.kill(int(victim.name.split("/")[-1]), signal.SIGKILL)
    while victim in sampler.pool.members:
        nudge(policy)
        check_samples(sampler, policy)
    sampler.pool.start()
    nudge(policy)
    check_samples(sampler, policy)
    assert len(sampler.pool.ready()) == 2
    assert all(member.lent for member in sampler.pool.members)
    assert stored(sampler) == 0


def test_a_published_version_stays_what_it_was(sampler: RaySampler, policy: Policy) -> None:
    check_samples(sampler, policy)
    before, published = Engine(policy).sample(REQUEST), sampler.publish()
    nudge(policy)
    sampler.use(published)
    assert_same(sampler.sample(REQUEST), before)
    sampler.use(None)
    check_samples(sampler, policy)


def test_memory_that_has_no_handles_goes_through_the_store(
    sampler: RaySampler, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_handles(tensors: Any) -> Any:
        raise RuntimeError("no handle of this memory")

    monkeypatch.setattr(sending, "lent", no_handles)
    for _ in range(2):
        check_samples(sampler, policy)
        assert stored(sampler) > 0
        nudge(policy)
    assert not any(member.near for member in sampler.pool.members)


def test_a_run_ends_without_a_word_of_torch_s(tmp_path: Path, tiny_folder: Path) -> None:
    """It would warn of memory that others still have."""
    recipe = tiny_recipe(
        tiny_folder,
        write_data(tmp_path),
        model={"name": str(tiny_folder), "device": "cuda"},
        reward={"kind": "semantic", "embedder": "lexical", "form": "shift", "clean": "none"},
        scale={"sampling": {"kind": "ray", "actors": 2, "gpus": 0.3}},
        steps=2,
    )
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    command = [sys.executable, "-m", "vigneron", "train", "tiny.yaml", "--name", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "Producer" not in done.stderr + done.stdout
    assert "CudaIPC" not in done.stderr + done.stdout
