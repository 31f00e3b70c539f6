"""The ranks that do not write: what they need of the run's folder, and a place for what nobody keeps."""

import tempfile
from pathlib import Path

from vigneron.files import write_atomically
from vigneron.folder.run_folder import RunFolder

Files = dict[str, str]


def files_of(folder: RunFolder) -> Files:
    """What a rank needs of a run's folder to build the run, by path."""
    names = ("config.yaml", "data/train.jsonl", "data/held_out.jsonl", folder.rubric.name, folder.held_out_rubric.name)
    paths = [folder.path / name for name in names]
    return {str(p.relative_to(folder.path)): p.read_text(encoding="utf-8") for p in paths if p.is_file()}


def scratch_folder(files: Files) -> RunFolder:
    """A folder that goes when the rank does."""
    path = Path(tempfile.mkdtemp(prefix="vigneron-rank-"))
    for name, text in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        write_atomically(path / name, text)
    return RunFolder(path)
