"""Runs of several processes, by the command line: they end as one process would, die cleanly, and go on with fewer or
more."""

import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from support import command_line, fault_runs
from support.processes import begun, vigneron
from support.tiny_runs import tiny_recipe, write_data
from vigneron.config import Config
from vigneron.data import sources as data_sources
from vigneron.run_data import stored
from vigneron.training.run import Run
from vigneron.training.setup import start

REWARD = """
import os, signal
from pathlib import Path

calls = 0
asked = 0

def is_trial(completions, columns):  # on two rows, before a run
    return completions == columns.get("answer") or not any(completions)

async def not_finite_once(completions, **columns):
    # Asynchronous: parts of a step are rewarded while others are sampled.
    global asked
    asked += not is_trial(completions, columns)
    return [float("nan") if asked == 5 else sum(c in "aeiouAEIOU" for c in text) / 4 for text in completions]

def vowels(completions, **columns):
    global calls
    calls += not is_trial(completions, columns)
    launcher = os.getppid()
    if (wanted := Path("stop")).exists() and calls == int(wanted.read_text()):
        wanted.unlink()
        os.kill(launcher, signal.SIGTERM)
    if (wanted := Path("die")).exists() and calls == int(wanted.read_text()):
        wanted.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    if (wanted := Path("kill")).exists() and calls == int(wanted.read_text()):
        wanted.unlink()
        ranks = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        os.kill(next(int(pid) for pid in ranks if int(pid) != os.getpid()), signal.SIGKILL)
    return [None if text.startswith("z") else sum(c in "aeiouAEIOU" for c in text) / 4 for text in completions]
"""


@pytest.fixture
def place(tmp_path: Path, tiny_folder: Path) -> Path:
    (tmp_path / "paying.py").write_text(REWARD)
    recipe = tiny_recipe(
        tiny_folder,
        write_data(tmp_path),
        model={"name": str(tiny_folder), "device": "cpu", "dtype": "float32"},  # a CPU may compute in bfloat16
        method={"name": "ppo", "updates_per_step": 2, "minibatches": 2, "kl": {"coefficient": 0.01}},
        optimizer={"actor_lr": 1e-3, "critic_lr": 1e-3},
        reward={"kind": "python", "function": "paying:vowels"},
        group_size=4,
        steps=6,
        save_every=2,
        keep_last=3,
        eval_every=3,
    )
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    return tmp_path


def one(place: Path, *arguments: str) -> None:
    """One rank, as a process that the fork server starts."""
    with chdir(place), patch.object(sys, "path", [str(place), *sys.path]):
        log = place / "log"
        assert fault_runs.exit_code(fault_runs.command, str(log), list(arguments)) == 0, log.read_text()


def of_two_ranks(place: Path, command: Any, words: list[str]) -> str:
    """What two ranks print, as processes that the fork server starts."""
    logs = [place / f"rank-{rank}.log" for rank in range(2)]
    (place / "rendezvous").unlink(missing_ok=True)  # it has the addresses of earlier ranks
    with chdir(place), patch.object(sys, "path", [str(place), *sys.path]):
        processes = [
            fault_runs.started(command, str(log), words, environment=fault_runs.environment_of(rank, 2, place))
            for rank, log in enumerate(logs)
        ]
        for process in processes:
            fault_runs.ended(process)
    return "".join(log.read_text() for log in logs)


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def check_the_same(run: Path, other: Path) -> None:
    """What was sampled and rewarded is equal, weights and figures to rounding in float32."""
    weights = [load_file(path / "checkpoints" / "step-6" / "model.safetensors") for path in (run, other)]
    for name, tensor in weights[0].items():
        assert (tensor - weights[1][name]).abs().max() < 2e-4, name
    here, there = records(run), records(other)
    assert [r["step"] for r in here] == [r["step"] for r in there]
    for mine, theirs in zip(here, there, strict=True):
        assert set(mine) == set(theirs)
        for name, value in mine.items():
            if value is not None:
                assert value == pytest.approx(theirs[name], rel=5e-3, abs=5e-4), (mine["step"], name)


