"""Judges whose every reply is known: functions in a file beside the test."""

import json
from pathlib import Path
from typing import Any

import pytest

from vigneron.config.judges import PythonJudgeConfig
from vigneron.rubric.principles import Principle
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import Judge, build_judge

PRINCIPLES = [Principle(name=name, text=f"It is {name}.") for name in ("short", "kind", "true")]
FUNCTIONS = '''
import json
import re

def request(messages):
    return next(m["content"] for m in messages if m["role"] == "user")

def texts(messages):
    found = re.findall(r"<(\\w+)-([0-9a-f]{8,})>\\n(.*?)\\n?</", request(messages), re.DOTALL)
    return {name: text for name, _, text in found}

def biased(messages):
    """More letters e are better, the first text by 0.2 too: the order of the texts matters to it."""
    seen = texts(messages)
    gap = seen["first"].count("e") - seen["second"].count("e")
    score = min(1.0, max(0.0, 0.6 + 0.2 * gap))
    return json.dumps({"reasoning": "e", "score": score, "confidence": 1})

def always_first(messages):
    return json.dumps({"reasoning": "first", "score": 1, "confidence": 1})

def silent_on_x(messages):
    seen = texts(messages)
    return "I will not." if "x" in seen["first"] else biased(messages)

def writer(messages):
    """Answers, criticises and adds the number of its critique; silent about rows with z."""
    seen, asked = texts(messages), request(messages)
    if "critique" in seen:
        return seen["response"] + "+" + re.search(r"It is (\\w+)", asked)[1]
    if "response" in seen:
        return "" if "z" in seen["question"] else "Say more."
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    if "badly" in system:
        return "bad"
    if "as well as" in system:
        return "good eee"
    return "answer to " + asked
'''


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "house_judges.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "cache"))
    return tmp_path


def rule(name: str, folder: Path) -> Judge:
    config = PythonJudgeConfig(kind="python", function=f"house_judges:{name}")
    return build_judge(config, cache=AnswerCache(folder / "answers.sqlite"))


def option(name: str) -> str:
    return f"{{kind: python, function: 'house_judges:{name}'}}"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
