"""What stands beside a row, or before it, never changes what the policy thinks of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import tiny_policy
from vigneron.batch import Batch
from vigneron.core.draws import Sampling
from vigneron.policy import scoring
from vigneron.policy.model import Policy, left_pad, positions_of
from vigneron.policy.scoring import score

token = st.integers(1, 250)
rows_of_tokens = st.lists(st.lists(token, min_size=2, max_size=12), min_size=1, max_size=5)


def alone(policy: Policy, row: list[int]) -> torch.Tensor:
    """Next-token log-probs of one row, by the transformers model itself, without padding."""
    with torch.no_grad():
        return policy.model(torch.tensor([row])).logits[0].log_softmax(-1)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@given(rows=rows_of_tokens)
@settings(max_examples=25, deadline=None)
def test_a_left_padded_batch_gives_each_row_its_own_log_probs(kind: str, rows: list[list[int]]) -> None:
    policy = tiny_policy(kind)
    ids, attention = left_pad(rows, policy.pad_id, policy.device)
    with torch.no_grad():
        got = policy.logits(policy.hidden(ids, positions_of(attention), attention)).log_softmax(-1)
    for i, row in enumerate(rows):
        torch.testing.assert_close(got[i, -len(row) :], alone(policy, row), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@given(rows=rows_of_tokens, data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_teacher_forced_batch_gives_each_completion_its_own_log_probs(
    kind: str, rows: list[list[int]], data: st.DataObject
) -> None:
    policy = tiny_policy(kind)
    cuts = [data.draw(st.integers(1, len(row) - 1)) for row in rows]
    batch = batch_of([(row[:cut], row[cut:]) for row, cut in zip(rows, cuts, strict=True)])
    with torch.no_grad():
        got = score(policy, batch, Sampling())
    for i, (row, cut) in enumerate(zip(rows, cuts, strict=True)):
        logprobs = alone(policy, row)[cut - 1 : -1]
        expected = logprobs.gather(-1, torch.tensor(row[cut:])[:, None]).squeeze(-1)
        torch.testing.assert_close(got.logprobs_BT[i, : len(row) - cut], expected, atol=1e-5, rtol=0)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        torch.testing.assert_close(got.entropy_BT[i, : len(row) - cut], entropy, atol=1e-5, rtol=0)


def test_the_head_in_chunks_gives_the_same_values_and_gradients(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of([([3, 4, 5], [6, 7, 0]), ([8], [9, 10]), ([11, 12], [13])])
    results = []
    for chunk in (1024, 2):
        monkeypatch.setattr(scoring, "HEAD_CHUNK", chunk)
        policy.model.zero_grad()
        now = score(policy, batch, Sampling(temperature=0.7, top_k=50))
        (now.logprobs_BT.sum() + 0.1 * now.entropy_BT.sum()).backward()
        results.append((now.logprobs_BT.detach(), [p.grad.clone() for p in policy.model.parameters()]))
    torch.testing.assert_close(results[0][0], results[1][0])
    for a, b in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def batch_of(pairs: list[tuple[list[int], list[int]]]) -> Batch:
    width = max(len(completion) for _, completion in pairs)
    ids = torch.zeros(len(pairs), width, dtype=torch.long)
    for row, (_, completion) in enumerate(pairs):
        ids[row, : len(completion)] = torch.tensor(completion)
    return Batch(
        prompt_ids=tuple(tuple(prompt) for prompt, _ in pairs),
        completion_BT=ids,
        spans=tuple(((len(p), len(p) + len(c)),) for p, c in pairs),
        behaviour_BT=torch.zeros(len(pairs), width),
        truncated_B=torch.zeros(len(pairs), dtype=torch.bool),
        group_B=torch.arange(len(pairs)),
        sample_B=torch.arange(len(pairs)),
        prompts=("",) * len(pairs),
        completions=("",) * len(pairs),
    )
