"""TOPR, OREO and A*-PO through their whole methods, against plain computations and each other."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.recorded_data import recorded_config, recorded_rows
from support.tiny_models import tiny_policy
from support.tiny_runs import tiny_config, write_data
from vigneron.batch import Batch
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.methods.reference_samples import row_key
from vigneron.policy.model import Policy
from vigneron.policy.reference import Reference
from vigneron.training.method import Method
from vigneron.training.parts import Parts

ROWS = recorded_rows()[:4]


def built(place: Path, model: Path, method: dict[str, Any], rows: Any = None) -> tuple[Method, Policy, list[Any]]:
    """A method on a tiny policy, with a reference that differs from it."""
    rows = ROWS if rows is None else rows
    config = recorded_config(place, model, method, rows)
    policy, other = tiny_policy(), tiny_policy(seed=1)
    return build_method(Parts.of(config, policy, Reference.of(other), lambda batch: batch, rows)), policy, rows


def prepared(method: Method, rows: Any) -> Batch:
    return method.advantage(method.reward(method.rollout(rows)))


def logprobs_by_hand(policy: Policy, row: dict[str, Any]) -> Tensor:
    """Log-probs of a completion and its end token, by transformers alone."""
    prompt, text = (policy.tokenizer(row[key])["input_ids"] for key in ("prompt", "completion"))
    ids = torch.tensor([[*prompt, *text, policy.tokenizer.eos_token_id]])
    logprobs = policy.causal(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return logprobs.gather(1, ids[0, len(prompt) :, None])[:, 0]


def gradient(method: Method, batch: Batch, policy: Policy) -> Tensor:
    """The gradient of a method's loss at the policy's weights, without an update."""
    update: Any = method.update
    policy.model.zero_grad()
    update.accumulate(batch, lambda part: update.loss(part, update.score(part)))
    found = flat(policy)
    policy.model.zero_grad()
    return found


def flat(policy: Policy) -> Tensor:
    return torch.cat(
        [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for _, p in policy.trainable()]
    )


def by_hand(policy: Policy, loss: Tensor) -> Tensor:
    policy.model.zero_grad()
    loss.backward()
    found = flat(policy)
    policy.model.zero_grad()
    return found


# ---------------------------------------------------------------------------------------------------- TOPR


def test_toprs_gradient_is_that_of_a_plain_loop(tmp_path: Path, tiny_folder: Path) -> None:
    """−(1/S) Σ w R ∇log π, w = min(1, π/μ) for the negative ones; one μ is per token, one a sum, two are missing."""
    policy, reference = tiny_policy(), tiny_policy(seed=1)
    lengths = [len(logprobs_by_hand(policy, row)) for row in ROWS]
    mu = [sum(logprobs_by_hand(policy, row).tolist()) for row in ROWS]
    recorded = [[mu[0] / lengths[0] - 0.1] * lengths[0], mu[1] + 0.7, None, None]
    rows = [{**row, "logprobs": given} for row, given in zip(ROWS, recorded, strict=True)]
    method, policy, rows = built(tmp_path, tiny_folder, {"name": "topr", "rewards": "signed"}, rows)
    batch = prepared(method, rows)
    loss = torch.zeros(())
    for row, given in zip(rows, recorded, strict=True):
        logp, reward = logprobs_by_hand(policy, row).sum(), 2 * row["reward"] - 1
        with torch.no_grad():
            unknown = float(logprobs_by_hand(reference, row).sum())
        behaviour = unknown if given is None else sum(given) if isinstance(given, list) else given
        weight = 1.0 if reward >= 0 else min(1.0, math.exp(float(logp.detach()) - behaviour))
        loss = loss - weight * reward * logp / len(rows)
    torch.testing.assert_close(gradient(method, batch, policy), by_hand(policy, loss), rtol=1e-4, atol=1e-6)
    update: Any = method.update
    weights = [1.0, math.exp(-0.7), 1.0]  # of the fourth, the reference may be on either side
    assert update.evaluate(batch.rows([0, 1, 2]))["topr/weight"] == pytest.approx(sum(weights) / 3, rel=1e-4)


def test_without_negative_rewards_topr_is_reinforce(tmp_path: Path, tiny_folder: Path) -> None:
    """With and without the taper, and whatever μ is."""
    found = []
    for taper in (True, False):
        rows = [{**row, "logprobs": -3.0 * taper} for row in ROWS]
        method, policy, rows = built(tmp_path, tiny_folder, {"name": "topr", "taper": taper}, rows)
        found.append(gradient(method, prepared(method, rows), policy))
    torch.testing.assert_close(found[0], found[1])
    loss = -sum(row["reward"] * logprobs_by_hand(policy, row).sum() for row in ROWS) / len(ROWS)
    assert isinstance(loss, Tensor)
    torch.testing.assert_close(found[0], by_hand(policy, loss), rtol=1e-4, atol=1e-6)


def test_the_advantage_of_a_recorded_sample_is_over_all_of_its_prompt(tmp_path: Path, tiny_folder: Path) -> None:
    """A prompt's samples come in different steps: the mean is that of the data."""
    rows = [{**ROWS[0], "reward": value} for value in (1.0, 0.0, 0.0, 0.0)] + ROWS[2:4]
    method, _, rows = built(tmp_path, tiny_folder, {"name": "topr", "rewards": "advantage"}, rows)
    batch = prepared(method, [rows[0], rows[4]])
    assert batch.signals.advantages_BT[:, 0].tolist() == [0.75, 0.5]


