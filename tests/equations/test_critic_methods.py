"""REINFORCE, PPO and TRPO (eq. 3-4, 7-9, 11-12) against a plain rewriting: token by token, no padding, no parts."""

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from support.critics import recorded_critics
from support.small_batch import rewarded_batch
from support.tiny_models import tiny_policy
from vigneron.batch import Batch
from vigneron.errors import NonFinite
from vigneron.methods import build_method
from vigneron.policy.reference import Reference
from vigneron.recipe import check_config
from vigneron.training.parts import Parts

PROMPTS = ((5, 9, 33, 2), (7, 8), (40, 41, 42, 43, 44, 45), (7, 8), (1, 2, 3))
COMPLETIONS = ((11, 12, 0), (13,), (14, 15, 16, 17), (0,), (19, 20))
REWARDS = (1.0, 0.0, 0.4, 0.25, math.nan)
"""The last one is missing: its sample is in no mean and trains nothing."""
TRAINED = range(4)
# log π₁ − log π₀ of the tokens, in turn: some ratios are clipped, on each side.
LOG_RATIOS = (-0.6, -0.15, 0.0, 0.15, 0.5)
RATE = 0.1
TOKENS = sum(len(COMPLETIONS[row]) for row in TRAINED)


class Setting:
    """A tiny GPT-2 in float64 that has moved away from its reference, plain gradient descent, and a copy of all."""

    def __init__(self, *, off_policy: bool = False, microbatch_tokens: int = 10, **method: Any) -> None:
        self.policy = tiny_policy("gpt2", dtype=torch.float64)
        reference = Reference.of(self.policy)
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in self.policy.model.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
        config = check_config(
            {
                "method": method,
                "data": {"task": "antonyms"},
                "reward": {"kind": "binary"},
                "optimizer": {"max_grad_norm": 1e9},
                "microbatch_tokens": microbatch_tokens,
                "max_new_tokens": 4,
            },
            "test",
        )
        with recorded_critics() as critics:
            self.method = build_method(Parts.of(config, self.policy, reference, lambda b: b))
        self.critic = critics[0] if critics else None
        for player in getattr(self.method.update, "optimized", ()):
            player.optimizer = torch.optim.SGD([parameter for _, parameter in player.parameters], lr=RATE)
            player.learning_rate = RATE
        self.head, self.network = None, None
        if self.critic is not None:
            with torch.no_grad():
                self.critic.head.linear.weight += 0.3 * torch.randn_like(self.critic.head.linear.weight)
            self.head = deepcopy(self.critic.head.linear)
            if self.critic.network is not None:
                self.network = deepcopy(self.critic.network.model)
        self.model, self.start = deepcopy(self.policy.model), reference.policy.model
        self.before = deepcopy(self.model)
        with torch.no_grad():
            rows = [self.chosen(self.before, row) for row in range(len(PROMPTS))]
        self.behaviour = [
            [now - (LOG_RATIOS[(2 * row + at) % 5] if off_policy else 0.0) for at, now in enumerate(logps.tolist())]
            for row, logps in enumerate(rows)
        ]

    @staticmethod
    def logprobs(model: Any, row: int) -> Tensor:
        logits = model(torch.tensor([PROMPTS[row] + COMPLETIONS[row]])).logits[0]
        return logits[len(PROMPTS[row]) - 1 : -1].log_softmax(-1)

    def chosen(self, model: Any, row: int) -> Tensor:
        return self.logprobs(model, row).gather(1, torch.tensor(COMPLETIONS[row])[:, None])[:, 0]

    def values(self, row: int) -> Tensor:
        """V before each token of a row, by the copies; the policy's own states are only read."""
        model = self.network if self.network is not None else self.model
        hidden = model.transformer(torch.tensor([PROMPTS[row] + COMPLETIONS[row]])).last_hidden_state[0]
        hidden = hidden if self.network is not None else hidden.detach()
        return self.head(hidden[len(PROMPTS[row]) - 1 : -1])[:, 0]

    def batch(self) -> Batch:
        return rewarded_batch(PROMPTS, COMPLETIONS, self.behaviour, REWARDS)

    def check(self, plain_loss: Callable[[], tuple[Tensor, Tensor]], updates: int = 1) -> dict[str, float]:
        """Our step, and as many plain ones on the copies: the same weights come out."""
        metrics = self.method.update(self.method.advantage(self.batch()))
        modules = [m for m in (self.model, self.head, self.network) if m is not None]
        for _ in range(updates):
            policy_loss, value_loss = plain_loss()
            (policy_loss + value_loss).backward()
            with torch.no_grad():
                for parameter in (p for module in modules for p in module.parameters()):
                    if parameter.grad is not None:
                        parameter -= RATE * parameter.grad
                        parameter.grad = None
        critic = self.critic
        pairs = [(self.policy.model, self.model)]
        pairs += [(critic.head.linear, self.head)] if critic else []
        pairs += [(critic.network.model.transformer, self.network.transformer)] if self.network is not None else []
        moved = 0.0
        for ours, plain in pairs:
            for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
        for mine, was in zip(self.policy.model.parameters(), self.before.parameters(), strict=True):
            moved += (mine - was).abs().sum().item()
        assert moved > 1e-3, "a step that changes nothing would pass"
        return metrics


