"""Our losses are TRL's on TRL's own batches: its trainers prepare the batch, both sides compute, to 1e-5.

TRL's side is its trainer's `compute_loss`. Ours is `policy` for the log-probs and `core` for the rest, on a copy of the
weights. Everything is in float32. Where the two differ by more than rounding, the difference is stated in
docs/guides/other-trainers.md and shown here.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import LlamaForCausalLM, LlamaForSequenceClassification

from support.later import Later
from support.small_batch import changed
from support.tiny_models import SHAPES, byte_tokenizer, tiny_model
from vigneron.batch import Batch, Samples
from vigneron.core.advantages import group_relative
from vigneron.core.draws import Sampling
from vigneron.core.kl import k3
from vigneron.core.losses import (
    aggregate,
    bradley_terry,
    cispo,
    clipped_ratio,
    dpo,
    importance_ratio,
    ipo,
    kto,
    nll,
    orpo,
    simpo,
)
from vigneron.core.masked import masked_sum
from vigneron.methods.kto import behind_other_prompts
from vigneron.policy.load import make_policy
from vigneron.policy.logprobs import score
from vigneron.policy.model import Policy
from vigneron.policy.packing import lay_out
from vigneron.rewards.combined import combined

datasets, trl = Later("datasets"), Later("trl")

COMMON: dict[str, Any] = {"report_to": [], "use_cpu": True, "bf16": False, "save_strategy": "no", "max_steps": 1}
PAIRS = [
    {"prompt": "not hot: ", "chosen": "cold", "rejected": "warm and dry"},
    {"prompt": "not up: ", "chosen": "down below", "rejected": "up"},
    {"prompt": "the opposite of wet is ", "chosen": "dry", "rejected": "water"},
    {"prompt": "big? ", "chosen": "small", "rejected": "huge, or so"},
]
MAX_LENGTH = 6


def moved(model: Any, seed: int) -> Any:
    """Away from where it was, in place: ratios and log-ratios are not 1 and 0."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model


def policy_of(model: Any) -> Policy:
    """Ours, on a copy of TRL's weights."""
    plain = tiny_model("llama")
    plain.load_state_dict(model.state_dict())
    return make_policy(plain.eval(), byte_tokenizer(), device=torch.device("cpu"))


def batch_of(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], **fields: Any) -> Batch:
    size, width = len(prompts), max(len(c) for c in completions)
    ids = torch.zeros(size, width, dtype=torch.long)
    for row, completion in enumerate(completions):
        ids[row, : len(completion)] = torch.tensor(completion)
    plain = {
        "behaviour_BT": torch.zeros(size, width),
        "group_B": torch.arange(size),
    }
    samples = Samples(
        prompt_ids=tuple(tuple(p) for p in prompts),
        completion_BT=ids,
        spans=tuple(((len(p), len(p) + len(c)),) for p, c in zip(prompts, completions, strict=True)),
        truncated_B=torch.zeros(size, dtype=torch.bool),
        sample_B=torch.arange(size),
        prompts=("",) * size,
        completions=("",) * size,
        **plain,
    )
    return changed(Batch(samples), **fields)


def split(ids: Tensor, attention: Tensor, completion: Tensor) -> Batch:
    """Of padded rows, what is prompt and what is completion, by TRL's two masks."""
    rows = list(zip(ids, attention.bool(), completion.bool(), strict=True))
    return batch_of([i[a & ~c].tolist() for i, a, c in rows], [i[c].tolist() for i, _, c in rows])


def only_batch(trainer: Any) -> dict[str, Tensor]:
    """What the trainer's own preparation and collator make of all rows."""
    (inputs,) = trainer.get_train_dataloader()
    return dict(inputs)


def summed(policy: Policy, batch: Batch) -> Tensor:
    return masked_sum(score(policy, batch, Sampling()).logprobs_BT, batch.samples.mask_BT)


