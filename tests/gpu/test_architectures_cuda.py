"""Windows, caps, sinks and other attention on a CUDA device: the decode kernel, CUDA graphs, compiled layers."""

import pytest
import torch

from support.small_batch import batch_of
from support.tiny_models import byte_tokenizer
from support.zoo import WINDOW, zoo_model
from vigneron.core.draws import Sampling, sampled_logprobs
from vigneron.policy.compiling import set_compiling
from vigneron.policy.load import checkpoint_activations, make_policy, speed_up
from vigneron.policy.logprobs import score
from vigneron.policy.model import Policy
from vigneron.policy.model_checks import check_head
from vigneron.policy.packing import can_share_prompts
from vigneron.policy.reference import Reference
from vigneron.rollout.engine.engine import Engine
from vigneron.rollout.engine.sample import sample, sampler_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda")
FAMILIES = [
    "Mistral v0.1 (window)",
    "Gemma 2",
    "Gemma 3 text",
    "gpt-oss",
    "Phi-3",
    "BLOOM",
    "Falcon (rotary)",
    "DeepSeek V3",
]
SAMPLING = Sampling(temperature=0.9)


def zoo_policy(family: str, dtype: torch.dtype = torch.float32) -> Policy:
    policy = make_policy(zoo_model(family).to(CUDA), byte_tokenizer(), device=CUDA)
    policy.eos_ids = frozenset()
    check_head(policy)
    policy.shares_prompts = can_share_prompts(policy)
    policy.compute_dtype = dtype
    return policy


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("compiled", [False, True])
def test_replayed_passes_are_transformers(family: str, compiled: bool) -> None:
    """Three steps behind a window's end: graphs are captured in the second. Gradients are those of a plain policy."""
    policy, plain = zoo_policy(family), zoo_policy(family)
    speed_up(policy, Reference.of(policy), graphs=True, compiled=compiled)
    try:
        assert isinstance(sampler_of(policy), Engine)
        prompts = [
            [(7 * i + j) % 250 + 1 for j in range(n)] for i, n in enumerate((WINDOW + 3, 3, 1)) for _ in range(2)
        ]
        for step in range(3):
            done = sample(policy, prompts, max_new_tokens=WINDOW, sampling=SAMPLING, seed=1, step=step)
            pairs = [(prompt, done.ids_BT[row].tolist()) for row, prompt in enumerate(prompts)]
            for row, (prompt, completion) in enumerate(pairs):
                with torch.no_grad():
                    ids = torch.tensor([[*prompt, *completion]], device=CUDA)
                    logits = plain.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
                expected = sampled_logprobs(logits, SAMPLING).gather(1, done.ids_BT[row][:, None])[:, 0]
                torch.testing.assert_close(done.behaviour_BT[row], expected, atol=1e-4, rtol=0)
            batch = batch_of(pairs).with_packing(per_row=2 if policy.shares_prompts else 1)
            batch = batch.with_samples(completion_BT=done.ids_BT)
            for one in (policy, plain):
                one.model.zero_grad()
                score(one, batch, SAMPLING).logprobs_BT.sum().backward()
            for (name, mine), (_, theirs) in zip(policy.trainable(), plain.trainable(), strict=True):
                if theirs.grad is not None:
                    error = (mine.grad - theirs.grad).norm() / theirs.grad.norm().clamp(min=1e-6)
                    assert error < 1e-3, name
    finally:
        set_compiling(False)


@pytest.mark.parametrize("family", ["Gemma 2", "gpt-oss", "Gemma 3 text"])
def test_in_bfloat16_sampling_and_training_agree(family: str) -> None:
    policy = zoo_policy(family, torch.bfloat16)
    prompts = [[(7 * i + j) % 250 + 1 for j in range(n)] for i, n in enumerate((WINDOW + 3, 3, 1))]
    done = sample(policy, prompts, max_new_tokens=WINDOW, sampling=SAMPLING, seed=1)
    assert isinstance(policy.sampler, Engine)
    batch = batch_of([(prompt, done.ids_BT[row].tolist()) for row, prompt in enumerate(prompts)])
    with torch.no_grad():
        now = score(policy, batch.with_samples(completion_BT=done.ids_BT), SAMPLING).logprobs_BT
    assert (now - done.behaviour_BT).abs().mean() < 0.05


@pytest.mark.parametrize("compiled", [False, True])
def test_checkpointed_layers_have_the_same_gradients(compiled: bool) -> None:
    plain, policy = zoo_policy("Llama"), zoo_policy("Llama")
    checkpoint_activations(policy)
    speed_up(policy, Reference.of(policy), graphs=True, compiled=compiled)
    batch = batch_of([([1, 2, 3], [4, 5, 6]), ([7], [8, 9])])
    try:
        for one in (plain, policy):
            score(one, batch, SAMPLING).logprobs_BT.sum().backward()
    finally:
        set_compiling(False)
    for (name, mine), (_, theirs) in zip(policy.trainable(), plain.trainable(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-3, msg=name)
