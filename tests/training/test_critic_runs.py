"""REINFORCE, PPO and TRPO in the loop with a real, tiny model: they learn, resume, and say what they did."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.learning import Learned, UntilLearned
from support.resuming import TrainedOnce, check_third_arm, drawing_reward, lose_nothing
from support.rewards import with_reward
from support.small_batch import make_batch
from support.tiny_models import tiny_policy
from support.tiny_runs import tiny_config, write_data
from vigneron.batch import Batch
from vigneron.methods import build_method
from vigneron.policy.reference import Reference
from vigneron.recipe import check_config
from vigneron.rewards.apply import ApplyReward
from vigneron.training.callbacks import Silent
from vigneron.training.loop import train
from vigneron.training.parts import Parts
from vigneron.training.run import Run
from vigneron.training.setup.start import start_run

METHOD_OPTIONS: dict[str, dict[str, Any]] = {
    "reinforce, critic": {"name": "reinforce"},
    "reinforce, own network": {"name": "reinforce", "critic": {"network": "own"}},
    "reinforce, running mean": {"name": "reinforce", "baseline": "running_mean"},
    "ppo": {"name": "ppo", "updates_per_step": 2, "minibatches": 2, "kl": {"coefficient": 0.01}},
    "ppo, eq. 12": {"name": "ppo", "advantage": "eq_12", "kl": {"coefficient": 0.01, "adaptive": {"rule": "ppo"}}},
    "trpo, penalty": {"name": "trpo", "penalty": {"coefficient": 0.1, "adaptive": {"rule": "ppo", "target": 0.05}}},
    "trpo, constraint": {"name": "trpo", "form": "constraint", "constraint": {"delta": 0.05, "iterations": 4}},
    "trpo, every token": {
        "name": "trpo",
        "form": "constraint",
        "constraint": {"delta": 1.0, "over": "max", "iterations": 4},
    },
    "grpo, resampled": {"name": "grpo", "resample": 2, "kl": {"coefficient": 0.0}},
}

LEARNING = ("reinforce, critic", "reinforce, running mean", "ppo", "ppo, eq. 12", "trpo, penalty", "trpo, constraint")
# Variants that `tests/faults/test_kills.py` does not kill and resume.
RESUMED = ("ppo, eq. 12", "trpo, every token", "grpo, resampled")


def options_of(name: str) -> dict[str, Any]:
    method = METHOD_OPTIONS[name]
    has_critic = method["name"] in ("ppo", "trpo") or (method["name"] == "reinforce" and "baseline" not in method)
    by_gradient = method.get("form") != "constraint"
    optimizer = ({"actor_lr": 1e-2} if by_gradient else {}) | ({"critic_lr": 1e-2} if has_critic else {})
    return {"method": method, "optimizer": optimizer, "group_size": 4, "eval_every": 0}


def share_of_vowels(completions: list[str], **columns: Any) -> list[float]:
    return [sum(c in "aeiouAEIOU" for c in text) / 4 for text in completions]


def trained(tmp_path: Path, model: Path, name: str, reward: Any, steps: int, until: UntilLearned | None = None) -> Run:
    """All of the steps; or those until it has learned, which it must within them."""
    config = tiny_config(model, write_data(tmp_path), **options_of(name), steps=steps, prompts_per_step=8, save_every=0)
    run = start_run(config, tmp_path, build_method, name="run", view=Silent())
    run.method = with_reward(run.method, ApplyReward(reward))
    with pytest.raises(Learned) if until else nullcontext():
        train(run, until or Silent())
    run.close()
    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
def test_the_policy_learns_what_is_rewarded(tmp_path: Path, tiny_folder: Path, name: str) -> None:
    """With the update's sign turned, vowels would become rarer: from a start of about 0.04 they could not reach 0.2."""
    steps = 20 if name == "trpo, constraint" else 40
    until = UntilLearned(0.2)
    run = trained(tmp_path, tiny_folder, name, share_of_vowels, steps, until)
    assert sum(until.values[:3]) / 3 < 0.12
    last = run.folder.metrics()[-1]
    if any(name.startswith("critic.") for name in run.method.update.weights()):
        assert {"loss/value", "critic/explained_variance"} <= set(last)
    if name == "trpo, constraint":
        assert all(r["kl_previous"] <= 0.05 for r in run.folder.metrics())