def assert_agree(trainer: Any, theirs: Tensor, policy: Policy, ours: Tensor, factor: float = 1.0) -> None:
    """`factor` · their loss is ours, and so are the gradients; ours are not all zero."""
    theirs.backward()
    ours.backward()
    assert ours.item() == pytest.approx(factor * theirs.item(), abs=1e-5)
    wanted = {name: factor * p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    got = {name: p.grad for name, p in policy.model.named_parameters() if p.grad is not None}
    assert got.keys() == wanted.keys()
    assert max(float(g.abs().max()) for g in got.values()) > 1e-3
    for name, gradient in got.items():
        torch.testing.assert_close(gradient, wanted[name], atol=1e-5, rtol=1e-5)


def test_sft(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list([{"prompt": row["prompt"], "completion": row["chosen"]} for row in PAIRS])
    options = trl.SFTConfig(output_dir=str(tmp_path), per_device_train_batch_size=4, **COMMON)
    trainer = trl.SFTTrainer(tiny_model("llama"), args=options, train_dataset=rows, processing_class=byte_tokenizer())
    inputs = only_batch(trainer)
    batch = split(inputs["input_ids"], inputs["attention_mask"], inputs["labels"] != -100)
    assert all(completion[-1] == 0 for completion in batch.samples.completion_lists())  # both train the end
    policy = policy_of(trainer.model)
    ours = aggregate(nll(score(policy, batch, Sampling()).logprobs_BT), batch.samples.mask_BT, mode="tokens")
    assert_agree(trainer, trainer.compute_loss(trainer.model, inputs), policy, ours)


@pytest.mark.parametrize("loss_type", ["sigmoid", "ipo"])
def test_dpo(tmp_path: Path, loss_type: str) -> None:
    options = trl.DPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=4, beta=0.3, loss_type=[loss_type], **COMMON
    )
    trainer = trl.DPOTrainer(
        tiny_model("llama"),
        ref_model=tiny_model("llama", seed=1),
        args=options,
        train_dataset=datasets.Dataset.from_list(PAIRS),
        processing_class=byte_tokenizer(),
    )
    inputs = only_batch(trainer)
    batch = split(inputs["input_ids"], inputs["attention_mask"], inputs["completion_mask"])
    policy, reference = policy_of(trainer.model), policy_of(trainer.ref_model)
    with torch.no_grad():
        before = summed(reference, batch)
    if loss_type == "sigmoid":
        losses = dpo(*summed(policy, batch).chunk(2), *before.chunk(2), beta=0.3)
    else:
        tokens = batch.samples.mask_BT.sum(1)
        losses = ipo(*(summed(policy, batch) / tokens).chunk(2), *(before / tokens).chunk(2), beta=0.3)
    assert_agree(trainer, trainer.compute_loss(trainer.model, inputs), policy, losses.mean())


def test_kto(tmp_path: Path) -> None:
    """Both put each completion behind the next row's prompt to estimate z₀."""
    rows = [
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
        for row, side in zip(PAIRS, ("chosen", "rejected", "rejected", "chosen"), strict=True)
    ]
    options = trl.KTOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=4, beta=0.3, undesirable_weight=1.5, **COMMON
    )
    trainer = trl.KTOTrainer(
        moved(tiny_model("llama"), 1),
        ref_model=tiny_model("llama", seed=1),
        args=options,
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=byte_tokenizer(),
    )
    inputs = only_batch(trainer)
    batch = split(inputs["input_ids"], inputs["attention_mask"], inputs["completion_mask"])
    policy, reference = policy_of(trainer.model), policy_of(trainer.ref_model)
    other = behind_other_prompts(batch, None)
    with torch.no_grad():
        before = summed(reference, batch)
        baseline = (summed(policy, other) - summed(reference, other)).mean().clamp(min=0)
    labels = torch.tensor([row["label"] for row in rows])
    losses = kto(summed(policy, batch), before, labels, baseline.expand(4), beta=0.3)
    loss = (torch.where(labels, 1.0, 1.5) * losses).mean()
    assert_agree(trainer, trainer.compute_loss(trainer.model, inputs), policy, loss)


def test_simpo() -> None:
    """TRL's CPO trainer on given mean log-probs; its γ is divided by β and multiplied again."""
    chosen, rejected = torch.tensor([-1.0, -0.2, -3.0]), torch.tensor([-0.5, -2.0, -3.5])
    trainer = SimpleNamespace(
        loss_type="simpo",
        simpo_gamma=0.7,
        beta=2.5,
        alpha=0.0,
        label_smoothing=0.0,
        accelerator=SimpleNamespace(device=torch.device("cpu")),
    )
    theirs, *_ = Later("trl.experimental.cpo").CPOTrainer.cpo_loss(trainer, chosen, rejected)  # type: ignore[arg-type]
    lengths = torch.tensor([3, 4, 5])
    ours = simpo(chosen * lengths, rejected * lengths, lengths, lengths, beta=2.5, gamma=0.7)
    torch.testing.assert_close(ours, theirs)


