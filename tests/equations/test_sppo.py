"""SPPO: the loss by hand, win rates that count the sample itself, and a run that is resumed."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from support.resuming import check_third_arm, lose_optimizers
from support.small_batch import make_batch
from support.tiny_models import tiny_policy
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.core.advantages import group_sizes
from vigneron.core.losses import sppo
from vigneron.methods import build_method
from vigneron.policy.reference import Reference
from vigneron.run_store.folder import RunFolder
from vigneron.training.method import Method, unchanged
from vigneron.training.parts import Parts

METHOD = {"name": "sppo", "eta": 10.0}
REWARD = {"kind": "python", "function": "test_sppo:vowel_win_rate"}
COMMON: dict[str, Any] = {"reward": REWARD, "optimizer": {"actor_lr": 1e-3}}


def vowels(text: str) -> int:
    return sum(letter in "aeiouAEIOU" for letter in text)


def vowel_win_rate(prompts: list[str], completions: list[str], log_metric: Any, **columns: Any) -> list[float]:
    """Against the other completions of the prompt: more vowels win."""
    counts = [vowels(text) for text in completions]
    log_metric("vowels", sum(counts) / len(counts))
    rates = []
    for i, prompt in enumerate(prompts):
        others = [counts[j] for j, other in enumerate(prompts) if other == prompt and j != i]
        wins = [1.0 if counts[i] > other else 0.5 if counts[i] == other else 0.0 for other in others]
        rates.append(sum(wins) / len(wins))
    return rates


def built(tiny_folder: Path, data: Path, **options: Any) -> Method:
    config = tiny_config(tiny_folder, data, method=METHOD | options, **COMMON)
    policy = tiny_policy()
    return build_method(Parts.of(config, policy, Reference.of(policy), unchanged))


def test_the_loss_by_hand() -> None:
    """½ (log π − log π_t − η (P̂ − ½))²: ½ (−1 + 1.5 − 4 · 0.25)² = ½ · 0.25, ½ (−2 + 2 + 4 · 0.5)² = 2."""
    logps = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    losses = sppo(logps, torch.tensor([-1.5, -2.0]).double(), torch.tensor([0.75, 0.0]).double(), eta=4.0)
    assert losses.tolist() == pytest.approx([0.125, 2.0])
    losses.sum().backward()
    # The derivative is the bracket itself: 0.5 − 1 = −0.5 pushes a winner up, 0 + 2 = 2 pushes a loser down.
    assert logps.grad is not None
    assert logps.grad.tolist() == pytest.approx([-0.5, 2.0])


def test_a_missing_win_rate_gives_nan_and_no_gradient() -> None:
    logps = torch.tensor([-1.0, -2.0], requires_grad=True)
    losses = sppo(logps, torch.zeros(2), torch.tensor([math.nan, 0.5]))
    assert losses[0].isnan()
    losses[1].backward()
    assert logps.grad is not None
    assert logps.grad.tolist() == [0.0, -2.0]


def test_group_sizes_leave_out_missing_rewards() -> None:
    rewards = torch.tensor([1.0, math.nan, 0.5, 0.0, 2.0])
    assert group_sizes(rewards, torch.tensor([7, 7, 7, 3, 3])).tolist() == [2.0, 2.0, 2.0, 2.0, 2.0]


def test_win_rates_count_the_sample_itself_as_a_tie(tmp_path: Path, tiny_folder: Path) -> None:
    """Of three, against the others 1, 0.5 and 0: with itself (2 · 1 + ½) / 3, (1 + ½) / 3 and ½ / 3. The best and the
    worst are trained."""
    method = built(tiny_folder, write_data(tmp_path))
    batch = make_batch([2] * 3, [2] * 3, rewards_B=torch.tensor([0.5, 1.0, 0.0]), group_B=torch.tensor([4, 4, 4]))
    batch = method.advantage(batch)
    assert batch.signals.returns_BT[:, 0].tolist() == pytest.approx([0.5, 2.5 / 3, 0.5 / 3])
    assert batch.signals.excluded_B.tolist() == [True, False, False]
    assert batch.trained_BT.any(1).tolist() == [False, True, True]


def test_a_sample_that_is_not_trained_on_still_counts_as_an_opponent(tmp_path: Path, tiny_folder: Path) -> None:
    """Of four, against the three others 1, 2/3, 1/3 and 0: with itself (3 · R + ½) / 4. The best one was cut short
    (`mask_truncated`): the best and the worst of the rest are trained."""
    rewards_B, cut_B = torch.tensor([1.0, 2 / 3, 1 / 3, 0.0]), torch.tensor([True, False, False, False])
    given = make_batch([2] * 4, [2] * 4, rewards_B=rewards_B, group_B=torch.zeros(4).long(), excluded_B=cut_B)
    data = write_data(tmp_path)
    for samples, trained in (("best_and_worst", [False, True, False, True]), ("all", [False, True, True, True])):
        batch = built(tiny_folder, data, samples=samples).advantage(given)
        assert batch.signals.returns_BT[:, 0].tolist() == pytest.approx([0.875, 0.625, 0.375, 0.125])
        assert batch.trained_BT.any(1).tolist() == trained


def test_all_samples_are_trained_where_the_recipe_says_so(tmp_path: Path, tiny_folder: Path) -> None:
    method = built(tiny_folder, write_data(tmp_path), samples="all")
    batch = method.advantage(
        make_batch([2] * 2, [2] * 2, rewards_B=torch.tensor([1.0, 0.0]), group_B=torch.zeros(2).long())
    )
    assert batch.trained_BT.any(1).all()


@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_a_run_can_be_a_round(tmp_path: Path, tiny_folder: Path, top_p: float) -> None:
    """`against: reference`: π_t is the policy at the run's start, though another one sampled; both without top-p."""
    method, sampling = METHOD | {"against": "reference"}, {"top_p": top_p}
    config = tiny_config(tiny_folder, write_data(tmp_path), method=method, sampling=sampling, **COMMON)
    policy = tiny_policy()
    reference = Reference.of(policy)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    parts = Parts.of(config, policy, reference, unchanged)
    method = build_method(parts)
    batch = method.rollout([{"prompt": "not hot:"}], 0)
    win_rates = torch.linspace(0, 1, len(batch))
    batch = method.advantage(batch.with_signals(rewards_B=win_rates, excluded_B=None))
    (loss, *_) = method.update.loss(batch, parts.score(batch))  # type: ignore[attr-defined]
    mask = batch.samples.mask_BT
    start = parts.precompute(batch, parts.reference_pass)["reference_BT"]
    gap = ((parts.score_untruncated(batch).logprobs_BT - start) * mask).sum(1)
    wanted = 0.5 * (gap - 10 * (batch.signals.returns_BT[:, 0] - 0.5)) ** 2
    torch.testing.assert_close(loss.values, wanted, atol=1e-4, rtol=1e-4)
    assert gap.abs().max() > 0.01


@pytest.mark.slow
def test_winners_become_likelier(tmp_path: Path, tiny_folder: Path) -> None:
    """More vowels win: with the sign turned they would become rarer."""
    config = tiny_config(
        tiny_folder,
        write_data(tmp_path),
        method=METHOD,
        reward=REWARD,
        group_size=6,
        prompts_per_step=8,
        steps=25,
        eval_every=0,
        save_every=0,
        optimizer={"actor_lr": 5e-3},
    )
    counts = [record["reward/vowels"] for record in RunFolder(api.train(config, runs=tmp_path).folder).metrics()]
    assert sum(counts[-5:]) / 5 > 2 * sum(counts[:3]) / 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """A run of four steps that was never interrupted."""
    runs = tmp_path_factory.mktemp("whole")
    config = tiny_config(tiny_folder, write_data(runs), method=METHOD, steps=4, save_every=2, eval_every=0, **COMMON)
    return api.train(config, name="whole", runs=runs).folder


def test_the_optimizer_is_a_part_of_the_state(tmp_path: Path, whole: Path) -> None:
    check_third_arm(whole, tmp_path, lose_optimizers)
