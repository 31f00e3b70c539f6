"""Write checkpoints in a background thread, one at a time and atomically, and delete old ones."""

import json
import math
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from vigneron.distributed import ranks
from vigneron.errors import UserError, reason
from vigneron.files import give_mode_of, read_regular, sha256_of, sync, write_atomically, writing
from vigneron.policy.bundled import quiet_transformers
from vigneron.policy.model import Policy
from vigneron.run_store.metric_table import lower_is_better
from vigneron.training.checkpoint.read import MANIFEST, MEMORY, SCALARS, TENSORS, checkpoint_step, checkpoints
from vigneron.training.checkpoint.shards import check_shared_folder, write_shards
from vigneron.training.checkpoint.snapshot import Snapshot

BEST = "best.json"


@dataclass(frozen=True)
class Retention:
    """Which checkpoints are kept: the newest `last`, and the best by a metric."""

    last: int
    best: str | None = None
    """Name of a metric, as in metrics.jsonl."""


def best_checkpoint(folder: Path, metric: str) -> tuple[Path, float] | None:
    """The best of the evaluated checkpoints that exist, the earliest of equal ones, with its value.

    Every checkpoint stores its own metrics, so that a kill between a save and this call loses nothing.
    """
    sign = -1 if lower_is_better(metric) else 1
    scored = [(path, value) for path in checkpoints(folder) if (value := _metric(path, metric)) is not None]
    return max(scored, key=lambda pair: (sign * pair[1], -checkpoint_step(pair[0])), default=None)


def prune(folder: Path, keep: Retention) -> None:
    """Delete the checkpoints that are not kept, and record the best one."""
    best = best_checkpoint(folder, keep.best) if keep.best is not None else None
    if keep.best is not None and best is not None:
        record = {"step": checkpoint_step(best[0]), "figure": keep.best, "value": best[1]}
        with writing(folder / BEST):
            write_atomically(folder / BEST, json.dumps(record) + "\n")
    for old in checkpoints(folder)[: -keep.last]:
        if best is None or old != best[0]:
            # Renamed first: if the process is killed here, the next start deletes drafts.
            draft = old.with_name(f".{old.name}.draft")
            shutil.rmtree(draft, ignore_errors=True)
            old.rename(draft)
            shutil.rmtree(draft, ignore_errors=True)


def _metric(path: Path, name: str) -> float | None:
    try:
        scalars: Any = json.loads(read_regular(path / SCALARS))
        value = float(scalars["figures"][name])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if math.isfinite(value) else None


@dataclass
class Saver:
    """Saves in the background. `save` waits only for the previous save; an error is raised by the next call."""

    folder: Path
    policy: Policy
    keep: Retention
    _thread: threading.Thread | None = field(default=None, repr=False)
    _error: Exception | None = field(default=None, repr=False)

    def save(self, snapshot: Snapshot) -> None:
        self.wait()
        # The tokenizer is written in this thread: it is not thread-safe.
        draft = _begin_draft(self.folder, snapshot.step, self.policy)
        # A daemon: a process that stops immediately does not wait for it. The next start deletes the draft.
        self._thread = threading.Thread(target=self._write, args=(draft, snapshot), name="checkpoint", daemon=True)
        self._thread.start()
        if not snapshot.copied:
            self.wait()

    def save_sharded(self, snapshot: Snapshot, shards: Mapping[str, Tensor]) -> None:
        """Save in the foreground: every rank writes its shards, rank 0 the rest. A collective operation."""
        draft = ranks.run_on_rank0(lambda: _begin_draft(self.folder, snapshot.step, self.policy))
        ranks.run_on_all_ranks(lambda: check_shared_folder(draft))
        try:
            write_shards(draft, shards)
        except CheckpointException as error:  # raised on all ranks if one cannot write
            raise _failed(draft, next(iter(error.failures.values()))[0]) from error
        ranks.run_on_rank0(lambda: self._finish(draft, snapshot))

    def _finish(self, draft: Path, snapshot: Snapshot) -> None:
        finish_checkpoint(draft, self.policy, snapshot)
        prune(self.folder, self.keep)

    def _write(self, draft: Path, snapshot: Snapshot) -> None:
        try:
            self._finish(draft, snapshot)
        except Exception as error:  # raised later in the training thread
            self._error = error

    def check(self) -> None:
        """Raise the error of the last save, if it has ended with one."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait_ignoring_errors(self) -> None:
        """Wait for the save without raising its error: another error is being raised."""
        if self._thread is not None:
            self._thread.join()
        self.abandon()

    def abandon(self) -> None:
        """Do not wait for the save: the process exits immediately."""
        self._thread = self._error = None


def save_checkpoint(folder: Path, policy: Policy, snapshot: Snapshot) -> Path:
    """Save in this thread."""
    return finish_checkpoint(_begin_draft(folder, snapshot.step, policy), policy, snapshot)


def draft_path(folder: Path, step: int) -> Path:
    return folder / f".step-{step}.draft"


def delete_drafts(folder: Path) -> None:
    """Delete the drafts of checkpoints and other files that a killed process has left."""
    for draft in (folder / "checkpoints").glob(".step-*.draft"):
        shutil.rmtree(draft, ignore_errors=True)
    for draft in (*folder.glob(".*.draft"), *(folder / "checkpoints").glob(".*.draft")):
        if not draft.is_dir():
            draft.unlink(missing_ok=True)


def _begin_draft(folder: Path, step: int, policy: Policy) -> Path:
    draft = draft_path(folder, step)
    try:
        shutil.rmtree(draft, ignore_errors=True)
        (draft / "state").mkdir(parents=True)
        with quiet_transformers():
            policy.tokenizer.save_pretrained(draft)
    except Exception as error:  # tokenizers raises a plain Exception on a full disk
        raise _failed(draft, error) from error
    return draft


def finish_checkpoint(draft: Path, policy: Policy, snapshot: Snapshot) -> Path:
    """Write weights, state and manifest into the draft, then rename it."""
    target = draft.with_name(f"step-{snapshot.step}")
    try:
        with quiet_transformers():
            policy.model.save_pretrained(draft, state_dict=snapshot.weights, max_shard_size="1TB")
        snapshot.weights = {}
        tensors = {name: tensor.contiguous().cpu() for name, tensor in snapshot.tensors.items()}
        save_file(tensors, draft / TENSORS)
        snapshot.tensors = tensors = {}
        (draft / SCALARS).write_text(snapshot.scalars, encoding="utf-8")
        if snapshot.memory is not None:
            with (draft / MEMORY).open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(entry) + "\n" for entry in snapshot.memory)
        (draft / "README.md").write_text(snapshot.card, encoding="utf-8")
        give_mode_of(draft / "README.md")
        _write_manifest(draft)
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)
        sync(target.parent)
    except (OSError, SafetensorError) as error:  # a full disk raises either
        raise _failed(draft, error) from error
    return target


def _failed(draft: Path, error: BaseException) -> UserError:
    shutil.rmtree(draft, ignore_errors=True)
    step = draft.name.removeprefix(".").removesuffix(".draft")
    return UserError(
        f"cannot write the checkpoint '{draft.with_name(step)}': {reason(error)}; earlier checkpoints are intact"
    )


def _write_manifest(draft: Path) -> None:
    files = sorted(p for p in draft.rglob("*") if p.is_file())
    hashes = {str(p.relative_to(draft)): sha256_of(p) for p in files}
    (draft / MANIFEST).write_text(json.dumps(hashes, indent=1), encoding="utf-8")
    for path in (*files, draft / MANIFEST):
        sync(path)
