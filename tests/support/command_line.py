"""The command line in the test's own process: torch is imported once, not once a call."""

import io
import sys
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import uvicorn
import yaml

from vigneron.cli.main import main


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


def vigneron(*words: Any, stdin: str = "") -> Answer:
    """What `vigneron WORDS…` prints, and its exit code. What `main` lets through is raised here. A page is not served:
    that would have no end."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["vigneron", *(str(word) for word in words)]
    with (
        patch.object(sys, "argv", argv),
        patch.object(sys, "stdin", io.StringIO(stdin)),
        redirect_stdout(out),
        redirect_stderr(err),
        patch.object(uvicorn.Server, "run", _no_page),
    ):
        try:
            main()
            code = 0
        except SystemExit as leaving:
            code = int(leaving.code or 0)
    return Answer(code, out.getvalue(), err.getvalue())


def _no_page(*_: Any, **__: Any) -> None:
    raise AssertionError("a page would be served, which was to be refused")


def write_jsonl(path: Path, rows: Iterable[str]) -> Path:
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def write_recipe(folder: Path, model: Path | str, **changes: Any) -> Path:
    """A recipe of two quick steps on a dataset of its own; a change of None leaves the key out."""
    rows = ['{"prompt": "a", "answer": "b"}', '{"prompt": "c", "answer": "d"}']
    recipe = {
        "method": {"name": "actor_critic"},
        "model": {"name": str(model), "device": "cpu"},
        "data": {"train": str(write_jsonl(folder / "rows.jsonl", rows))},
        "reward": {"kind": "binary"},
        "steps": 2,
        "prompts_per_step": 2,
        "max_new_tokens": 2,
        **changes,
    }
    path = folder / "my.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in recipe.items() if v is not None}), encoding="utf-8")
    return path