def test_orpo() -> None:
    """TRL's odds-ratio term, which it subtracts from the NLL; its NLL is also over the prompt's tokens, ours is not."""
    chosen, rejected = torch.tensor([-1.0, -0.2, -3.0]), torch.tensor([-0.5, -2.0, -3.5])
    trainer = SimpleNamespace(beta=0.4, accelerator=SimpleNamespace(device=torch.device("cpu")))
    theirs, *_ = Later("trl.experimental.orpo").ORPOTrainer.odds_ratio_loss(trainer, chosen, rejected)  # type: ignore[arg-type]
    torch.testing.assert_close(0.4 * orpo(chosen, rejected), -theirs)


Grpo = tuple[Any, dict[str, Tensor], Batch]


@pytest.fixture
def grpo(tmp_path: Path, tiny_folder: Path) -> Callable[..., Grpo]:
    """A trainer whose policy has left the one that sampled, the batch TRL sampled and scored, and the same as ours."""

    def build(**options: Any) -> Grpo:
        seen: list[float] = []

        def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
            seen.extend(sum(ids) % 7 / 7 for ids in completion_ids)
            return seen

        rows = datasets.Dataset.from_list([{"prompt": row["prompt"]} for row in PAIRS])
        config = trl.GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=12,
            num_generations=3,
            max_completion_length=MAX_LENGTH,
            num_iterations=2,  # else TRL takes every ratio to be 1
            **COMMON,
            **options,
        )
        trainer = trl.GRPOTrainer(str(tiny_folder), reward, args=config, train_dataset=rows)
        if trainer.beta:
            moved(trainer.model, 1)  # and away from the reference
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        torch.manual_seed(5)
        inputs = trainer._generate_and_score_completions([row for row in rows for _ in range(3)])
        # An untrained model hardly ever ends: cut its completions to 1 … 6 tokens.
        lengths = torch.arange(12) % MAX_LENGTH + 1
        inputs["completion_mask"] = (torch.arange(MAX_LENGTH) < lengths[:, None]).long()
        inputs["completion_ids"] = inputs["completion_ids"] * inputs["completion_mask"]
        moved(trainer.model, 2)
        prompts = [i[m.bool()].tolist() for i, m in zip(inputs["prompt_ids"], inputs["prompt_mask"], strict=True)]
        rows_of = zip(inputs["completion_ids"], inputs["completion_mask"], strict=True)
        completions = [ids[mask.bool()].tolist() for ids, mask in rows_of]
        batch = batch_of(
            prompts,
            completions,
            behaviour_BT=inputs["old_per_token_logps"],
            group_B=torch.arange(12) // 3,
            rewards_B=torch.tensor(seen),
            reference_BT=inputs.get("ref_per_token_logps"),
        )
        return trainer, inputs, batch

    return build


def our_grpo(
    policy: Policy, batch: Batch, *, mode: Any, scale: Any, beta: float, weighted_kl: bool = False, level: Any = "token"
) -> Tensor:
    now = score(policy, batch, Sampling()).logprobs_BT
    advantages = group_relative(batch.signals.rewards_B, batch.samples.group_B, scale=scale)[:, None].expand(now.shape)
    losses = clipped_ratio(now, batch.samples.behaviour_BT, advantages, batch.samples.mask_BT, epsilon=0.2, level=level)
    if beta:
        kl = k3(now, batch.signals.reference_BT)
        if weighted_kl:  # TRL's default, r · k3: in expectation the gradient of KL(π ‖ reference), which k3's is not
            kl = importance_ratio(now, batch.samples.behaviour_BT, -kl)
        losses = losses + beta * kl
    return aggregate(losses, batch.samples.mask_BT, mode=mode)


