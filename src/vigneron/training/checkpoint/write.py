"""Writing checkpoints off the training thread: one at a time, whole or not there."""

import json
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from vigneron.distributed import ranks
from vigneron.errors import UserError, reason
from vigneron.files import sha256_of, sync
from vigneron.policy.bundled import quiet_transformers
from vigneron.policy.model import Policy
from vigneron.training.checkpoint.read import MANIFEST, MEMORY, SCALARS, TENSORS
from vigneron.training.checkpoint.retention import Keep, prune
from vigneron.training.checkpoint.shards import check_there, write_shards
from vigneron.training.checkpoint.snapshot import Snapshot


@dataclass
class Saver:
    """`save` gives back as soon as the one before is done; what a save met is raised by whoever looks next."""

    folder: Path
    policy: Policy
    keep: Keep
    _thread: threading.Thread | None = field(default=None, repr=False)
    _error: Exception | None = field(default=None, repr=False)

    def save(self, snapshot: Snapshot) -> None:
        self.wait()
        # The tokenizer is written here: it can be used by one thread at a time only.
        draft = _begun(self.folder, snapshot.step, self.policy)
        # A daemon: asked to stop at once, the process does not wait for it, and the draft is swept later.
        self._thread = threading.Thread(target=self._write, args=(draft, snapshot), name="checkpoint", daemon=True)
        self._thread.start()
        if not snapshot.copied:
            self.wait()

    def save_together(self, snapshot: Snapshot, shards: Mapping[str, Tensor]) -> None:
        """By all ranks, which wait for it: each writes its own part of `shards`, the first one the rest."""
        draft = ranks.run_on_rank0(lambda: _begun(self.folder, snapshot.step, self.policy))
        ranks.run_on_all_ranks(lambda: check_there(draft))
        try:
            write_shards(draft, shards)
        except CheckpointException as error:  # of all ranks, whichever it was that could not write
            raise _failed(draft, next(iter(error.failures.values()))[0]) from error
        ranks.run_on_rank0(lambda: self._finish(draft, snapshot))

    def _finish(self, draft: Path, snapshot: Snapshot) -> None:
        finish_checkpoint(draft, self.policy, snapshot)
        prune(self.folder, self.keep)

    def _write(self, draft: Path, snapshot: Snapshot) -> None:
        try:
            self._finish(draft, snapshot)
        except Exception as error:  # of another thread: kept for the one that trains
            self._error = error

    def check(self) -> None:
        """Raise what the last save met, if it is over."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def settle(self) -> None:
        """Wait while something else is being raised, which is what is to be said."""
        if self._thread is not None:
            self._thread.join()
        self.abandon()

    def abandon(self) -> None:
        """Do not wait: the process ends at once."""
        self._thread = self._error = None


def save_checkpoint(folder: Path, policy: Policy, snapshot: Snapshot) -> Path:
    """All of it in this thread."""
    return finish_checkpoint(_begun(folder, snapshot.step, policy), policy, snapshot)


def draft_of(folder: Path, step: int) -> Path:
    return folder / f".step-{step}.draft"


def sweep(folder: Path) -> None:
    """What a kill has left half written, of checkpoints and of the run's other files."""
    for draft in (folder / "checkpoints").glob(".step-*.draft"):
        shutil.rmtree(draft, ignore_errors=True)
    for draft in (*folder.glob(".*.draft"), *(folder / "checkpoints").glob(".*.draft")):
        if not draft.is_dir():
            draft.unlink(missing_ok=True)


def _begun(folder: Path, step: int, policy: Policy) -> Path:
    draft = draft_of(folder, step)
    try:
        shutil.rmtree(draft, ignore_errors=True)
        (draft / "state").mkdir(parents=True)
        with quiet_transformers():
            policy.tokenizer.save_pretrained(draft)
    except Exception as error:  # tokenizers has no class of its own for a full disk
        raise _failed(draft, error) from error
    return draft


def finish_checkpoint(draft: Path, policy: Policy, snapshot: Snapshot) -> Path:
    """Weights and state into a begun draft, the manifest last, then its name."""
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
        _write_manifest(draft)
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)
        sync(target.parent)
    except (OSError, SafetensorError) as error:  # a full disk is either, by who was writing
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
