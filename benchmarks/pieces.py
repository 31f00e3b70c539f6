"""Studies in pieces: the command line. Jobs are in `study_jobs.py`, what is kept of them in `study_store.py`."""

import argparse
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.study_jobs import Job, Plan, is_done, work
from benchmarks.study_store import Result, all_results, finished_jobs, is_worked_in, pack, unpack, working
from vigneron.run_store.archive import unpacked
from vigneron.threads import cores
from vigneron.values import GB


def parse(name: str, about: str | None, given: Sequence[str] | None) -> argparse.Namespace:
    """The command line of a study."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    whole = verbs.add_parser("all", help="train all with several workers, write RUNS.tar.xz, and show the results")
    plan = verbs.add_parser("plan", help="print the jobs that can be begun, and the minutes that are left")
    worker = verbs.add_parser("work", help="train what is left; several processes can share a folder and a GPU")
    for one in (whole, plan, worker):
        one.add_argument("runs", type=Path)
        one.add_argument("--smoke", action="store_true", help="a tiny setting: 2 steps, 1 seed, 1 learning rate")
        one.add_argument("--model", default="smollm2-135m")
        one.add_argument("--done", type=Path, metavar="ARCHIVE", help="jobs that another machine has done")
    for one in (whole, worker):
        one.add_argument("--resume", action="store_true", help="go on in a folder that has jobs")
        one.add_argument("--budget", type=float, metavar="SECONDS", help="stop, and save, after so many")
        one.add_argument(
            "--memory", type=float, metavar="GB", help="of the GPU, for each process (all: an equal share)"
        )
    whole.add_argument("--workers", type=int, metavar="N", help="processes that share the GPU")
    whole.set_defaults(budget=math.inf)
    worker.set_defaults(budget=540.0)
    shown = verbs.add_parser("show", help="tables with paired intervals, and the figure")
    shown.add_argument("runs", type=Path, help="a folder, or an archive")
    for one in (whole, shown):
        one.add_argument("--figure", type=Path)
    packed = verbs.add_parser("pack", help="write the archive of logs")
    packed.add_argument("runs", type=Path)
    packed.add_argument("file", type=Path, help="NAME.tar.xz")
    asked = parser.parse_args(given)
    asked.study = name
    return asked


@dataclass(frozen=True)
class Study:
    plan: Callable[[Path], Plan]
    refused: Mapping[str, str]
    """Arms that this version cannot run, and why."""
    total: Callable[[], float]
    """Seconds of all jobs, as if nothing were done yet."""
    processes: int = 2


Show = Callable[[list[Result], Path | None], None]
"""Prints the tables of finished jobs, and draws the figure."""


def run_study(given: argparse.Namespace, show: Show, study: Callable[[], Study]) -> int:
    """The verbs of a study."""
    if given.verb == "show":
        with unpacked(given.runs) as folder:
            show(all_results(folder), given.figure)
        return 0
    if given.verb == "pack":
        pack(given.runs, given.file)
        return 0
    own = study()
    for arm, why in own.refused.items():
        print(f"left out: the arm '{arm}', which this version cannot run: {why}", flush=True)
    if given.verb == "plan":
        with finished_jobs(given.done, given.runs) as folder:
            show_plan(own, folder)
        return 0
    if has_jobs(given.runs) and not given.resume and not is_worked_in(given.runs):
        print(f"'{given.runs}' has jobs: give --resume to go on, or another folder", file=sys.stderr)
        return 2
    with working(given.runs):
        if given.done is not None:
            print(f"{unpack(given.done, given.runs)} jobs are taken over from {given.done}", flush=True)
        if given.verb == "all":
            return work_whole(given, own, show)
        return int(work(own.plan, given.runs, given.budget, partial(print, flush=True), given.memory) > 0)


def has_jobs(runs: Path) -> bool:
    return runs.is_dir() and any(not path.name.startswith(".") for path in runs.iterdir())


def planned(study: Study, folder: Path) -> tuple[Plan, list[Job]]:
    """The plan, and its jobs that are not done."""
    plan = study.plan(folder)
    return plan, [job for job in plan.jobs if not is_done(job, folder)]


def show_plan(study: Study, folder: Path) -> None:
    """What is left; what can be planned only when other jobs are done is what is missing of the total."""
    plan, left, total = *planned(study, folder), study.total()
    known = sum(job.seconds for job in left)
    later = max(0.0, total - sum(job.seconds for job in plan.jobs)) if plan.more else 0.0
    for job in left:
        print(f"{job.name}: {job.seconds:.0f} s")
    print(f"{len(plan.jobs) - len(left)} jobs are done, {len(left)} can be begun: {known / 60:.0f} minutes")
    if plan.more:
        print(f"others become known when these are done: about {later / 60:.0f} minutes")
    for what, seconds in (("left", known + later), ("as if nothing were done", total)):
        minutes = seconds / 60
        print(f"{what}: {minutes:.0f} minutes of one process, {minutes / study.processes:.0f} of {study.processes}")


def worker_command(given: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", f"benchmarks.{given.study}", "work", str(given.runs), "--resume"]
    memory = ["--memory", str(given.memory)] if given.memory else []
    smoke = ["--smoke"] if given.smoke else []
    return [*command, "--budget", str(given.budget), "--model", given.model, *memory, *smoke]


def share_gb(processes: int) -> float | None:
    """Of the GPU's free memory, for each of several processes. None: there is no GPU.

    Without it each would plan with all that is free when it starts, and those that need theirs later would fail."""
    import torch

    if not torch.cuda.is_available():
        return None
    free, _ = torch.cuda.mem_get_info()
    return math.floor(free / processes / GB * 10) / 10


def work_whole(given: argparse.Namespace, study: Study, show: Show) -> int:
    """Start workers, which share the cores and the GPU's memory, wait until nothing is left or the time is over, then
    pack and show."""
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))  # a Ctrl-C the workers have too
    count = given.workers or study.processes
    given.memory = given.memory or share_gb(count)
    # By default each would start a thread a core, and all of them would wait for cores.
    env = {"OMP_NUM_THREADS": str(max(1, cores() // count)), **os.environ}
    workers = [subprocess.Popen(worker_command(given), env=env) for _ in range(count)]
    try:
        while running := [worker for worker in workers if worker.poll() is None]:
            for worker in running if asked else ():
                worker.terminate()
            asked.clear()
            time.sleep(0.2)
    except KeyboardInterrupt:  # they save their step
        for worker in workers:
            worker.wait()
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    archive = given.runs.with_name(f"{given.runs.name}.tar.xz")
    pack(given.runs, archive)
    print(f"the logs are in {archive}", flush=True)
    plan, left = planned(study, given.runs)
    if left or plan.more:
        names = ", ".join(job.name for job in left[:3])
        print(f"{len(left)} jobs are left, such as {names}: go on with --resume", file=sys.stderr)
        return 1
    show(all_results(given.runs), given.figure)
    return 0
