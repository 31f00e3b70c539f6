"""What Vigneron does with a model of the zoo, held against transformers: the rows of docs/reference/models.md.

The reference is the model as `from_pretrained` loads it, in float32 with eager attention, one text at a time.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from support.small_batch import batch_of, changed
from support.tiny_runs import final_state, tiny_config, write_data
from support.zoo import WINDOW, zoo_folder, zoo_model
from vigneron import api
from vigneron.batch import Batch
from vigneron.commands.export import export
from vigneron.core.draws import Sampling
from vigneron.errors import UserError
from vigneron.policy.bundled import quiet_transformers
from vigneron.policy.load import Lora, load_policy
from vigneron.policy.logprobs import score
from vigneron.policy.model import Policy
from vigneron.policy.reward_model import load_reward_model, scores
from vigneron.rollout.engine.sample import sample, sampler_of

SHORT, LONG = 4, WINDOW + 4
"""Tokens of the longest prompt: texts that stay inside of the window, and texts that leave it."""
NEW_TOKENS = 6


@dataclass(frozen=True)
class Measured:
    """One family. Differences are the largest ones to transformers, in nats for log-probs, relative for gradients."""

    sampler: str
    shares_prompts: bool
    short: float
    """Of sampled and of trained log-probs, where no text reaches the window."""
    long: float
    gradient: float
    lora: float
    """Of sampled and of trained log-probs with an adapter."""
    reward_model: float | str
    """Of the scores; or why there is none."""


def load(folder: Path, **options: Any) -> Policy:
    return load_policy(str(folder), device="cpu", dtype="float32", **options)


def prompts_of(longest: int) -> list[list[int]]:
    """Two prompts, twice each: the second is half as long."""
    one = [(7 * i) % 250 + 1 for i in range(longest)]
    return [one, one, one[::-2], one[::-2]]


def reference_logprobs(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> Tensor:
    """Of a completion's tokens, by the model's own forward pass."""
    ids = torch.tensor([[*prompt, *completion]])
    logprobs = model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
    return logprobs[len(prompt) - 1 : -1].gather(1, torch.tensor(completion)[:, None])[:, 0]


def sampled_batch(policy: Policy, longest: int) -> Batch:
    """Samples as training has them, with shared prompts and packed rows if the model allows it."""
    prompts = prompts_of(longest)
    done = sample(policy, prompts, max_new_tokens=NEW_TOKENS, sampling=Sampling(), seed=1)
    completions = [row[:n] for row, n in zip(done.ids_BT.tolist(), done.lengths_B.tolist(), strict=True)]
    batch = changed(batch_of(list(zip(prompts, completions, strict=True))), behaviour_BT=done.behaviour_BT)
    share = policy.shares_prompts
    return batch.with_packing(share_prompts=share, per_row=2 if share else 1, pack=share, row_tokens=128)


def logprob_difference(policy: Policy, reference: Any, longest: int) -> float:
    """The largest of sampled and trained log-probs to the reference's."""
    batch = sampled_batch(policy, longest)
    with torch.no_grad():
        trained_BT = score(policy, batch, Sampling()).logprobs_BT
        worst = 0.0
        for i, prompt in enumerate(batch.samples.prompt_ids):
            completion = batch.samples.completion_lists()[i]
            expected = reference_logprobs(reference, prompt, completion)
            for own_BT in (batch.samples.behaviour_BT, trained_BT):
                worst = max(worst, float((own_BT[i, : len(completion)] - expected).abs().max()))
    return worst


def gradient_difference(policy: Policy, reference: Any, longest: int) -> float:
    """Of Σ log-probs with changing weights: the largest difference of an entry, relative to the largest entry."""
    batch = sampled_batch(policy, longest)
    weight_BT = torch.linspace(-1, 1, batch.samples.completion_BT.numel()).view(batch.samples.completion_BT.shape)
    trained = dict(policy.causal.named_parameters())
    (score(policy, batch, Sampling()).logprobs_BT * weight_BT * batch.samples.mask_BT).sum().backward()
    own = dict(reference.named_parameters())
    for i, prompt in enumerate(batch.samples.prompt_ids):
        completion = batch.samples.completion_lists()[i]
        (reference_logprobs(reference, prompt, completion) * weight_BT[i, : len(completion)]).sum().backward()
    pairs = [(trained[name].grad, weight.grad) for name, weight in own.items() if weight.grad is not None]
    assert all(mine is not None for mine, _ in pairs)
    largest = max(float(theirs.abs().max()) for _, theirs in pairs if theirs is not None)
    return max(float((mine - theirs).abs().max()) for mine, theirs in pairs) / largest  # type: ignore[operator]


