"""What every contestant does: conversations of up to four turns, three of them with a call, and a GRPO step on them."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from benchmarks.turns.tool import lookup, value
from benchmarks.work import Work
from vigneron.environments.tool_schema import tool_schema

Contestant = Literal["ours", "ours-no-wait", "single-turn", "trl-tuned", "trl-tuned-no-wait"]
NO_WAIT = "-no-wait"
"""The end of the names of contestants whose tool answers at once."""
TURNS = 4
CALLS = TURNS - 1
REPLY_TOKENS = 32
"""Room for the tokens between two turns; Qwen2.5's template and a number take 25 of SmolLM2's."""
DISTINCT_STEPS = 4
"""Steps with different prompts; after that many they repeat."""


@dataclass(frozen=True)
class Pace:
    """Steps of a contestant: warm-ups, then steps whose tool answers at once, then steps whose tool waits."""

    warmups: int
    no_wait: int
    waiting: int

    @property
    def steps(self) -> int:
        return self.no_wait + self.waiting

    def waits(self, step: int) -> bool:
        return step >= self.warmups + self.no_wait


@dataclass(frozen=True)
class Tuning:
    """The SFT that teaches the model to call."""

    steps: int
    rows: int
    """Conversations of a step."""
    learning_rate: float


@dataclass(frozen=True)
class TurnsWork:
    step: Work
    """The GRPO step; its `new_tokens` are those of a turn."""
    tuning: Tuning
    ours: Pace
    single: Pace
    trl: Pace
    numbers: tuple[int, int] = (100, 1000)
    """The numbers that are looked up: from, and up to but without."""
    fewest_turns: float = 3.5
    """Turns of a sample, on average, below which nothing is compared."""

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def completion_tokens(self) -> int:
        """The most tokens of a conversation behind its prompt."""
        return TURNS * self.step.new_tokens + CALLS * REPLY_TOKENS

    def at(self, pace: Pace) -> Work:
        """The step at a contestant's pace, without a time limit."""
        return replace(self.step, warmups=pace.warmups, steps=pace.steps, patience_s=math.inf)


WORKS = {
    work.name: work
    for work in (
        TurnsWork(
            Work(
                "turns",
                "smollm2-135m",
                prompts=64,
                group=8,
                new_tokens=64,
                device="cuda",
                dtype="bfloat16",
                contestants=("ours", "trl-tuned"),
                learning_rate=1e-7,
                peer_microbatch=64,
            ),
            Tuning(steps=60, rows=16, learning_rate=1e-4),
            ours=Pace(3, 4, 6),
            single=Pace(3, 6, 0),
            trl=Pace(1, 1, 1),  # with the wait of 512 × 3 calls, one after the other, a step takes a minute and a half
        ),
        # A check that everything runs, not a comparison: one conversation, learnt by heart.
        TurnsWork(
            Work(
                "smoke-turns",
                "tiny-shape",
                prompts=2,
                group=2,
                new_tokens=64,
                device="cpu",
                dtype="float32",
                contestants=("ours", "trl-tuned"),
                learning_rate=1e-7,
                temperature=0.2,
                peer_microbatch=2,
            ),
            Tuning(steps=50, rows=1, learning_rate=1e-2),
            ours=Pace(0, 1, 1),
            single=Pace(0, 1, 0),
            trl=Pace(0, 1, 1),
            numbers=(100, 100 + CALLS),
        ),
    )
}


def prompt_rows(work: TurnsWork) -> list[dict[str, Any]]:
    """The prompts that every contestant samples from."""
    draw = random.Random(1)
    return [{"prompt": _prompt(_numbers(work, draw))} for _ in range(work.step.prompts * DISTINCT_STEPS)]


def conversations(work: TurnsWork) -> list[dict[str, Any]]:
    """Demonstrations for the SFT, of other numbers: three calls, then the answer."""
    draw = random.Random(2)
    tools = [tool_schema(lookup)]
    count = work.tuning.steps * work.tuning.rows
    return [{"messages": _conversation(_numbers(work, draw)), "tools": tools} for _ in range(count)]


def _numbers(work: TurnsWork, draw: random.Random) -> list[int]:
    return sorted(draw.sample(range(*work.numbers), CALLS))


def _prompt(numbers: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": "You look numbers up, one at a time."},
        {"role": "user", "content": f"Look up {numbers[0]}, {numbers[1]} and {numbers[2]}."},
    ]


def _conversation(numbers: Sequence[int]) -> list[dict[str, Any]]:
    messages = _prompt(numbers)
    for number in numbers:
        text = f"I have to look up the value of {number} now, and I will go on with the next number after that."
        call = {"type": "function", "function": {"name": "lookup", "arguments": {"n": number}}}
        messages.append({"role": "assistant", "content": text, "tool_calls": [call]})
        messages.append({"role": "tool", "name": "lookup", "content": str(value(number))})
    one, two, three = (f"the value of {number} is {value(number)}" for number in numbers)
    answer = f"T{one[1:]}, {two}, and {three}. These are the three values that you have asked for."
    return [*messages, {"role": "assistant", "content": answer}]


def alternating(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """The reward, with TRL's signature. It differs within each group, so that every sample has an advantage: a model
    that was taught to call says the same in most of a group's samples."""
    return [float(i % 2) for i in range(len(completions))]