def test_topr_tells_that_no_reward_is_negative(tmp_path: Path, tiny_folder: Path) -> None:
    assert "rewards: signed" in built(tmp_path, tiny_folder, {"name": "topr"})[0].notices[0]
    assert not built(tmp_path, tiny_folder, {"name": "topr", "rewards": "signed"})[0].notices
    signed = [{**row, "reward": -1.0} for row in ROWS]
    assert not built(tmp_path, tiny_folder, {"name": "topr"}, signed)[0].notices


def test_recorded_tokens_are_used_where_they_are_the_texts(tmp_path: Path, tiny_folder: Path) -> None:
    method, policy, _ = built(tmp_path, tiny_folder, {"name": "topr"})
    own = policy.tokenizer(ROWS[0]["completion"])["input_ids"]
    end = policy.tokenizer.eos_token_id
    rows = [
        {**ROWS[0], "token_ids": own},  # without an end token
        {**ROWS[0], "token_ids": [*own, end]},
        {**ROWS[0], "token_ids": [5, 6]},  # of another tokenizer
        {**ROWS[0], "token_ids": [10**6]},
        {**ROWS[0], "truncated": True},
        {**ROWS[0], "completion": ""},
    ]
    batch = method.rollout(rows)
    whole = (*own, end)
    assert batch.samples.completion_ids == (tuple(own), whole, whole, whole, tuple(own), (end,))
    assert batch.samples.truncated_B.tolist() == [False] * 4 + [True, False]


# ---------------------------------------------------------------------------------------------------- OREO