@pytest.mark.slow
def test_a_critic_comes_to_know_the_reward(tmp_path: Path, tiny_folder: Path) -> None:
    """A reward that the prompt decides alone: before any token the critic can know it."""

    def by_prompt(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        return [float(len(prompt) % 2) for prompt in prompts]

    until = UntilLearned(0.8, "critic/explained_variance")
    trained(tmp_path, tiny_folder, "reinforce, own network", by_prompt, 60, until)
    assert until.values[0] == pytest.approx(0.0, abs=1e-6), "it begins by saying 0 to everything"


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_is_the_same(tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce, name: str) -> None:
    check_third_arm(trained_once(name, drawing_config(tiny_folder, name)), tmp_path, lose_nothing)


def drawing_config(model: Path, name: str) -> Any:
    reward = {"kind": "python", "function": f"{drawing_reward.__module__}:drawing_reward"}
    return lambda place: tiny_config(model, write_data(place), **options_of(name), reward=reward, steps=4, save_every=2)


def lose_network(run: Any) -> None:
    with torch.no_grad():
        for name, parameter in run.method.update.weights().items():
            parameter.mul_(1.1 if name.startswith("critic.") else 1.0)


def lose_mean(run: Any) -> None:
    run.method.update.controller.total = 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lose"), [("reinforce, own network", lose_network), ("reinforce, running mean", lose_mean)]
)
def test_critic_and_mean_are_parts_of_the_state(
    tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce, name: str, lose: Any
) -> None:
    check_third_arm(trained_once(name, drawing_config(tiny_folder, name)), tmp_path, lose)


def trust_region(seed: int, delta: float, over: str) -> tuple[Any, Batch]:
    """A step on rewards and a policy that the seed draws."""
    policy = tiny_policy("llama", seed=seed, dtype=torch.float64)
    method = {"name": "trpo", "form": "constraint", "constraint": {"delta": delta, "over": over, "iterations": 5}}
    config = check_config(
        {"method": method, "data": {"task": "antonyms"}, "reward": {"kind": "binary"}, "max_new_tokens": 4}, "test"
    )
    built = build_method(Parts.of(config, policy, Reference.of(policy), lambda b: b))
    torch.manual_seed(seed)
    batch = make_batch([3, 2, 5], [2, 4, 3], rewards_B=torch.randn(3, dtype=torch.float64))
    ids = torch.randint(0, 50, batch.samples.completion_BT.shape)
    batch = batch.with_samples(completion_BT=ids, behaviour_BT=torch.zeros(ids.shape, dtype=torch.float64))
    seen = built.advantage(batch)
    return built, seen.with_samples(behaviour_BT=seen.signals.previous_BT)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000), delta=st.sampled_from([1e-4, 1e-2, 0.5]), over=st.sampled_from(["mean", "max"]))
def test_the_step_never_leaves_the_region(seed: int, delta: float, over: str) -> None:
    built, batch = trust_region(seed, delta, over)
    before = built.update._measure(batch)
    metrics = built.update(batch)
    after = built.update._measure(batch)
    assert before.kl_max == pytest.approx(0.0, abs=1e-12)
    assert (after.kl_max if over == "max" else after.kl_mean) <= delta
    assert metrics["trust/refused"] in (0.0, 1.0)
    assert after.surrogate < before.surrogate or metrics["trust/refused"] == 1.0
    if over == "mean" and delta <= 1e-2:
        assert after.kl_mean > delta / 100, "the region is made use of"


def test_a_step_that_cannot_improve_is_refused_and_moves_nothing() -> None:
    """Where all advantages are 0 no direction is better than standing still."""
    built, batch = trust_region(0, 0.01, "mean")
    weights = [p.detach().clone() for p in built.update.policy.model.parameters()]
    metrics = built.update(batch.with_signals(advantages_BT=torch.zeros_like(batch.signals.advantages_BT)))
    assert metrics["trust/refused"] == 1.0
    assert metrics["trust/share"] == 0.0
    for now, was in zip(built.update.policy.model.parameters(), weights, strict=True):
        assert torch.equal(now, was)


