"""Runs' folders as training leaves them, written through the stores themselves."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vigneron.run_store.curves import CurveStore
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.notices import Notice, keep_notice
from vigneron.run_store.samples import Sample, SampleStore
from vigneron.run_store.token_values import TokenValues

SCRIPT = "<script>alert('owned')</script>"
IMAGE = "<img src=x onerror=alert('owned')>"
TURNED = "abc\u202edef\x1b[31m\x00"
HOSTILE = f"{SCRIPT}{IMAGE}{TURNED}"


def write_run(folder: Path, *, steps: int = 30, indexed: bool = True, lr: float = 1e-5, **status: Any) -> Path:
    """A run, finished unless `status` has another state. Its third sample of each step is hostile."""
    folder.mkdir(parents=True)
    config = {"recipe": "made", "method": {"name": "grpo"}, "steps": steps, "optimizer": {"actor_lr": lr}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    outcome = {"metric": "eval/reward", "before": {"step": 0, "value": 0.0}, "after": {"step": steps, "value": 1.0}}
    (folder / "status.json").write_text(json.dumps({"state": "finished", "outcome": outcome, **status}))
    records = [_record(step, steps) for step in range(steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if indexed:
        curves = CurveStore(folder)
        curves.add(records)
        curves.close()
    samples = SampleStore(folder)
    samples.add([_sample(step, number) for step in range(1, steps + 1) for number in range(8)])
    values = {"logprob": [-0.5, -2.0, None], "advantage": [0.5, 0.5, None]}
    samples.add_tokens(steps, "train", {0: TokenValues([HOSTILE, " second", "\n"], [True, True, False], values)})
    samples.close()
    keep_notice(RunFolder(folder), Notice(0, "how it is set up"))
    keep_notice(RunFolder(folder), Notice(12, "entropy is low\u202e", "warning"))
    return folder


def _record(step: int, steps: int) -> Mapping[str, Any]:
    held_out = {"eval/reward": step / steps} if step % 10 == 0 else {}
    items = {f"reward/sums/{item}/{metric}": 0.5 for item in ("right", "short") for metric in ("score", "confidence")}
    return {
        "step": step,
        "reward": step / steps,
        "kl": None,
        "loss/policy": -step,
        "reward/sums/reward": 0.5,
        **items,
        **held_out,
    }


def _sample(step: int, number: int) -> Sample:
    items = {
        "right": {"score": 0.5, "confidence": 0.9, "critique": HOSTILE, "reasoning": "so it is"},
        "short": {"score": None, "why": "the judge did not answer"},
    }
    rubric = {"category": "sums" if number < 6 else "words", "version": "1", "items": items}
    return Sample(
        step=step,
        kind="train",
        sample=number,
        prompt=HOSTILE if number == 3 else f"prompt {number}",
        completion=HOSTILE if number == 3 else f"completion {number} of {step}",
        answer=HOSTILE if number == 3 else "the answer",
        reward=None if number == 7 else number / 10,
        advantage=number - 4.0,
        correct=number % 2 == 0,
        truncated=number == 5,
        extras={"rubric": rubric, "cosine": float("nan"), HOSTILE: 1.0},
    )
