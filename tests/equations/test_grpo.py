"""GRPO (eq. 13-14, with a KL) against a plain rewriting of it: one token at a time, no padding, no microbatches."""

import math
import statistics
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from support.small_batch import make_batch, rewarded_batch
from support.tiny_models import tiny_policy
from vigneron.batch import Batch
from vigneron.core.losses import aggregate
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.methods.terms import clipped_terms
from vigneron.policy.logprobs import Scores
from vigneron.policy.reference import Reference
from vigneron.recipe import check_config
from vigneron.training.parts import Parts

# Three prompts, and three samples of each, of different lengths; the rewards of the last group do not differ.
PROMPTS = tuple(prompt for prompt in ((5, 9, 33, 2), (7, 8), (40, 41, 42, 43, 44, 45)) for _ in range(3))
COMPLETIONS = ((11, 12, 0), (13,), (14, 15), (16, 17, 18), (0,), (19, 20, 0), (21,), (22, 23), (24, 0))
REWARDS = (1.0, 0.0, 0.4, 0.25, 0.75, 0.2, 0.5, 0.5, 0.5)
GROUPS = (0, 0, 0, 1, 1, 1, 2, 2, 2)
# log π₁ − log π₀ of the tokens, in turn: ratios 0.55, 0.86, 1, 1.16 and 1.65, so that some are clipped on each side.
LOG_RATIOS = (-0.6, -0.15, 0.0, 0.15, 0.5)
RATE = 0.1


def log_ratios(row: int) -> list[float]:
    return [LOG_RATIOS[(2 * row + at) % len(LOG_RATIOS)] for at in range(len(COMPLETIONS[row]))]


class Setting:
    """A tiny GPT-2 in float64 that has moved away from its reference, and a plain copy of both.

    The optimizer is plain gradient descent: what a step changes is its gradient.
    """

    def __init__(self, *, microbatch_tokens: int = 12, on_policy: bool = False, **method: Any) -> None:
        self.policy = tiny_policy("gpt2", dtype=torch.float64)
        reference = Reference.of(self.policy)
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in self.policy.model.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
        config = check_config(
            {
                "method": {"name": "grpo", **method},
                "data": {"task": "antonyms"},
                "reward": {"kind": "binary"},
                "optimizer": {"actor_lr": RATE, "max_grad_norm": 1e9},
                "microbatch_tokens": microbatch_tokens,
                "group_size": 3,
                "max_new_tokens": 3,
            },
            "test",
        )
        self.method = build_method(Parts.of(config, self.policy, reference, lambda b: b))
        (actor,) = self.method.update.optimized  # type: ignore[attr-defined]
        actor.optimizer = torch.optim.SGD([parameter for _, parameter in actor.parameters], lr=RATE)
        self.model, self.start = deepcopy(self.policy.model), reference.policy.model
        self.behaviour = [
            [now - (0.0 if on_policy else moved) for now, moved in zip(logps.tolist(), log_ratios(row), strict=True)]
            for row, logps in enumerate(self.plain_chosen(self.model))
        ]

    @staticmethod
    def plain_logprobs(model: Any, row: int) -> Tensor:
        """Log-probs over the vocabulary at each completion token of a row."""
        prompt, completion = PROMPTS[row], COMPLETIONS[row]
        logits = model(torch.tensor([prompt + completion])).logits[0]
        return logits[len(prompt) - 1 : -1].log_softmax(-1)

    def plain_chosen(self, model: Any) -> list[Tensor]:
        with torch.no_grad():
            rows = range(len(PROMPTS))
            return [
                self.plain_logprobs(model, row).gather(1, torch.tensor(COMPLETIONS[row])[:, None])[:, 0] for row in rows
            ]

    def batch(self, rewards: tuple[float, ...] = REWARDS) -> Batch:
        return rewarded_batch(PROMPTS, COMPLETIONS, self.behaviour, rewards, GROUPS)

    def step(self, batch: Batch | None = None) -> dict[str, float]:
        return self.method.update(self.method.advantage(self.batch() if batch is None else batch))

    def moved(self) -> list[Tensor]:
        """−RATE · gradient, as the step took it."""
        pairs = zip(self.policy.model.parameters(), self.model.parameters(), strict=True)
        return [(ours - before).detach() for ours, before in pairs]


def plain_advantages(scale_by_std: bool) -> list[float]:
    """Eq. 13, and the first GRPO's division."""
    out = []
    for reward, own in zip(REWARDS, GROUPS, strict=True):
        group = [r for r, g in zip(REWARDS, GROUPS, strict=True) if g == own]
        advantage = reward - sum(group) / len(group)
        out.append(advantage / (statistics.stdev(group) + 1e-4) if scale_by_std else advantage)
    return out


