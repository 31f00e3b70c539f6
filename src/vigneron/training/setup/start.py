"""Start a new run, or resume one from its newest intact checkpoint."""

import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vigneron.config import Config
from vigneron.config.parts import ModelConfig
from vigneron.distributed import ranks
from vigneron.distributed.launch import check_ranks
from vigneron.errors import UserError
from vigneron.policy.chat import mint
from vigneron.policy.chat_template import check_date
from vigneron.policy.compiling import can_compile
from vigneron.policy.load import local_tokenizer, resolve_device, use_device
from vigneron.remote.setup import check_scale
from vigneron.rubric.read import read_rubric
from vigneron.run_data.load import Data, check_rubric_data, load_data
from vigneron.run_data.reference_answers import with_parent_answers
from vigneron.run_data.stored import files_for_ranks, hash_sources, open_rank_data, read_changed
from vigneron.run_store.damage import damage_of
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.notices import Notice, keep_notice, kept_notices
from vigneron.threads import DaemonPool
from vigneron.timing import phase
from vigneron.trackers.tracking import check_trackers, missing_trackers
from vigneron.training.alerts import History
from vigneron.training.async_rollout import check_staleness
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
from vigneron.training.memory_fit import check_gpu
from vigneron.training.run import Run
from vigneron.training.setup.build import Build, build_run
from vigneron.training.setup.resolve import check_held_out, resolved
from vigneron.training.setup.resume_checks import check_changes, schedule_changes

Files = dict[str, bytes]


def files_of(folder: RunFolder) -> Files:
    """The files of a run's folder that every rank needs to build the run, by path."""
    paths = [folder.path / "config.yaml", folder.rubric, folder.held_out_rubric]
    data = {f"data/{name}": content for name, content in files_for_ranks(folder.path / "data").items()}
    return {**{path.name: path.read_bytes() for path in paths if path.is_file()}, **data}


def scratch_folder(files: Files) -> RunFolder:
    """A temporary run folder for a rank other than 0."""
    path = Path(tempfile.mkdtemp(prefix="vigneron-rank-"))
    for name, content in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(content)
    return RunFolder(path)


@dataclass(frozen=True)
class ResumePlan:
    """What a resumed run starts from."""

    config: Config
    saved: Path | None
    """The checkpoint; None if there is none yet."""
    notices: tuple[str, ...]
    base: Identity | None = None
    """The base model that the checkpoint records."""


def start_run(config: Config, runs: Path, build: Build, *, name: str | None = None, view: View) -> Run:
    """Start a new run from the base model. Most errors are raised before a model is loaded; none leaves a folder.

    Rank 0 creates the folder and sends its files to the other ranks.
    """
    _join(config)
    folder: RunFolder | None = None

    data: Data | None = None

    def begin() -> tuple[Config, Files]:
        nonlocal folder, data
        chosen, read = _prepare(config, runs, name, view)
        folder = RunFolder.create(runs, name or chosen.recipe, exact_name=name is not None)
        folder.lock()
        folder.write_config(chosen)
        data = folder.write_data(chosen, read)
        if chosen.reward.kind == "rubric":
            folder.write_rubrics(chosen.reward.file, chosen.reward.held_out_file)
        return chosen, files_of(folder) if ranks.world_size() > 1 else {}

    try:
        chosen, files = ranks.run_on_rank0(begin)
        folder = folder or scratch_folder(files)
        kept = folder
        rows = ranks.run_on_all_ranks(lambda: open_rank_data(kept.path / "data", chosen) if data is None else data)
        run = build_run(chosen, folder, rows, build, view)
        if ranks.is_rank0():
            hash_in_background(folder.path / "data")
        return run
    except BaseException:  # Ctrl-C too: the name is free again
        if folder is not None:
            folder.remove()
        raise


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
    _join(config or folder.config(user_code=True), device)

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


def hash_in_background(data: Path) -> None:
    """Hash the files of large sources while the run trains. A run that ends earlier lacks the hashes, and is resumed
    only if the files have their size and time of change."""
    DaemonPool(1, "hash").submit(hash_sources, data)


def _join(config: Config, device: str | None = None) -> None:
    try:
        check_ranks(config, ranks.expected_world_size())
        check_staleness(config, ranks.expected_world_size())
    except UserError as error:
        error.reported_elsewhere = not ranks.is_rank0()
        raise
    where = resolve_device(device or config.model.device)
    ranks.join(where)
    use_device(where)


def check_chat_date(model: ModelConfig) -> None:
    """Raise for a date that a new run's template does not write, if its tokenizer is on this machine."""
    if model.chat_date is None:
        return
    tokenizer = local_tokenizer(model.name, trust_remote_code=model.trust_remote_code)
    if tokenizer is not None and (model.chat == "minted" or getattr(tokenizer, "chat_template", None)):
        if model.chat == "minted":
            mint(tokenizer)
        check_date(tokenizer, model.chat_date)


def _prepare(config: Config, runs: Path, name: str | None, view: View) -> tuple[Config, Data]:
    """The resolved config, and the data with the parent's answers."""
    if config.model.compile is True and config.scale.shard > 1:
        raise UserError("model.compile: true has no effect on sharded weights: leave it out, or set scale.shard=1")
    if config.model.compile is True and not can_compile(resolve_device(config.model.device)):
        raise UserError("model.compile: true needs a CUDA device: leave it out")
    check_trackers(config.trackers)
    config = resolved(config)
    check_scale(config)
    check_gpu(config)
    with phase("read the data"):
        data = load_data(config)
    check_chat_date(config.model)
    check_held_out(config, data)
    RunFolder.check_can_be_created(runs)  # before minutes of requests to the parent
    if name is not None:
        RunFolder.refuse_taken(runs, name)
    with phase("ask the parent") if config.parent is not None else nullcontext():
        return config, with_parent_answers(config, data, view.notice)


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
