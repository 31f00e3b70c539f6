"""What stands beside a completion never changes what the policy thinks of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Lfm2Config, Lfm2ForCausalLM

from support.small_batch import batch_of
from support.tiny_models import tiny_policy
from vigneron.batch import Batch
from vigneron.core.draws import Sampling
from vigneron.policy import fused_head as head
from vigneron.policy import logprobs as scoring
from vigneron.policy.load import make_policy
from vigneron.policy.logprobs import Critic, ValueHead, score
from vigneron.policy.microbatches import microbatches
from vigneron.policy.model import Policy
from vigneron.policy.packing import can_share_prompts
from vigneron.policy.rank_batches import map_microbatches

token = st.integers(1, 250)
KINDS = ["gpt2", "llama", pytest.param("qwen", marks=pytest.mark.slow)]
rows_of_tokens = st.lists(st.lists(token, min_size=2, max_size=12), min_size=1, max_size=5)


def alone(policy: Policy, row: list[int]) -> torch.Tensor:
    """Next-token log-probs of one row, by the transformers model itself, without padding."""
    with torch.no_grad():
        return policy.model(torch.tensor([row])).logits[0].log_softmax(-1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(
    rows=rows_of_tokens,
    copies=st.integers(1, 5),
    per_row=st.integers(1, 6),
    with_last=st.booleans(),
    for_graphs=st.booleans(),
)
@settings(max_examples=12, deadline=None)
def test_completions_behind_one_copy_of_their_prompt_do_not_see_each_other(
    kind: str, rows: list[list[int]], copies: int, per_row: int, with_last: bool, for_graphs: bool
) -> None:
    policy = tiny_policy(kind)
    policy.graphed = for_graphs  # on a CPU nothing is captured, but rows and widths are rounded up
    prompts = [row[: len(row) // 2] for row in rows]
    pairs = [
        (p, [*row[len(p) :], *range(1, c + 1)]) for p, row in zip(prompts, rows, strict=True) for c in range(copies)
    ]
    batch = batch_of(pairs).with_packing(per_row=per_row)
    critic = Critic(ValueHead(policy.hidden_size), "last_completion" if with_last else "last_prompt")
    torch.nn.init.normal_(critic.head.linear.weight)
    with torch.no_grad():
        got = score(policy, batch, Sampling(), critic=critic)
    for i, (prompt, completion) in enumerate(pairs):
        whole = [*prompt, *completion]
        expected = alone(policy, whole)[len(prompt) - 1 : -1].gather(-1, torch.tensor(completion)[:, None])[:, 0]
        torch.testing.assert_close(got.logprobs_BT[i, : len(completion)], expected, atol=1e-5, rtol=0)
        with torch.no_grad():
            states = policy.model.base_model(torch.tensor([whole])).last_hidden_state[0]
            value = critic.head(states[len(whole) - 1 if with_last else len(prompt) - 1][None])[0]
        torch.testing.assert_close(got.values_B[i], value, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@given(rows=rows_of_tokens, data=st.data())
@settings(max_examples=12, deadline=None)
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


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.7), Sampling(temperature=0.7, top_k=50)])
def test_the_head_in_chunks_gives_the_same_values_and_gradients(
    policy: Policy, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of([([3, 4, 5], [6, 7, 0]), ([8], [9, 10]), ([11, 12], [13])])
    results = []
    for chunk in (1024, 2):
        monkeypatch.setattr(scoring, "HEAD_CHUNK", chunk)
        monkeypatch.setattr(head, "HEAD_CHUNK", chunk)
        policy.model.zero_grad()
        now = score(policy, batch, sampling)
        (now.logprobs_BT.sum() + 0.1 * now.entropy_BT.sum()).backward()
        results.append((now.logprobs_BT.detach(), [p.grad.clone() for p in policy.model.parameters()]))
    torch.testing.assert_close(results[0][0], results[1][0])
    for a, b in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(rows=rows_of_tokens, copies=st.integers(1, 4), budget=st.integers(1, 200))
@settings(max_examples=10, deadline=None)
def test_the_size_of_a_microbatch_changes_nothing(kind: str, rows: list[list[int]], copies: int, budget: int) -> None:
    policy = tiny_policy(kind)
    pairs = [(row[:1], [*row[1:], *range(1, c + 1)]) for row in rows for c in range(copies)]
    batch = batch_of(pairs)

    def logprobs(part: Batch) -> dict[str, torch.Tensor]:
        return {"logprobs_BT": score(policy, part, Sampling()).logprobs_BT}

    with torch.no_grad():
        split = map_microbatches(batch, budget, logprobs)["logprobs_BT"]
    for i, (prompt, completion) in enumerate(pairs):
        expected = alone(policy, [*prompt, *completion])[len(prompt) - 1 : -1]
        expected = expected.gather(-1, torch.tensor(completion)[:, None])[:, 0]
        torch.testing.assert_close(split[i, : len(completion)], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("sharing", [False, True])
def test_a_window_is_kept_in_training(sharing: bool) -> None:
    """Mistral with a window of 3: log-probs of a completion past it are the model's own, also after a shared prompt."""
    policy = tiny_policy("mistral")
    assert can_share_prompts(policy)
    pairs = [([5, 6, 7, 8, 9], [10, 11, 12, 13, c]) for c in (14, 15, 16, 17)]
    batch = batch_of(pairs).with_packing(share_prompts=sharing)
    (part,) = microbatches(batch, 1000)
    assert part.packing.per_row == (4 if sharing else 1)
    with torch.no_grad():
        got = score(policy, part, Sampling()).logprobs_BT
    for i, (prompt, completion) in enumerate(pairs):
        expected = alone(policy, [*prompt, *completion])[len(prompt) - 1 : -1]
        expected = expected.gather(-1, torch.tensor(completion)[:, None])[:, 0]
        torch.testing.assert_close(got[i], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen"])
def test_models_with_full_attention_share(kind: str) -> None:
    assert can_share_prompts(tiny_policy(kind))


def test_a_model_whose_layers_look_past_a_mask_does_not_share() -> None:
    """LFM2's convolutions run over neighbours, whatever the mask says."""
    config = Lfm2Config(
        vocab_size=260,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
    )
    torch.manual_seed(0)
    policy = make_policy(Lfm2ForCausalLM(config).eval(), None, device=torch.device("cpu"))
    assert not can_share_prompts(policy)
