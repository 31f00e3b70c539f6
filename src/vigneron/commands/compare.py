"""`vigneron compare`: train what is missing, collect what is there, and set it side by side. Numbers, no verdict."""

import gc
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from vigneron import api
from vigneron.commands.compare_plan import Plan, Planned
from vigneron.errors import UserError
from vigneron.policy.load import check_model_name
from vigneron.report.comparison_files import comparison_table, write_comparison
from vigneron.report.terminal import TerminalView, say
from vigneron.rewards.build import build_reward
from vigneron.rewards.checkers import load_checker
from vigneron.run_data.load import checker_name, load_data
from vigneron.run_data.reference_answers import with_parent_answers
from vigneron.run_store.archive import write_archive
from vigneron.run_store.experiment_arms import CollectedRun, arms_of, first_change, refuse_duplicates
from vigneron.run_store.folder import RunFolder
from vigneron.training.checkpoint.read import checkpoint_step, checkpoints
from vigneron.training.setup.resolve import resolved
from vigneron.training.signals import Stopped

WRITTEN_AT_THE_START = {".lock", ".config.yaml.draft", "config.yaml", "data"}


def carry_out(console: Console, plan: Plan) -> None:
    """Everything that can be refused is refused before the first run is trained."""
    given = [CollectedRun.read(path) for path in plan.given]
    wanted = [(run.path, resolved(run.config)) for run in plan.planned]
    refuse_duplicates([*wanted, *((run.path, run.config) for run in given)])
    missing = [run for run in plan.planned if not is_finished(run)]
    check_recipes(missing)
    for number, run in enumerate(missing, start=1):
        say(console, f"\n{run.path.name} ({number} of {len(missing)} to train)")
        train_or_resume(console, run)
    arms = arms_of([*(CollectedRun.read(run.path) for run in plan.planned), *given])
    files = write_comparison(arms, plan.out)
    if plan.archive is not None:
        files.append(write_archive([run.path for arm in arms for run in arm.runs], plan.archive))
    print_whole(console, comparison_table(arms))
    for path in files:
        say(console, f"wrote   {path}")


def print_whole(console: Console, table: Table) -> None:
    """Piped, a table is as wide as it needs to be."""
    if not console.is_terminal:
        console.width = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    console.print(table)


def is_finished(run: Planned) -> bool:
    """Whether the run has nothing left to train; refused if what is there was started with other settings.

    Checkpoints may have been deleted since, to save space: what was logged is enough to compare.
    """
    if not run.path.exists():
        return False
    try:
        if never_began(run.path):
            return False
    except OSError as error:
        raise UserError(f"cannot read the folder '{run.path}': {error.strerror}") from error
    folder = RunFolder.open(run.path)
    change = first_change(run.config, resolved(run.config), folder.config())
    if change is not None:
        raise UserError(f"'{run.path}' was started with other settings: {change}; undo that, or give another --name")
    last = max((record["step"] for record in folder.metrics()), default=0)
    if last < run.config.steps:
        return False
    saved = checkpoints(folder.checkpoints)
    deleted = not folder.checkpoints.exists() or not any(folder.checkpoints.iterdir())
    return deleted or (bool(saved) and checkpoint_step(saved[-1]) == run.config.steps)


def never_began(path: Path) -> bool:
    """A kill came while the folder was being made: there is nothing in it to go on with."""
    return {entry.name for entry in path.iterdir()} <= WRITTEN_AT_THE_START and not (
        path / "data" / "held_out.jsonl"
    ).is_file()


def check_recipes(missing: Sequence[Planned]) -> None:
    """Once a recipe, and its parent asked: the last one must not fail after the others' hours."""
    for run in {run.config.recipe: run for run in missing}.values():
        config = resolved(run.config)
        with_parent_answers(config, load_data(config), lambda text: None)
        check_model_name(config.model.name)
        with tempfile.TemporaryDirectory() as place:  # an embedder over an API is tried, as at a run's start
            build_reward(config.reward, load_checker(checker_name(config)), cache=Path(place) / "tried.sqlite")


def train_or_resume(console: Console, run: Planned) -> None:
    if run.path.exists() and never_began(run.path):
        remains = RunFolder(run.path)
        remains.lock()  # refused where another process is just starting it
        remains.unlock()
        shutil.rmtree(run.path)
    try:
        with TerminalView(console, run.path.name) as view:
            if run.path.exists():
                api.resume(run.path, view=view)
            else:
                api.train(run.config, name=run.path.name, runs=run.path.parent, view=view)
    except Stopped:
        say(console, "the same `vigneron compare` goes on with all of it")
        raise
    free_memory()


def free_memory() -> None:
    """The next run measures what is free, and compiles for its own model."""
    gc.collect()
    if torch.cuda.is_available():
        torch.compiler.reset()
        torch.cuda.empty_cache()
