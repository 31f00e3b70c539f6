"""Tiny runs of every method, and processes of their own for them, which may be killed.

Processes are forked from one that has imported everything: a kill costs a second, not ten.
"""

import codecs
import importlib
import io
import json
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import yaml

from support import importing_support
from support.tiny_runs import held_out_of, tiny_recipe, write_data
from vigneron import api
from vigneron.distributed import ranks
from vigneron.errors import UserError
from vigneron.run_store.folder import RunFolder
from vigneron.training.checkpoint.write import draft_path

VOWELS = "aeiouAEIOU"
RUBRIC = {
    "category_column": None,
    "categories": {
        "words": {
            "generate": "Be brief.",
            "items": [
                {"name": "short", "description": "It is short.", "flow": "length", "at_most": 1, "unit": "characters"},
                {"name": "near", "description": "It is near.", "flow": "text_similarity"},
            ],
        }
    },
}
METHODS: dict[str, dict[str, Any]] = {
    "actor_critic": {"name": "actor_critic", "kl": {"coefficient": 1e-3, "adaptive": {"target": 0.01}}},
    "grape": {"name": "grape", "mix": {"fresh": 0.4, "revised": 0.4, "demonstrated": 0.2}},
    "grpo": {"name": "grpo", "updates_per_step": 2, "kl": {"coefficient": 1e-3, "adaptive": {"target": 0.01}}},
    "ppo": {"name": "ppo", "updates_per_step": 2, "minibatches": 2, "kl": {"coefficient": 0.01}},
    "reinforce": {"name": "reinforce"},
    "reinforce, own network": {"name": "reinforce", "critic": {"network": "own"}},
    "reinforce, running mean": {"name": "reinforce", "baseline": "running_mean"},
    "trpo, penalty": {"name": "trpo", "penalty": {"coefficient": 0.1, "adaptive": {"rule": "ppo", "target": 0.05}}},
    "trpo, constraint": {"name": "trpo", "form": "constraint", "constraint": {"iterations": 4}},
    "dpo": {"name": "dpo"},
    "dpo, sampled": {"name": "dpo", "pairs": "sampled"},
    "rejection_sampling": {"name": "rejection_sampling"},
    "sft": {"name": "sft"},
    "reward_model": {"name": "reward_model"},
    "preference_model": {"name": "preference_model"},
    "score_model": {"name": "score_model", "score": "score"},
    "process_model": {"name": "process_model"},
    "topr": {"name": "topr", "reward_column": "score", "rewards": "advantage"},
    "oreo": {"name": "oreo", "reward_column": "score"},
    "a_star_po": {"name": "a_star_po", "reference_samples": 2, "beta": 0.05},
    "kto": {"name": "kto"},
    "flower": {"name": "flower"},
    "sppo": {"name": "sppo"},
    "distill": {"name": "distill", "beta": 0.5},
    "gad": {"name": "gad", "warmup": 1},
}
OF_PAIRS = ("dpo", "reward_model", "preference_model")
OF_COMPLETIONS = ("topr", "oreo", "kto", "flower")
OF_LABELS = ("score_model", "process_model", *OF_COMPLETIONS)
WITHOUT_SAMPLES = (*OF_PAIRS, *OF_LABELS, "sft")


def drawing_reward(completions: list[str], **columns: Any) -> list[float]:
    """Draws from torch's generator: it too has to go on where it was."""
    import torch

    return [sum(letter in VOWELS for letter in str(text)) + float(torch.rand(())) for text in completions]


def drawing_win_rate(completions: list[str], **columns: Any) -> list[float]:
    import torch

    return [float(torch.rand(())) for _ in completions]


def write_recipe(folder: Path, model: Path, name: str, *, lora: bool = False, **changes: Any) -> Path:
    """Six steps of a method, a checkpoint every second one."""
    folder.mkdir(parents=True, exist_ok=True)
    given = tiny_recipe(model, _data_for(folder, name), method=METHODS[name], steps=6, save_every=2, eval_every=3)
    given["reward"] = {"kind": "python", "function": "support.fault_runs:drawing_reward"}
    if name == "sppo":
        given["reward"]["function"] = "support.fault_runs:drawing_win_rate"
    given["optimizer"] = {} if name == "trpo, constraint" else {"actor_lr": 1e-2, "schedule": "cosine"}
    if lora:
        given["model"]["lora"] = {"rank": 2}
    if name == "distill":
        given["method"] = {**METHODS[name], "parent": str(_parent(folder))}
    if name == "grape":
        (folder / "rubric.yaml").write_text(yaml.safe_dump(RUBRIC))
        given["reward"] = {"kind": "rubric", "file": str(folder / "rubric.yaml")}
        given["prompts_per_step"] = 8  # of ten: the second step meets questions again
    if name in WITHOUT_SAMPLES:
        for key in ("group_size", "reward", *(("max_new_tokens",) if name in OF_PAIRS else ())):
            del given[key]
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(given | changes))
    return path


def _parent(folder: Path) -> Path:
    """A model that is not the child's."""
    from support.tiny_models import byte_tokenizer, tiny_model

    for part in (tiny_model("qwen", seed=9), byte_tokenizer()):
        part.save_pretrained(folder / "parent")
    return folder / "parent"


