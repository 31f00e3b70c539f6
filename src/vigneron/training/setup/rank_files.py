"""Ranks at the start of a run: they join, and rank 0 sends them the files of its folder."""

import tempfile
from pathlib import Path

from vigneron.config import Config
from vigneron.distributed import ranks
from vigneron.distributed.launch import check_ranks
from vigneron.errors import UserError
from vigneron.policy.device import resolve_device, use_device
from vigneron.run_data.stored import files_for_ranks
from vigneron.run_store.folder import RunFolder
from vigneron.training.async_rollout import check_staleness

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


def join_ranks(config: Config, device: str | None = None) -> None:
    try:
        check_ranks(config, ranks.expected_world_size())
        check_staleness(config, ranks.expected_world_size())
    except UserError as error:
        error.reported_elsewhere = not ranks.is_rank0()
        raise
    where = resolve_device(device or config.model.device)
    ranks.join(where)
    use_device(where)
