"""Whole runs on a real Ray cluster of three nodes: the same run as without, whatever dies in the middle of it."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, LlamaConfig

from support.ray_clusters import Here, local_cluster, ray_config, samples_of, write_data
from support.tiny_models import GROUPED_HEADS, byte_tokenizer
from vigneron import api
from vigneron.config import Config, HereSamplingConfig, ScaleConfig
from vigneron.remote.ray.sampler import RaySampler
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.notices import kept_notices
from vigneron.run_store.samples import SampleStore

pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.cluster]

STEPS = 6


@pytest.fixture
def nodes() -> Iterator[Any]:
    with local_cluster(1, 2, 2) as cluster:
        yield cluster


def trained(config: Config, runs: Path, name: str, view: Any = None) -> Path:
    done = api.train(config, name=name, runs=runs, view=view)
    assert len(done.sample(["say hot: "])) == 1, "afterwards the child samples here"
    return done.folder


def without_ray(config: Config) -> Config:
    return config.model_copy(update={"scale": ScaleConfig(sampling=HereSamplingConfig())})


def assert_same_run(found: Path, expected: Path) -> None:
    assert samples_of(found) == samples_of(expected)
    for one, other in zip(RunFolder(found).metrics(), RunFolder(expected).metrics(), strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


def sampling_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "sampling.jsonl").read_text().splitlines()]


def grpo(folder: Path, data: Path, **changes: Any) -> Config:
    options = {"method": {"name": "grpo"}, "optimizer": {"actor_lr": 1e-2}, "group_size": 4}
    options |= {"steps": STEPS, "prompts_per_step": 8, "eval_every": 3, "save_every": 2}
    return ray_config(folder, data, actors=3, **{**options, **changes})


def kill_one(run: Any) -> None:
    sampler: RaySampler = run.policy.sampler
    os.kill(int(sampler.pool.ready()[0].name.split("/")[-1]), signal.SIGKILL)


def lose_a_node(nodes: Any, run: Any) -> None:
    """One that has samples to make: its actor is halted in the middle of them, and never goes on."""
    places = {node.node_id[:8]: node for node in nodes.added}
    member = next(each for each in run.policy.sampler.pool.ready() if each.name.split("/")[1] in places)
    _, place, process = member.name.split("/")
    while not member.in_flight:
        time.sleep(0.0005)
    os.kill(int(process), signal.SIGSTOP)
    nodes.remove_node(places[place], allow_graceful=False)
    os.kill(int(process), signal.SIGKILL)


def test_actors_and_a_node_die_and_the_run_is_the_same(nodes: Any, tmp_path: Path, tiny_folder: Path) -> None:
    config = grpo(tiny_folder, write_data(tmp_path), max_new_tokens=40)
    expected = trained(without_ray(config), tmp_path, "here")
    assert_same_run(trained(config, tmp_path, "ray"), expected)
    undisturbed = sampling_of(tmp_path / "ray")
    assert [record["version"] for record in undisturbed if not record["greedy"]] == list(range(STEPS))
    assert [record["step"] for record in undisturbed if record["greedy"]] == [0, 3, 6]
    assert not any(record["replaced"] for record in undisturbed)

    view = Here(step_2=kill_one, step_4=lambda run: Thread(target=lose_a_node, args=(nodes, run)).start())
    disturbed = trained(config, tmp_path, "killed", view)
    assert_same_run(disturbed, expected)
    records = sampling_of(disturbed)
    assert sum(record["replaced"] for record in records if record["version"] in (2, 3)) == 1
    assert sum(record["replaced"] for record in records if record["version"] >= 4) > 0
    assert sum(record["resampled"] for record in records if record["version"] == 4) > 0
    lost = [notice for notice in kept_notices(disturbed) if " was lost (" in notice.text]
    assert len(lost) == sum(record["replaced"] for record in records)
    assert {notice.kind for notice in lost} == {"warning"}
    # Weights come out the same on a CPU: a version has the same checksum whoever died before it.
    keys = ("step", "version", "greedy", "checksum", "samples")
    assert [[record[key] for key in keys] for record in records] == [
        [record[key] for key in keys] for record in undisturbed
    ]
    assert all(sum(record["actors"].values()) == record["samples"] for record in records)


def test_a_resumed_run_has_its_versions_recorded_once(nodes: Any, tmp_path: Path, tiny_folder: Path) -> None:
    config = grpo(tiny_folder, write_data(tmp_path), eval_every=0)
    expected = trained(config, tmp_path, "whole")

    def end(run: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(config, tmp_path, "stopped", Here(step_5=end))
    api.resume(tmp_path / "stopped")
    keys = ("step", "version", "checksum", "samples")
    found, whole = (
        [[record[key] for key in keys] for record in sampling_of(run)] for run in (tmp_path / "stopped", expected)
    )
    assert found == whole


def test_embedders_and_judges_in_pools_give_the_same_rewards(
    nodes: Any, tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_data(tmp_path)
    small: dict[str, Any] = {"steps": 2, "eval_every": 0}
    semantic = grpo(tiny_folder, data, **small)
    pools = ScaleConfig.model_validate({"embedding": {"actors": 2}})
    expected = trained(without_ray(semantic), tmp_path, "semantic")
    assert_same_run(trained(semantic.model_copy(update={"scale": pools}), tmp_path, "semantic-ray"), expected)

    rubric = tmp_path / "rubric.yaml"
    items = [{"name": "fine", "description": "is it fine?", "flow": "verify"}]
    rubric.write_text(yaml.safe_dump({"category_column": None, "categories": {"words": {"items": items}}}))
    judge = {"kind": "local", "model": str(judge_folder(tmp_path)), "reads": "yes_no"}
    judged = grpo(tiny_folder, data, reward={"kind": "rubric", "file": str(rubric), "judge": judge}, **small)
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "cache-here"))
    expected = trained(without_ray(judged), tmp_path, "judged")
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "cache-ray"))  # or the answers would be known
    pools = ScaleConfig.model_validate({"judging": {"actors": 2}})
    assert_same_run(trained(judged.model_copy(update={"scale": pools}), tmp_path, "judged-ray"), expected)
    rewards = {sample.reward for sample in SampleStore(expected, read_only=True).page(step=1)}
    assert len(rewards) > 4, "a judge that tells answers apart"


def judge_folder(folder: Path) -> Path:
    """A random model with room for a judge's prompt, and tokens for yes and no."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["yes", "no"])
    torch.manual_seed(3)
    config = LlamaConfig(**{**GROUPED_HEADS, "vocab_size": len(tokenizer), "max_position_embeddings": 4096})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    model.save_pretrained(folder / "judge")
    tokenizer.save_pretrained(folder / "judge")
    return folder / "judge"