@pytest.mark.parametrize(("beta", "weighted_kl"), [(0.0, False), (0.04, False), (0.04, True)])
@pytest.mark.parametrize(
    ("loss_type", "mode", "scale", "factor"),
    [
        ("grpo", "samples", "std", 1.0),  # the first GRPO
        ("dr_grpo", "sum_over_samples", "none", MAX_LENGTH),  # eq. 13-14; TRL divides by B · the longest allowed
        ("bnpo", "tokens", "none", 1.0),  # our default
    ],
)
def test_grpo(
    grpo: Callable[..., Grpo], beta: float, weighted_kl: bool, loss_type: str, mode: str, scale: str, factor: float
) -> None:
    scaling = "group" if scale == "std" else "none"
    options = {"loss_type": loss_type, "scale_rewards": scaling, "beta": beta, "use_bias_correction_kl": weighted_kl}
    trainer, inputs, batch = grpo(**options)
    ours = group_relative(batch.signals.rewards_B, batch.samples.group_B, scale=scale)  # type: ignore[arg-type]
    torch.testing.assert_close(ours, inputs["advantages"], atol=1e-6, rtol=1e-5)
    ratios = (score(policy_of(trainer.model), batch, Sampling()).logprobs_BT - batch.samples.behaviour_BT).exp()[
        batch.samples.mask_BT
    ]
    assert ratios.min() < 0.8 < 1.2 < ratios.max()  # some are clipped on each side
    policy = policy_of(trainer.model)
    loss = our_grpo(policy, batch, mode=mode, scale=scale, beta=beta, weighted_kl=weighted_kl)
    assert_agree(trainer, trainer.compute_loss(trainer.model, inputs), policy, loss, factor)


VARIANTS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (
        "gspo",
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        {"level": "geometric"},
        {"mode": "samples"},
    ),
    ("clip-higher", {"loss_type": "bnpo", "epsilon_high": 0.28}, {"epsilon_high": 0.28}, {}),
    ("dual clip", {"loss_type": "bnpo", "delta": 1.05}, {"delta": 1.05}, {}),
]


@pytest.mark.parametrize(("name", "theirs", "ours", "aggregation"), VARIANTS, ids=[v[0] for v in VARIANTS])
def test_clipping_variants(
    grpo: Callable[..., Grpo], name: str, theirs: dict[str, Any], ours: dict[str, Any], aggregation: dict[str, Any]
) -> None:
    trainer, inputs, batch = grpo(scale_rewards="none", beta=0.0, **theirs)
    policy, samples = policy_of(trainer.model), batch.samples
    now = score(policy, batch, Sampling()).logprobs_BT
    advantages = group_relative(batch.signals.rewards_B, samples.group_B)[:, None].expand(now.shape)
    values = clipped_ratio(now, samples.behaviour_BT, advantages, samples.mask_BT, **ours)
    plain = clipped_ratio(now, samples.behaviour_BT, advantages, samples.mask_BT)
    assert (values - plain)[samples.mask_BT].abs().max() > 1e-3, "otherwise the option would go unnoticed"
    loss = aggregate(values, samples.mask_BT, **aggregation)
    assert_agree(trainer, trainer.compute_loss(trainer.model, inputs), policy, loss)


def test_cispo(grpo: Callable[..., Grpo]) -> None:
    """TRL divides by the tokens of the accumulated batch, which is this one."""
    trainer, inputs, batch = grpo(loss_type="cispo", epsilon_high=1.1, scale_rewards="none", beta=0.0)
    inputs["num_items_in_batch"] = inputs["completion_mask"].sum()
    policy, samples = policy_of(trainer.model), batch.samples
    now = score(policy, batch, Sampling()).logprobs_BT
    assert (now - samples.behaviour_BT).exp()[samples.mask_BT].max() > 1.1
    advantages = group_relative(batch.signals.rewards_B, samples.group_B)[:, None].expand(now.shape)
    loss = aggregate(cispo(now, samples.behaviour_BT, advantages, maximum=1.1), samples.mask_BT)
    assert_agree(trainer, trainer.compute_loss(trainer.model, inputs), policy, loss)


