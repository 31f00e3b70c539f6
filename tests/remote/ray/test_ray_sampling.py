"""Sampling by Ray actors on a real cluster of two nodes: the same samples as here, whoever dies meanwhile."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.ray_clusters import assert_same, local_cluster, nudge, policy_of, ray_config, write_data
from vigneron.config import Config
from vigneron.core.draws import Sampling
from vigneron.errors import UserError
from vigneron.remote.ray.cluster import Cluster
from vigneron.remote.ray.pool import Member
from vigneron.remote.ray.sampler import RaySampler, actors_of
from vigneron.remote.ray.sampling_actor import SamplingActor
from vigneron.rollout.engine.engine import Engine
from vigneron.rollout.engine.request import Request

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.cluster]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # our actors' processes do not see the tests
    with local_cluster(1, 2) as cluster:
        yield cluster


@pytest.fixture
def config(tmp_path: Path, tiny_folder: Path) -> Config:
    return ray_config(tiny_folder, write_data(tmp_path), actors=2)


def request_of(groups: int, size: int, step: int = 3, tokens: int = 6) -> Request:
    prompts = [[5 + g, 9, 33, 2 + g][: 1 + g % 4] for g in range(groups) for _ in range(size)]
    return Request(prompts, tokens, Sampling(), 7, step, range(100, 100 + groups * size), 4096)


def kill_at_work(member: Member, process: int) -> None:
    while not member.in_flight:
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)


class Stuck(SamplingActor):
    """At work until it is killed."""

    def sample(self, *arguments: Any) -> Any:
        while True:
            time.sleep(3600)


class Tampered(SamplingActor):
    """One bit of one weight is not what was sent."""

    def take(self, part: int, data: Any) -> None:
        changed = data.copy()
        changed[8] ^= 1
        super().take(part, changed)


def test_the_same_samples_as_here_and_every_version_is_acknowledged_and_recorded(nodes: Any, config: Config) -> None:
    policy, records = policy_of(config), []
    sampler = RaySampler(policy, config, Cluster(None), records.append)
    try:
        here = Engine(policy)
        for request in (request_of(6, 4), request_of(1, 5), request_of(1, 1)):
            assert_same(sampler.sample(request), here.sample(request))
        nudge(policy)
        assert_same(sampler.sample(request_of(6, 4, step=4)), here.sample(request_of(6, 4, step=4)))
        policy.eos_ids = frozenset(range(1, 200))
        assert_same(sampler.sample(request_of(3, 2)), here.sample(request_of(3, 2)))
        stops = replace(request_of(6, 4), stop=tuple("abcdefghijklmnopqrst"))
        assert_same(sampler.sample(stops), here.sample(stops))
    finally:
        sampler.close()
    assert [record["version"] for record in records] == [0, 0, 0, 1, 1, 1]
    assert len({record["checksum"] for record in records}) == 2
    assert all(sum(record["actors"].values()) == record["samples"] for record in records)
    busy = [len(record["actors"]) for record in records]  # a quick actor may be done before another is ready
    assert busy[2] == 1
    assert max(busy) == 2
    assert [record["step"] for record in records] == [4, 4, 4, 5, 4, 4]
    assert not any(record["replaced"] or record["resampled"] for record in records)


def test_an_actor_that_is_killed_at_work_is_replaced_and_its_prompts_sampled_again(nodes: Any, config: Config) -> None:
    policy, records, cluster, made = policy_of(config), [], Cluster(None), []
    kinds = [actors_of(cluster, kind, config.scale.sampling, config) for kind in (Stuck, SamplingActor)]

    def first_is_stuck() -> Any:
        made.append(None)
        return kinds[len(made) > 1]()

    sampler = RaySampler(policy, config, cluster, records.append, first_is_stuck)
    try:
        request = request_of(12, 8)
        member = sampler.pool.members[0]
        victim = int(member.name.split("/")[-1])
        threading.Thread(target=kill_at_work, args=(member, victim)).start()
        assert_same(sampler.sample(request), Engine(policy).sample(request))
        assert victim not in [int(member.name.split("/")[-1]) for member in sampler.pool.ready()]
    finally:
        sampler.close()
    (record,) = records
    assert (record["replaced"], sum(record["actors"].values())) == (1, 96)
    assert record["resampled"] > 0


def test_weights_that_came_changed_are_noticed_and_that_actor_is_replaced(nodes: Any, config: Config) -> None:
    policy, records, cluster, made = policy_of(config), [], Cluster(None), []
    kinds = {kind: actors_of(cluster, kind, config.scale.sampling, config) for kind in (Tampered, SamplingActor)}

    def first_is_tampered_with() -> Any:
        made.append(None)
        return kinds[Tampered if len(made) == 1 else SamplingActor]()

    sampler = RaySampler(policy, config, cluster, records.append, first_is_tampered_with)
    try:
        assert_same(sampler.sample(request_of(6, 4)), Engine(policy).sample(request_of(6, 4)))
        assert (records[0]["replaced"], records[0]["resampled"]) == (1, 0)
    finally:
        sampler.close()
    sampler = RaySampler(policy, config, cluster, records.append, kinds[Tampered])
    try:
        with pytest.raises(UserError, match=r"second that received version 0 corrupted: .* have the checksum"):
            sampler.sample(request_of(6, 4))
    finally:
        sampler.close()


def test_one_that_is_late_is_not_replaced(nodes: Any, config: Config) -> None:
    """The others have sampled everything, and there is another version, when it has loaded the last one."""

    class Late(SamplingActor):
        def acknowledge(self, version: int) -> Any:
            time.sleep(1.0)
            return super().acknowledge(version)

    policy, records, cluster, made = policy_of(config), [], Cluster(None), []
    kinds = [actors_of(cluster, kind, config.scale.sampling, config) for kind in (SamplingActor, Late)]

    def second_is_late() -> Any:
        made.append(None)
        return kinds[len(made) - 1]()

    sampler = RaySampler(policy, config, cluster, records.append, second_is_late)
    try:
        for _ in range(3):
            assert_same(sampler.sample(request_of(1, 1)), Engine(policy).sample(request_of(1, 1)))
            nudge(policy)
        sampler.pool.start(sampler.publish())
        assert [member.loaded_key for member in sampler.pool.members] == [3, 3]
    finally:
        sampler.close()
    assert [record["replaced"] for record in records] == [0, 0, 0]
    assert len(made) == 2


def test_one_that_does_not_answer_is_taken_for_dead_and_too_many_end_the_request(nodes: Any, config: Config) -> None:
    options = config.scale.sampling.model_copy(update={"timeout_s": 4.0, "actors": 1})
    config = config.model_copy(update={"scale": config.scale.model_copy(update={"sampling": options})})
    policy, cluster = policy_of(config), Cluster(None)
    sampler = RaySampler(policy, config, cluster, make=actors_of(cluster, Stuck, options, config))
    try:
        with pytest.raises(UserError, match=r"scale.sampling: 3 actors were lost .*no answer for 4 s"):
            sampler.sample(request_of(2, 2))
    finally:
        sampler.close()


@pytest.mark.parametrize("model", [{"lora": {"rank": 2}}, {"chat": "minted"}])
def test_adapters_and_minted_tokens_go_along(
    nodes: Any, tmp_path: Path, tiny_folder: Path, model: dict[str, Any]
) -> None:
    config = ray_config(tiny_folder, write_data(tmp_path), model=model)
    policy = policy_of(config)
    nudge(policy)
    sampler = RaySampler(policy, config, Cluster(None))
    try:
        assert_same(sampler.sample(request_of(5, 3)), Engine(policy).sample(request_of(5, 3)))
        if "lora" in model:
            assert sampler._sender.packer.bytes < sum(p.numel() for p in policy.model.parameters())
    finally:
        sampler.close()


def test_another_base_under_the_same_name_is_refused(nodes: Any, tmp_path: Path, tiny_folder: Path) -> None:
    config = ray_config(tiny_folder, write_data(tmp_path), model={"lora": {"rank": 2}})
    policy = policy_of(config)
    with torch.no_grad():
        next(p for p in policy.model.parameters() if not p.requires_grad).add_(1.0)
    with pytest.raises(UserError, match=f"the files of the model '{tiny_folder}' differ on "):
        RaySampler(policy, config, Cluster(None))
