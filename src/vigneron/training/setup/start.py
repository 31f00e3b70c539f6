"""Start a new run."""

from contextlib import nullcontext
from pathlib import Path

from vigneron.config import Config
from vigneron.distributed import ranks
from vigneron.run_data.load import Data, load_data
from vigneron.run_data.reference_answers import with_parent_answers
from vigneron.run_data.stored import hash_sources, open_rank_data
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.notices import Notice, keep_notice
from vigneron.threads import DaemonPool
from vigneron.timing import phase
from vigneron.trackers.tracking import check_trackers
from vigneron.training.callbacks import View
from vigneron.training.memory import clear_memory
from vigneron.training.run import Run
from vigneron.training.setup.build import Build, build_run
from vigneron.training.setup.machine_checks import check_compile, check_machine
from vigneron.training.setup.preflight import preflight
from vigneron.training.setup.rank_files import Files, files_of, join_ranks, scratch_folder
from vigneron.training.setup.resolve import check_held_out, resolved


def start_run(config: Config, runs: Path, build: Build, *, name: str | None = None, view: View) -> Run:
    """Start a new run from the base model. Most errors are raised before a model is loaded; none leaves a folder.

    Rank 0 creates the folder and sends its files to the other ranks.
    """
    clear_memory()
    join_ranks(config)
    folder: RunFolder | None = None

    data: Data | None = None

    def begin() -> tuple[Config, Files]:
        nonlocal folder, data
        chosen, read, notices = _prepare(config, runs, name, view)
        folder = RunFolder.create(runs, name or chosen.recipe, exact_name=name is not None)
        folder.lock()
        folder.write_config(chosen)
        for text in notices:
            keep_notice(folder, Notice(0, text))
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


def hash_in_background(data: Path) -> None:
    """Hash the files of large sources while the run trains. A run that ends earlier lacks the hashes, and is resumed
    only if the files have their size and time of change."""
    DaemonPool(1, "hash").submit(hash_sources, data)


def _prepare(config: Config, runs: Path, name: str | None, view: View) -> tuple[Config, Data, tuple[str, ...]]:
    """The resolved config, the data with the parent's answers, and what the checks found that is no error."""
    check_compile(config)
    check_trackers(config.trackers)
    config = resolved(config)
    with phase("read the data"):
        data = load_data(config)
    check_held_out(config, data)
    RunFolder.check_can_be_created(runs)  # before minutes of requests to the parent
    if name is not None:
        RunFolder.refuse_taken(runs, name)
    check_machine(config)
    notices = preflight(config, data).notices
    for text in notices:
        view.notice(text)
    with phase("ask the parent") if config.parent is not None else nullcontext():
        return config, with_parent_answers(config, data, view.notice), notices
