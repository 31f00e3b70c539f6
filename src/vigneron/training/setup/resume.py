"""Resume a run from its newest intact checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vigneron.config import Config
from vigneron.distributed import ranks
from vigneron.errors import UserError
from vigneron.rewards.trial import try_user_functions
from vigneron.rubric.read import read_rubric
from vigneron.run_data.load import Data, check_rubric_data
from vigneron.run_data.stored import open_rank_data, read_changed
from vigneron.run_store.damage import damage_of
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.notices import Notice, keep_notice, kept_notices
from vigneron.timing import phase
from vigneron.trackers.tracking import missing_trackers
from vigneron.training.alerts import History
from vigneron.training.callbacks import View
from vigneron.training.checkpoint.base_identity import Identity
from vigneron.training.checkpoint.manifest import explain_damage
from vigneron.training.checkpoint.read import (
    SCALARS,
    checkpoint_step,
    checkpoint_to_resume,
    read_scalars,
    rename_damaged,
)
from vigneron.training.checkpoint.write import delete_drafts
from vigneron.training.memory import clear_memory
from vigneron.training.run import Run
from vigneron.training.setup.build import Build, build_run
from vigneron.training.setup.rank_files import files_of, join_ranks, scratch_folder
from vigneron.training.setup.resolve import check_held_out, resolved
from vigneron.training.setup.resume_checks import check_changes, schedule_changes
from vigneron.training.setup.start import hash_in_background


@dataclass(frozen=True)
class ResumePlan:
    """What a resumed run starts from."""

    config: Config
    saved: Path | None
    """The checkpoint; None if there is none yet."""
    notices: tuple[str, ...]
    base: Identity | None = None
    """The base model that the checkpoint records."""


def resume_run(
    folder: RunFolder,
    build: Build,
    *,
    config: Config | None = None,
    device: str | None = None,
    rubric: str | None = None,
    weights_only: bool = False,
    allow_changes: bool = False,
    view: View,
) -> Run:
    """Resume from the newest intact checkpoint, or from step 0 if there is none. A given config or rubric replaces the
    run's. `weights_only`: load the weights, and start with new optimizers and no other state."""
    clear_memory()
    join_ranks(config or folder.config(user_code=True), device)

    data: Data | None = None

    def begin() -> ResumePlan:
        nonlocal data
        folder.lock()
        plan, data = _prepare_resume(
            folder,
            config,
            device=device,
            rubric=rubric,
            weights_only=weights_only,
            allow_changes=allow_changes,
            view=view,
        )
        return plan

    try:
        plan = ranks.run_on_rank0(begin)
        with folder.rubric_replaced(rubric if ranks.is_rank0() else None):
            run = _rebuild(plan, data, folder, build, weights_only=weights_only, view=view)
        if ranks.is_rank0():
            hash_in_background(folder.path / "data")
            _restore_folder(run, plan, new_config=config is not None, view=view)
        return run
    except BaseException:  # unlock and re-raise
        folder.unlock()
        raise


def _prepare_resume(
    folder: RunFolder,
    new: Config | None,
    *,
    device: str | None,
    rubric: str | None,
    weights_only: bool,
    allow_changes: bool,
    view: View,
) -> tuple[ResumePlan, Data]:
    """Check a resume and collect its notices."""
    delete_drafts(folder.path)
    config = new or folder.config(user_code=True)
    if rubric is not None and config.reward.kind != "rubric":
        raise UserError("--rubric: this run has no rubric reward")
    if device is not None:
        config = resolved(config.model_copy(update={"model": config.model.model_copy(update={"device": device})}))
    if missing := missing_trackers(config.trackers):
        view.notice(
            f"resuming without {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed"
        )
    data = folder.data(config)
    check_held_out(config, data)
    with phase("check the checkpoint"):
        saved, notices = checkpoint_to_resume(folder.path, weights_only=weights_only)
    notices += damage_of(folder.path)
    scalars = saved_scalars(folder, saved, weights_only=weights_only)
    with explain_damage(saved or folder.path):
        notices += check_changes(folder.path, scalars, config, data, allow=allow_changes)
    data = read_changed(folder.path / "data", config, data)
    done = 0 if saved is None else checkpoint_step(saved)
    if config.steps < done:
        raise UserError(f"steps: {config.steps} is less than the {done} steps that are done: set {done} or more")
    notices += schedule_changes(scalars, config, done)
    if done < config.steps and config.reward.kind != "rubric":  # a run keeps its rubric: it was tried at the start
        try_user_functions(config, data.train, data.held_out)
    if rubric is not None:
        if saved is not None and done == config.steps:
            raise UserError(
                f"--rubric: the run is finished (step {config.steps}): give more `steps` to train with another rubric"
            )
        check_rubric_data(read_rubric(rubric), data)
        notices.append(f"resuming with the rubric '{rubric}'")
    if weights_only and saved is not None:
        notices.append("weights only: optimizers and all other state of the checkpoint start fresh")
    for text in notices:
        view.notice(text)
    return ResumePlan(config, saved, tuple(notices), scalars.get("base")), data


def _rebuild(
    plan: ResumePlan, data: Data | None, folder: RunFolder, build: Build, *, weights_only: bool, view: View
) -> Run:
    files = ranks.run_on_rank0(lambda: files_of(folder)) if ranks.world_size() > 1 else {}
    own = folder if ranks.is_rank0() else scratch_folder(files)
    rows = ranks.run_on_all_ranks(lambda: open_rank_data(own.path / "data", plan.config) if data is None else data)
    run = build_run(plan.config, own, rows, build, view, plan.base)
    try:
        if (saved := plan.saved) is not None:
            with phase("restore the checkpoint"):
                ranks.run_on_all_ranks(lambda: run.restore(saved, weights_only=weights_only))
            run.policy.version = run.step
    except BaseException:  # close and re-raise
        run.close()
        raise
    return run


def _restore_folder(run: Run, plan: ResumePlan, *, new_config: bool, view: View) -> None:
    """Roll the run's folder back to the checkpoint, and add the new config and notices."""
    folder, saved = run.folder, plan.saved
    if new_config:
        folder.write_config(run.config)
    if saved is not None:
        rename_damaged(saved)
    folder.forget_after(run.step if saved else -1)
    run.output.samples.forget_after(run.step if saved else -1)
    for text in plan.notices:
        keep_notice(folder, Notice(run.step, text))
    run.output.notified = {notice.key for notice in kept_notices(folder.path)}
    run.output.history = History(folder.records("metrics.jsonl"))
    if run.step == run.config.steps:
        view.notice(f"already finished at step {run.step}")
    else:
        view.notice(f"resuming after step {run.step} of {run.config.steps}")


def saved_scalars(folder: RunFolder, saved: Path | None, *, weights_only: bool) -> dict[str, Any]:
    """The state that a resume is checked against: the checkpoint's scalars, or the config if there is no checkpoint.

    Empty with `weights_only` if the scalars cannot be read.
    """
    if saved is None:
        return {"config": folder.config(user_code=True).model_dump(mode="json")}
    try:
        return read_scalars(saved)
    except (OSError, ValueError) as error:
        if weights_only:
            return {}
        raise UserError(f"the checkpoint '{saved}' is damaged: {SCALARS} cannot be read") from error
