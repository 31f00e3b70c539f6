"""Every line of PGSRM's Algorithm 1 against a plain rewriting of it: one row at a time, no padding, no microbatches."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from support.critics import recorded_critics
from support.tiny_models import tiny_policy
from vigneron.batch import Batch, Samples, Signals
from vigneron.methods import build_method
from vigneron.policy.reference import Reference
from vigneron.recipe import check_config
from vigneron.training.method import Method
from vigneron.training.parts import Parts

PROMPTS = ((5, 9, 33, 2), (7, 8), (40, 41, 42, 43, 44, 45))
COMPLETIONS = ((11, 12, 0), (13,), (14, 15))
REWARDS = (0.9, 0.1, 0.4)


def config(**method: Any) -> Any:
    return check_config(
        {
            "method": {"name": "actor_critic", **method},
            "data": {"task": "antonyms"},
            "reward": {"kind": "binary"},
            "optimizer": {"actor_lr": 1e-2, "critic_lr": 3e-2, "max_grad_norm": 0.5, "weight_decay": 0.1},
            "microbatch_tokens": 12,
            "max_new_tokens": 3,
        },
        "test",
    )


def hand_batch() -> Batch:
    width = max(len(c) for c in COMPLETIONS)
    ids = torch.zeros(len(PROMPTS), width, dtype=torch.long)
    for row, completion in enumerate(COMPLETIONS):
        ids[row, : len(completion)] = torch.tensor(completion)
    spans = tuple(((len(p), len(p) + len(c)),) for p, c in zip(PROMPTS, COMPLETIONS, strict=True))
    return Batch(
        Samples(
            prompt_ids=PROMPTS,
            completion_BT=ids,
            spans=spans,
            behaviour_BT=torch.zeros(len(PROMPTS), width, dtype=torch.float64),
            truncated_B=torch.zeros(len(PROMPTS), dtype=torch.bool),
            group_B=torch.arange(len(PROMPTS)),
            sample_B=torch.arange(len(PROMPTS)),
            prompts=("",) * len(PROMPTS),
            completions=("",) * len(PROMPTS),
        ),
        signals=Signals(rewards_B=torch.tensor(REWARDS, dtype=torch.float64)),
    )


class Setting:
    """A tiny GPT-2 in float64 that has moved away from its reference, and a critic that is not zero."""

    def __init__(self, **method: Any) -> None:
        self.policy = tiny_policy("gpt2", dtype=torch.float64)
        self.reference = Reference.of(self.policy)
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in self.policy.model.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
        with recorded_critics() as critics:
            self.method: Method = build_method(Parts.of(config(**method), self.policy, self.reference, lambda b: b))
        head = self.critic_head = critics[0].head.double()
        with torch.no_grad():
            head.linear.weight.normal_()
            head.linear.bias.fill_(0.3)
        # The update was built on the float32 head: its parameters are the same objects, in float64 now.
        self.model, self.head = deepcopy(self.policy.model), deepcopy(head)
        self.start = self.reference.policy.model


def plain_algorithm_1(setting: Setting, *, entropy: float, kl: float, value: float, value_at: str) -> dict[str, Tensor]:
    """Lines 1-17, token by token, with autograd on a copy of the model."""
    logps, references, entropies, advantages, values = [], [], [], [], []
    for prompt, completion, reward in zip(PROMPTS, COMPLETIONS, REWARDS, strict=True):
        ids = torch.tensor([prompt + completion])
        out = setting.model(ids, output_hidden_states=True)
        with torch.no_grad():
            start = setting.start(ids).logits[0].log_softmax(-1)
        now = out.logits[0].log_softmax(-1)
        last = len(prompt) - 1 if value_at == "last_prompt" else len(prompt) + len(completion) - 1
        v = setting.head(out.hidden_states[-1][0, last].detach()[None])[0]
        values.append(v)
        for offset, token in enumerate(completion):
            at = len(prompt) + offset - 1
            logps.append(now[at, token])
            references.append(start[at, token])
            entropies.append(-(now[at].exp() * now[at]).sum())
            advantages.append(reward - v.detach())
    logp, reference, advantage = torch.stack(logps), torch.stack(references), torch.stack(advantages)
    losses = {
        "loss/policy": -(logp * advantage).mean(),
        "loss/value": ((torch.stack(values) - torch.tensor(REWARDS, dtype=torch.float64)) ** 2).mean(),
        "entropy": torch.stack(entropies).mean(),
        "kl": (logp - reference).mean(),
    }
    actor = losses["loss/policy"] - entropy * losses["entropy"] + kl * losses["kl"]
    (actor + value * losses["loss/value"]).backward()
    return losses


def gradients(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("faithful", [True, False])
def test_losses_gradients_and_step_are_those_of_the_algorithm(faithful: bool) -> None:
    # With `faithful` the KL term is k1, as line 14; without, k1 is named so that the same rewriting serves.
    method: dict[str, Any] = {"entropy_coefficient": 0.02, "value_coefficient": 0.7}
    method |= {"faithful": True} if faithful else {}
    method["kl"] = {"coefficient": 0.3} if faithful else {"coefficient": 0.3, "estimator": "k1"}
    setting = Setting(**method)
    expected = plain_algorithm_1(
        setting, entropy=0.02, kl=0.3, value=0.7, value_at="last_completion" if faithful else "last_prompt"
    )
    batch = setting.method.advantage(hand_batch())
    update: Any = setting.method.update
    sums = {
        name: value for name, value, _ in update.accumulate(batch, lambda part: update.loss(part, update.score(part)))
    }

    for name, value in expected.items():
        assert sums[name] == pytest.approx(value.item(), abs=1e-10), name
    assert sums["loss/kl"] == pytest.approx(expected["kl"].item(), abs=1e-10)
    for ours, plain in ((setting.policy.model, setting.model), (setting.critic_head, setting.head)):
        ours_grad, plain_grad = gradients(ours), gradients(plain)
        assert ours_grad.keys() == plain_grad.keys()
        for name, grad in plain_grad.items():
            torch.testing.assert_close(ours_grad[name], grad, atol=1e-10, rtol=1e-8, msg=name)

    # Lines 16 and 18: each with its own clipping and its own AdamW.
    update._step()
    for ours, plain, rate in (
        (setting.policy.model, setting.model, 1e-2),
        (setting.critic_head, setting.head, 3e-2),
    ):
        assert torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5) > 0.5, "clipping should be at work"
        torch.optim.AdamW(plain.parameters(), lr=rate, weight_decay=0.1).step()
        for (name, a), (_, b) in zip(ours.named_parameters(), plain.named_parameters(), strict=True):
            torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-7, msg=name)


def test_the_default_kl_is_the_exact_one_and_has_its_gradient() -> None:
    setting = Setting(entropy_coefficient=0.0, value_coefficient=0.0, kl={"coefficient": 0.5})
    batch = setting.method.advantage(hand_batch())
    batch = batch.with_signals(advantages_BT=torch.zeros_like(batch.signals.advantages_BT))
    update: Any = setting.method.update
    sums = {
        name: value for name, value, _ in update.accumulate(batch, lambda part: update.loss(part, update.score(part)))
    }

    terms = []
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        ids = torch.tensor([prompt + completion])
        now = setting.model(ids).logits[0].log_softmax(-1)
        with torch.no_grad():
            start = setting.start(ids).logits[0].log_softmax(-1)
        for at in range(len(prompt) - 1, len(prompt) + len(completion) - 1):
            terms.append((now[at].exp() * (now[at] - start[at])).sum())
    expected = torch.stack(terms).mean()
    (0.5 * expected).backward()
    assert sums["loss/kl"] == pytest.approx(expected.item(), abs=1e-10)
    assert expected.item() > 0
    plain = gradients(setting.model)
    for name, grad in gradients(setting.policy.model).items():
        torch.testing.assert_close(grad, plain[name], atol=1e-10, rtol=1e-8, msg=name)


def test_the_clipped_objective_with_several_updates_uses_the_ratio_to_the_sampling_policy() -> None:
    setting = Setting(
        entropy_coefficient=0.0,
        value_coefficient=0.0,
        clip_epsilon=0.2,
        updates_per_step=2,
        kl={"coefficient": 0.0, "estimator": "k2"},
    )
    batch = setting.method.advantage(hand_batch())
    update: Any = setting.method.update
    behaviour_BT = update.score(batch).logprobs_BT.detach() - 0.1  # every ratio is e^0.1 = 1.105: inside the clip
    batch = batch.with_samples(behaviour_BT=behaviour_BT)
    sums = {
        name: value for name, value, _ in update.accumulate(batch, lambda part: update.loss(part, update.score(part)))
    }
    advantages = batch.signals.advantages_BT[batch.samples.mask_BT]
    assert sums["loss/policy"] == pytest.approx(float(-(torch.tensor(0.1).exp() * advantages).mean()), rel=1e-6)

    outside = batch.with_samples(behaviour_BT=behaviour_BT - 1.0)  # e^1.1 = 3.0: clipped at 1.2 where A > 0
    clipped = torch.where(advantages > 0, 1.2 * advantages, torch.tensor(1.1).exp().double() * advantages)
    sums = {
        name: value for name, value, _ in update.accumulate(outside, lambda part: update.loss(part, update.score(part)))
    }
    assert sums["loss/policy"] == pytest.approx(float(-clipped.mean()), rel=1e-6)

    metrics = setting.method.update(batch)
    assert update.done == 2
    assert metrics["kl_previous"] > 0


def test_the_kl_controller_follows_the_released_rule_within_its_bounds() -> None:
    setting = Setting(
        faithful=True, kl={"coefficient": 1e-3, "adaptive": {"target": 0.8, "minimum": 5e-4, "maximum": 2e-3}}
    )
    controller = setting.method.update.controller  # type: ignore[attr-defined]
    # × 1.5 above 1.2, ÷ 1.5 below 0.5333, else as it was; never past the bounds.
    seen = [1.3, 0.9, 1.21, 1.3, 0.53, 0.54, 0.1, 0.0, -1.0]
    used = [controller.observe({"kl": kl})["kl_coefficient"] for kl in seen]
    by_hand = [1e-3, 1.5e-3, 1.5e-3, 2e-3, 2e-3, 2e-3 / 1.5, 2e-3 / 1.5, 2e-3 / 2.25, 2e-3 / 3.375]
    assert used == pytest.approx(by_hand)
    assert controller.coefficient == pytest.approx(5e-4)


def test_a_missing_reward_leaves_loss_and_gradient_as_if_the_sample_were_not_there() -> None:
    whole, without = Setting(faithful=True), Setting(faithful=True)
    batch = hand_batch()
    missing = whole.method.advantage(
        batch.with_signals(rewards_B=torch.tensor([0.9, torch.nan, 0.4], dtype=torch.float64))
    )
    absent = without.method.advantage(batch.rows([0, 2]))
    results = []
    for setting, part in ((whole, missing), (without, absent)):
        update: Any = setting.method.update
        results.append(
            {name: value for name, value, _ in update.accumulate(part, lambda p, u=update: u.loss(p, u.score(p)))}
        )
    assert results[0] == pytest.approx(results[1], abs=1e-12)
    for module in ("policy", "critic"):
        pairs = zip(_module(whole, module).parameters(), _module(without, module).parameters(), strict=True)
        for a, b in pairs:
            torch.testing.assert_close(a.grad, b.grad, atol=1e-12, rtol=1e-9)


def _module(setting: Setting, name: str) -> torch.nn.Module:
    return setting.policy.model if name == "policy" else setting.critic_head


@pytest.mark.parametrize("budget", [1, 5, 12, 1000])
def test_gradients_agree_for_every_split_into_microbatches(budget: int) -> None:
    whole, split = Setting(kl={"coefficient": 0.1}), Setting(kl={"coefficient": 0.1})
    for setting, tokens in ((whole, 10_000), (split, budget)):
        update: Any = setting.method.update
        update.microbatch_tokens = tokens
        batch = setting.method.advantage(hand_batch())
        update.accumulate(batch, lambda part, u=update: u.loss(part, u.score(part)))
    for a, b in zip(whole.policy.model.parameters(), split.policy.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-12, rtol=1e-9)


def test_the_end_token_is_trained_though_it_is_also_the_padding_and_nothing_else_is() -> None:
    """pad = eos = 0: d loss / d logits is not zero at exactly the positions that predict completion tokens."""
    setting = Setting(entropy_coefficient=0.0, value_coefficient=0.0, kl={"coefficient": 0.0, "estimator": "k2"})
    assert setting.policy.pad_id in setting.policy.eos_ids
    seen: list[Tensor] = []
    hidden = setting.policy.hidden

    def spy(*args: Any, **kwargs: Any) -> Tensor:
        out = hidden(*args, **kwargs)
        if out.requires_grad:
            out.retain_grad()
            seen.append(out)
        return out

    batch = setting.method.advantage(hand_batch())
    setting.policy.hidden = spy  # type: ignore[method-assign]
    update: Any = setting.method.update
    update.microbatch_tokens = 10_000
    update.accumulate(batch, lambda part: update.loss(part, update.score(part)))
    (states,) = seen
    assert states.grad is not None
    touched = states.grad.abs().sum(-1) > 0
    expected = [
        len(prompt) - 1 <= at < len(prompt) + len(completion) - 1
        for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True)
        for at in range(len(prompt) + len(completion) - 1)  # the last token is not fed
    ]
    assert touched.tolist() == [expected]  # one row, in which the samples stand one behind the other
