"""Fixtures that every test folder shares."""

import gc
import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from support import (
    grape_runs,
    shape_checks,  # noqa: F401
    speed,  # noqa: F401
)
from support.browser import browser, browser_page  # noqa: F401
from support.house_judges import house  # noqa: F401
from support.resuming import trained_once  # noqa: F401
from support.tiny_models import VOCABULARY, byte_tokenizer, tiny_model, tiny_policy
from vigneron.data.task import Task
from vigneron.policy.model import Policy

# Most of what a test leaves behind is no garbage.
gc.set_threshold(20_000, 20, 50)

# Every run asks whether something is frozen, and the answer counts half a million objects.
count_frozen = gc.get_freeze_count
gc.get_freeze_count = lambda: 10**6  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """What a test draws does not depend on those before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def mkldnn_as_it_was() -> Iterator[None]:
    """bfloat16 on a CPU without it switches oneDNN off for the whole process, which changes the last bits of float32:
    a later test would compare a run in this process with one in another."""
    before: bool = torch.backends.mkldnn.enabled  # type: ignore[assignment]
    yield
    torch.backends.mkldnn.set_flags(before)


@pytest.fixture(autouse=True)
def own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that a test wrote in a temporary folder is forgotten after it, and so is what it put on `sys.path`:
    another test may have a module of the same name."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    forget_modules(tmp_path_factory.getbasetemp())


@pytest.fixture(params=["gpt2", "llama", "qwen"])
def policy(request: pytest.FixtureRequest) -> Policy:
    return tiny_policy(request.param)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama as a transformers folder, for everything that loads a model by name."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny_model("llama").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def obliging_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers `xy` to everything. With its layers at zero a GPT-2 is a table: x is followed by y, y by the
    end, all else by x."""
    tokenizer = byte_tokenizer()
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=256,
        n_embd=8,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=False,
    )
    model = AutoModelForCausalLM.from_config(config)
    x, y = (tokenizer(letter)["input_ids"][0] for letter in "xy")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.transformer.ln_f.weight.fill_(1.0)
        model.transformer.wte.weight[:, 0] = 1.0
        model.transformer.wte.weight[x] = torch.eye(8)[1]
        model.transformer.wte.weight[y] = torch.eye(8)[2]
        for follows, feature in ((x, 0), (y, 1), (0, 2)):
            model.lm_head.weight[follows, feature] = 1.0
    folder = tmp_path_factory.mktemp("models") / "obliging"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def roomy_folder(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """The tiny model with room for a revision's text, which is long in bytes."""
    folder = tmp_path_factory.mktemp("models") / "roomy"
    shutil.copytree(tiny_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return folder


@pytest.fixture
def few_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a built-in task's rows for evaluation, every so many: 16 to 31 are enough for a test of a whole run."""
    keep_few_rows(monkeypatch, "tuning", "held_out")


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a built-in task's rows, every so many: a run's start checks all rows, and a step needs a few."""
    keep_few_rows(monkeypatch, "train", "tuning", "held_out")


def keep_few_rows(monkeypatch: pytest.MonkeyPatch, *splits: str) -> None:
    all_rows = Task.rows

    def rows(task: Task, split: str, template: str | None = None) -> list[Any]:
        found = all_rows(task, split, template)
        return found[:: max(1, len(found) // 16)] if split in splits else found

    monkeypatch.setattr(Task, "rows", rows)


@pytest.fixture
def grape_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of `support.grape_runs`, in the test's folder."""
    (tmp_path / "grape_functions.py").write_text(grape_runs.FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


elsewhere: set[str] = set()
"""The names of modules that are known not to be temporary: there are thousands, and each is looked at once."""


def forget_modules(folder: Path) -> None:
    """Modules and packages whose files lie in a folder are imported anew by whoever needs them next."""
    for name in sys.modules.keys() - elsewhere:
        known = getattr(sys.modules.get(name), "__dict__", {})  # asking a lazy module for an attribute could import it
        places = (known.get("__file__"), *(known.get("__path__") or ()))
        if any(place.startswith(f"{folder}{os.sep}") for place in places if isinstance(place, str)):
            sys.modules.pop(name, None)
        else:
            elsewhere.add(name)