def plain_grpo(
    setting: Setting, *, aggregation: str, scale_by_std: bool, estimator: str, beta: float, epsilon: float = 0.2
) -> dict[str, Tensor]:
    """Eq. 14 and the KL, with autograd on the copy of the model."""
    policy, penalty, clips, shown_kl, entropy = [], [], [], [], []
    for row, advantage in enumerate(plain_advantages(scale_by_std)):
        now = setting.plain_logprobs(setting.model, row)
        with torch.no_grad():
            start = setting.plain_logprobs(setting.start, row)
        surrogates, kls = [], []
        for at, token in enumerate(COMPLETIONS[row]):
            ratio = torch.exp(now[at, token] - setting.behaviour[row][at])
            inside = min(max(ratio.item(), 1 - epsilon), 1 + epsilon)
            clips.append(float(inside != ratio.item() and inside * advantage < ratio.item() * advantage))
            surrogates.append(
                ratio * advantage if not clips[-1] else torch.tensor(inside * advantage, dtype=torch.float64)
            )
            log_ratio = now[at, token] - start[at, token]
            kls.append(
                {
                    "exact": (now[at].exp() * (now[at] - start[at])).sum(),
                    "k2": log_ratio**2 / 2,
                    "k3": torch.exp(-log_ratio) - 1 + log_ratio,
                }[estimator]
            )
            shown_kl.append(kls[-1].item() if estimator == "exact" else log_ratio.item())
            entropy.append(-(now[at].exp() * now[at]).sum().item())
        policy.append(-torch.stack(surrogates))
        penalty.append(torch.stack(kls))

    def whole(rows: list[Tensor]) -> Tensor:
        if aggregation == "tokens":
            return sum(r.sum() for r in rows) / sum(len(r) for r in rows)  # type: ignore[return-value]
        if aggregation == "samples":
            return sum(r.sum() / len(r) for r in rows) / len(rows)  # type: ignore[return-value]
        return sum(r.sum() for r in rows) / len(rows)  # type: ignore[return-value]

    losses = {"loss/policy": whole(policy), "loss/kl": whole(penalty)}
    setting.model.zero_grad()
    (losses["loss/policy"] + beta * losses["loss/kl"]).backward()
    figures = {"clip_ratio/region_mean": clips, "kl": shown_kl, "entropy": entropy}
    return losses | {name: torch.tensor(values).mean() for name, values in figures.items()}


def plain_step(setting: Setting) -> list[Tensor]:
    return [-RATE * parameter.grad for parameter in setting.model.parameters()]


def assert_same(ours: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-7)


@pytest.mark.parametrize("aggregation", ["tokens", "samples", "sum_over_samples"])
@pytest.mark.parametrize(("scale_by_std", "estimator"), [(False, "exact"), (True, "k3"), (False, "k2")])
def test_loss_figures_and_gradient_are_those_of_the_equations(
    aggregation: str, scale_by_std: bool, estimator: str
) -> None:
    options: dict[str, Any] = {"aggregation": aggregation, "scale_by_std": scale_by_std}
    setting = Setting(**options, kl={"coefficient": 0.3, "estimator": estimator})
    expected = plain_grpo(setting, **options, estimator=estimator, beta=0.3)
    metrics = setting.step()
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value.item(), abs=1e-6 if name in ("entropy", "kl") else 1e-9), name
    assert 0 < metrics["clip_ratio/region_mean"] < 1, "clipping should be at work, and not everywhere"
    assert_same(setting.moved(), plain_step(setting))
    gradient = torch.cat([parameter.grad.flatten() for parameter in setting.model.parameters()])
    assert metrics["grad_norm/actor"] == pytest.approx(gradient.norm().item(), rel=1e-9)


def test_without_a_kl_the_reference_is_not_asked() -> None:
    setting = Setting(kl={"coefficient": 0.0})
    setting.start.forward = setting.start.transformer.forward = None  # whoever calls it fails
    metrics = setting.step()
    assert {name for name in metrics if "kl" in name} == {"kl_previous"}
    with_kl = Setting(kl={"coefficient": 0.04})
    with_kl.start.forward = with_kl.start.transformer.forward = None
    with pytest.raises(TypeError):
        with_kl.step()


