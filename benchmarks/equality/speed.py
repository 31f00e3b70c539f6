"""Seconds of GRPO steps by two versions of the code, which take turns step by step in one run each."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.equality.sides import Side
from benchmarks.work import WORKS

WORK = WORKS["cpu-4x4x16"]
WORKER = Path(__file__).parent / "speed_worker.py"
PROMPTS = 64
WORDS = ("river", "stone", "light", "garden", "winter", "morning", "bread", "paper", "window", "market", "silver")


def recipe(steps: int) -> dict[str, Any]:
    """The work with the bundled model. Lengths are not forced: both versions sample the same tokens."""
    return {
        "recipe": WORK.name,
        "method": {
            "name": "grpo",
            "aggregation": "tokens",
            "kl": {"coefficient": WORK.kl_beta, "estimator": "k3"},
        },
        "model": {"name": WORK.model, "device": WORK.device, "dtype": WORK.dtype, "compile": False},
        "data": {"train": "../shared/prompts.jsonl"},
        "reward": {"kind": "python", "function": "speed_rewards:share_of_e"},
        "sampling": {"temperature": WORK.temperature},
        "optimizer": {"actor_lr": WORK.learning_rate},
        "steps": WORK.warmups + steps,
        "prompts_per_step": WORK.prompts,
        "group_size": WORK.group,
        "max_new_tokens": WORK.new_tokens,
        "eval_every": 0,
        "save_every": 0,
        "successive_kl_every": 0,
    }


REWARD = """
def share_of_e(completions, **columns):
    return [text.count("e") / max(1, len(text)) for text in completions]
"""


def write_speed_materials(place: Path) -> None:
    place.mkdir(parents=True)
    (place / "speed_rewards.py").write_text(REWARD, encoding="utf-8")
    texts = (" ".join(WORDS[(7 * i + j * (i % 5 + 1)) % len(WORDS)] for j in range(28)) for i in range(PROMPTS))
    rows = (json.dumps({"prompt": text}) + "\n" for text in dict.fromkeys(texts))
    (place / "prompts.jsonl").write_text("".join(rows), encoding="utf-8")


class Stepper:
    """A run that makes one step at each call."""

    def __init__(self, version: Side, steps: int) -> None:
        self._version = version
        file = version.place / "speed.yaml"
        file.write_text(yaml.safe_dump(version.with_new_keys(recipe(steps))), encoding="utf-8")
        with (version.place / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(WORKER), file.name],
                cwd=version.place,
                env=version.speed_environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._wait("ready")

    def step(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self._wait("step")

    def _wait(self, word: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == f"same-runs {word}":
                return
        log = (self._version.place / "log.txt").read_text(encoding="utf-8", errors="replace")
        raise SystemExit(f"{self._version.name} ended before its last step:\n{log[-2000:]}")

    def seconds(self) -> list[float]:
        """Of the steps that count."""
        text = (self._version.place / "runs" / "speed" / "timings.jsonl").read_text(encoding="utf-8")
        return [json.loads(line)["seconds"] for line in text.splitlines()][WORK.warmups :]

    def close(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(60)
        finally:
            self._process.kill()


def compare_speed(old: Side, new: Side, steps: int) -> int:
    """A B, then B A, and so on: neither is always the first. A table of medians, and their ratio."""
    write_speed_materials(old.place.parent / "shared")
    one = Stepper(old, steps)
    other = Stepper(new, steps)
    try:
        for turn in range(WORK.warmups + steps):
            for stepper in (one, other) if turn % 2 == 0 else (other, one):
                stepper.step()
        measured = one.seconds(), other.seconds()
    finally:
        one.close()
        other.close()
    show(measured[0], measured[1])
    return 0


def show(old: Sequence[float], new: Sequence[float]) -> None:
    print(f"{WORK.name}: {len(old)} steps each, by turns, after {WORK.warmups} that is not counted")
    for name, seconds in (("OLD", old), ("NEW", new)):
        print(f"{name}  median {median(seconds):.3f} s   least {min(seconds):.3f} s   most {max(seconds):.3f} s")
    ratios = [after / before for before, after in zip(old, new, strict=True)]
    print(f"NEW / OLD  {median(new) / median(old):.3f} of medians, {median(ratios):.3f} median of the turns' ratios")
