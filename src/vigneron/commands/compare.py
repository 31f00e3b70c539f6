"""`vigneron compare`: train the runs that are missing, collect all of them, and write the comparison."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from vigneron import api
from vigneron.commands.compare_plan import Plan, PlannedRun
from vigneron.errors import UserError
from vigneron.policy.model_names import check_model_name
from vigneron.report.comparison_files import comparison_table, intervals_table, write_comparison
from vigneron.report.paired_intervals import estimates, not_compared, too_few_evaluations
from vigneron.report.terminal import TerminalView, say
from vigneron.rewards.build import build_reward
from vigneron.rewards.checkers import load_checker
from vigneron.run_data.load import load_data
from vigneron.run_data.readers import checker_name
from vigneron.run_data.reference_answers import with_parent_answers
from vigneron.run_store.archive import write_archive
from vigneron.run_store.experiment_arms import CollectedRun, arms_of, first_change, refuse_duplicates
from vigneron.run_store.folder import RunFolder
from vigneron.training.checkpoint.read import checkpoint_step, checkpoints
from vigneron.training.setup.resolve import resolved
from vigneron.training.signals import Stopped

MOST_LINES = 10
"""Pairs of arms that cannot be compared, with a reason each."""
WRITTEN_AT_START = {".lock", ".config.yaml.draft", "config.yaml", "data"}


def run_comparison(console: Console, plan: Plan) -> None:
    """All checks run before the first training starts."""
    given = [CollectedRun.read(path) for path in plan.given]
    planned = [(run.path, resolved(run.config)) for run in plan.planned]
    refuse_duplicates([*planned, *((run.path, run.config) for run in given)])
    missing = [run for run in plan.planned if not is_finished(run)]
    check_recipes(missing)
    for number, run in enumerate(missing, start=1):
        say(console, f"\n{run.path.name} ({number} of {len(missing)} to train)")
        train_or_resume(console, run)
    arms = arms_of([*(CollectedRun.read(run.path) for run in plan.planned), *given])
    found = estimates(arms, plan.evaluations)
    files = write_comparison(arms, plan.out, found)
    if plan.archive is not None:
        files.append(write_archive([run.path for arm in arms for run in arm.runs], plan.archive))
    print_full_width(console, comparison_table(arms))
    if (intervals := intervals_table(found, console.width if console.is_terminal else None)) is not None:
        say(console, "")
        print_full_width(console, intervals)
    for line in [*too_few_evaluations(arms, plan.evaluations), *not_compared(arms, found)][:MOST_LINES]:
        say(console, f"note    {line}")
    for path in files:
        say(console, f"wrote   {path}")


def print_full_width(console: Console, table: Table) -> None:
    """In a pipe, a table is as wide as its content."""
    if not console.is_terminal:
        console.width = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    console.print(table)


def is_finished(run: PlannedRun) -> bool:
    """Whether all steps of the run are trained. A folder that was started with another config is an error.

    Checkpoints may have been deleted to save space: the logged metrics are enough to compare.
    """
    if not run.path.exists():
        return False
    try:
        if is_incomplete_start(run.path):
            return False
    except OSError as error:
        raise UserError(f"cannot read the folder '{run.path}': {error.strerror}") from error
    folder = RunFolder.open(run.path)
    change = first_change(run.config, resolved(run.config), folder.config())
    if change is not None:
        raise UserError(
            f"'{run.path}' was started with another config: {change}; undo the change, or choose another --name"
        )
    last = max((record["step"] for record in folder.metrics()), default=0)
    if last < run.config.steps:
        return False
    saved = checkpoints(folder.checkpoints)
    deleted = not folder.checkpoints.exists() or not any(folder.checkpoints.iterdir())
    return deleted or (bool(saved) and checkpoint_step(saved[-1]) == run.config.steps)


def is_incomplete_start(path: Path) -> bool:
    """Whether the process was killed while it created the folder, so that there is nothing to resume."""
    written = [path / "data" / f"held_out.{kind}" for kind in ("jsonl", "source.json")]
    return {entry.name for entry in path.iterdir()} <= WRITTEN_AT_START and not any(map(Path.is_file, written))


def check_recipes(missing: Sequence[PlannedRun]) -> None:
    """Check each recipe once and query its parent, so that the last recipe does not fail after hours of training."""
    for run in {run.config.recipe: run for run in missing}.values():
        config = resolved(run.config)
        with_parent_answers(config, load_data(config), lambda text: None)
        check_model_name(config.model.name)
        with tempfile.TemporaryDirectory() as folder:  # an API embedder gets a test request, as at the start of a run
            build_reward(config.reward, load_checker(checker_name(config)), cache=Path(folder) / "embeddings.sqlite")


def train_or_resume(console: Console, run: PlannedRun) -> None:
    if run.path.exists() and is_incomplete_start(run.path):
        leftover = RunFolder(run.path)
        leftover.lock()  # fails if another process is starting it
        leftover.unlock()
        shutil.rmtree(run.path)
    try:
        with TerminalView(console, run.path.name) as view:
            if run.path.exists():
                api.resume(run.path, view=view)
            else:
                api.train(run.config, name=run.path.name, runs=run.path.parent, view=view)
    except Stopped:
        say(console, "run the same `vigneron compare` again to resume")
        raise
    if torch.cuda.is_available():
        torch.compiler.reset()  # the next run compiles for its own model