@pytest.mark.slow
def test_groups_that_teach_nothing_are_replaced(tmp_path: Path, tiny_folder: Path) -> None:
    """Only prompts with `o` in them get rewards that differ: drawn again, the batch has more of them."""

    def some_differ(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        return [float(i % 2) if "o" in prompt[4:] else 0.0 for i, prompt in enumerate(prompts)]

    shares = {}
    for name in ("grpo, resampled", "plain"):
        METHOD_OPTIONS["plain"] = {"name": "grpo", "kl": {"coefficient": 0.0}}
        folder = tmp_path / name
        folder.mkdir()
        run = trained(folder, tiny_folder, name, some_differ, steps=3)
        records = run.folder.metrics()
        shares[name] = sum(record["frac_reward_zero_std"] for record in records) / len(records)
        if name != "plain":
            assert all(record["groups_replaced"] > 0 for record in records)
            pages = run.folder.path / "samples.sqlite"
            assert pages.is_file()
    del METHOD_OPTIONS["plain"]
    assert shares["grpo, resampled"] < shares["plain"]


def test_idle_samples_are_left_out_of_the_pass_and_not_of_the_mean() -> None:
    """Without a KL, a group without variance costs no pass, and the step is the one that passes it through."""
    ends = []
    for skipping in (True, False):
        policy = tiny_policy("llama", dtype=torch.float64)
        config = check_config(
            {
                "method": {"name": "grpo", "kl": {"coefficient": 0.0}, "aggregation": "samples"},
                "data": {"task": "antonyms"},
                "reward": {"kind": "binary"},
                "group_size": 2,
                "max_new_tokens": 4,
            },
            "test",
        )
        method: Any = build_method(Parts.of(config, policy, Reference.of(policy), lambda b: b))
        rewards = torch.tensor([1.0, 0.0, 0.5, 0.5, 0.2, 0.9], dtype=torch.float64)
        batch = make_batch([3, 3, 2, 2, 4, 4], [2, 4, 3, 1, 2, 2], rewards_B=rewards)
        batch = batch.with_samples(
            completion_BT=batch.samples.completion_BT % 50, behaviour_BT=torch.full((6, 4), -3.0)
        )
        passed: list[int] = []
        inner = method.update.score
        method.update.score = lambda part, inner=inner, passed=passed: (
            passed.extend(part.samples.sample_B.tolist()),
            inner(part),
        )[1]
        if not skipping:
            method.update.idle = None
        method.update.after_update = None
        method.update(method.advantage(batch))
        assert sorted(passed) == ([40, 41, 44, 45] if skipping else [40, 41, 42, 43, 44, 45])
        ends.append(torch.cat([p.detach().flatten() for p in policy.model.parameters()]))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_a_step_without_rewards_leaves_the_running_mean_as_it_was(tmp_path: Path, tiny_folder: Path) -> None:
    config = tiny_config(
        tiny_folder, write_data(tmp_path), **options_of("reinforce, running mean"), steps=3, save_every=0
    )
    run = start_run(config, tmp_path, build_method, name="run", view=Silent())
    steps = iter([1.0, None, 0.5])

    def sometimes(completions: list[str], **columns: Any) -> list[float | None]:
        value = next(steps)
        return [value] * len(completions)

    run.method = with_reward(run.method, ApplyReward(sometimes, missing_limit=1.0))
    train(run, Silent())
    run.close()
    assert [record["baseline"] for record in run.folder.metrics()] == pytest.approx([0.0, 1.0, 1.0])


def test_groups_drawn_again_may_all_be_missing(tmp_path: Path, tiny_folder: Path) -> None:
    """One group of two is flat; its replacement gets no reward, which is not a whole step without any."""
    config = tiny_config(
        tiny_folder,
        write_data(tmp_path),
        method={"name": "grpo", "resample": 1, "kl": {"coefficient": 0.0}},
        optimizer={"actor_lr": 1e-3},
        prompts_per_step=2,
        steps=1,
        eval_every=0,
        save_every=0,
    )
    run = start_run(config, tmp_path, build_method, name="run", view=Silent())
    calls = iter([[1.0, 0.0, 0.5, 0.5], [None, None]])
    run.method = with_reward(run.method, ApplyReward(lambda **columns: next(calls), missing_limit=0.5))
    train(run, Silent())
    run.close()
    (record,) = run.folder.metrics()
    assert record["groups_replaced"] == 1
    assert record["reward_missing"] == 2
