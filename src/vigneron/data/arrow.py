"""Datasets of the `datasets` library as rows: Parquet files, folders of `save_to_disk`, the Hugging Face hub.

They are Arrow tables that are mapped into memory. `datasets` takes seconds to import: it is imported where it is used.
"""

import datetime
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vigneron.errors import UserError, did_you_mean, first_line, of_network

Row = dict[str, Any]
HUB = "hf:"
COMMIT = re.compile(r"[0-9a-f]{40}")
# Rows that are converted together.
BATCH = 1000


@dataclass
class ArrowRows:
    table: Any
    """A `datasets.Dataset`."""
    name: str
    commit: str | None = None
    """Of a hub dataset."""

    @property
    def size(self) -> int:
        return int(self.table.data.nbytes)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Row:
        return {name: self._plain(value, index) for name, value in self.table[int(index)].items()}

    def __iter__(self) -> Iterator[Row]:
        return self.between(0, len(self))

    def between(self, first: int, last: int) -> Iterator[Row]:
        return (row for row, _ in self.with_lines(first, last))

    def with_lines(self, first: int, last: int) -> Iterator[tuple[Row, None]]:
        """Rows first … last − 1, converted in batches."""
        at = first
        for batch in self.table.select(range(first, last)).iter(BATCH):
            names = list(batch)
            for values in zip(*batch.values(), strict=True):
                yield {name: self._plain(value, at) for name, value in zip(names, values, strict=True)}, None
                at += 1

    def place(self, index: int) -> str:
        return f"'{self.name}', row {index + 1}"

    def _plain(self, value: Any, index: int) -> Any:
        """As JSON would have it: in a nested table every message has the keys of all others, null where it had none."""
        if value is None or type(value) in (str, int, bool):
            return value
        if isinstance(value, float):
            if math.isinf(value):
                raise UserError(f"data: {self.place(index)} has an infinite number: write null")
            return None if math.isnan(value) else value
        if isinstance(value, list):
            return [self._plain(part, index) for part in value]
        if isinstance(value, dict):
            return {key: self._plain(part, index) for key, part in value.items() if part is not None}
        if isinstance(value, datetime.datetime | datetime.date | datetime.time):
            return value.isoformat()
        if isinstance(value, int | str):  # subclasses
            return value
        raise UserError(
            f"data: {self.place(index)} has a value of type {type(value).__name__}: expected text or numbers"
        )


def parquet_rows(path: Path) -> ArrowRows:
    import datasets
    from datasets.io.parquet import pq

    with _ReadErrors(str(path)):
        stored = pq.ParquetFile(path)
        if stored.metadata.num_rows == 0:  # an error of `datasets`
            return ArrowRows(datasets.Dataset.from_dict({name: [] for name in stored.schema_arrow.names}), str(path))
        table = datasets.load_dataset("parquet", data_files={"train": [_literal(path)]}, split="train")
    return _checked(table, str(path))


def saved_rows(path: Path, split: str | None, key: str = "data.split") -> ArrowRows:
    """A folder that `save_to_disk` wrote, of one dataset or of several splits; `key` is the config's for `split`."""
    import datasets

    with _ReadErrors(str(path)):
        saved = datasets.load_from_disk(str(path))
    if isinstance(saved, datasets.DatasetDict):
        if split is None:
            raise UserError(f"data: '{path}' has several splits: set `{key}` to one of {', '.join(saved)}")
        if split not in saved:
            raise UserError(f"data: '{path}' has no split '{split}'{did_you_mean(split, saved)}: set `{key}`")
        saved = saved[split]
    elif split is not None:
        raise UserError(f"{key}: '{path}' is one dataset, without splits: remove the key")
    return _checked(saved, str(path))


def is_saved(path: Path) -> bool:
    return (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file()


def hub_revision(name: str) -> str | None:
    """The commit that a hub dataset is at now; None if the hub cannot be reached, as without a network."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        return HfApi().dataset_info(name.removeprefix(HUB)).sha
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code in (401, 403, 404):
            raise UserError(
                f"data: the hub has no dataset '{name.removeprefix(HUB)}', or it is private: check the name, and log "
                "in with `hf auth login`"
            ) from error
        return None
    except (OfflineModeIsEnabled, OSError):
        return None
    except Exception as error:
        if of_network(error):
            return None
        raise


@contextmanager
def _without_hub() -> Iterator[None]:
    """Only the cache is read: else each file is tried for half a minute."""
    import datasets
    import huggingface_hub

    before = huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def hub_rows(name: str, config: str | None, split: str, revision: str | None) -> ArrowRows:
    """The rows of a commit; with None, as the hub cannot be reached, those of the cache."""
    import datasets

    try:
        with _without_hub() if revision is None else nullcontext(), _ReadErrors(name):
            table = datasets.load_dataset(name.removeprefix(HUB), config, split=split, revision=revision)
    except UserError as error:
        if isinstance(error.__cause__, ConnectionError):
            raise UserError(
                f"data: cannot reach the hub for '{name.removeprefix(HUB)}', and its rows are not in the cache: check "
                "the network, or HF_HUB_OFFLINE and HF_ENDPOINT"
            ) from error
        raise
    if revision is not None and any(revision not in file["filename"] for file in table.cache_files):
        raise UserError(f"data: the hub does not give commit {revision} of '{name}', which the run was started with")
    # Without the hub the commit is known from the cache, whose folders are named by it.
    commits = {part for file in table.cache_files for part in Path(file["filename"]).parts if COMMIT.fullmatch(part)}
    return replace(_checked(table, f"{name}, {split}"), commit=commits.pop() if len(commits) == 1 else None)


class _ReadErrors:
    """Errors of the `datasets` library, which are of many types, in one line."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        import datasets

        self.bars = datasets.utils.are_progress_bars_disabled()
        self.level = datasets.logging.get_verbosity()
        datasets.disable_progress_bars()
        datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are raised too

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        import datasets

        datasets.logging.set_verbosity(self.level)
        if not self.bars:
            datasets.enable_progress_bars()
        if isinstance(error, Exception) and not isinstance(error, UserError):
            cause = error.__cause__ or error
            raise UserError(f"data: cannot read '{self.name}': {first_line(cause)}") from error


def _checked(table: Any, name: str) -> ArrowRows:
    import datasets

    for column, feature in table.features.items():
        kind = type(feature).__name__
        if kind in ("Image", "Audio", "Video", "Pdf") or getattr(feature, "dtype", "") in ("binary", "large_binary"):
            raise UserError(f"data: '{name}': the column '{column}' is of type {kind}, not text or numbers: remove it")
    assert isinstance(table, datasets.Dataset)
    return ArrowRows(table, name)


def _literal(path: Path) -> str:
    """The path for `datasets`, which reads patterns."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in str(path.absolute()))


def arrow_files(path: Path) -> Sequence[Path]:
    """The files of a folder of `save_to_disk`."""
    return sorted(file for file in path.rglob("*") if file.is_file())
