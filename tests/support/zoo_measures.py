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
from transformers import AutoConfig, AutoModelForSequenceClassification

from support.small_batch import batch_of, changed
from support.tiny_runs import final_state, tiny_config
from support.zoo import WINDOW, zoo_model
from vigneron import api
from vigneron.batch import Batch
from vigneron.commands.export import export
from vigneron.core.draws import Sampling
from vigneron.policy.architecture import reward_model_class
from vigneron.policy.bundled import quiet_transformers
from vigneron.policy.load import Lora, load_policy
from vigneron.policy.logprobs import score
from vigneron.policy.model import Policy
from vigneron.policy.reward_model import load_reward_model, scores
from vigneron.policy.stored import check_shapes
from vigneron.rollout.engine.sample import sample, sampler_of

SHORT, LONG = 4, WINDOW + 4
"""Tokens of the longest prompt: texts that stay inside of the window, and texts that leave it."""
LENGTHS = (6, 2, 4, 1, 3)
"""Tokens of the completions, at most: they differ, so that rows have padding."""
EXACT = 1e-5
"""Largest difference by rounding. RecurrentGemma's own cache rounds more."""
LIMITS = {"RecurrentGemma": 1e-3}


@dataclass(frozen=True)
class Measured:
    """One family. Differences are the largest ones to transformers, in nats for log-probs, relative for gradients."""

    sampler: str
    shares_prompts: bool
    short: float
    """Of sampled and of trained log-probs and those of a reference, where no text reaches the window."""
    long: float
    gradient: float
    lora: float
    """Of sampled and of trained log-probs with an adapter."""
    reward_model: float | None
    """Of the scores; None if transformers has no such model."""


def load(folder: Path, **options: Any) -> Policy:
    return load_policy(str(folder), device="cpu", dtype="float32", **options)


def prompts_of(longest: int) -> list[list[int]]:
    """Two prompts, twice each, the second half as long; and one a quarter as long."""
    one = [(7 * i) % 250 + 1 for i in range(longest)]
    return [one, one, one[::-2], one[::-2], one[::4]]


def reference_logprobs(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> Tensor:
    """Of a completion's tokens, by the model's own forward pass."""
    ids = torch.tensor([[*prompt, *completion]])
    logprobs = model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
    return logprobs[len(prompt) - 1 : -1].gather(1, torch.tensor(completion)[:, None])[:, 0]


def sampled_batch(policy: Policy, longest: int) -> Batch:
    """Samples as training has them, of unequal lengths, with shared prompts and packed rows if the model allows it.

    The first two are a row, the others the next one, with padding behind them.
    """
    prompts = prompts_of(longest)
    done = sample(policy, prompts, max_new_tokens=max(LENGTHS), sampling=Sampling(), seed=1)
    lengths = [min(most, length) for most, length in zip(LENGTHS, done.lengths_B.tolist(), strict=True)]
    completions = [row[:length] for row, length in zip(done.ids_BT.tolist(), lengths, strict=True)]
    batch = batch_of(list(zip(prompts, completions, strict=True)))
    batch = changed(batch, behaviour_BT=done.behaviour_BT[:, : max(lengths)])
    share, width = policy.shares_prompts, longest + sum(lengths[:2])
    return batch.with_packing(share_prompts=share, per_row=2 if share else 1, pack=share, row_tokens=width)


def logprob_difference(policy: Policy, reference: Any, longest: int) -> float:
    """The largest of sampled and trained log-probs to the reference's."""
    return _logprob_difference(policy, sampled_batch(policy, longest), reference)


@torch.no_grad()
def _logprob_difference(policy: Policy, batch: Batch, *references: Any) -> float:
    own = [score(each, batch, Sampling()).logprobs_BT for each in (policy, policy.frozen_copy())]
    differences = []
    for i, prompt in enumerate(batch.samples.prompt_ids):
        completion = batch.samples.completion_lists()[i]
        for reference in references:
            expected = reference_logprobs(reference, prompt, completion)
            for own_BT in (batch.samples.behaviour_BT, *own):
                differences.append((own_BT[i, : len(completion)] - expected).abs().max())
    return float(torch.stack(differences).max())  # NaN if one is, which Python's max is not


def gradient_difference(policy: Policy, reference: Any, longest: int) -> float:
    """Of Σ log-probs with changing weights: the largest difference of an entry, relative to the largest entry."""
    return _gradient_difference(policy, sampled_batch(policy, longest), reference)


def _gradient_difference(policy: Policy, batch: Batch, reference: Any) -> float:
    weight_BT = torch.linspace(-1, 1, batch.samples.completion_BT.numel()).view(batch.samples.completion_BT.shape)
    trained = dict(policy.causal.named_parameters())
    (score(policy, batch, Sampling()).logprobs_BT * weight_BT * batch.samples.mask_BT).sum().backward()
    total = torch.zeros(())
    for i, prompt in enumerate(batch.samples.prompt_ids):
        completion = batch.samples.completion_lists()[i]
        total = total + (reference_logprobs(reference, prompt, completion) * weight_BT[i, : len(completion)]).sum()
    total.backward()
    grads = {name: weight.grad for name, weight in reference.named_parameters() if weight.grad is not None}
    differences = [(trained[name].grad - grad).abs().max() for name, grad in grads.items()]  # type: ignore[operator]
    return float(torch.stack(differences).max() / torch.stack([grad.abs().max() for grad in grads.values()]).max())


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


def reward_model_difference(folder: Path) -> float | None:
    """Of the scores of five texts, to transformers' own; None if it has no reward model of this architecture."""
    if reward_model_class(AutoConfig.from_pretrained(folder)) is None:
        return None
    policy = load_reward_model(str(folder), start=True, device="cpu", dtype="float32")
    texts = [prompt[:-1] for prompt in prompts_of(LONG)]
    pairs = list(zip(texts, ([5], [6, 9, 10], [7], [8], [11, 12]), strict=True))
    batch = batch_of(pairs).with_packing(share_prompts=policy.shares_prompts)
    with torch.no_grad(), quiet_transformers():
        own_B = scores(policy, batch)
        model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32).eval()
        model.score.weight.copy_(policy.causal.score.weight)
        model.config.get_text_config().pad_token_id = model.config.pad_token_id = None
        theirs = [float(model(input_ids=torch.tensor([[*one, *two]])).logits) for one, two in pairs]
    return float((own_B - torch.tensor(theirs)).abs().max())


