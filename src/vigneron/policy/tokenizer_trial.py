"""Try a tokenizer of unknown origin in a process with limits, before it is loaded in this one.

A tokenizer.json can claim gigabytes, or make a short text endless. Each file is tried once: the hashes of those that
passed are kept in the cache.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from vigneron.errors import UserError
from vigneron.files import sha256_of
from vigneron.policy.bundled import cache_folder
from vigneron.policy.chat_template import KEPT_VARIABLES

NAME = "tokenizer.json"
LARGEST = 2**28
"""Bytes; the largest known ones have 40 MB."""
CPU_SECONDS = 60
CLOCK_SECONDS = 600
MEMORY = 2**32
EXCEEDED = 3
"""The worker's exit code."""


def try_tokenizer(source: str, where: str) -> None:
    """Refuse a tokenizer that takes too much time or memory. Other faults show when it is loaded.

    `source` is a folder, or the id of a model on the hub, whose tokenizer.json is downloaded; `where` begins errors.
    """
    file = _file(source)
    if file is None:
        return
    if file.stat().st_size > LARGEST:
        raise UserError(f"{where}: its {file.name} has more than {LARGEST // 2**20} MiB")
    passed = cache_folder() / "tokenizers" / sha256_of(file)
    if passed.is_file():
        return
    if (fault := _fault(file)) is not None:
        raise UserError(f"{where}: {fault}")
    with suppress(OSError):  # without a cache it is tried again next time
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.touch()


def _fault(file: Path) -> str | None:
    too_much = f"its tokenizer takes more than {CPU_SECONDS} s or {MEMORY // 2**30} GiB, or crashes"
    worker = str(Path(__file__).with_name("tokenizer_worker.py"))
    command = [sys.executable, "-P", worker, str(file.resolve()), str(CPU_SECONDS), str(MEMORY)]
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    env = kept | {"TOKENIZERS_PARALLELISM": "false"}
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        done = subprocess.run(command, stdin=null, stdout=null, stderr=pipe, env=env, timeout=CLOCK_SECONDS)
    except subprocess.TimeoutExpired:
        return too_much
    if done.returncode == 0:
        return None
    if done.returncode < 0 or done.returncode == EXCEEDED:
        return too_much
    lines = done.stderr.decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), f"exit code {done.returncode}")
    return f"cannot try its tokenizer: {last.strip()}"


def _file(source: str) -> Path | None:
    """The file that transformers loads: tokenizer_config.json may name another one for its version."""
    from transformers.tokenization_utils_base import get_fast_tokenizer_file

    name, config = NAME, _found(source, "tokenizer_config.json")
    if config is not None:
        # What cannot be read is refused when it is loaded.
        with suppress(OSError, ValueError, TypeError, RecursionError):
            settings = json.loads(config.read_text(encoding="utf-8"))  # as transformers reads it
            if "fast_tokenizer_files" in settings:
                name = get_fast_tokenizer_file(settings["fast_tokenizer_files"])
    return _found(source, name)


def _found(source: str, name: str) -> Path | None:
    if Path(source).is_dir():
        file = Path(source) / name
        return file if file.is_file() else None
    from transformers.utils import cached_file

    try:
        found = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    except Exception:  # no network, no such model: loading it says so
        return None
    return None if found is None else Path(found)
