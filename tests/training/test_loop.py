"""The loop with a real, tiny model: it learns, it logs what happened, and it stops when something is wrong."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.fault_runs import drawing_reward
from support.learning import Learned, UntilLearned
from support.rewards import with_reward
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.batch import Batch
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.rewards.apply import ApplyReward
from vigneron.rollout.engine.engine import Engine
from vigneron.training.callbacks import Silent
from vigneron.training.loop import train
from vigneron.training.run import Run
from vigneron.training.setup.start import start_run
from vigneron.training.update import NonFinite


def start(tmp_path: Path, model: Path, **changes: Any) -> Run:
    config = tiny_config(model, write_data(tmp_path), **{"eval_every": 0, "save_every": 0, **changes})
    return start_run(config, tmp_path, build_method, name="run", view=Silent())


def share_of_vowels(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """A reward that a tiny model can learn in seconds."""
    return [sum(c in "aeiouAEIOU" for c in text) / 4 for text in completions]


def test_the_policy_learns_what_is_rewarded(tmp_path: Path, tiny_folder: Path) -> None:
    run = start(
        tmp_path,
        tiny_folder,
        steps=40,
        prompts_per_step=16,
        method={"name": "actor_critic", "entropy_coefficient": 0.0, "kl": {"coefficient": 0.0}},
        optimizer={"actor_lr": 1e-2, "critic_lr": 1e-2},
    )
    run.method = with_reward(run.method, ApplyReward(share_of_vowels))
    with pytest.raises(Learned):
        train(run, until := UntilLearned(0.5))
    run.close()
    assert sum(until.values[:3]) / 3 < 0.1


def test_a_run_that_is_over_keeps_no_gradients_and_no_graphs(tmp_path: Path, tiny_folder: Path) -> None:
    """Its model may be used on, and the next run of the process needs the memory."""
    run = start(tmp_path, tiny_folder, steps=1)
    train(run, Silent())
    policy = run.policy
    assert isinstance(policy.sampler, Engine)
    for weight in policy.model.parameters():
        weight.grad = torch.zeros_like(weight)
    graphs = policy._inference_graphs, policy.sampler._graphs
    for some in graphs:
        some._seen.add("a shape")
    run.close()
    assert all(weight.grad is None for weight in policy.model.parameters())
    assert policy._inference_graphs is not graphs[0]
    assert not graphs[1]._seen


def test_metrics_say_what_the_batch_was(tmp_path: Path, tiny_folder: Path) -> None:
    run = start(tmp_path, tiny_folder, steps=1)
    kept: list[Batch] = []

    class Keeper:
        def notice(self, text: str) -> None: ...
        def step(self, run: Run, metrics: dict[str, float], batch: Batch, seconds: float) -> None:
            kept.append(batch)

    train(run, Keeper())
    run.close()
    (batch,) = kept
    (record,) = run.folder.metrics()
    assert record["reward"] == pytest.approx(batch.signals.rewards_B.mean().item())
    assert record["reward_std"] == pytest.approx(batch.signals.rewards_B.std().item(), rel=1e-5)
    assert record["completions/mean_length"] == pytest.approx(batch.samples.lengths_B.float().mean().item())
    assert record["completions/clipped_ratio"] == pytest.approx(batch.samples.truncated_B.float().mean().item())
    assert record["kl"] == pytest.approx(0.0, abs=1e-6), "the policy has not moved yet"
    assert record["kl_previous"] > 0, "and then it has"
    assert record["entropy"] == pytest.approx(math.log(260), rel=0.05), "a random model is nearly uniform"
    assert record["logprob_mismatch"] < 1e-4
    assert "seconds" not in record
    samples = run.folder.path / "samples.sqlite"
    assert samples.is_file()


def test_how_often_a_run_is_evaluated_changes_nothing(tmp_path: Path, tiny_folder: Path) -> None:
    """A reward that draws random numbers gets the same ones in training."""
    weights = []
    for often in (1, 3):
        folder = tmp_path / str(often)
        folder.mkdir()
        run = start(folder, tiny_folder, steps=3, eval_every=often)
        run.method = with_reward(run.method, reward := ApplyReward(drawing_reward))
        run.reward = reward
        torch.manual_seed(0)
        train(run, Silent())
        run.close()
        weights.append({name: tensor.clone() for name, tensor in run.policy.model.state_dict().items()})
    every, last = weights
    for name, tensor in every.items():
        assert torch.equal(tensor, last[name]), name


def test_a_nan_stops_the_run_before_the_weights_are_touched(tmp_path: Path, tiny_folder: Path) -> None:
    run = start(tmp_path, tiny_folder, steps=3)
    before = [p.clone() for p in run.policy.model.parameters()]

    def poisoned(batch: Batch) -> Batch:
        advantages = torch.full(batch.samples.completion_BT.shape, torch.inf)
        return run.method.advantage(batch).with_signals(advantages_BT=advantages)

    train_with = replace(run.method, advantage=poisoned)
    batch = train_with.reward(train_with.rollout(run.curriculum.at(0), 0))
    with pytest.raises(NonFinite, match="not finite"):
        run.method.update(train_with.advantage(batch))
    run.close()
    for a, b in zip(before, run.policy.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_step_whose_rewards_are_all_missing_changes_nothing(tmp_path: Path, tiny_folder: Path) -> None:
    run = start(tmp_path, tiny_folder, steps=1)
    before = [p.clone() for p in run.policy.model.parameters()]
    batch = run.method.rollout(run.curriculum.at(0), 0)
    batch = batch.with_signals(rewards_B=torch.full((len(batch),), torch.nan))
    update: Any = run.method.update
    coefficient = update.controller.coefficient
    metrics = update(run.method.advantage(batch))
    run.close()
    assert metrics == {}, "a KL that was not measured is not 0"
    assert update.controller.coefficient == coefficient
    assert update.done == 1, "the schedule goes by steps"
    for a, b in zip(before, run.policy.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_order_of_prompts_visits_every_row_once_an_epoch(tmp_path: Path, tiny_folder: Path) -> None:
    run = start(tmp_path, tiny_folder, prompts_per_step=3)
    run.close()
    rows = [row["answer"] for step in range(10) for row in run.curriculum.at(step)]
    epochs = [rows[i : i + 10] for i in (0, 10, 20)]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_one_update_a_step_says_that_clipping_is_idle(tmp_path: Path, tiny_folder: Path) -> None:
    notices: list[str] = []

    class Ear:
        def notice(self, text: str) -> None:
            notices.append(text)

        def step(self, *_: Any) -> None: ...

    config = tiny_config(
        tiny_folder, write_data(tmp_path), steps=1, eval_every=0, method={"name": "actor_critic", "clip_epsilon": 0.2}
    )
    api.train(config, name="run", runs=tmp_path, view=Ear())
    assert "one update a step: the trained policy is the one that sampled, so clip_epsilon has no effect" in notices


@pytest.mark.parametrize("sampling", [{"top_k": 5, "top_p": 0.9}, {"temperature": 0.5}, {"top_p": 0.3}])
@pytest.mark.parametrize("estimator", ["exact", "k2"])
def test_equal_policies_have_a_kl_of_zero_however_they_are_sampled(
    tmp_path: Path, tiny_folder: Path, sampling: dict[str, float], estimator: str
) -> None:
    method = {"name": "actor_critic", "kl": {"estimator": estimator}}
    run = start(tmp_path, tiny_folder, steps=1, sampling=sampling, method=method)
    train(run, Silent())
    run.close()
    (record,) = run.folder.metrics()
    assert record["kl"] == pytest.approx(0.0, abs=1e-5)
    assert record["loss/kl"] == pytest.approx(0.0, abs=1e-5)


def test_completions_that_were_cut_may_be_left_out(tmp_path: Path, tiny_folder: Path) -> None:
    run = start(tmp_path, tiny_folder, steps=1, sampling={"mask_truncated": True})
    batch = run.method.reward(run.method.rollout(run.curriculum.at(0), 0))
    run.close()
    assert batch.samples.truncated_B.any()
    assert torch.equal(batch.trained_BT.any(1), ~batch.samples.truncated_B)


def test_a_rewards_own_metrics_stand_beside_the_runs(tmp_path: Path, tiny_folder: Path) -> None:
    def reward(completions: list[str], log_metric: Any, **columns: Any) -> list[float]:
        log_metric("step", 99)
        log_metric("reward", 98)
        return [0.5] * len(completions)

    run = start(tmp_path, tiny_folder, steps=1)
    run.method = with_reward(run.method, ApplyReward(reward))
    train(run, Silent())
    run.close()
    (record,) = run.folder.metrics()
    assert (record["step"], record["reward"]) == (1, 0.5)
    assert (record["reward/step"], record["reward/reward"]) == (99.0, 98.0)


def test_several_updates_log_their_clipping(tmp_path: Path, tiny_folder: Path) -> None:
    method = {"name": "actor_critic", "clip_epsilon": 0.01, "updates_per_step": 4}
    run = start(tmp_path, tiny_folder, steps=1, method=method, optimizer={"actor_lr": 0.05, "critic_lr": 1e-3})
    train(run, Silent())
    run.close()
    (record,) = run.folder.metrics()
    assert 0.0 < record["clip_ratio/region_mean"] <= 0.75, "none in the first of four updates"
    assert record["kl"] == pytest.approx(0.0, abs=1e-6), "of the policy that sampled"


def test_a_prompt_that_does_not_fit_is_found_at_the_start(tiny_folder: Path, tmp_path: Path) -> None:
    """The tiny model has room for 64 tokens; the third row of the training data is longer."""
    data = tmp_path / "rows.jsonl"
    rows = [{"prompt": prompt, "answer": "b"} for prompt in ("a", "b", "a" * 70, "b" * 70, "c" * 70)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = tiny_config(tiny_folder, data)
    with pytest.raises(
        UserError, match=r"3 prompts do not fit .* prompt 3 of the training data \('.*', row 3\), 70 tokens"
    ):
        start_run(config, tmp_path / "runs", build_method, view=Silent())
    assert not list((tmp_path / "runs").iterdir())
