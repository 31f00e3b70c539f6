"""KTO against a plain rewriting, one row at a time, for every cut into microbatches."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.resuming import TrainedOnce, check_third_arm, lose_optimizers
from support.tiny_models import tiny_policy
from support.tiny_runs import demonstrated_config
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.methods.kto import behind_other_prompts
from vigneron.policy.reference import Reference
from vigneron.recipe import check_config
from vigneron.run_store.folder import RunFolder
from vigneron.training.parts import Parts

ROWS = [
    {"prompt": "say hot:", "completion": "hot", "answer": "hot", "label": 1.0},
    {"prompt": "a", "completion": "bcdefghij", "answer": "bcdefghij", "label": 0.0},
    {"prompt": "with a space ", "completion": "x", "answer": "x", "label": 1.0},
    {"prompt": "a", "completion": "q", "answer": "q", "label": 0.0},
]
RATE, BETA, WEIGHTS = 0.1, 0.3, {1.0: 1.0, 0.0: 2.0}


def config_of(microbatch_tokens: int = 40, **keys: Any) -> Any:
    return check_config(
        {
            "method": {"name": "kto", "beta": BETA, "undesirable_weight": 2.0},
            "data": {"train": "texts.jsonl"},
            "optimizer": {"actor_lr": RATE, "max_grad_norm": 1e9},
            "microbatch_tokens": microbatch_tokens,
            **keys,
        },
        "test",
    )


def stepped(microbatch_tokens: int, *, moved: bool = True) -> tuple[dict[str, float], Any, Any, Any]:
    policy = tiny_policy("gpt2", dtype=torch.float64)
    reference = Reference.of(policy)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += 0.05 * moved * torch.randn_like(parameter)
    before = deepcopy(policy.model)
    method = build_method(Parts.of(config_of(microbatch_tokens), policy, reference, lambda batch: batch))
    (actor,) = method.update.optimized  # type: ignore[attr-defined]
    actor.optimizer = torch.optim.SGD([parameter for _, parameter in actor.parameters], lr=RATE)
    batch = method.advantage(method.reward(method.rollout(ROWS, 0)))
    return {**method.update(batch), **batch.signals.metrics}, reference.policy.model, before, policy.model


def plain_logp(model: Any, prompt: str, text: str) -> Tensor:
    """log π of a whole text and its end."""
    tokenizer = tiny_policy("gpt2").tokenizer
    head, tail = tokenizer(prompt)["input_ids"], [*tokenizer(text)["input_ids"], 0]
    logits = model(torch.tensor([head + tail])).logits[0, len(head) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(tail)[:, None]).sum()


@pytest.mark.parametrize("microbatch_tokens", [1, 20, 10_000])
def test_loss_baseline_and_gradient_equal_the_plain_ones(microbatch_tokens: int) -> None:
    figures, start, before, after = stepped(microbatch_tokens)
    shifted = [ROWS[(n + 1) % len(ROWS)]["prompt"] for n in range(len(ROWS))]
    ratios = [
        (plain_logp(before, prompt, row["completion"]) - plain_logp(start, prompt, row["completion"])).item()
        for prompt, row in zip(shifted, ROWS, strict=True)
    ]
    baseline = max(0.0, sum(ratios) / len(ratios))
    assert figures["kto/baseline"] == pytest.approx(baseline, abs=1e-10)
    values = []
    for row in ROWS:
        reference = plain_logp(start, row["prompt"], row["completion"]).detach()
        ratio = plain_logp(before, row["prompt"], row["completion"]) - reference
        sign = 1 if row["label"] else -1
        values.append(WEIGHTS[row["label"]] * (1 - 1 / (1 + torch.exp(-sign * BETA * (ratio - baseline)))))
    wanted = torch.stack(values).mean()
    assert figures["loss/kto"] == pytest.approx(float(wanted.detach()), abs=1e-10)
    gradients = torch.autograd.grad(wanted, list(before.parameters()))
    for old, new, gradient in zip(before.parameters(), after.parameters(), gradients, strict=True):
        assert torch.allclose(new, old - RATE * gradient, atol=1e-10)


def test_at_the_start_every_text_has_half_of_its_weight() -> None:
    """π₁ = π₀: ρ = z₀ = 0, and the loss is ½ · (1 + 2 + 1 + 2)/4."""
    figures, *_ = stepped(40, moved=False)
    assert figures["kto/baseline"] == 0.0
    assert figures["loss/kto"] == pytest.approx(0.75)


def test_a_completion_that_would_not_fit_keeps_its_own_prompt() -> None:
    policy = tiny_policy("gpt2", dtype=torch.float64)
    method = build_method(Parts.of(config_of(), policy, Reference.of(policy), lambda batch: batch))
    batch = method.rollout(ROWS, 0)
    longest = max(spans[-1][1] for spans in batch.samples.spans)
    moved = behind_other_prompts(batch, longest)
    assert max(spans[-1][1] for spans in moved.samples.spans) <= longest
    assert moved.samples.prompt_ids[0] == batch.samples.prompt_ids[1]
    assert moved.samples.prompt_ids[1] == batch.samples.prompt_ids[1], "its completion is long, the next prompt too"
    assert [stop - start for ((start, stop),) in moved.samples.spans] == batch.samples.widths


def test_one_row_a_step_is_refused() -> None:
    with pytest.raises(UserError, match="needs `prompts_per_step` of 2 or more"):
        config_of(prompts_per_step=1)


def kto_config(place: Path, model: Path) -> Any:
    rows = [
        {"prompt": f"{word}: ", "completion": f"{word}{end}", "label": end == "."}
        for word in ("up", "red", "warm", "old", "left")
        for end in (".", "!")
    ]
    return demonstrated_config(place, model, rows, method={"name": "kto"})


@pytest.mark.slow
def test_a_run_learns_and_its_optimizer_is_a_part_of_its_state(
    tmp_path: Path, tiny_folder: Path, trained_once: TrainedOnce
) -> None:
    whole = trained_once("kto", lambda place: kto_config(place, tiny_folder))
    records = RunFolder(whole).metrics()
    assert records[-1]["eval/loss/kto"] < records[0]["eval/loss/kto"]
    assert records[-1]["eval/rewards/accuracies"] > 0.9
    check_third_arm(whole, tmp_path, lose_optimizers)