def measure(name: str, folder: Path) -> Measured:
    policy = load(folder)
    hub, reference = zoo_model(name), reference_of(policy, folder)
    adapted = with_random_adapter(folder)
    short, long = sampled_batch(policy, SHORT), sampled_batch(policy, LONG)
    return Measured(
        sampler=sampler_of(policy).notice or "engine",
        shares_prompts=policy.shares_prompts,
        short=_logprob_difference(policy, short, reference),
        long=_logprob_difference(policy, long, hub, reference),
        gradient=_gradient_difference(policy, long, reference),
        lora=logprob_difference(adapted, adapted.causal, LONG),
        reward_model=reward_model_difference(folder),
    )


def check_checkpoints(name: str, folder: Path, place: Path, **model: Any) -> None:
    """Two steps of SFT: the last checkpoint loads in transformers, is exported, and the run resumes exactly."""
    assert check_shapes(str(folder)) == []
    data = place / "rows.jsonl"
    data.write_text(
        "".join(f'{{"prompt": "say {word}:", "answer": "{word}"}}\n' for word in ("hot", "cold", "up", "down"))
    )
    config = tiny_config(
        folder,
        data,
        method={"name": "sft"},
        model={"name": str(folder), "device": "cpu", "dtype": "float32", **model},
        reward={"kind": "binary"},
        optimizer={"actor_lr": 1e-2},
        group_size=1,
        steps=2,
        save_every=1,
        eval_every=0,
        max_new_tokens=2,
    )
    whole = api.train(config, name="whole", runs=place)
    if config.model.lora is None:
        with quiet_transformers(), torch.no_grad():
            again = type(whole.policy.causal).from_pretrained(whole.folder / "checkpoints" / "step-2").eval()
            one, other = (reference_logprobs(each, [3, 4, 5], [6, 7]) for each in (again, whole.policy.causal.eval()))
        assert torch.equal(one, other)
    assert export(whole.folder, place / "exported").difference < max(1e-4, LIMITS.get(name, 0.0))
    shutil.copytree(whole.folder, place / "other")
    shutil.rmtree(place / "other" / "checkpoints" / "step-2")
    api.resume(place / "other")
    assert final_state(place / "other") == final_state(whole.folder)
