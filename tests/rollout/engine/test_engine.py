"""The engine: what it samples is what a plain model would, whatever the rows, refills, compactions and weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tiny_models import byte_tokenizer, tiny_model, tiny_policy
from support.zoo import zoo_model
from vigneron.core.draws import Sampling
from vigneron.policy.load import make_policy
from vigneron.policy.lora import Lora, add_lora
from vigneron.policy.model import Policy
from vigneron.rollout.engine import engine as engine_module
from vigneron.rollout.engine.engine import Engine
from vigneron.rollout.engine.generate_fallback import GenerateSampler
from vigneron.rollout.engine.sample import sample, sampler_of

SAMPLINGS = [Sampling(), Sampling(temperature=0.6), Sampling(top_k=5), Sampling(temperature=1.5, top_p=0.7), None]


def forced_logprobs(policy: Policy, prompt: list[int], completion: list[int], sampling: Sampling) -> torch.Tensor:
    from vigneron.core.draws import sampled_logprobs

    with torch.no_grad():
        logits = policy.model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    return sampled_logprobs(logits, sampling).gather(1, torch.tensor(completion)[:, None])[:, 0]


@pytest.mark.parametrize("kind", ["llama", *(pytest.param(k, marks=pytest.mark.slow) for k in ("gpt2", "qwen"))])
@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=5),
    rows=st.integers(1, 9),
    sampling=st.sampled_from(SAMPLINGS),
    ends=st.sets(st.integers(0, 200), max_size=60),
)
@settings(max_examples=7, deadline=None)
def test_refills_and_compactions_change_nothing(
    kind: str,
    lengths: list[tuple[int, int]],
    rows: int,
    sampling: Sampling | None,
    ends: set[int],
) -> None:
    policy = tiny_policy(kind)
    policy.eos_ids = frozenset(ends)
    prompts = [
        list(range(10 * i + 1, 10 * i + 1 + size)) for i, (size, copies) in enumerate(lengths) for _ in range(copies)
    ]
    assert isinstance(sampler_of(policy), Engine)
    wide = sample(policy, prompts, max_new_tokens=7, sampling=sampling, seed=3, step=2)
    cache = policy.sampler._cache
    cache._limit = rows * cache.token_bytes * (max(map(len, prompts)) + 7)  # room for so many rows
    narrow = sample(policy, prompts, max_new_tokens=7, sampling=sampling, seed=3, step=2)
    assert cache.room.rows == min(rows, len(prompts))
    assert wide.lengths_B.tolist() == narrow.lengths_B.tolist()
    assert wide.ids_BT.tolist() == narrow.ids_BT.tolist()
    torch.testing.assert_close(wide.behaviour_BT, narrow.behaviour_BT, atol=1e-5, rtol=0)
    torch.testing.assert_close(wide.prompt_hidden_BH, narrow.prompt_hidden_BH, atol=1e-5, rtol=0)
    for row, prompt in enumerate(prompts):
        completion = wide.ids_BT[row, : int(wide.lengths_B[row])].tolist()
        expected = forced_logprobs(policy, prompt, completion, sampling or Sampling())
        torch.testing.assert_close(wide.behaviour_BT[row, : len(completion)], expected, atol=1e-4, rtol=0)
        assert not any(token in ends for token in completion[:-1])
        assert bool(wide.truncated_B[row]) == (completion[-1] not in ends)


def test_a_prompt_is_computed_once_for_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_policy()
    sampler_of(policy)
    seen: list[int] = []
    before = Engine.prefill
    monkeypatch.setattr(
        Engine, "prefill", lambda self, prompts, rows: (seen.append(len(prompts)), before(self, prompts, rows))[1]
    )
    sample(policy, [[5, 6]] * 4 + [[7, 8]] * 4, max_new_tokens=3, sampling=Sampling())
    assert seen == [2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lora", [None, Lora(rank=2), Lora(rank=2, targets=("embed_tokens", "wte"))])
def test_after_an_update_the_new_weights_are_sampled(kind_of_policy, lora: Lora | None, dtype: torch.dtype) -> None:
    """Fails where a copy of the weights, a merged adapter or a cached prompt is stale."""
    policy = kind_of_policy(lora, dtype)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-4
    prompts = [[5, 6, 7], [8]]
    before = sample(policy, prompts, max_new_tokens=5)
    with torch.no_grad():
        for _, weight in policy.trainable():
            weight += (0.3 if lora is None else 1.0) * torch.randn_like(weight)
    after = sample(policy, prompts, max_new_tokens=5)
    assert not torch.allclose(before.behaviour_BT[:, 0], after.behaviour_BT[:, 0], atol=1e-3)
    for row, prompt in enumerate(prompts):
        completion = after.ids_BT[row, : int(after.lengths_B[row])].tolist()
        expected = forced_logprobs(policy, prompt, completion, Sampling())
        gap = (after.behaviour_BT[row, : len(completion)] - expected).abs().mean()
        assert gap < tolerance


@pytest.fixture(params=["gpt2", "llama", "qwen"])
def kind_of_policy(request: pytest.FixtureRequest):
    def make(lora: Lora | None = None, dtype: torch.dtype = torch.float32) -> Policy:
        model = tiny_model(request.param)
        if lora is not None:
            model = add_lora(model, lora)
            torch.manual_seed(1)
            for name, weight in model.named_parameters():
                if "lora_B" in name or "lora_embedding_B" in name:
                    torch.nn.init.normal_(weight, std=0.3)
        return make_policy(model.eval(), None, device=torch.device("cpu"), dtype=dtype)

    return make


def test_sampling_leaves_weights_and_adapter_exactly_as_they_were(kind_of_policy) -> None:
    policy = kind_of_policy(Lora(rank=2))
    before = {name: weight.clone() for name, weight in policy.model.named_parameters()}
    modules = [name for name, _ in policy.model.named_modules()]
    sample(policy, [[5, 6, 7], [8]], max_new_tokens=5, sampling=Sampling())
    assert [name for name, _ in policy.model.named_modules()] == modules
    for name, weight in policy.model.named_parameters():
        assert torch.equal(weight, before[name])
    assert policy.causal.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("rows", [9, 2])
def test_in_bfloat16_the_log_probs_are_near_those_of_a_teacher_forced_pass(kind_of_policy, rows: int) -> None:
    """Also where samples of a group begin later than others, from the state after the prompt that these have left."""
    policy = kind_of_policy(dtype=torch.bfloat16)
    prompts = [[5, 6, 7]] * 3 + [[8]] * 3 + [[9] * 6] * 3
    sample(policy, prompts[:1], max_new_tokens=1, sampling=Sampling(), seed=1)  # builds the engine
    cache = policy.sampler._cache
    cache._limit = rows * cache.token_bytes * (6 + 8)
    done = sample(policy, prompts, max_new_tokens=8, sampling=Sampling(), seed=1)
    assert isinstance(policy.sampler, Engine)
    gaps = []
    for row, prompt in enumerate(prompts):
        completion = done.ids_BT[row, : int(done.lengths_B[row])]
        ids = torch.cat([torch.tensor(prompt), completion])[None]
        with torch.no_grad():
            logits = policy.logits(policy.hidden(ids, torch.arange(ids.shape[1])[None]))[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, completion[:, None])[:, 0]
        gaps.append((done.behaviour_BT[row, : len(completion)] - expected).abs())
    assert torch.cat(gaps).mean() < 2e-2


def test_a_model_that_the_engine_cannot_take_is_sampled_by_generate_with_the_same_draws() -> None:
    policy = make_policy(zoo_model("LFM2"), byte_tokenizer(), device=torch.device("cpu"))
    prompts = [[5, 6, 7, 8, 9], [8], [4, 3]]
    done = sample(policy, prompts, max_new_tokens=6, sampling=Sampling(temperature=0.8), seed=2)
    assert isinstance(policy.sampler, GenerateSampler)
    assert policy.sampler.notice.endswith("the model has recurrent layers")
    for row, prompt in enumerate(prompts):
        completion = done.ids_BT[row, : int(done.lengths_B[row])].tolist()
        expected = forced_logprobs(policy, prompt, completion, Sampling(temperature=0.8))
        torch.testing.assert_close(done.behaviour_BT[row, : len(completion)], expected, atol=1e-4, rtol=0)
        alone = sample(policy, [prompt], max_new_tokens=6, sampling=Sampling(temperature=0.8), seed=2, sample_ids=[row])
        assert alone.ids_BT[0].tolist() == completion


def test_engine_and_generate_draw_the_same_tokens() -> None:
    policy = tiny_policy("llama")
    prompts = [[5, 6, 7, 8, 9], [8], [4, 3]]
    by_engine = sample(policy, prompts, max_new_tokens=6, sampling=Sampling(), seed=2)
    policy.sampler = GenerateSampler(policy, "been told to")
    by_generate = sample(policy, prompts, max_new_tokens=6, sampling=Sampling(), seed=2)
    assert by_engine.ids_BT.tolist() == by_generate.ids_BT.tolist()
    torch.testing.assert_close(by_engine.behaviour_BT, by_generate.behaviour_BT, atol=1e-5, rtol=0)
    torch.testing.assert_close(by_engine.prompt_hidden_BH, by_generate.prompt_hidden_BH, atol=1e-5, rtol=0)


def test_prompts_of_like_length_go_through_the_model_together(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_policy()
    sampler_of(policy)
    seen: list[list[int]] = []
    before = Engine.prefill

    def watched(self, prompts, rows):
        seen.append([len(prompt) for prompt in prompts])
        return before(self, prompts, rows)

    monkeypatch.setattr(Engine, "prefill", watched)
    sizes = [3, 20, 2, 19, 11, 4]
    sample(policy, [[5] * size for size in sizes], max_new_tokens=2, sampling=Sampling())
    assert seen == [[20, 19, 11], [4, 3], [2]]
    seen.clear()
    sample(policy, [[5] * size for size in sizes], max_new_tokens=2, sampling=Sampling(), microbatch_tokens=40)
    assert seen == [[20, 19], [11], [4, 3], [2]]


def test_a_long_prefill_is_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph keeps the memory of its pass: up to a product of tokens and weights. The samples are the same."""
    policy = tiny_policy()
    graphs, keys = sampler_of(policy)._graphs, []
    run = graphs.run
    monkeypatch.setattr(graphs, "run", lambda key, *given: (keys.append(key), run(key, *given))[1])
    prompts = [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
    drawn = []
    for most in (10 * policy.size, 10 * policy.size - 1):
        monkeypatch.setattr(engine_module, "MOST_GRAPHED", most)
        drawn.append(sample(policy, prompts, max_new_tokens=4, sampling=Sampling()).ids_BT.tolist())
    assert keys == [(2, 5, 0)]
    assert drawn[0] == drawn[1]


def test_generate_takes_nothing_from_the_models_own_settings() -> None:
    policy = tiny_policy()
    policy.sampler = GenerateSampler(policy, "a test")
    prompts = [[5, 6, 7, 8, 9], [8], [4, 3]]
    before = sample(policy, prompts, max_new_tokens=6, sampling=Sampling(), seed=2)
    policy.model.generation_config.repetition_penalty = 3.0
    after = sample(policy, prompts, max_new_tokens=6, sampling=Sampling(), seed=2)
    assert after.ids_BT.tolist() == before.ids_BT.tolist()


def test_in_bfloat16_generate_has_the_log_probs_of_training() -> None:
    """Logits of transformers are rounded to bfloat16: 0.007 nats on average here, and 0.03 at most."""
    policy = tiny_policy(dtype=torch.float32)
    policy.compute_dtype, policy.eos_ids = torch.bfloat16, frozenset()
    with torch.no_grad():
        policy.causal.lm_head.weight.mul_(60)  # logits as large as a trained model's
    policy.sampler = GenerateSampler(policy, "a test")
    prompts = [[5, 6, 7], [8], [9] * 6]
    done = sample(policy, prompts, max_new_tokens=12, sampling=Sampling(), seed=1)
    gaps = []
    for row, prompt in enumerate(prompts):
        ids = torch.cat([torch.tensor(prompt), done.ids_BT[row]])[None]
        with torch.no_grad():
            logits = policy.logits(policy.trunk(ids, torch.arange(ids.shape[1])[None]))[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, done.ids_BT[row][:, None])[:, 0]
        gaps.append((done.behaviour_BT[row] - expected).abs())
    assert torch.cat(gaps).mean() < 2e-3


@pytest.mark.slow
def test_generate_does_not_pad_for_layers_that_read_padding() -> None:
    """RecurrentGemma: with padding its log-probs are off by 0.2 to 0.6 nats."""
    policy = make_policy(zoo_model("RecurrentGemma"), byte_tokenizer(), device=torch.device("cpu"))
    policy.eos_ids = frozenset()
    prompts = [[5, 6, 7, 8, 9], [8], [4, 3], [6]]
    done = sample(policy, prompts, max_new_tokens=6, sampling=Sampling(), seed=2)
    assert isinstance(policy.sampler, GenerateSampler)
    assert policy.sampler.exact
    assert "not sampled together" in policy.sampler.notice
    for row, prompt in enumerate(prompts):
        expected = forced_logprobs(policy, prompt, done.ids_BT[row].tolist(), Sampling())
        torch.testing.assert_close(done.behaviour_BT[row], expected, atol=1e-4, rtol=0)
