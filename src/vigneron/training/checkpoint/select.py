"""Which checkpoint a run goes on from: the newest whole one. Nothing is loaded before that is known."""

import shutil
from pathlib import Path

from vigneron.errors import UserError
from vigneron.training.checkpoint.read import (
    TENSORS,
    checkpoint_step,
    checkpoints,
    fault_of,
    step_folders,
    which_are_whole,
)


def checkpoint_to_resume(run: Path, *, weights_only: bool = False) -> tuple[Path | None, list[str]]:
    """The newest whole one, None where there is none yet, and what is to be said of those that are damaged.

    One without its optimizers is refused, not passed over: somebody took them out, and its weights may be wanted.
    """
    found = step_folders(run / "checkpoints")
    faults: dict[Path, str] = {}
    for path in reversed(found):
        fault = fault_of(path, weights_only=weights_only)
        if fault is None:
            return path, [f"the checkpoint {bad.name} is damaged ({why}): passed over" for bad, why in faults.items()]
        if fault == f"{TENSORS} is missing" and fault_of(path, weights_only=True) is None:
            raise UserError(
                f"'{path}' has no optimizer state ({TENSORS}): `vigneron resume {run} --weights-only` goes on from its "
                "weights with new optimizers; without that folder, an earlier checkpoint is taken"
            )
        faults[path] = fault
    if not faults:
        return None, []
    said = "; ".join(f"{path.name}: {fault}" for path, fault in faults.items())
    some = [] if weights_only else which_are_whole(run / "checkpoints", weights_only=True)
    rest = f": `vigneron resume {run} --weights-only` goes on from the weights of {some[-1].name}" if some else ""
    raise UserError(f"no checkpoint of '{run}' is whole ({said}){rest or ': train anew'}")


def set_aside(chosen: Path) -> None:
    """Newer ones than the chosen are damaged: kept under another name, since their steps are made again."""
    for path in step_folders(chosen.parent):
        if checkpoint_step(path) > checkpoint_step(chosen):
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)


def checkpoint_to_look_at(run: Path, step: int | None = None) -> Path:
    """Of which the weights are read. A damaged one is refused, with the ones that are whole: nobody is shown an older
    child than they think."""
    saved = checkpoints(run / "checkpoints")
    chosen = [path for path in saved if step is None or checkpoint_step(path) == step]
    if not chosen:
        there = ", ".join(str(checkpoint_step(path)) for path in saved) or "none"
        raise UserError(f"'{run}' has no checkpoint{'' if step is None else f' of step {step}'} (available: {there})")
    fault = fault_of(chosen[-1], weights_only=True)
    if fault is not None:
        others = which_are_whole(run / "checkpoints", weights_only=True)
        rest = f"whole: {', '.join(path.name for path in others)}" if others else "no other is whole"
        raise UserError(f"the checkpoint '{chosen[-1]}' is damaged: {fault} ({rest})")
    return chosen[-1]
