"""On-policy distillation: the losses and their gradients against a plain calculation in float64, the sampled one's mean
by enumeration, and what the parent may be."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.small_batch import batch_of
from support.tiny_models import tiny_policy
from support.tiny_runs import tiny_config, write_data
from vigneron.batch import Batch
from vigneron.core.draws import Sampling
from vigneron.core.kl import divergence, with_rest
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.policy.model import Policy
from vigneron.policy.parent import LocalParent, check_same_tokens, end_notice
from vigneron.policy.reference import Reference
from vigneron.training.method import Method
from vigneron.training.parts import Parts

ROWS = [([5, 6, 7], [8, 9]), ([5, 6, 7], [10, 11, 12]), ([20], [3, 200, 4, 1])]
DOUBLE = torch.float64
CLOSE = {"atol": 1e-8, "rtol": 1e-6}
"""Rotary positions are in float32 in both passes, and packed otherwise."""


def parent_of(kind: str = "qwen", seed: int = 3, dtype: torch.dtype = DOUBLE) -> Policy:
    """Another architecture, so that nothing of it is taken from the child by mistake."""
    policy = tiny_policy(kind, seed, dtype)
    with torch.no_grad():
        policy.causal.get_output_embeddings().weight.mul_(40)
    policy.model.requires_grad_(False)
    return policy


def logits_of(policy: Policy, rows: Any = ROWS) -> list[Tensor]:
    """By transformers' own forward pass, one row at a time."""
    logits = []
    for prompt, completion in rows:
        ids = torch.tensor([prompt + completion])
        logits.append(policy.model(ids).logits[0, len(prompt) - 1 : -1])
    return logits


def built(
    tmp_path: Path, child: Policy, parent: Policy, sampling: dict[str, Any] | None = None, **options: Any
) -> Method:
    method = {"name": "distill", "parent": "parent", **options}
    config = tiny_config(
        Path("child"),
        write_data(tmp_path),
        method=method,
        reward={"kind": "binary"},
        optimizer={"actor_lr": 1e-3},
        sampling=sampling or {},
    )
    held = LocalParent(Reference(parent, shares_weights=False))
    return build_method(Parts.of(config, child, Reference.of(child), lambda b: b, parent=held))


def gradients(method: Any, batch: Batch, policy: Policy) -> tuple[dict[str, float], list[Tensor]]:
    """The terms of the loss, and its gradient by every weight."""
    policy.model.zero_grad()
    terms = method.update.accumulate(batch, lambda part: method.update.loss(part, method.update.score(part)))
    values = {name: value for name, value, _ in terms}
    return values, [torch.zeros_like(w) if w.grad is None else w.grad.clone() for _, w in policy.trainable()]


