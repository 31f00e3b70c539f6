"""`vigneron train` and `vigneron resume`: run, then write the report and print what to do next."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from vigneron.data.sources import source_names
from vigneron.errors import UserError
from vigneron.files import default_runs_folder
from vigneron.recipe import changed_config
from vigneron.report.terminal import TerminalView, profile_table, say
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.outcome import Outcome, outcome_of, stored_outcome
from vigneron.run_store.outcome_text import best_text, next_steps, outcome_text
from vigneron.run_store.status import status_of
from vigneron.timing import phase, recording_timings, reporting_phases
from vigneron.training.signals import Stopped

if TYPE_CHECKING:
    from vigneron.api import Trained
    from vigneron.config import Config


def train_run(
    console: Console, config: "Config", *, name: str | None, runs: Path | None, profile: bool, is_main: bool
) -> None:
    with _profiled(console, profile):
        with _report_if_finished(console, is_main), _view(console, config.recipe) as view:
            from vigneron import api

            trained = api.train(config, name=name, runs=runs, view=view)
        if is_main:
            _print_next_steps(console, trained)


def check_names(config: "Config", name: str | None, runs: Path | None) -> None:
    """Raise for a run's name that is taken and for data that is not there, before imports that take seconds."""
    if name is not None:
        RunFolder.refuse_taken(runs or default_runs_folder(), name)
    for given in (config.data.train, config.data.held_out):
        for source in [given] if isinstance(given, str) else given or []:
            source_names(source)


def changed_run(config: "Config", overrides: Sequence[str], run: Path) -> "Config":
    """A run's config with overrides. Another method has other keys, of which none would be the mistake."""
    for key, _, value in (override.partition("=") for override in overrides):
        now, given = config.method.name, value.strip()
        if key.strip() in ("method", "method.name") and given.isidentifier() and given != now:
            raise UserError(
                f"{run}: method.name was {now}, is {given}: it cannot be changed on resume; `vigneron train RECIPE "
                f"model.name={run}` trains the run's model further with another method"
            )
    return changed_config(config, overrides, str(run)) if overrides else config


def resume_run(
    console: Console,
    run: Path,
    overrides: Sequence[str],
    *,
    recipe: str,
    device: str | None,
    rubric: str | None,
    weights_only: bool,
    allow_changes: bool,
    is_main: bool,
) -> None:
    with _report_if_finished(console, is_main), _view(console, recipe) as view:
        from vigneron import api

        trained = api.resume(
            run,
            *overrides,
            device=device,
            rubric=rubric,
            weights_only=weights_only,
            allow_changes=allow_changes,
            view=view,
        )
    if is_main:
        _print_next_steps(console, trained)


@contextmanager
def _view(console: Console, title: str) -> Iterator[TerminalView]:
    """The view of a run, which is on the screen before the heavy imports."""
    with TerminalView(console, title) as view, reporting_phases(view.phase):
        with phase("import"):
            import_module("vigneron.api")
        yield view


@contextmanager
def _profiled(console: Console, enabled: bool) -> Iterator[None]:
    if not enabled:
        yield
        return
    with recording_timings() as watch:
        try:
            yield
        finally:  # also for a run that was stopped
            if watch.steps:
                console.print(profile_table(watch.steps))


@contextmanager
def _report_if_finished(console: Console, is_main: bool) -> Iterator[None]:
    """A run that is stopped during its last step is finished: it gets its report too."""
    try:
        yield
    except Stopped as stopped:
        if stopped.finished is not None and is_main:
            from vigneron.report.html import write_report

            print_outcome(console, outcome_of(status_of(stopped.finished)))
            say(console, f"report  {write_report([stopped.finished])}")
        raise
    except KeyboardInterrupt:
        say(console, "stopped immediately: checkpoints that were saved before are kept")
        raise


def _print_next_steps(console: Console, trained: "Trained") -> None:
    from vigneron.report.html import write_report

    path, status = write_report([trained.folder]), status_of(trained.folder)
    outcome = stored_outcome(status.outcome) or outcome_of(status)
    print_outcome(console, outcome)
    say(console, f"run     {trained.folder}")
    say(console, f"report  {path}")
    if trained.config.method.trains == "scorer":
        steps = trained.config.method.step_labels
        scores = "process" if steps is not None and not steps.last else "model"
        kind = "preference" if trained.config.method.joins_pairs else scores
        say(console, f"use     reward: {{kind: {kind}, model: {trained.folder}}}")
    else:
        watch = "" if trained.config.environment is None else " --environment"
        say(console, f"chat    vigneron chat {trained.folder}{watch}")
    say(console, f"view    vigneron view {trained.folder}")
    for name, text in next_steps(outcome, status):
        say(console, f"{'next' if name == 'train further' else name:<8}{text}")


def print_outcome(console: Console, outcome: Outcome) -> None:
    say(console, f"result  {outcome_text(outcome)}")
    if best := best_text(outcome):
        say(console, f"best    {best}")
