"""Jobs of a study that several processes share, each trained once, with a limit of time.

A job is a run's folder; it is done when it has a `result.json` with its key (`study_store.py`). When the time is over,
the run of that moment is saved after its step, and the next piece resumes it there; a run that was killed begins again.
"""

import hashlib
import json
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.study_store import (
    Result,
    Scoring,
    claimed,
    keep_rows,
    mean,
    read_result,
    row_values,
    scores_of,
    write_result,
)
from vigneron.config import Config
from vigneron.errors import UserError
from vigneron.recipe import load_config
from vigneron.run_store.archive import RESULT
from vigneron.run_store.folder import RunFolder

# A job that is not begun with less time than this: a model must be loaded and warmed up.
SHORTEST_S = 20.0
SPENT, KEY = ".seconds", ".key"
"""In an unfinished run's folder: what its pieces took, and the key of its job."""


@dataclass(frozen=True)
class Job:
    """One run: its folder's name, a recipe, the changes to it, and labels that its result repeats."""

    name: str
    recipe: str
    changes: tuple[str, ...]
    labels: Mapping[str, Any]
    seconds: float
    """What it is planned to take on an H200, with another process beside it."""
    row_score: str | None = "correct"
    """The score of its held-out rows: `correct`, `reward` or one of `others`. None: it has none."""
    others: Mapping[str, Scoring] = field(default_factory=dict)
    """Scores of rows that are added to those of the run."""
    role: str | None = None
    """Of a game: the role whose samples are its held-out rows."""
    finish: Callable[["Job", RunFolder], Result] | None = None
    """What else is measured of the trained run."""
    instead: Callable[["Job", RunFolder, Config], Result] | None = None
    """What is done in place of training."""
    keeps_weights: bool = False
    """Whether `finish` needs the trained model."""
    prepare: Callable[[], object] | None = None
    """Makes what its config names and is not there yet."""

    def config(self) -> Config:
        return load_config(self.recipe, list(self.changes))

    def key(self, runs: Path) -> str:
        """Of its config and its labels. Its name does not say all: a learning rate may be chosen anew, or a model be
        another one. Where the folder lies does not count; what a file says does where a label repeats it."""
        described = json.dumps(
            [config_text(self.recipe, self.changes), dict(self.labels)], sort_keys=True, ensure_ascii=False
        )
        return hashlib.sha256(described.replace(str(runs.resolve()), "RUNS").encode()).hexdigest()[:16]


@cache
def config_text(recipe: str, changes: tuple[str, ...]) -> str:
    """What is not the default: an option that is new in this version changes nothing."""
    return load_config(recipe, list(changes)).model_dump_json(exclude_defaults=True)


@dataclass(frozen=True)
class Plan:
    """Jobs that can be begun, in their order; `more` are known only when some of these are done."""

    jobs: Sequence[Job]
    more: bool = False


class UntilView:
    """Stops the run when the time is over: it finishes its step and saves it."""

    def __init__(self, until: float) -> None:
        self.until = until

    def notice(self, text: str) -> None: ...

    def step(self, run: Any, metrics: Any, batch: Any, seconds: float) -> None:
        if time.monotonic() > self.until and run.step < run.config.steps:
            os.kill(os.getpid(), signal.SIGTERM)


def work(
    plan: Callable[[Path], Plan],
    runs: Path,
    budget: float,
    say: Callable[[str], None] = print,
    memory_gb: float | None = None,
) -> int:
    """Jobs until all are done or the time is over; returns the number of those that failed. `memory_gb`: of a GPU that
    others use too."""
    until, failed = time.monotonic() + budget, set[str]()
    runs.mkdir(parents=True, exist_ok=True)
    while True:
        planned = plan(runs)
        left = [job for job in planned.jobs if not is_done(job, runs) and job.name not in failed]
        if not left and (not planned.more or failed):
            say(f"{len(failed)} failed: {', '.join(sorted(failed))}" if failed else "all jobs are done")
            return len(failed)
        if time.monotonic() + min(SHORTEST_S, budget / 2) > until:
            say(f"the time is over: {len(left)} jobs are left{' and more will follow' if planned.more else ''}")
            return len(failed)
        for job in left:
            with claimed(runs, job.name) as free:
                if not free or is_done(job, runs):
                    continue
                began = time.monotonic()
                try:
                    done = do(job, runs, until, memory_gb)
                except Exception as error:  # the other jobs go on, and the exit status reports it
                    if not isinstance(error, UserError):
                        traceback.print_exc()
                    say(f"failed  {job.name}: {error}")
                    failed.add(job.name)
                else:
                    took = time.monotonic() - began
                    say(f"{'done  ' if done else 'cut   '}  {job.name}: {took:.0f} s ({job.seconds:.0f} planned)")
                break
        else:
            time.sleep(0.5)  # others have all that is left