def squares(setting: Setting, targets: list[list[float]], coefficient: float = 0.5) -> Tensor:
    errors = [(setting.values(row) - torch.tensor(targets[row], dtype=torch.float64)) ** 2 for row in TRAINED]
    return coefficient * torch.cat(errors).mean()


def whole_reward(row: int) -> list[float]:
    return [REWARDS[row]] * len(COMPLETIONS[row])


@pytest.mark.parametrize("network", ["head", "own"])
@pytest.mark.parametrize("aggregation", ["tokens", "sum_over_samples"])
def test_reinforce_with_a_critic_is_eq_3(network: str, aggregation: str) -> None:
    setting = Setting(name="reinforce", aggregation=aggregation, critic={"network": network})
    divisor = TOKENS if aggregation == "tokens" else len(TRAINED)

    def loss() -> tuple[Tensor, Tensor]:
        policy = [
            -((REWARDS[row] - setting.values(row).detach()) * setting.chosen(setting.model, row)).sum()
            for row in TRAINED
        ]
        return torch.stack(policy).sum() / divisor, squares(setting, [whole_reward(row) for row in range(5)])

    metrics = setting.check(loss)
    assert {"loss/policy", "loss/value", "grad_norm/critic", "kl", "entropy"} <= set(metrics)


@pytest.mark.parametrize(("baseline", "constant"), [("none", None), ("constant", 0.3)])
def test_reinforce_without_a_critic(baseline: str, constant: float | None) -> None:
    """The reward-weighted negative log-likelihood of §4.1, and the same less a constant."""
    given = {} if constant is None else {"constant": constant}
    setting = Setting(name="reinforce", baseline=baseline, aggregation="sum_over_samples", **given)

    def loss() -> tuple[Tensor, Tensor]:
        weighted = [-(REWARDS[row] - (constant or 0.0)) * setting.chosen(setting.model, row).sum() for row in TRAINED]
        return torch.stack(weighted).mean(), torch.zeros(())

    setting.check(loss)


def test_the_running_mean_is_of_the_steps_before() -> None:
    """The mean reward of the four that are there is 0.4125: the first step's baseline is 0, the next one's that."""
    setting = Setting(name="reinforce", baseline="running_mean", decay=0.9)
    first, second = (setting.method.advantage(setting.batch()) for _ in range(2))
    assert first.signals.metrics["baseline"] == 0.0
    assert second.signals.metrics["baseline"] == pytest.approx(0.4125)
    assert second.signals.advantages_BT[0, 0].item() == pytest.approx(1.0 - 0.4125)


def test_reinforce_with_an_exact_kl_in_the_loss() -> None:
    setting = Setting(name="reinforce", baseline="none", kl={"coefficient": 0.2})

    def loss() -> tuple[Tensor, Tensor]:
        total = torch.zeros((), dtype=torch.float64)
        for row in TRAINED:
            now, start = setting.logprobs(setting.model, row), setting.logprobs(setting.start, row).detach()
            total = total - REWARDS[row] * setting.chosen(setting.model, row).sum()
            total = total + 0.2 * (now.exp() * (now - start)).sum()
        return total / TOKENS, torch.zeros(())

    setting.check(loss)