def test_with_one_update_the_gradient_is_that_of_a_policy_gradient_with_the_groups_mean_as_baseline() -> None:
    setting = Setting(on_policy=True, kl={"coefficient": 0.0})
    metrics = setting.step()
    terms = []
    for row, advantage in enumerate(plain_advantages(scale_by_std=False)):
        now = setting.plain_logprobs(setting.model, row)
        terms += [-advantage * now[at, token] for at, token in enumerate(COMPLETIONS[row])]
    torch.stack(terms).mean().backward()
    assert_same(setting.moved(), plain_step(setting))
    # At ratio 1 the loss is minus the mean advantage: about 0, while its gradient is not.
    tokens = [a for a, completion in zip(plain_advantages(False), COMPLETIONS, strict=True) for _ in completion]
    assert metrics["loss/policy"] == pytest.approx(-statistics.fmean(tokens))
    assert metrics["clip_ratio/region_mean"] == 0
    assert metrics["logprob_mismatch"] < 1e-12
    assert metrics["grad_norm/actor"] > 0.1


def test_the_share_that_is_clipped_is_of_tokens_or_of_sequences() -> None:
    """The one token of the first sequence has the ratio 2, the three of the second 1: clipped are ¼ of the tokens, ½ of
    the sequences."""
    batch = make_batch([2, 2], [1, 3], behaviour_BT=torch.full((2, 3), -1.0), advantages_BT=torch.ones(2, 3))
    logprobs_BT = torch.tensor([[math.log(2) - 1, 0.0, 0.0], [-1.0, -1.0, -1.0]])
    levels: list[tuple[Any, float]] = [("token", 1 / 4), ("sequence", 1 / 2), ("geometric", 1 / 2)]
    for level, wanted in levels:
        now = Scores(logprobs_BT, logprobs_BT, torch.zeros(2, 3))
        _, share = clipped_terms(batch, now, 0.2, level=level)
        assert aggregate(share.values, batch.trained_BT, mode=share.mode).item() == pytest.approx(wanted), level