@pytest.mark.slow
def test_two_processes_stop_are_killed_go_on_and_end_as_one_does(place: Path) -> None:
    """Asked to stop in the third step, all ranks finish it and save. Resumed with sharded weights, one of them dies in
    the fifth step: the last checkpoint is whole. From it one process ends where one ends that was never stopped; from
    the first checkpoint two ranks do."""
    one(place, "train", "tiny.yaml", "--name", "one")
    (place / "stop").write_text("4")  # the first evaluation asks for a reward too
    cut, two = place / "runs" / "cut", place / "runs" / "two"
    out, err = vigneron(place, "train", "tiny.yaml", "--name", "cut", "--nproc", "2", code=128 + signal.SIGTERM)
    done = records(cut)[-1]["step"]
    assert done == 3
    assert (cut / "checkpoints" / f"step-{done}" / "manifest.json").exists()
    assert f"saved after step {done}" in out + err
    assert "Traceback" not in err
    shutil.copytree(cut, two)

    (place / "kill").write_text("2")  # of this process's calls: the fifth step's
    _, err = vigneron(place, "resume", "runs/cut", "--nproc", "2", "scale.shard=2", code=137)
    check_killed(cut, err)
    assert (cut / "checkpoints" / "step-4" / "manifest.json").exists()
    compile_as_on_gpu(cut)
    one(place, "resume", "runs/cut", "scale.shard=1")
    check_the_same(cut, place / "runs" / "one")

    out = of_two_ranks(place, fault_runs.command, ["resume", "runs/two"])
    words = [line.split()[0] for line in out.splitlines()]
    ended = ["result", "best", "run", "report", "chat", "view", "export"]
    assert [w for w in words if not w.endswith(":")] == [*["step"] * (6 - done), *ended]
    check_the_same(two, place / "runs" / "one")
    AutoModelForCausalLM.from_pretrained(two / "checkpoints" / "step-6")


def check_killed(run: Path, err: str) -> None:
    assert "rank 1 was killed by SIGKILL" in err
    assert all(line.startswith(("error: ", "rank 1: ", "[transformers]")) for line in err.splitlines()), err
    assert not (run / "checkpoints" / "step-6").exists()


