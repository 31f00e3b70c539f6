"""Windows, chunks, caps, sinks, ALiBi and learned positions: the engine samples what transformers' model would, and a
training pass scores it so, behind shared prompts and in packed rows."""

from dataclasses import replace

import pytest
import torch

from support.small_batch import batch_of
from support.tiny_models import byte_tokenizer
from support.zoo import WINDOW, zoo_model
from vigneron.core.draws import Sampling, sampled_logprobs
from vigneron.policy import attention
from vigneron.policy.load import make_policy
from vigneron.policy.logprobs import score
from vigneron.policy.microbatches import microbatches
from vigneron.policy.model import Policy
from vigneron.policy.model_checks import check_head
from vigneron.policy.packing import can_share_prompts
from vigneron.rollout.engine.engine import Engine
from vigneron.rollout.engine.generate_fallback import GenerateSampler
from vigneron.rollout.engine.key_value_cache import KeyValueCache
from vigneron.rollout.engine.sample import sample, sampler_of

FAST = ["Mistral v0.1 (window)", "Gemma 2", "gpt-oss", "BLOOM"]
SLOW = [
    *("Gemma 3n text", "Gemma 4 text", "Phi-3", "GPT-NeoX, Pythia", "CodeGen", "OPT"),
    *("Falcon (ALiBi)", "MPT", "Mixtral", "DeepSeek V3"),
]
DOES_NOT_SHARE = ("BLOOM", "MPT", "Falcon (ALiBi)")
SAMPLING = Sampling(temperature=0.9)


def zoo_policy(family: str) -> Policy:
    policy = make_policy(zoo_model(family), byte_tokenizer(), device=torch.device("cpu"))
    policy.eos_ids = frozenset()
    check_head(policy)
    policy.shares_prompts = can_share_prompts(policy)
    return policy


def by_transformers(policy: Policy, prompt: list[int], completion: list[int], sampling: Sampling) -> torch.Tensor:
    """Log-probs of a completion by one plain forward pass, alone and without padding."""
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([[*prompt, *completion]]), use_cache=False).logits[0]
    logprobs = sampled_logprobs(logits[len(prompt) - 1 : -1], sampling)
    return logprobs.gather(1, torch.tensor(completion)[:, None])[:, 0]


INSIDE, BEHIND = WINDOW // 2, WINDOW + 9