def test_several_updates_keep_the_ratio_to_the_policy_that_sampled() -> None:
    options: dict[str, Any] = {"aggregation": "tokens", "scale_by_std": False}
    setting = Setting(updates_per_step=3, **options, kl={"coefficient": 0.3})
    before = deepcopy(setting.model)
    setting.step()
    for _ in range(3):
        plain_grpo(setting, **options, estimator="exact", beta=0.3)
        with torch.no_grad():
            for parameter, change in zip(setting.model.parameters(), plain_step(setting), strict=True):
                parameter += change
    assert_same(setting.moved(), [torch.zeros_like(p) for p in setting.model.parameters()])
    assert any((a != b).any() for a, b in zip(before.parameters(), setting.model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("scale_by_std", "expected"),
    [
        # Means 7/15, 0.4 and 0.5. Σ(R − mean)² = 0.506667, 0.185 and 0, so that the stds are √(0.506667 / 2) =
        # 0.5033223, √(0.185 / 2) = 0.3041381 and 0.
        (False, [8 / 15, -7 / 15, -1 / 15, -0.15, 0.35, -0.2, 0, 0, 0]),
        (
            True,
            [
                *(a / 0.5034223 for a in (8 / 15, -7 / 15, -1 / 15)),
                *(a / 0.3042381 for a in (-0.15, 0.35, -0.2)),
                0,
                0,
                0,
            ],
        ),
    ],
)
def test_advantages_by_hand_are_the_same_for_every_token(scale_by_std: bool, expected: list[float]) -> None:
    setting = Setting(scale_by_std=scale_by_std)
    advantages = setting.method.advantage(setting.batch()).signals.advantages_BT
    assert advantages.shape == (9, 3)
    for column in advantages.T.tolist():
        assert column == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("budget", [1, 5, 12])
def test_gradients_agree_for_every_split_into_microbatches(budget: int) -> None:
    options: dict[str, Any] = {"aggregation": "samples", "scale_by_std": True, "kl": {"coefficient": 0.1}}
    whole, split = Setting(microbatch_tokens=10_000, **options), Setting(microbatch_tokens=budget, **options)
    figures = whole.step()
    assert split.step() == pytest.approx(figures, rel=1e-9)
    assert_same(split.moved(), whole.moved())


def test_a_missing_reward_leaves_loss_and_gradient_as_if_the_sample_were_not_there() -> None:
    missing, absent = Setting(kl={"coefficient": 0.1}), Setting(kl={"coefficient": 0.1})
    rewards = tuple(math.nan if row in (1, 5) else reward for row, reward in enumerate(REWARDS))
    figures = missing.step(missing.batch(rewards))
    assert absent.step(absent.batch().rows([0, 2, 3, 4, 6, 7, 8])) == pytest.approx(figures, rel=1e-9)
    assert_same(missing.moved(), absent.moved())


def test_a_group_without_variance_gives_no_gradient_and_still_counts() -> None:
    """The mean is over all nine samples, or over the six of which something is learned: 18 tokens, or 13."""
    whole, without = Setting(kl={"coefficient": 0.0}), Setting(kl={"coefficient": 0.0})
    whole.step()
    without.step(without.batch().rows(range(6)))
    assert_same([18 / 13 * change for change in whole.moved()], without.moved())

    flat = Setting(kl={"coefficient": 0.0})
    batch = flat.batch()
    metrics = flat.step(batch.with_signals(rewards_B=torch.full_like(batch.signals.rewards_B, 0.1)))
    assert metrics["grad_norm/actor"] == 0
    assert all((change == 0).all() for change in flat.moved())


def plain_variant(setting: Setting, variant: str) -> Tensor:
    """The loss of a variant, one row at a time."""
    rows, tokens = [], 0
    for row, advantage in enumerate(plain_advantages(False)):
        now = setting.plain_logprobs(setting.model, row)
        chosen = torch.stack([now[at, token] for at, token in enumerate(COMPLETIONS[row])])
        ratio = torch.exp(chosen - torch.tensor(setting.behaviour[row], dtype=torch.float64))
        tokens += len(ratio)
        if variant == "gspo":
            mean = ratio.log().mean().exp()
            clipped = mean.clamp(0.95, 1.1)
            rows.append(-torch.minimum(mean * advantage, clipped * advantage))
        elif variant == "cispo":
            rows.append((-ratio.detach().clamp(max=1.1) * advantage * chosen).sum())
        else:
            bounded = ratio.clamp(max=1.5) if advantage < 0 else ratio
            rows.append(-torch.minimum(bounded * advantage, ratio.clamp(0.8, 1.28) * advantage).sum())
    return sum(rows) / (len(rows) if variant == "gspo" else tokens)  # type: ignore[return-value]


VARIANTS: dict[str, dict[str, Any]] = {
    "gspo": {"level": "geometric", "aggregation": "samples", "clip_epsilon": 0.05, "clip_epsilon_high": 0.1},
    "cispo": {"loss": "cispo", "cispo_maximum": 1.1},
    "clip-higher and dual clip": {"clip_epsilon_high": 0.28, "clip_delta": 1.5},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("budget", [6, 1000])
def test_variants_have_the_plain_gradient(variant: str, budget: int) -> None:
    setting = Setting(microbatch_tokens=budget, kl={"coefficient": 0.0}, **VARIANTS[variant])
    loss = plain_variant(setting, variant)
    setting.model.zero_grad()
    loss.backward()
    metrics = setting.step()
    assert metrics["loss/policy"] == pytest.approx(loss.item(), abs=1e-9)
    assert 0 < metrics["clip_ratio/region_mean"] < 1
    assert_same(setting.moved(), plain_step(setting))


@pytest.mark.parametrize(
    ("method", "line"),
    [
        ({"level": "geometric"}, "add `aggregation: samples`"),
        ({"level": "sequence"}, "add `aggregation: sum_over_samples`"),
        ({"loss": "cispo", "clip_epsilon_high": 0.3}, "`clip_epsilon_high` has no effect with `loss: cispo`"),
        ({"cispo_maximum": 2.0}, "`cispo_maximum` has no effect with `loss: clipped`"),
        ({"clip_delta": 1.1}, "above 1.2"),
    ],
)
def test_options_without_effect_are_refused(method: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        Setting(**method)


def test_rloo_s_advantage_is_grpo_s_times_n_over_n_minus_1() -> None:
    """REINFORCE with `baseline: leave_one_out`, three samples a prompt: 3/2 of R − mean of the group."""
    policy = tiny_policy("gpt2", dtype=torch.float64)
    config = check_config(
        {
            "method": {"name": "reinforce", "baseline": "leave_one_out"},
            "data": {"task": "antonyms"},
            "reward": {"kind": "binary"},
            "group_size": 3,
        },
        "test",
    )
    rloo = build_method(Parts.of(config, policy, Reference.of(policy), lambda b: b))
    advantages_BT = rloo.advantage(Setting().batch()).signals.advantages_BT
    wanted = [1.5 * advantage for advantage in plain_advantages(False)]
    assert advantages_BT[:, 0].tolist() == pytest.approx(wanted)