def plain_divergence(p_logits: Tensor, q_logits: Tensor, beta: float, temperature: float) -> Tensor:
    """GKD's formula as it is written, over β (1 − β)."""
    p, q = (p_logits / temperature).softmax(-1), (q_logits / temperature).softmax(-1)
    m = beta * p + (1 - beta) * q

    def kl(a: Tensor, b: Tensor) -> Tensor:
        return (a * (a / b).log()).sum(-1)

    if beta in (0.0, 1.0):
        return kl(p, q) if beta == 0 else kl(q, p)
    return (beta * kl(p, m) + (1 - beta) * kl(q, m)) / (beta * (1 - beta))


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("truncated", [False, True])
def test_the_divergence_and_its_gradient_are_those_of_a_plain_calculation(
    tmp_path: Path, beta: float, truncated: bool
) -> None:
    """The mean over all tokens of D_β between two architectures, at the sampling temperature; with top-p by autograd
    instead of the fused head, and still over the whole vocabulary."""
    child, parent = tiny_policy(dtype=DOUBLE), parent_of()
    sampling = {"temperature": 1.5, **({"top_p": 0.9} if truncated else {})}
    method = built(tmp_path, child, parent, sampling, beta=beta)
    values, got = gradients(method, method.advantage(batch_of(ROWS)), child)
    pairs = zip(logits_of(parent), logits_of(child), strict=True)
    expected = torch.cat([plain_divergence(p, q, beta, 1.5) for p, q in pairs]).mean()
    assert values["loss/distill"] == pytest.approx(expected.item(), rel=1e-7)
    assert expected.item() > 0.1
    weights = [weight for _, weight in child.trainable()]
    for a, b in zip(got, torch.autograd.grad(expected, weights), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


def test_over_the_parents_most_likely_tokens_the_others_are_one(tmp_path: Path) -> None:
    child, parent = tiny_policy(dtype=DOUBLE), parent_of()
    values = {}
    for count in (4, 259):
        method = built(tmp_path, child, parent, beta=0.3, top_k=count)
        values[count], got = gradients(method, method.advantage(batch_of(ROWS)), child)
        rows = []
        for p_logits, q_logits in zip(logits_of(parent), logits_of(child), strict=True):
            p, q = p_logits.softmax(-1), q_logits.softmax(-1)
            chosen = p.topk(count).indices
            p, q = (torch.cat([x.gather(1, chosen), 1 - x.gather(1, chosen).sum(1, keepdim=True)], 1) for x in (p, q))
            rows.append(plain_divergence(p.log(), q.log(), 0.3, 1.0))
        expected = torch.cat(rows).mean()
        assert values[count]["loss/distill"] == pytest.approx(expected.item(), rel=1e-7)
        for a, b in zip(got, torch.autograd.grad(expected, [w for _, w in child.trainable()]), strict=True):
            torch.testing.assert_close(a, b, **CLOSE)
    whole = built(tmp_path, child, parent, beta=0.3)
    exact = gradients(whole, whole.advantage(batch_of(ROWS)), child)[0]["loss/distill"]
    # Tokens that are put together can only hide a difference; one alone hides none.
    assert values[4]["loss/distill"] < exact
    assert values[259]["loss/distill"] == pytest.approx(exact, rel=1e-7)


def test_the_mean_of_the_sampled_gradient_is_that_of_the_reverse_kl(tmp_path: Path) -> None:
    """One position, all tokens with their probabilities: Σ π(v) A(v) ∇ log π(v) against ∇ KL(child ‖ parent)."""
    child, parent = tiny_policy(dtype=DOUBLE), parent_of()
    size = child.causal.config.vocab_size
    batch = batch_of([([5, 6, 7], [token]) for token in range(size)])
    own = logits_of(child, [([5, 6, 7], [0])])[0].log_softmax(-1)[0].detach()
    batch = batch.with_samples(behaviour_BT=own[:, None])
    sampled = built(tmp_path, child, parent, loss="sampled")
    known = sampled.advantage(batch)
    theirs = logits_of(parent, [([5, 6, 7], [0])])[0].log_softmax(-1)[0]
    torch.testing.assert_close(known.signals.advantages_BT[:, 0], theirs - own, **CLOSE)
    # The loss is a mean over samples: their probability times their number makes it the expectation.
    weighted = known.with_signals(advantages_BT=known.signals.advantages_BT * own.exp()[:, None] * size)
    exact = built(tmp_path, child, parent, beta=1.0)
    one = exact.advantage(batch_of([([5, 6, 7], [0])]))
    pairs = zip(gradients(sampled, weighted, child)[1], gradients(exact, one, child)[1], strict=True)
    for mean, whole in pairs:
        torch.testing.assert_close(mean, whole, **CLOSE)
    assert max(float(grad.abs().max()) for grad in gradients(exact, one, child)[1]) > 1e-3


def test_a_child_that_is_its_parent_has_no_loss_and_no_gradient(tmp_path: Path) -> None:
    child = tiny_policy(dtype=DOUBLE)
    for beta in (0.0, 0.5, 1.0):
        method = built(tmp_path, child, child.frozen_copy(), beta=beta)
        values, got = gradients(method, method.advantage(batch_of(ROWS)), child)
        assert values["loss/distill"] == pytest.approx(0.0, abs=1e-12)
        assert values["kl_parent"] == pytest.approx(0.0, abs=1e-12)
        assert max(float(grad.abs().max()) for grad in got) < 1e-12


@pytest.mark.parametrize(("extra", "kind"), [(-2, "llama"), (5, "llama"), (0, "codegen")])
def test_a_padded_vocabulary_and_an_attention_of_its_own_are_read(tmp_path: Path, extra: int, kind: str) -> None:
    """The parent has fewer or more rows than the child; a token that it lacks is read as padding. CodeGen's samples are
    not packed."""
    child, parent = tiny_policy(dtype=DOUBLE), parent_of(kind)
    rows = [([5, 6, 7], [8, 9]), ([5, 6, 7], [10, 259, 12])]
    read = [([5, 6, 7], [8, 9]), ([5, 6, 7], [10, 0 if extra < 0 else 259, 12])]
    if extra:
        parent.model.resize_token_embeddings(260 + extra)
        parent.model.requires_grad_(False)
    size = min(260, 260 + extra)
    for beta in (0.0, 0.3, 1.0):
        method = built(tmp_path, child, parent, beta=beta)
        values, got = gradients(method, method.advantage(batch_of(rows)), child)
        pairs = zip(logits_of(parent, read), logits_of(child, rows), strict=True)
        expected = torch.cat([plain_divergence(p[:, :size], q[:, :size], beta, 1.0) for p, q in pairs]).mean()
        assert values["loss/distill"] == pytest.approx(expected.item(), rel=1e-7)
        for a, b in zip(got, torch.autograd.grad(expected, [w for _, w in child.trainable()]), strict=True):
            torch.testing.assert_close(a, b, **CLOSE)


def test_the_divergence_by_hand() -> None:
    """p = (½, ½), q = (¼, ¾), β = ½: m = (⅜, ⅝); 2 KL(p ‖ m) + 2 KL(q ‖ m) = 0.064539 + 0.070825."""
    p, q = torch.tensor([0.5, 0.5]).double().log(), torch.tensor([0.25, 0.75]).double().log()
    kl_p = 0.5 * torch.tensor(4 / 3).log() + 0.5 * torch.tensor(4 / 5).log()
    kl_q = 0.25 * torch.tensor(2 / 3).log() + 0.75 * torch.tensor(6 / 5).log()
    assert float(divergence(p, q, 0.5)) == pytest.approx(float(2 * kl_p + 2 * kl_q), abs=1e-6)
    # Tokens that only one of them has: at β = ½ two disjoint distributions are 4 log 2 apart, and never infinitely.
    first, second = torch.tensor([0.0, -torch.inf]), torch.tensor([-torch.inf, 0.0])
    assert float(divergence(first, second, 0.5)) == pytest.approx(2.772589, abs=1e-5)
    assert float(divergence(first, second, 1.0)) == torch.inf
    bad = torch.tensor([0.0, torch.nan], requires_grad=True)
    value = divergence(first, bad, 0.5)
    assert value.isnan()
    torch.testing.assert_close(with_rest(torch.tensor([0.5, 0.2]).log()).exp(), torch.tensor([0.5, 0.2, 0.3]))


def test_the_most_likely_tokens_are_those_of_the_sampling_temperature() -> None:
    parent = parent_of()
    held = LocalParent(Reference(parent, shares_weights=False))
    seen = held.top(batch_of(ROWS), Sampling(0.7, top_p=0.5), 3)
    for row, logits in enumerate(logits_of(parent)):
        best = (logits / 0.7).log_softmax(-1).topk(3)
        length = len(logits)
        torch.testing.assert_close(seen["parent_top_BTK"][row, :length], best.values)
        assert torch.equal(seen["parent_ids_BTK"][row, :length], best.indices)


def test_another_tokenizer_is_one_line() -> None:
    own = tiny_policy().tokenizer.get_vocab()
    check_same_tokens(own, dict(own), "parent")
    with pytest.raises(
        UserError, match=r"^method.parent: 'p' has another tokenizer .*token 257 is '<more>' there, none"
    ):
        check_same_tokens(own, {**own, "<more>": 257}, "p")
    swapped = {**own, "a": own["b"], "b": own["a"]}
    with pytest.raises(UserError, match="'b' there, 'a' here"):
        check_same_tokens(own, swapped, "p")


def test_a_parent_with_another_end_is_told() -> None:
    child, parent = tiny_policy(), tiny_policy()
    assert end_notice(child, parent) is None
    parent.eos_ids = frozenset({7})
    text = end_notice(child, parent)
    assert text is not None
    assert "by <end>" in text
