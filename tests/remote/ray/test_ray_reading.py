"""Actors that read new weights where they are: on the GPU that trains, by CUDA's handles; here, from files in memory.

What is shared, and how it is opened, is all that differs on a CPU.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.ray_clusters import assert_same, local_cluster, nudge, policy_of, ray_config, write_data
from vigneron.config import Config
from vigneron.core.draws import Sampling
from vigneron.policy.model import Policy
from vigneron.remote.ray import sampling_actor
from vigneron.remote.ray import weight_sync as sending
from vigneron.remote.ray.cluster import Cluster
from vigneron.remote.ray.sampler import RaySampler, actors_of
from vigneron.remote.ray.sampling_actor import SamplingActor
from vigneron.rollout.engine.engine import Engine
from vigneron.rollout.engine.request import Request

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
pytestmark = [pytest.mark.slow, pytest.mark.cluster]

REQUEST = Request([[5 + g, 9, 33] for g in range(8) for _ in range(4)], 6, Sampling(), 7, 3, range(32), 4096)
MEMORY = "memory that is shared"


@pytest.fixture(scope="module", autouse=True)
def nodes() -> Iterator[Any]:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # our actors' processes do not see the tests
    with local_cluster(2, gpus=torch.cuda.device_count()) as cluster:
        yield cluster


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_gpu)])
def config(request: pytest.FixtureRequest, tmp_path: Path, tiny_folder: Path) -> Config:
    gpus = {"gpus": 0.3} if request.param == "cuda" else {}
    return ray_config(tiny_folder, write_data(tmp_path), model={"device": request.param}, sampling_on_ray=gpus)


@pytest.fixture
def policy(config: Config) -> Policy:
    return policy_of(config)


@pytest.fixture
def sampler(policy: Policy, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RaySampler]:
    if config.model.device == "cpu":
        lend_by_files(monkeypatch, policy, tmp_path)
    cluster = Cluster(None)
    kind = FileReader if config.model.device == "cpu" else SamplingActor
    made = RaySampler(policy, config, cluster, make=actors_of(cluster, kind, config.scale.sampling, config))
    yield made
    made.close()


Two = Callable[[type[SamplingActor], type[SamplingActor]], tuple[RaySampler, Policy, list[dict[str, Any]]]]


@pytest.fixture
def two_of(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    """Two actors on the CPU, of these kinds. There is none to replace one of them."""
    made: list[RaySampler] = []

    def make(*kinds: type[SamplingActor]) -> tuple[RaySampler, Policy, list[dict[str, Any]]]:
        config, records = ray_config(tiny_folder, write_data(tmp_path)), []
        policy, cluster = policy_of(config), Cluster(None)
        lend_by_files(monkeypatch, policy, tmp_path)
        waiting = [actors_of(cluster, kind, config.scale.sampling, config) for kind in kinds]
        made.append(RaySampler(policy, config, cluster, records.append, lambda: waiting.pop(0)()))
        return made[0], policy, records

    yield make
    for sampler in made:
        sampler.close()


class FileReader(SamplingActor):
    def setup(self) -> Any:
        return replace(super().setup(), gpu=MEMORY)

    def read(self, *arguments: Any) -> Any:
        sampling_actor.open_handles = from_files
        return super().read(*arguments)


class LateReader(FileReader):
    def read(self, *arguments: Any) -> Any:
        time.sleep(1.5)
        return super().read(*arguments)


class ShutOut(FileReader):
    """On the same GPU, in a container of its own."""

    def read(self, *arguments: Any) -> Any:
        def cannot(handles: Any) -> Any:
            raise RuntimeError("no such memory")

        sampling_actor.open_handles = cannot
        return SamplingActor.read(self, *arguments)


def lend_by_files(monkeypatch: pytest.MonkeyPatch, policy: Policy, place: Path) -> None:
    monkeypatch.setattr(sending, "gpu_uuid", lambda device: MEMORY)
    monkeypatch.setattr(sending, "ipc_handles", in_files(policy, place))


def in_files(policy: Policy, place: Path) -> Callable[[Sequence[Tensor]], list[Any]]:
    """The policy's weights lie in files from now on, which other processes can have in their memory too."""
    handles: dict[int, tuple[Any, ...]] = {}
    for number, weight in enumerate(policy.model.parameters()):
        handle = (str(place / f"weight-{number}"), weight.shape, weight.dtype)
        (there,) = from_files([handle])
        weight.data = there.copy_(weight.detach())
        handles[there.data_ptr()] = handle
    return lambda tensors: [handles[tensor.data_ptr()] for tensor in tensors]