@pytest.mark.parametrize("network", ["head", "own"])
def test_oreos_gradients_are_those_of_a_plain_loop(tmp_path: Path, tiny_folder: Path, network: str) -> None:
    """Mean over all tokens of (V + β [ρ_t + Σ_{i>t} ρ_i] − R)², + 0.01 KL(π ‖ ref) over the vocabulary; of the value
    (V + β Σ_{i≥t} ρ_i − R)². V is 0 with a fresh head, so its bias has the gradient 2 (β Σ ρ − R)."""
    options = {"name": "oreo", "beta": 0.3, "critic": {"network": network}}
    method, policy, rows = built(tmp_path, tiny_folder, options)
    reference = tiny_policy(seed=1)
    batch = prepared(method, rows)
    tokens = sum(len(logprobs_by_hand(policy, row)) for row in rows)
    loss, bias = torch.zeros(()), 0.0
    for row in rows:
        own = logprobs_by_hand(policy, row)
        with torch.no_grad():
            rho = own - logprobs_by_hand(reference, row)
        prompt, text = (policy.tokenizer(row[key])["input_ids"] for key in ("prompt", "completion"))
        ids = torch.tensor([[*prompt, *text, 0]])
        mine = policy.causal(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        with torch.no_grad():
            other = reference.causal(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        for t in range(len(own)):
            later = sum(rho[t:].tolist())
            changing = own[t] - own[t].detach()  # 0, with the gradient of ρ_t
            loss = loss + (0.3 * (later + changing) - row["reward"]) ** 2 / tokens
            loss = loss + 0.01 * (mine[t].exp() * (mine[t] - other[t])).sum() / tokens
            bias += 2 * (0.3 * later - row["reward"]) / tokens
    torch.testing.assert_close(gradient(method, batch, policy), by_hand(policy, loss), rtol=1e-3, atol=1e-6)
    head = method.update.weights()["critic.head.linear.bias"]
    assert float(head.grad) == pytest.approx(bias, rel=1e-4)


def test_oreos_value_at_its_optimum_is_the_expected_reward_of_the_reference(tmp_path: Path, tiny_folder: Path) -> None:
    """While π is the reference every ρ is 0: the best constant V is the mean reward over tokens, with that variance."""
    rows = [{**row, "reward": reward} for row, reward in zip(ROWS, (1.0, 1.0, 0.0, 0.5), strict=True)]
    config = recorded_config(tmp_path, tiny_folder, {"name": "oreo", "critic": {"network": "head"}}, rows)
    policy = tiny_policy()
    method = build_method(Parts.of(config, policy, Reference.of(policy), lambda batch: batch, rows))
    batch = prepared(method, rows)
    lengths = [len(logprobs_by_hand(policy, row)) for row in rows]
    mean = sum(n * row["reward"] for n, row in zip(lengths, rows, strict=True)) / sum(lengths)
    head = method.update.weights()["critic.head.linear.bias"]
    with torch.no_grad():
        head.fill_(mean)
    gradient(method, batch, policy)
    assert float(head.grad) == pytest.approx(0.0, abs=1e-6)
    with torch.no_grad():
        head.fill_(mean + 0.1)
    head.grad = None
    gradient(method, batch, policy)
    assert float(head.grad) == pytest.approx(0.2, rel=1e-4)


# ---------------------------------------------------------------------------------------------------- A*-PO


def a_star(
    tmp_path: Path, model: Path, rewards: list[float], samples: int = 2, **options: Any
) -> tuple[Method, Policy, Policy, list[Any]]:
    """With a reward that gives the listed numbers one after another, first to the reference's samples."""
    rows = [{"prompt": "say hot: ", "answer": "hot"}, {"prompt": "say big: ", "answer": "big"}]
    method = {"name": "a_star_po", "reference_samples": samples, "beta": 0.25, **options}
    config = tiny_config(model, write_data(tmp_path), method=method, group_size=1, optimizer={"actor_lr": 1e-3})
    policy, other = tiny_policy(), tiny_policy(seed=1)
    left = list(rewards)

    def reward(batch: Batch, whole_step: bool = True) -> Batch:
        values = [left.pop(0) for _ in range(len(batch))]
        return batch.with_signals(rewards_B=torch.tensor(values))

    return build_method(Parts.of(config, policy, Reference.of(other), reward, rows)), policy, other, rows


def test_a_stars_values_and_gradient_by_hand(tmp_path: Path, tiny_folder: Path) -> None:
    """V* = ½ log mean e^{2r}: of (1, 0) ½ log ((e² + 1)/2) = 0.71689, of (0, 0) it is 0. The loss is
    mean (¼ log π/π_ref + V* − r)²."""
    method, policy, reference, rows = a_star(tmp_path, tiny_folder, [1, 0, 0, 0, 0.0, 1.0], entropy_coefficient=0.0)
    batch = method.advantage(method.reward(method.rollout(rows, 3)))
    assert batch.signals.values_B.tolist() == pytest.approx([0.71689, 0.0], abs=1e-5)
    loss = torch.zeros(())
    for at, (value, reward) in enumerate(((0.5 * math.log((math.e**2 + 1) / 2), 0.0), (0.0, 1.0))):
        ids = torch.tensor([[*batch.samples.prompt_ids[at], *batch.samples.completion_lists()[at]]])
        start = len(batch.samples.prompt_ids[at])
        logp, before = (
            p.causal(ids).logits[0, start - 1 : -1].log_softmax(-1).gather(1, ids[0, start:, None]).sum()
            for p in (policy, reference)
        )
        loss = loss + (0.25 * (logp - before.detach()) + value - reward) ** 2 / 2
    torch.testing.assert_close(gradient(method, batch, policy), by_hand(policy, loss), rtol=1e-3, atol=1e-6)


def test_a_stars_first_gradient_is_reinforce_with_the_baseline_v(tmp_path: Path, tiny_folder: Path) -> None:
    """With π = π_ref the gradient is −2β (r − V*) ∇log π."""
    method, policy, _, rows = a_star(tmp_path, tiny_folder, [1, 0, 0, 0, 0.0, 1.0], entropy_coefficient=0.0)
    batch = method.advantage(method.reward(method.rollout(rows, 3)))
    update: Any = method.update
    batch = batch.with_signals(reference_BT=update.score(batch).untruncated_BT.detach())
    loss = torch.zeros(())
    for at, baseline in enumerate((0.5 * math.log((math.e**2 + 1) / 2), 0.0)):
        ids = torch.tensor([[*batch.samples.prompt_ids[at], *batch.samples.completion_lists()[at]]])
        start = len(batch.samples.prompt_ids[at])
        logp = policy.causal(ids).logits[0, start - 1 : -1].log_softmax(-1).gather(1, ids[0, start:, None]).sum()
        loss = loss - 2 * 0.25 * (float(batch.signals.rewards_B[at]) - baseline) * logp / 2
    torch.testing.assert_close(gradient(method, batch, policy), by_hand(policy, loss), rtol=1e-3, atol=1e-6)


def test_missing_rewards_are_left_out_of_v_and_of_the_loss(tmp_path: Path, tiny_folder: Path) -> None:
    nan = math.nan
    method, _, _, rows = a_star(tmp_path, tiny_folder, [1, nan, nan, nan, 0.0, 1.0])
    batch = method.advantage(method.reward(method.rollout(rows)))
    assert batch.signals.values_B[0] == 1.0
    assert batch.signals.values_B[1].isnan()
    assert batch.trained_BT.any(1).tolist() == [True, False], "a prompt without V* is not trained on"
    assert math.isfinite(method.update(batch)["loss/a_star"])


def test_unsolved_prompts_can_be_dropped(tmp_path: Path, tiny_folder: Path) -> None:
    for unsolved, trained in (("keep", [True, True]), ("drop", [True, False])):
        method, _, _, rows = a_star(tmp_path, tiny_folder, [1, 0, 0, 0, 0.0, 1.0], unsolved=unsolved)
        batch = method.advantage(method.reward(method.rollout(rows)))
        assert batch.trained_BT.any(1).tolist() == trained
        assert "1 of 2 training prompts are unsolved" in method.notices[0]


def test_a_reference_that_solves_nothing_is_refused(tmp_path: Path, tiny_folder: Path) -> None:
    with pytest.raises(UserError, match="the reference solves none of the 2 training prompts in 2 samples each"):
        a_star(tmp_path, tiny_folder, [0, 0, 0, 0])
    with pytest.raises(UserError, match=r"unsolved: drop leaves no prompt"):
        a_star(tmp_path, tiny_folder, [-1, -2, -3, -4], unsolved="drop")
    method, _, _, _ = a_star(tmp_path, tiny_folder, [-1, -2, -3, -4])  # graded below 0: there is something to learn
    assert method.notices


def test_rows_are_known_by_their_contents() -> None:
    assert row_key({"prompt": "a", "level": 1, "note": None}) == row_key({"level": 1, "prompt": "a"})
    assert row_key({"prompt": "a", "level": 1}) != row_key({"prompt": "a", "level": 2})