def _data_for(folder: Path, name: str) -> Path:
    data = write_data(folder)
    if name in OF_PAIRS or name in OF_LABELS:
        for file in (data, held_out_of(data)):
            rows = [yaml.safe_load(line) for line in file.read_text().splitlines()]
            for number, row in enumerate(rows):
                if name in OF_LABELS:
                    text = f"{row['answer']}\nso"
                    labels = {"score": (number + 1) / 10, "labels": [number / 10, number % 2], "label": number % 2 == 0}
                    row |= {**labels, "completion" if name in OF_COMPLETIONS else "answer": text}
                else:
                    row |= {"chosen": row["answer"], "rejected": "no"}
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return data


class Printer:
    def notice(self, text: str) -> None:
        print(text, flush=True)

    def step(self, run: Any, metrics: Any, batch: Any, seconds: float) -> None: ...


class Killer(Printer):
    """SIGKILL in the middle of a step, the checkpoint before it whole: no handler runs, nothing is flushed."""

    def __init__(self, at_step: int) -> None:
        self.at_step = at_step

    def step(self, run: Any, metrics: Any, batch: Any, seconds: float) -> None:
        if run.step == self.at_step:
            run.output.saver.wait()
            os.kill(os.getpid(), signal.SIGKILL)


class KillerInSave(Printer):
    """SIGKILL so long after the checkpoint of a step is begun, whole or not. Until then the step after it does not end:
    the run is killed however slow the machine is."""

    def __init__(self, folder: Path, step: int, delay: float) -> None:
        self.begun, self.after, self.delay = (draft_path(folder, step), folder / f"step-{step}"), step, delay
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not any(path.exists() for path in self.begun):
            time.sleep(0.0005)
        time.sleep(self.delay)
        os.kill(os.getpid(), signal.SIGKILL)

    def step(self, run: Any, metrics: Any, batch: Any, seconds: float) -> None:
        if run.step > self.after:
            threading.Event().wait()


def trained(recipe: str, runs: str, name: str) -> None:
    """Trained to its end, unless its own code kills it."""
    _train_or_resume(recipe, Path(runs), name, Printer())


def killed_at_step(recipe: str, runs: str, name: str, step: int) -> None:
    _train_or_resume(recipe, Path(runs), name, Killer(step))


def killed_in_save(recipe: str, runs: str, name: str, step: int, delay: float) -> None:
    killer = KillerInSave(Path(runs) / name / "checkpoints", step, delay)
    _train_or_resume(recipe, Path(runs), name, killer)


def _train_or_resume(recipe: str, runs: Path, name: str, view: Any) -> None:
    if (runs / name / "config.yaml").is_file():
        api.resume(runs / name, view=view)
    else:
        api.train(recipe, name=name, runs=runs, view=view)


def exit_code(target: Any, *arguments: Any) -> int:
    """Of a process of its own; negative for the signal that ended it."""
    return ended(started(target, *arguments))


def ended(process: BaseProcess) -> int:
    """Its exit code, when it has ended: one that takes so long hangs, however slow the machine is."""
    process.join(900)
    assert process.exitcode is not None, "it hangs"
    return process.exitcode


def started(target: Any, *arguments: Any, environment: Mapping[str, str] | None = None) -> BaseProcess:
    """A process of the fork server, with this process's environment and what is given beside it. Not where there is a
    GPU: bitsandbytes, which peft imports, asks for it, and then no forked process can use it."""
    if torch.cuda.is_available():
        return _start(multiprocessing.get_context("spawn"), environment, target, arguments)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.preloaded"])
    with patch.dict(os.environ, importing_support()):  # else what is preloaded is not imported, without a word
        forkserver.ensure_running()
    return _start(context, environment, target, arguments)


def _start(context: Any, environment: Mapping[str, str] | None, target: Any, arguments: tuple[Any, ...]) -> BaseProcess:
    process = context.Process(
        target=_with_environment, args=({**os.environ, **(environment or {})}, target, arguments), daemon=True
    )
    process.start()
    return process


def _with_environment(environment: dict[str, str], target: Any, arguments: tuple[Any, ...]) -> None:
    """The fork server keeps the environment that it was started with."""
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments)


def lock(folder: str) -> None:
    """Exits with 3 where another process trains in the folder."""
    try:
        RunFolder.open(folder).lock()
    except UserError as error:
        sys.exit(3 if "another process is training" in str(error) else 4)


def environment_of(rank: int, count: int, place: Path) -> dict[str, str]:
    """As `--nproc` sets it for a rank."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    rendezvous = {ranks.RENDEZVOUS: f"file://{place}/rendezvous"} if count > 1 else {}
    return {name: str(number) for name, number in numbers.items()} | rendezvous


def logged(log: str, target: Any, arguments: tuple[Any, ...]) -> None:
    """What it prints is in a file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    target(*arguments)


def command(log: str, words: list[str], limit: tuple[int, int] | None = None, uid: int | None = None) -> None:
    """`vigneron WORDS…` as a process of its own, what it says in a file; under a limit or as another user if given."""
    logged(log, _command, (words, limit, uid))


def _command(words: list[str], limit: tuple[int, int] | None, uid: int | None) -> None:
    from vigneron.cli.main import main

    if limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write fails, as on a full disk
        resource.setrlimit(limit[0], (limit[1], limit[1]))
    if uid is not None:
        # What is imported when it is first needed may lie where the other user may not read: a failing command first.
        codecs.lookup("utf-8-sig")
        importlib.import_module("rich._emoji_codes")
        sys.argv = ["vigneron", "resume", "no-such-run"]
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), suppress(SystemExit):
            main()
        os.setgid(uid)
        os.setuid(uid)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["vigneron", *words]
    main()