def from_files(handles: Sequence[Any]) -> list[Tensor]:
    return [
        torch.from_file(path, shared=True, size=shape.numel(), dtype=dtype).view(shape)
        for path, shape, dtype in handles
    ]


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
    assert all(member.has_handles for member in sampler.pool.members)


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
    assert all(member.has_handles for member in sampler.pool.members)
    assert stored(sampler) == 0


def test_a_published_version_stays_what_it_was(sampler: RaySampler, policy: Policy) -> None:
    members = list(sampler.pool.members)
    check_samples(sampler, policy)
    before, published = Engine(policy).sample(REQUEST), sampler.publish()
    nudge(policy)
    check_samples(sampler, policy)  # no actor has it any more
    sampler.use(published)
    assert_same(sampler.sample(REQUEST), before)
    sampler.use(None)
    check_samples(sampler, policy)
    sampler.use(published)
    assert_same(sampler.sample(REQUEST), before)
    assert sampler.pool.members == members


def test_a_late_reader_is_not_replaced(two_of: Two) -> None:
    """The weights are updated meanwhile: what it has read is nothing, and it is given what is asked for by then."""
    sampler, policy, records = two_of(FileReader, LateReader)
    check_samples(sampler, policy)
    before, published = Engine(policy).sample(REQUEST), sampler.publish()
    nudge(policy)
    sampler.use(published)
    assert_same(sampler.sample(REQUEST), before)
    sampler.pool.start(published)
    assert [member.loaded_key for member in sampler.pool.members] == [0, 0]
    sampler.use(None)
    check_samples(sampler, policy)
    sampler.use(published)
    many = replace(REQUEST, prompt_ids=[*REQUEST.prompt_ids] * 8, sample_ids=range(256))
    sampler.sample(many)
    assert not any(record["replaced"] for record in records)


def test_some_read_and_some_have_them_sent(two_of: Two) -> None:
    sampler, policy, records = two_of(FileReader, SamplingActor)
    for version in range(3):
        check_samples(sampler, policy)
        sampler.pool.start(sampler._sent)
        assert [member.loaded_key for member in sampler.pool.members] == [version, version]
        assert [member.has_handles for member in sampler.pool.members] == [True, False]
        assert stored(sampler) > 0
        nudge(policy)
    assert [(record["read"], record["replaced"]) for record in records] == [(1, 0)] * 3


def test_who_cannot_read_has_them_sent(two_of: Two) -> None:
    sampler, policy, records = two_of(ShutOut, ShutOut)
    for _ in range(2):
        check_samples(sampler, policy)
        sampler.pool.start(sampler._sent)
        assert stored(sampler) > 0
        nudge(policy)
    assert [(record["read"], record["replaced"]) for record in records] == [(0, 0)] * 2


def test_memory_that_has_no_handles_goes_through_the_store(
    sampler: RaySampler, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_handles(tensors: Any) -> Any:
        raise RuntimeError("no handle of this memory")

    monkeypatch.setattr(sending, "ipc_handles", no_handles)
    for _ in range(2):
        check_samples(sampler, policy)
        assert stored(sampler) > 0
        nudge(policy)
    assert not any(member.same_gpu for member in sampler.pool.members)