@pytest.mark.parametrize(
    ("family", "tokens"),
    [
        *((name, tokens) for name in FAST for tokens in (INSIDE, BEHIND)),
        *(pytest.param(name, BEHIND, marks=pytest.mark.slow) for name in SLOW),
    ],
)
def test_what_is_sampled_and_scored_is_transformers(family: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all families, inside of the window too: `tests/policy/test_zoo.py`."""
    policy = zoo_policy(family)
    assert isinstance(sampler_of(policy), Engine)
    assert policy.shares_prompts == (family not in DOES_NOT_SHARE)
    prompts = [
        [(7 * i + j) % 250 + 1 for j in range(size)] for i, size in enumerate((tokens // 2 + 1, 3, 1)) for _ in range(2)
    ]
    # Rows are refilled.
    room_for = KeyValueCache.room_for
    monkeypatch.setattr(
        KeyValueCache, "room_for", lambda *given, **options: replace(room_for(*given, **options), rows=3)
    )
    sampled = sample(policy, prompts, max_new_tokens=tokens // 2, sampling=SAMPLING, seed=1)
    greedy = sample(policy, prompts, max_new_tokens=tokens // 2)
    pairs = [(prompt, sampled.ids_BT[row].tolist()) for row, prompt in enumerate(prompts)]
    for row, (prompt, completion) in enumerate(pairs):
        expected = by_transformers(policy, prompt, completion, SAMPLING)
        torch.testing.assert_close(sampled.behaviour_BT[row], expected, atol=1e-4, rtol=0)
        expected = by_transformers(policy, prompt, greedy.ids_BT[row].tolist(), Sampling())
        torch.testing.assert_close(greedy.behaviour_BT[row], expected, atol=1e-4, rtol=0)
    batch = batch_of(pairs).with_packing(share_prompts=policy.shares_prompts, pack=policy.shares_prompts)
    for part in microbatches(batch, 4 * tokens):
        with torch.no_grad():
            got = score(policy, part, SAMPLING).logprobs_BT
        for row, completion in enumerate(part.samples.completion_lists()):
            expected = by_transformers(policy, list(part.samples.prompt_ids[row]), list(completion), SAMPLING)
            torch.testing.assert_close(got[row], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["Gemma 2", pytest.param("gpt-oss", marks=pytest.mark.slow)])
def test_gradients_are_transformers(family: str) -> None:
    """Of two completions behind one prompt, longer than the window; also those of sinks."""
    prompt, completions = list(range(1, 13)), [list(range(20, 32)), list(range(40, 50))]
    policy = zoo_policy(family)
    batch = batch_of([(prompt, completion) for completion in completions]).with_packing(per_row=2)
    score(policy, batch, Sampling()).logprobs_BT.sum().backward()
    got = {name: weight.grad.clone() for name, weight in policy.trainable() if weight.grad is not None}
    policy.model.zero_grad()
    for completion in completions:
        logits = policy.model(input_ids=torch.tensor([[*prompt, *completion]]), use_cache=False).logits[0]
        logprobs = logits[len(prompt) - 1 : -1].log_softmax(-1)
        logprobs.gather(1, torch.tensor(completion)[:, None]).sum().backward()
    assert ("sinks" in " ".join(got)) == (family == "gpt-oss")
    for name, weight in policy.trainable():
        if weight.grad is not None:
            error = (got[name] - weight.grad).norm() / weight.grad.norm()
            assert error < 1e-4, name


def test_a_window_that_no_row_reaches_costs_no_mask() -> None:
    local = attention.LocalAttention(16)
    assert attention.local_mask(local, torch.arange(16)[None], None) is None
    mask = attention.local_mask(local, torch.arange(17)[None], None)
    assert mask is not None
    assert mask[0, 0].sum(-1).tolist() == [*range(1, 17), 16]
    chunks = attention.local_mask(attention.LocalAttention(3, chunked=True), torch.arange(7)[None], None)
    assert chunks is not None
    assert chunks[0, 0].sum(-1).tolist() == [1, 2, 3, 1, 2, 3, 1]


@pytest.mark.parametrize("family", ["Mistral v0.1 (window)", "Gemma 2"])
def test_the_check_at_the_start_sees_windows_and_caps(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that loses one of them is noticed by a dozen tokens, and transformers' own attention is kept."""
    policy = zoo_policy(family)
    assert policy.own_attention
    before = attention.attention
    lost = {"local_allowed": None} if "window" in family else {"softcap": None}

    def forgetful(*args: object, **options: object) -> object:
        return before(*args, **{**options, **lost})

    monkeypatch.setitem(attention.AttentionInterface._global_mapping, attention.NAME, forgetful)
    policy.own_attention = None
    check_head(policy)
    assert policy.own_attention is False
    if "window" in family:
        assert not can_share_prompts(policy)
        policy.sampler = None
        assert isinstance(sampler_of(policy), GenerateSampler)


def test_windows_are_as_they_were_after_the_check() -> None:
    model = zoo_model("Gemma 2")
    before = [(module, module.sliding_window) for module in model.modules() if hasattr(module, "sliding_window")]
    zoo_policy("Gemma 2")
    with attention.shrunken_windows(model):
        assert {window for module, _ in before for window in [module.sliding_window]} == {None, 4}
    assert model.config.sliding_window == WINDOW
    assert all(module.sliding_window == window for module, window in before)


def test_a_cache_is_as_large_as_its_layers() -> None:
    """DeepSeek's values are smaller than its keys: rows at once are counted with both."""
    policy = zoo_policy("DeepSeek V3")
    policy.cache_bytes = 10 * 2 * 4 * (12 + 8) * 32 * 4
    assert Engine(policy)._cache.room_for([(20, 1)] * 50, 12).rows == 10