def plain_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> tuple[list[float], list[float]]:
    """By the definition: Aₜ = Σₖ (γλ)ᵏ δₜ₊ₖ."""
    after = [*values[1:], 0.0]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, after, values, strict=True)]
    advantages = [sum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[t:])) for t in range(len(deltas))]
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


def clipped_surrogate(setting: Setting, advantages: list[list[float]], epsilon: float = 0.2) -> Tensor:
    terms = []
    for row in TRAINED:
        for at, now in enumerate(setting.chosen(setting.model, row)):
            ratio = (now - setting.behaviour[row][at]).exp()
            bounded = ratio.clamp(1 - epsilon, 1 + epsilon)
            terms.append(-torch.minimum(ratio * advantages[row][at], bounded * advantages[row][at]))
    return torch.stack(terms).mean()


@pytest.mark.parametrize("form", ["gae", "eq_12"])
@pytest.mark.parametrize("clip", [None, 0.01])
def test_ppo_is_eq_11_and_12(form: str, clip: float | None) -> None:
    gamma, lam, beta = 0.9, 0.8, 0.3
    through_gae = {"gamma": gamma, "lam": lam} if form == "gae" else {}
    setting = Setting(
        name="ppo", off_policy=True, updates_per_step=2, advantage=form,
        kl={"coefficient": beta}, critic={"clip": clip}, **through_gae,
    )  # fmt: skip
    advantages, returns, values = [], [], []
    with torch.no_grad():
        for row in range(5):
            k1 = (setting.chosen(setting.before, row) - setting.chosen(setting.start, row)).tolist()
            values.append(setting.values(row).tolist())
            if form == "eq_12":
                returns.append([REWARDS[row] - beta * k for k in k1])
                advantages.append([r - v for r, v in zip(returns[-1], values[-1], strict=True)])
            else:
                rewards = [-beta * k for k in k1]
                rewards[-1] += REWARDS[row]
                a, r = plain_gae(rewards, values[-1], gamma, lam)
                advantages.append(a)
                returns.append(r)

    def loss() -> tuple[Tensor, Tensor]:
        if clip is None:
            return clipped_surrogate(setting, advantages), squares(setting, returns)
        errors = []
        for row in TRAINED:
            for now, was, target in zip(setting.values(row), values[row], returns[row], strict=True):
                near = was + (now - was).clamp(-clip, clip)
                errors.append(torch.maximum((now - target) ** 2, (near - target) ** 2))
        return clipped_surrogate(setting, advantages), 0.5 * torch.stack(errors).mean()

    metrics = setting.check(loss, updates=2)
    assert 0 < metrics["clip_ratio/region_mean"] < 1
    assert metrics["kl_coefficient"] == beta


def test_ppo_with_gamma_and_lambda_1_and_no_kl_has_the_advantages_of_eq_4() -> None:
    plain = Setting(name="ppo", kl={"coefficient": 0.0}, lam=1.0)
    batch = plain.method.advantage(plain.batch())
    expected = batch.signals.rewards_B[:, None] - batch.signals.values_BT
    torch.testing.assert_close(batch.signals.advantages_BT[batch.trained_BT], expected[batch.trained_BT])