def reference_of(policy: Policy, folder: Path) -> Any:
    kind = type(policy.causal)
    # transformers adds ALiBi twice in Falcon's eager attention: to the scores and to the mask.
    attention = "sdpa" if getattr(policy.causal.config, "alibi", False) else "eager"
    with quiet_transformers():
        return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()


def with_random_adapter(folder: Path) -> Policy:
    torch.manual_seed(1)
    policy = load(folder, lora=Lora(rank=2, alpha=4.0))
    with torch.no_grad():
        for name, weight in policy.trainable():
            if "lora_B" in name:
                weight.normal_(std=0.2)
    return policy


def reward_model_difference(folder: Path) -> float | str:
    """Of the scores of four texts, to transformers' own."""
    try:
        policy = load_reward_model(str(folder), start=True, device="cpu", dtype="float32")
    except UserError as error:
        return str(error)
    texts = [prompt[:-1] for prompt in prompts_of(LONG)]
    pairs = list(zip(texts, ([5], [6], [7], [8]), strict=True))
    batch = batch_of(pairs).with_packing(share_prompts=policy.shares_prompts)
    with torch.no_grad():
        own_B = scores(policy, batch)
        model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32).eval()
        model.score.weight.copy_(policy.causal.score.weight)
        model.config.get_text_config().pad_token_id = model.config.pad_token_id = None
        theirs = [float(model(input_ids=torch.tensor([[*one, *two]])).logits) for one, two in pairs]
    return float((own_B - torch.tensor(theirs)).abs().max())


def measure(name: str, place: Path) -> Measured:
    folder = zoo_folder(name, place)
    policy = load(folder)
    hub, reference = zoo_model(name), reference_of(policy, folder)
    adapted = with_random_adapter(folder)
    notice = sampler_of(policy).notice
    return Measured(
        sampler=notice or "engine",
        shares_prompts=policy.shares_prompts,
        short=max(logprob_difference(policy, each, SHORT) for each in (hub, reference)),
        long=max(logprob_difference(policy, each, LONG) for each in (hub, reference)),
        gradient=gradient_difference(policy, reference, LONG),
        lora=logprob_difference(adapted, adapted.causal, LONG),
        reward_model=reward_model_difference(folder),
    )


def check_checkpoints(name: str, place: Path, **changes: Any) -> None:
    """Two steps of SFT: the checkpoint loads here and in transformers, is exported, and the run resumes exactly."""
    folder = zoo_folder(name, place)
    options: dict[str, Any] = {
        "method": {"name": "sft"},
        "reward": {"kind": "binary"},
        "optimizer": {"actor_lr": 1e-2},
        "group_size": 1,
        "steps": 2,
        "save_every": 1,
        "eval_every": 0,
        "max_new_tokens": 2,
    }
    config = tiny_config(folder, write_data(place), **(options | changes))
    whole = api.train(config, name="whole", runs=place)
    loaded = api.load_run(whole.folder)
    prompt, completion = [3, 4, 5], [6, 7]
    with torch.no_grad():
        expected = reference_logprobs(whole.policy.causal, prompt, completion)
        assert torch.equal(reference_logprobs(loaded.policy.causal, prompt, completion), expected)
        if config.model.lora is None:
            again = type(whole.policy.causal).from_pretrained(whole.folder / "checkpoints" / "step-2").eval()
            assert torch.equal(reference_logprobs(again, prompt, completion), expected)
    assert export(whole.folder, place / "exported").difference < 1e-4
    shutil.copytree(whole.folder, place / "other")
    shutil.rmtree(place / "other" / "checkpoints" / "step-2")
    api.resume(place / "other")
    assert final_state(place / "other") == final_state(whole.folder)
