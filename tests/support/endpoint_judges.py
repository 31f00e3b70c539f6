"""A judge behind a server of `support.servers`: its settings, and what it is asked about words."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.servers import Seen, Sent, chat, verdict
from vigneron.config.judges import EndpointJudgeConfig
from vigneron.sources import client as client_module
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import Conversation, Judge, JudgePrompts, build_judge
from vigneron.sources.verdict import Verdict

KEY = "sk-secret-4f9a1c77e2"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setattr(client_module, "FIRST_WAIT_S", 0.01)


def endpoint(url: str, folder: Path, **keys: Any) -> Judge:
    config = EndpointJudgeConfig(kind="endpoint", model="grape", url=url, **{"retries": 1, "timeout_s": 60.0, **keys})
    return build_judge(config, cache=AnswerCache(folder / "answers.sqlite"))


def asking(word: str, *, critique: bool = True) -> JudgePrompts:
    def score(said: str) -> Conversation:
        return ("system", "Score it."), ("user", f"{word}|{said}")

    return JudgePrompts((("system", "Criticise it."), ("user", word)) if critique else None, score)


def plain(words: Sequence[str]) -> list[JudgePrompts]:
    return [asking(word, critique=False) for word in words]


def user(seen: Seen) -> str:
    return next(m["content"] for m in seen.body["messages"] if m["role"] == "user")


def is_critique(seen: Seen) -> bool:
    return seen.body["messages"][0]["content"] == "Criticise it."


def obliging(seen: Seen, before: int) -> Sent:
    """Says of a word that it has so many letters, and scores a tenth for each."""
    word = user(seen).split("|")[0]
    return chat(f" {word} has {len(word)}.\n") if is_critique(seen) else verdict(len(word) / 10, 0.5, f"of {word}")


def scores(found: Sequence[Verdict]) -> list[float | None]:
    return [each.score for each in found]