def is_done(job: Job, runs: Path) -> bool:
    file = runs / job.name / RESULT
    return file.is_file() and json.loads(file.read_text(encoding="utf-8")).get("key") == job.key(runs)


def result_of(job: Job, runs: Path) -> Result | None:
    """None: it is not done."""
    return read_result(runs, job.name) if is_done(job, runs) else None


def do(job: Job, runs: Path, until: float, memory_gb: float | None = None) -> bool:
    """Whether it is done, or was cut."""
    began, path = time.monotonic(), runs / job.name
    if job.prepare is not None:
        job.prepare()
    if job.instead is not None or (path / RESULT).is_file() or not is_of(job, runs):
        shutil.rmtree(path, ignore_errors=True)
    before = float((path / SPENT).read_text()) if (path / SPENT).is_file() else 0.0
    if job.instead is not None:
        config = job.config()
        folder = RunFolder.create(runs, job.name, exact_name=True)
        folder.write_config(config)
        result = job.instead(job, folder, config)
    else:
        trained = train(job, runs, until, memory_gb)
        if not trained:
            (path / SPENT).write_text(str(before + time.monotonic() - began))
            return False
        result = {**step_seconds(path), **measured(job, RunFolder.open(path))}
    seconds = round(before + time.monotonic() - began, 1)
    write_result(runs, job.name, {"job": job.name, "key": job.key(runs), **job.labels, "seconds": seconds, **result})
    (path / "samples.sqlite").unlink(missing_ok=True)
    shutil.rmtree(path / "checkpoints", ignore_errors=True)
    return True


def is_of(job: Job, runs: Path) -> bool:
    """Whether the run in the job's folder is the job's, as it is now."""
    file = runs / job.name / KEY
    return file.is_file() and file.read_text(encoding="utf-8") == job.key(runs)


def step_seconds(path: Path) -> Result:
    """The median time of a step, without evaluating."""
    times = [record["seconds"] for record in RunFolder(path).records("timings.jsonl")]
    return {"step_s": round(median(times), 4)} if times else {}


def measured(job: Job, folder: RunFolder) -> Result:
    """Keep the scores of the rows; their mean at each evaluation, and over all after the first step; and the rest."""
    result: Result = {}
    if job.row_score is not None:
        keep_rows(folder.path, job.others, job.role)
        values = row_values(folder.path, job.row_score)
        curve = {step: mean(values[step]) for step in values}
        result = {"row_score": job.row_score, "curve": curve, "area": mean(scores_of(values)["area"])}
    return result if job.finish is None else {**result, **job.finish(job, folder)}


def train(job: Job, runs: Path, until: float, memory_gb: float | None = None) -> bool:
    """Start or resume the run. The checkpoint of its last step, more than a gigabyte, is written only where needed.
    `memory_gb` is not in the job's key; a run that is resumed keeps the limit that it was started with."""
    from vigneron.methods import build_method
    from vigneron.training import loop
    from vigneron.training.setup.resume import resume_run
    from vigneron.training.setup.start import start_run
    from vigneron.training.signals import Stopped

    view, path = UntilView(until), runs / job.name
    if is_trained(path, evaluated=job.row_score is not None):
        return True
    if any((path / "checkpoints").glob("step-*")):
        run = resume_run(RunFolder.open(path), build_method, view=view)
    else:
        shutil.rmtree(path, ignore_errors=True)  # of a process that was killed
        limit = [f"model.memory_gb={memory_gb}"] if memory_gb else []
        config = load_config(job.recipe, [*job.changes, *limit])
        run = start_run(config, runs, build_method, name=job.name, view=view)
        (path / KEY).write_text(job.key(runs), encoding="utf-8")
    save, keeps = run.save, job.keeps_weights
    run.save = lambda metrics=None: save(metrics) if keeps or run.step < run.config.steps else None  # type: ignore[method-assign]
    try:
        loop.train(run, view)
    except Stopped:
        if time.monotonic() <= until:  # a signal from outside: the process ends
            raise
        return False
    finally:
        run.close()
    return True


def is_trained(path: Path, *, evaluated: bool) -> bool:
    """Whether a run's last step is logged, and evaluated where it should be, so that only its scores are missing."""
    if not all((path / name).is_file() for name in ("config.yaml", "metrics.jsonl")):
        return False
    folder = RunFolder.open(path)
    if not (records := folder.metrics()) or records[-1]["step"] != folder.config().steps:
        return False
    return not evaluated or any(name.startswith("eval/") for name in records[-1])


def available(jobs: Mapping[str, Job]) -> tuple[list[str], dict[str, str]]:
    """Arms whose config this version accepts; and for the others, why it does not."""
    refused = {}
    for arm, job in jobs.items():
        try:
            job.config()
        except UserError as error:
            refused[arm] = " ".join(str(error).split())
    return [arm for arm in jobs if arm not in refused], refused