def compile_as_on_gpu(run: Path) -> None:
    """As `auto` is resolved on a GPU, whoever resumes the run."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["model"]["compile"] = True
    (run / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["--nproc", "2", "scale.shard=2"], ["scale.shard=1"]),
        (["--nproc", "2"], []),
        (["--nproc", "2", "scale.shard=2"], ["--nproc", "4", "scale.shard=2"]),
        ([], ["--nproc", "2"]),
        ([], ["--nproc", "2", "scale.shard=2"]),
    ],
)
def test_killed_and_resumed_on_another_number_of_ranks(place: Path, before: list[str], after: list[str]) -> None:
    """A rank dies in the fifth step; the run ends with its last checkpoint whole, and goes on from it."""
    one(place, "train", "tiny.yaml", "--name", "whole")
    run = place / "runs" / "cut"
    if before:
        (place / "kill").write_text("6")  # the first evaluation asks for a reward too, and the one after step 3
        _, err = vigneron(place, "train", "tiny.yaml", "--name", "cut", *before, code=137)
        check_killed(run, err)
    else:
        (place / "die").write_text("6")
        vigneron(place, "train", "tiny.yaml", "--name", "cut", code=-signal.SIGKILL)
    assert not (run / "checkpoints" / "step-6").exists()
    compile_as_on_gpu(run)
    (vigneron if "--nproc" in after else one)(place, "resume", "runs/cut", *after)
    check_the_same(run, place / "runs" / "whole")


@pytest.mark.slow
@pytest.mark.cluster
def test_weights_that_are_tied_by_their_values_are_tied_on_all_ranks(place: Path, tiny_folder: Path) -> None:
    """A checkpoint that holds both of two tied weights: only who reads them can know that they are one."""
    folder = shutil.copytree(tiny_folder, place / "tied")
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    small = ("steps=1", "save_every=1", "eval_every=0", "model.dtype=float32", f"model.name={folder}")
    for name, ranks in (("one", ()), ("two", ("--nproc", "2", "scale.shard=2"))):
        vigneron(place, "train", "tiny.yaml", "--name", name, *small, *ranks)
    ends = [load_file(place / "runs" / name / "checkpoints/step-1/model.safetensors") for name in ("one", "two")]
    assert ends[0].keys() == ends[1].keys()
    assert "lm_head.weight" not in ends[0]
    for name, weight in ends[0].items():
        torch.testing.assert_close(ends[1][name], weight, atol=1e-6, rtol=1e-5)


@pytest.mark.cluster
@pytest.mark.slow
def test_a_reward_model_is_asked_by_one_rank(place: Path, tiny_folder: Path) -> None:
    pairs = place / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"prompt": w, "chosen": w * 2, "rejected": "no"}) + "\n" for w in "abcdefgh"))
    fit = {"model": {"name": str(tiny_folder), "device": "cpu"}, "method": {"name": "reward_model"}}
    fit |= {"data": {"train": str(pairs)}, "steps": 2, "prompts_per_step": 4}
    (place / "fit.yaml").write_text(yaml.safe_dump(fit))
    vigneron(place, "train", "fit.yaml", "--name", "scorer", "--nproc", "2", "scale.shard=2")
    reward = "reward={kind: model, model: runs/scorer/checkpoints/step-2}"
    vigneron(place, "train", "tiny.yaml", "--name", "one", reward)
    vigneron(place, "train", "tiny.yaml", "--name", "two", "--nproc", "2", reward)
    check_the_same(place / "runs" / "two", place / "runs" / "one")


@pytest.mark.slow
@pytest.mark.cluster
def test_asked_to_stop_ranks_with_sharded_weights_finish_the_step_and_save(place: Path) -> None:
    process = begun(place, "train", "tiny.yaml", "--name", "run", "steps=100000", "--nproc", "2", "scale.shard=2")
    run = place / "runs" / "run"
    while not (run / "checkpoints" / "step-2" / "manifest.json").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 128 + signal.SIGTERM, err
    done = records(run)[-1]["step"]
    assert (run / "checkpoints" / f"step-{done}" / "manifest.json").exists()
    assert "saved after step" in out + err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.cluster
def test_a_reward_that_is_not_finite_is_passed_over_by_all_ranks(place: Path) -> None:
    """It fails while a step is still being sampled: nobody waits for the others for ever."""
    reward = "reward={kind: python, function: 'paying:not_finite_once'}"
    vigneron(place, "train", "tiny.yaml", reward, "skip_nonfinite=1", "eval_every=0", "--name", "r", "--nproc", "2")
    assert [record["step"] for record in records(place / "runs" / "r")] == [1, 2, 3, 4, 5, 6]
    assert records(place / "runs" / "r")[-1]["steps_skipped"] == 1


def test_bad_input_is_one_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(*arguments: str) -> str:
        """In this process, where no ranks are started."""
        answer = command_line.vigneron(*arguments)
        assert answer.code == 2
        assert answer.err.startswith("error: ")
        assert answer.err.count("\n") == 1, answer.err
        return answer.err

    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    assert "17 ranks have only 16 samples per step" in said("train", "tiny.yaml", "--nproc", "17")
    assert "scale.shard: 3 ranks are not a multiple of 2" in said("train", "tiny.yaml", "--nproc", "3", "scale.shard=2")
    constraint = ("method={name: trpo, form: constraint}", "optimizer={}", "scale.shard=2")
    assert "differentiates twice" in said("train", "tiny.yaml", *constraint, "--nproc", "2")
    assert "staleness" in said("train", "tiny.yaml", "scale.staleness=1")


def without_stages(said: str) -> list[str]:
    """Lines, but those that say how far the start is, and notes about the recipe."""
    return [line for line in said.splitlines() if not line.startswith(("start: ", "note: "))]


@pytest.mark.slow
def test_bad_input_that_ranks_find_is_one_line(place: Path) -> None:
    """After they have joined each other."""
    said = of_two_ranks(place, fault_runs.command, ["train", "tiny.yaml", "model.compile=true", "scale.shard=2"])
    (line,) = without_stages(said)
    assert line.startswith("error: model.compile: true has no effect on sharded weights")


@pytest.mark.slow
def test_under_torchrun(place: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["-m", "vigneron", "train", "tiny.yaml", "steps=1", "eval_every=0", "--name", "run"]
    done = subprocess.run([*torchrun, *words], cwd=place, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    assert len(records(place / "runs" / "run")) == 1


def train_with_other_model(log: str, words: list[str]) -> None:
    """As a rank; on the second one's node the folder of the model has what is in `other`."""
    build_run = start.build_run

    def build_with_other(config: Config, *parts: Any) -> Run:
        return build_run(config.model_copy(update={"model": config.model.model_copy(update={"name": "other"})}), *parts)

    if os.environ["RANK"] == "1":
        start.build_run = build_with_other  # type: ignore[assignment]
    fault_runs.command(log, words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("model", "rank 1: model: the folder"),
        pytest.param("weights", "has other weights than on rank 0", marks=pytest.mark.cluster),
        pytest.param(
            "shapes",
            "weight names or shapes differ from those on rank 0: model.embed_tokens.weight",
            marks=pytest.mark.cluster,
        ),
    ],
)
def test_an_odd_rank(place: Path, tiny_folder: Path, what: str, expected: str) -> None:
    """Its node has no files of the model, or others: nothing begins, a line says why."""
    (place / "other").mkdir()
    if what != "model":
        other = AutoModelForCausalLM.from_pretrained(shutil.copytree(tiny_folder, place / "other", dirs_exist_ok=True))
        if what == "shapes":
            other.resize_token_embeddings(300)
        with torch.no_grad():
            other.get_input_embeddings().weight.mul_(1.01)
        other.save_pretrained(place / "other")
    words = ["train", "tiny.yaml", "steps=1", "eval_every=0", "--name", "odd"]
    said = of_two_ranks(place, train_with_other_model, [*words, f"scale.shard={2 if what == 'shapes' else 1}"])
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert expected in line
    assert not (place / "runs" / "odd").exists()


