"""The processes that train one model together, its ranks. Without others everything here is this process's own.

Every rank holds the whole of a step's batch and passes only its share of it through models; what it computes there is
summed over the ranks. So advantages, denominators and figures are the same on all of them, and need no talk.
"""

import ctypes
import os
import platform
import signal
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from vigneron.distributed import node_info as facts
from vigneron.errors import NonFinite, UserError

T = TypeVar("T")

RENDEZVOUS = "VIGNERON_RENDEZVOUS"
"""Where the ranks that `--nproc` starts find each other; torchrun has its own way."""
BUCKET = 2**25
# A judge, a parent or a large checkpoint may keep the first rank for hours; one that is dead closes its connections.
LONGEST_WAIT = timedelta(days=1)
SIGNS_OF_LOSS = ("closed by peer", "connection reset", "connection closed", "broken pipe", "socket closed")


class RankLost(UserError):
    """A rank of this run has ended, or cannot be reached."""

    ends_at_once = True


def asked_for() -> int:
    """How many ranks the environment speaks of."""
    text = os.environ.get("WORLD_SIZE", "1")
    return int(text) if text.isdigit() else 1


def count() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if count() > 1 else 0


def is_first() -> bool:
    """Whether this is the rank that writes, logs and asks for rewards. Known before the others are."""
    return int(os.environ.get("RANK", "0")) == 0 if count() == 1 and asked_for() > 1 else rank() == 0


def join(device: torch.device) -> None:
    """Meet the other ranks, where the environment says that there are some."""
    if asked_for() == 1 or count() > 1:
        return
    if RENDEZVOUS in os.environ:
        _end_with_launcher()
    if device.type == "cuda":
        _choose_gpu(device, int(os.environ.get("LOCAL_RANK", "0")))
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(
            backend,
            init_method=os.environ.get(RENDEZVOUS, "env://"),
            rank=int(os.environ["RANK"]),
            world_size=asked_for(),
            timeout=LONGEST_WAIT,
        )
    except (RuntimeError, ValueError, KeyError) as error:
        raise RankLost(f"WORLD_SIZE is {asked_for()}, but the ranks do not meet: {_first_line(error)}") from error
    _same_versions()


def _choose_gpu(device: torch.device, number: int) -> None:
    if device.index is not None:
        raise UserError(f"model.device: with several ranks each has a GPU of its own: 'cuda', not '{device}'")
    if number >= torch.cuda.device_count():
        raise UserError(
            f"rank {number} of this machine has no GPU: it has {torch.cuda.device_count()}. Start fewer ranks"
        )
    torch.cuda.set_device(number)


def _end_with_launcher() -> None:
    """Linux tells us when the process that started us is gone: then the step is finished and saved."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def leave() -> None:
    if count() > 1:
        dist.destroy_process_group()


# ---------------------------------------------------------------------------------------------------- tensors


def summed(tensor: Tensor) -> Tensor:
    """Over the ranks, in place."""
    if count() > 1:
        _talk(lambda: dist.all_reduce(tensor))
    return tensor


def of_first(tensor: Tensor) -> Tensor:
    """The first rank's values, on all of them, in place."""
    if count() > 1:
        _talk(lambda: dist.broadcast(tensor, src=0))
    return tensor


def largest(number: float) -> float:
    """Of the ranks' numbers."""
    if count() == 1:
        return number
    found = torch.tensor(number, dtype=torch.float64)
    _talk(lambda: dist.all_reduce(found, dist.ReduceOp.MAX))
    return float(found)


def sum_gradients(weights: Iterable[Tensor]) -> None:
    """Of weights that every rank has whole. Those that FSDP2 shards are summed on their way back."""
    if count() == 1:
        return
    grads = [w.grad for w in weights if w.grad is not None and not is_sharded(w)]
    bucket: list[Tensor] = []
    for grad in [*grads, None]:
        full = sum(g.numel() for g in bucket) >= BUCKET
        if bucket and (grad is None or full or grad.dtype != bucket[0].dtype):
            flat = summed(torch.cat([g.flatten() for g in bucket]))
            for one, part in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                one.copy_(part.view_as(one))
            bucket = []
        if grad is not None:
            bucket.append(grad)


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor of which this rank may have a part. Every rank has to ask."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def part(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------- anything


def from_first(function: Callable[[], T]) -> T:
    """What the function gives on the first rank, or raises there, on all of them."""
    if count() == 1:
        return function()
    said: list[Any] = [None, None]
    failed: Exception | None = None
    if rank() == 0:
        try:
            said[0] = function()
        except UserError as error:
            failed = error
            said[1] = (isinstance(error, NonFinite), str(error))
    _talk(lambda: dist.broadcast_object_list(said, src=0))
    if failed is not None:
        raise failed
    if said[1] is not None:
        not_finite, text = said[1]
        raise _of_another((NonFinite if not_finite else UserError)(text))
    return said[0]


def agreed(function: Callable[[], T]) -> T:
    """Every rank does it, and waits for no other in it; where one of them fails, all of them do, with its words."""
    if count() == 1:
        return function()
    found: Any = None
    failed: UserError | None = None
    try:
        found = function()
    except UserError as error:
        failed = error
    said = _gathered(None if failed is None else str(failed))
    first = next((number for number, text in enumerate(said) if text is not None), None)
    if first is None:
        return found
    if failed is not None and rank() == first == 0:
        raise failed
    where = "" if all(text == said[first] for text in said) else f"rank {first}: "
    theirs = UserError(f"{where}{said[first]}")
    raise theirs if is_first() else _of_another(theirs)


def any_of(number: int | None) -> int | None:
    """The first number that a rank has."""
    if count() == 1:
        return number
    return next((each for each in _gathered(number) if each is not None), None)


def wait_for_all() -> None:
    if count() > 1:
        _gathered(None)


def _gathered(mine: Any) -> list[Any]:
    found: list[Any] = [None] * count()
    _talk(lambda: dist.all_gather_object(found, mine))
    return found


def _talk(act: Callable[[], Any]) -> None:
    try:
        act()
    except RuntimeError as error:
        raise lost(error) from error


def is_lost(error: RuntimeError) -> bool:
    """Whether it comes of another rank that has ended."""
    text = str(error).lower()
    return count() > 1 and (isinstance(error, dist.DistError) or any(sign in text for sign in SIGNS_OF_LOSS))


def lost(error: BaseException) -> RankLost:
    """What a broken connection says of itself is of no help; anything else may be."""
    known = any(sign in str(error).lower() for sign in SIGNS_OF_LOSS)
    why = "" if known else f": {_first_line(error)}"
    return RankLost(
        f"rank {rank()} of {count()} cannot reach the others, one of which has ended{why}. `vigneron resume` goes on "
        "from the last checkpoint"
    )


def _of_another(error: UserError) -> UserError:
    error.said_elsewhere = True
    return error


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _same_versions() -> None:
    """Ranks with other packages, or other sources of ours, would train another model."""
    said = _gathered(facts.node_facts())
    for number, theirs in enumerate(said):
        if (found := facts.difference(said[0], theirs)) is not None:
            where = f"rank {number}, on {theirs['host']}"
            unlike = UserError(f"{where}, has {found}, on rank 0: install the same on all nodes")
            raise unlike if rank() == 0 else _of_another(unlike)