def test_trpos_penalty_is_eq_9() -> None:
    """Two updates: at the first the KL is 0 and so is its gradient, at the second it is neither."""
    beta = 3.0
    setting = Setting(name="trpo", updates_per_step=2, off_policy=True, penalty={"coefficient": beta})
    with torch.no_grad():
        advantages = [[REWARDS[row] - v for v in setting.values(row).tolist()] for row in range(5)]

    def loss() -> tuple[Tensor, Tensor]:
        total = torch.zeros((), dtype=torch.float64)
        for row in TRAINED:
            ratio = (
                setting.chosen(setting.model, row) - torch.tensor(setting.behaviour[row], dtype=torch.float64)
            ).exp()
            total = total - (ratio * torch.tensor(advantages[row], dtype=torch.float64)).sum()
            before, now = setting.logprobs(setting.before, row).detach(), setting.logprobs(setting.model, row)
            total = total + beta * (before.exp() * (before - now)).sum()
        return total / TOKENS, squares(setting, [whole_reward(row) for row in range(5)])

    metrics = setting.check(loss, updates=2)
    assert metrics["loss/kl"] > 0
    before, after = (
        torch.cat([setting.logprobs(model, row) for row in TRAINED]) for model in (setting.before, setting.model)
    )
    exact = (before.exp() * (before - after)).sum(-1).mean().item()
    assert metrics["kl_previous"] == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    "method",
    [
        {"name": "reinforce", "aggregation": "samples"},
        {"name": "reinforce", "critic": {"network": "own"}, "kl": {"coefficient": 0.1, "estimator": "k2"}},
        {"name": "ppo", "updates_per_step": 2, "aggregation": "sum_over_samples"},
        {"name": "trpo", "updates_per_step": 2, "aggregation": "tokens"},
        {"name": "trpo", "form": "constraint"},
    ],
)
def test_every_cut_into_microbatches_gives_the_same_weights(method: dict[str, Any]) -> None:
    ends = []
    for tokens in (9, 1000) if method.get("form") == "constraint" else (1, 14, 1000):
        setting = Setting(off_policy=method.get("form") != "constraint", microbatch_tokens=tokens, **method)
        setting.method.update(setting.method.advantage(setting.batch()))
        ends.append(torch.cat([p.detach().flatten() for p in setting.policy.model.parameters()]))
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=1e-8, atol=1e-10)


def test_minibatches_go_through_every_sample_once_a_pass() -> None:
    setting = Setting(name="ppo", updates_per_step=3, minibatches=2)
    update: Any = setting.method.update
    seen: list[list[int]] = []
    loss = update.loss
    update.loss = lambda batch, now: (seen.append(batch.samples.sample_B.tolist()), loss(batch, now))[1]
    update.microbatch_tokens = 10_000
    update(setting.method.advantage(setting.batch()))
    assert update.done == 6
    assert len(seen) == 6
    passes = [sorted(seen[i] + seen[i + 1]) for i in (0, 2, 4)]
    assert passes == [[0, 1, 2, 3]] * 3, "the one without a reward needs no pass"
    assert len({tuple(sorted(part)) for part in seen}) > 2, "each pass is cut anew"


@pytest.mark.parametrize("minibatches", [1, 2, 4])
def test_ppos_kl_is_that_of_the_whole_batch(minibatches: int) -> None:
    """Which is logged, and what an adaptive coefficient goes by."""
    setting = Setting(name="ppo", minibatches=minibatches)
    with torch.no_grad():
        k1 = [setting.chosen(setting.before, row) - setting.chosen(setting.start, row) for row in TRAINED]
    expected = pytest.approx(torch.cat(k1).mean().item(), rel=1e-9)
    update: Any = setting.method.update
    adapted_to: list[float] = []
    update.controller.observe = lambda metrics: adapted_to.append(metrics["kl"]) or {}
    batch = setting.method.advantage(setting.batch())
    metrics = batch.signals.metrics | update(batch)
    assert metrics["kl"] == expected
    assert adapted_to == [expected]


@pytest.mark.parametrize("moved", [True, False])
def test_an_error_of_trpos_critic_says_whether_the_policy_was_updated(moved: bool) -> None:
    setting = Setting(name="trpo", form="constraint")
    batch = setting.method.advantage(setting.batch())
    if not moved:
        batch = batch.with_signals(advantages_BT=torch.zeros_like(batch.signals.advantages_BT))
    batch = batch.with_signals(returns_BT=torch.full_like(batch.signals.returns_BT, math.inf))
    stays = r", after the policy's update of this step, which stays" if moved else ""
    with pytest.raises(NonFinite, match=rf"^loss/value: not finite{stays}\. The update was not applied"):
        setting.method.update(batch)
    pairs = zip(setting.policy.model.parameters(), setting.before.parameters(), strict=True)
    assert any(not torch.equal(now, was) for now, was in pairs) == moved


def test_pi_0_is_the_policy_as_it_is_at_each_steps_start() -> None:
    """After a step the policy has moved; the next one's KL begins at 0 again."""
    setting = Setting(name="trpo", updates_per_step=2)
    update: Any = setting.method.update
    before = setting.method.advantage(setting.batch())
    update(before)
    assert update.evaluate(before)["loss/kl"] > 1e-6
    assert update.evaluate(setting.method.advantage(setting.batch()))["loss/kl"] == pytest.approx(0.0, abs=1e-12)
