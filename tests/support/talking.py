"""A tiny model that converses, and environments for it."""

import asyncio
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from support.tiny_models import GROUPED_HEADS, byte_tokenizer
from vigneron.environments.game import Round
from vigneron.environments.reply import Reply
from vigneron.policy.chat import add_chat_tokens

LETTERS = [chr(letter) for letter in range(ord("A"), ord("z") + 1)]
"""A turn ends with a letter, so that a random model's turns have unequal lengths."""


def talking_model(seed: int = 0, positions: int = 256) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**GROUPED_HEADS | {"max_position_embeddings": positions}))
    tokenizer = byte_tokenizer()
    add_chat_tokens(model, tokenizer)
    return model.eval(), tokenizer


def talking_folder(place: Path) -> Path:
    model, tokenizer = talking_model()
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def what_hangs(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Whoever waits for it is late, and nobody else is, however slow the machine is: the clock of calls moves when one
    hangs. Of calls in threads, one at a time."""
    now = [0.0]
    monkeypatch.setattr("vigneron.threads.time", SimpleNamespace(monotonic=lambda: now[0]))

    class Hanging(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            now[0] += 3600
            return super().wait(timeout)

    return Hanging()


class Counting:
    """Counts the turns, and pays for small letters: over after as many turns as the row says."""

    def __init__(self, row: dict[str, Any], seed: int, pay: float = 1.0) -> None:
        self.turns, self.row, self.seed, self.pay = 0, row, seed, pay

    def reply(self, messages: list[dict[str, Any]]) -> Reply:
        self.turns += 1
        assert messages[-1]["role"] == "assistant"
        assert len(messages) == 2 * self.turns
        earned = self.pay * messages[-1]["content"][-1:].islower()
        done = self.turns == self.row.get("wanted", 3)
        return Reply(f"{self.turns}?", earned, done, {"odd": self.turns % 2})


class AsyncCounting(Counting):
    async def reply(self, messages: list[dict[str, Any]]) -> Reply:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().reply(messages)


def counted(messages: list[dict[str, Any]], row: dict[str, Any], seed: int) -> Reply:
    """`Counting` as a function."""
    turns = len(messages) // 2
    return Reply(f"{turns}?", float(messages[-1]["content"][-1:].islower()), turns == row.get("wanted", 3))


def conversing(folder: Path, **changes: Any) -> dict[str, Any]:
    """The sections of a recipe with an environment."""
    environment = {"kind": "python", "class": "support.talking:Counting", "max_turns": 3, "max_reply_tokens": 12}
    return {
        "model": {"name": str(folder), "device": "cpu"},
        "environment": environment | changes.pop("environment", {}),
        "reward": {"kind": "environment"},
        "sampling": {"stop": LETTERS},
        "max_new_tokens": 8,
        "steps": 8,
        "prompts_per_step": 2,
        "group_size": 4,
        "optimizer": {"actor_lr": 1e-3},
        **changes,
    }


class Letters:
    """Two roles speak in turns, `rounds` times each: a small letter at the end earns 1, and costs the other 1."""

    roles = ("ann", "bob")

    def __init__(self, row: dict[str, Any], seed: int, rounds: int = 2) -> None:
        self.left, self.topic = rounds, row["topic"]

    def start(self) -> Round:
        return Round(["ann"], {"ann": f"ann {self.topic}", "bob": f"bob {self.topic}"})

    def play(self, turns: dict[str, str]) -> Round:
        ((role, text),) = turns.items()
        other = "bob" if role == "ann" else "ann"
        won = float(text[-1:].islower())
        self.left -= role == "bob"
        heard = [{"role": "user", "content": f"{len(text)}"}]
        to_play = [other] if self.left else []
        return Round(to_play, {other: heard}, {role: won, other: -won}, {"letters": len(text)})


class Together:
    """Both roles speak at once, then hear each other's length."""

    roles = ("ann", "bob")

    def __init__(self, row: dict[str, Any], seed: int) -> None:
        self.rounds = 0

    async def start(self) -> Round:
        return Round(self.roles, dict.fromkeys(self.roles, "go"))

    async def play(self, turns: dict[str, str]) -> Round:
        self.rounds += 1
        assert set(turns) == set(self.roles)
        heard = {"ann": str(len(turns["bob"])), "bob": str(len(turns["ann"]))}
        return Round(() if self.rounds == 2 else self.roles, heard, {"ann": 1.0})


class Killing(Counting):
    """Kills the process in its 40th reply, while the answer is awaited; not where the file is there already."""

    calls = 0

    def reply(self, messages: list[dict[str, Any]]) -> Reply:
        Killing.count(self.row)
        return super().reply(messages)

    @classmethod
    def count(cls, row: dict[str, Any]) -> None:
        cls.calls += 1
        if cls.calls == 40 and not (marker := Path(row["marker"])).exists():
            marker.write_text("killed")
            os.kill(os.getpid(), signal.SIGKILL)


class AsyncKilling(Killing):
    """Other replies are under way."""

    async def reply(self, messages: list[dict[str, Any]]) -> Reply:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().reply(messages)


class KillingLetters(Letters):
    def __init__(self, row: dict[str, Any], seed: int) -> None:
        super().__init__(row, seed)
        self.row = row

    def play(self, turns: dict[str, str]) -> Round:
        Killing.count(self.row)
        return super().play(turns)