def test_gdpo_advantages() -> None:
    """TRL's normalize_then_sum, before it divides by the batch's std."""
    generator = torch.Generator().manual_seed(3)
    rewards_BK = torch.rand(12, 2, generator=generator).double() * torch.tensor([1.0, 30.0])
    grouped = rewards_BK.view(4, 3, 2)
    each = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
    theirs = (each.view(12, 2) * torch.tensor([1.0, 0.5])).sum(1)
    ours = combined(rewards_BK, torch.arange(12) // 3, torch.tensor([1.0, 0.5]).double(), "normalised")
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


def test_sequence_level_ratios_differ(grpo: Callable[..., Grpo]) -> None:
    """TRL's (GSPO's) is the geometric mean over a text's tokens; eq. 17's is the ratio of the texts' probabilities."""
    trainer, inputs, batch = grpo(
        loss_type="grpo", scale_rewards="none", beta=0.0, importance_sampling_level="sequence"
    )
    policy = policy_of(trainer.model)
    theirs = trainer.compute_loss(trainer.model, inputs).item()
    now, length = score(policy, batch, Sampling()).logprobs_BT, batch.samples.mask_BT.sum(1)
    log_ratio = masked_sum(now - batch.samples.behaviour_BT, batch.samples.mask_BT)
    advantages = group_relative(batch.signals.rewards_B, batch.samples.group_B)

    def clipped(log_ratio_B: Tensor) -> float:
        one = torch.ones(12, 1)
        return clipped_ratio(log_ratio_B[:, None], 0 * one, advantages[:, None], one).mean().item()

    assert theirs == pytest.approx(clipped(log_ratio / length), abs=1e-5)
    ours = our_grpo(policy, batch, mode="sum_over_samples", scale="none", beta=0.0, level="sequence").item()
    assert ours == pytest.approx(clipped(log_ratio), abs=1e-5)
    assert abs(ours - theirs) > 0.01


def test_learned_positions_behind_padding_differ() -> None:
    """TRL's GRPO pads prompts on the left and gives the model no positions: GPT-2 then counts the padding."""
    model = tiny_model("gpt2").eval()
    policy = make_policy(deepcopy(model), byte_tokenizer(), device=torch.device("cpu"))
    batch = batch_of([(5, 9, 33), (7,)], [(11, 12), (13, 14)])
    Later("trl.trainer.utils").add_fused_lm_head(model)
    ids, seen = torch.tensor([[5, 9, 33, 11, 12], [0, 0, 7, 13, 14]]), torch.tensor([[1] * 5, [0, 0, 1, 1, 1]])
    by_trl = trl.GRPOTrainer._get_per_token_logps_and_entropies
    theirs = by_trl(SimpleNamespace(accelerator=Accelerator(cpu=True)), model, ids, seen, 2)[0]  # type: ignore[arg-type]
    ours = score(policy, batch, Sampling()).logprobs_BT
    torch.testing.assert_close(ours[0], theirs[0], atol=1e-5, rtol=1e-5)  # the longest prompt has no padding
    assert (ours[1] - theirs[1]).abs().max() > 0.01


@pytest.mark.parametrize("pad", ["<end>", "~"])
def test_reward_modelling(tmp_path: Path, pad: str) -> None:
    """Bradley-Terry (eq. 6). Where the padding is also the end, transformers reads the token before the end."""
    tokenizer = byte_tokenizer()
    tokenizer.pad_token = pad
    torch.manual_seed(0)
    config = SHAPES["llama"]()
    config.num_labels, config.pad_token_id = 1, tokenizer.pad_token_id
    options = trl.RewardConfig(output_dir=str(tmp_path), per_device_train_batch_size=4, **COMMON)
    trainer = trl.RewardTrainer(
        LlamaForSequenceClassification(config),
        args=options,
        train_dataset=datasets.Dataset.from_list(PAIRS),
        processing_class=tokenizer,
    )
    inputs = only_batch(trainer)
    rows = list(zip(inputs["input_ids"], inputs["attention_mask"].bool(), strict=True))
    texts = [ids[mask].tolist() for ids, mask in rows]
    assert all(text[-1] == 0 for text in texts)
    read = texts if pad == "~" else [text[:-1] for text in texts]
    batch = batch_of([text[:1] for text in read], [text[1:] for text in read])

    plain = LlamaForCausalLM(config)
    plain.model.load_state_dict(trainer.model.model.state_dict())
    policy = make_policy(plain.eval(), tokenizer, device=torch.device("cpu"))
    head = deepcopy(trainer.model.score)
    layout = lay_out(batch, policy, with_last=True)
    hidden = policy.hidden(layout.ids_RS, layout.positions_RS, layout.apart).flatten(0, 1)
    rewards = head(hidden[layout.completion_end_B]).squeeze(-1)
    ours = bradley_terry(*rewards.chunk(2)).mean()
    theirs = trainer.compute_loss(trainer.model, inputs)
    theirs.backward()
    ours.backward()
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-5)
    torch.testing.assert_close(head.weight.grad, trainer.model.score.weight.grad, atol=1e-5, rtol=1e-5)
    for mine, other in zip(plain.model.parameters(), trainer.model.model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-5, rtol=1e-5)