def train_on_large_source(log: str, words: list[str]) -> None:
    """As a rank; with "other" on the command line the second one's node has another file."""
    data_sources.LARGE = 0
    if os.environ["RANK"] == "1":
        stored.read_source = None  # type: ignore[assignment]  # rank 0 alone reads all rows
        if "other" in words:
            stored._sample = lambda path: "other"
    fault_runs.command(log, [word for word in words if word != "other"])


@pytest.mark.slow
def test_ranks_read_a_large_source_by_the_index_of_rank_0(place: Path) -> None:
    words = ["train", "tiny.yaml", "--name", "large", "steps=1", "eval_every=0"]
    (line,) = without_stages(of_two_ranks(place, train_on_large_source, ["other", *words]))
    assert line == f"error: rank 1: data: '{place / 'words.jsonl'}' is not the same file as on rank 0"
    assert not (place / "runs" / "large").exists()
    said = of_two_ranks(place, train_on_large_source, words)
    assert "error: " not in said
    assert len(records(place / "runs" / "large")) == 1


def train_with_odd_version(log: str, words: list[str]) -> None:
    """As a rank; the second one's node has another version of a package."""
    if os.environ["RANK"] == "1":
        known = importlib.metadata.version
        importlib.metadata.version = lambda name: "5.0.1" if name == "transformers" else known(name)
    fault_runs.command(log, words)


@pytest.mark.slow
def test_a_rank_with_another_version_of_a_package(place: Path) -> None:
    said = of_two_ranks(
        place, train_with_odd_version, ["train", "tiny.yaml", "steps=1", "eval_every=0", "--name", "odd"]
    )
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "rank 1 on " in line
    assert "has transformers 5.0.1" in line
    assert not (place / "runs" / "odd").exists()
