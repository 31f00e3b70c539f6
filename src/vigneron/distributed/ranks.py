"""Collective operations between the ranks of a run, the processes that train one model. No-ops with a single process.

Every rank holds the full batch of a step and passes only its share through the models; the results are summed over the
ranks. So advantages, denominators and metrics are the same on every rank without further communication.
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

from vigneron.distributed.node_info import node_info, version_mismatch
from vigneron.errors import NonFinite, UserError, first_line

T = TypeVar("T")

RENDEZVOUS = "VIGNERON_RENDEZVOUS"
"""Environment variable with the rendezvous URL of ranks started by `--nproc`; torchrun sets its own variables."""
BUCKET_ELEMENTS = 2**25
# A judge, a parent or a large checkpoint may occupy rank 0 for hours; a rank that has died closes its connections.
COLLECTIVE_TIMEOUT = timedelta(days=1)
CONNECTION_LOST_TEXTS = ("closed by peer", "connection reset", "connection closed", "broken pipe", "socket closed")


class RankLost(UserError):
    """Another rank of the run has exited or cannot be reached."""

    exit_immediately = True


def expected_world_size() -> int:
    """WORLD_SIZE of the environment; 1 without it."""
    text = os.environ.get("WORLD_SIZE", "1")
    return int(text) if text.isdigit() else 1


def world_size() -> int:
    """Number of ranks in the process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def is_rank0() -> bool:
    """Whether this rank writes files, logs and computes rewards. Also valid before `join`."""
    return int(os.environ.get("RANK", "0")) == 0 if world_size() == 1 and expected_world_size() > 1 else rank() == 0


def join(device: torch.device) -> None:
    """Initialize the process group if the environment asks for several ranks."""
    if expected_world_size() == 1 or world_size() > 1:
        return
    if RENDEZVOUS in os.environ:
        _stop_with_launcher()
    if device.type == "cuda":
        _set_gpu(device, int(os.environ.get("LOCAL_RANK", "0")))
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(
            backend,
            init_method=os.environ.get(RENDEZVOUS, "env://"),
            rank=int(os.environ["RANK"]),
            world_size=expected_world_size(),
            timeout=COLLECTIVE_TIMEOUT,
        )
    except (RuntimeError, ValueError, KeyError) as error:
        raise RankLost(
            f"WORLD_SIZE is {expected_world_size()}, but the process group cannot be initialized: {first_line(error)}"
        ) from error
    _check_versions()


def _set_gpu(device: torch.device, number: int) -> None:
    if device.index is not None:
        raise UserError(f"model.device: every rank uses its own GPU, so set 'cuda', not '{device}'")
    if number >= torch.cuda.device_count():
        raise UserError(
            f"local rank {number} has no GPU: this machine has {torch.cuda.device_count()}. Start fewer ranks"
        )
    torch.cuda.set_device(number)


def _stop_with_launcher() -> None:
    """Ask Linux for SIGTERM when the launcher exits: the run then finishes its step and saves a checkpoint."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def leave() -> None:
    if world_size() > 1:
        dist.destroy_process_group()


# ---------------------------------------------------------------------------------------------------- tensors


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sum over the ranks, in place."""
    if world_size() > 1:
        _collective(lambda: dist.all_reduce(tensor))
    return tensor


def broadcast_tensor(tensor: Tensor) -> Tensor:
    """Replace every rank's values with rank 0's, in place."""
    if world_size() > 1:
        _collective(lambda: dist.broadcast(tensor, src=0))
    return tensor


def all_reduce_max(number: float) -> float:
    """Maximum over the ranks."""
    if world_size() == 1:
        return number
    result = torch.tensor(number, dtype=torch.float64)
    _collective(lambda: dist.all_reduce(result, dist.ReduceOp.MAX))
    return float(result)


def sum_gradients(weights: Iterable[Tensor]) -> None:
    """All-reduce the gradients of unsharded weights in buckets, those in bfloat16 as float32. FSDP2 reduces those of
    sharded weights itself."""
    if world_size() == 1:
        return
    grads = [w.grad for w in weights if w.grad is not None and not is_sharded(w)]
    bucket: list[Tensor] = []
    for grad in [*grads, None]:
        full = sum(g.numel() for g in bucket) >= BUCKET_ELEMENTS
        if bucket and (grad is None or full or grad.dtype != bucket[0].dtype):
            flat = torch.cat([g.flatten() for g in bucket])
            flat = all_reduce_sum(flat.float() if flat.dtype == torch.bfloat16 else flat)
            for one, part in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                one.copy_(part.view_as(one))
            bucket = []
        if grad is not None:
            bucket.append(grad)


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Tensor) -> Tensor:
    """The unsharded tensor. A collective operation: every rank must call it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor, or all of an unsharded one."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------- objects


def run_on_rank0(function: Callable[[], T]) -> T:
    """Call the function on rank 0; return its result, or raise its error, on every rank."""
    if world_size() == 1:
        return function()
    message: list[Any] = [None, None]  # result, error
    failed: Exception | None = None
    if rank() == 0:
        try:
            message[0] = function()
        except UserError as error:
            failed = error
            message[1] = (isinstance(error, NonFinite), str(error))
    _collective(lambda: dist.broadcast_object_list(message, src=0))
    if failed is not None:
        raise failed
    if message[1] is not None:
        non_finite, text = message[1]
        raise _reported_elsewhere((NonFinite if non_finite else UserError)(text))
    return message[0]


def run_on_all_ranks(function: Callable[[], T]) -> T:
    """Call a function without collectives on every rank; if it fails on one, raise that rank's error on all of them."""
    if world_size() == 1:
        return function()
    result: Any = None
    failed: UserError | None = None
    try:
        result = function()
    except UserError as error:
        failed = error
    errors = all_gather(None if failed is None else str(failed))
    first = next((number for number, text in enumerate(errors) if text is not None), None)
    if first is None:
        return result
    if failed is not None and rank() == first == 0:
        raise failed
    where = "" if all(text == errors[first] for text in errors) else f"rank {first}: "
    shared = UserError(f"{where}{errors[first]}")
    raise shared if is_rank0() else _reported_elsewhere(shared)


def any_rank(number: int | None) -> int | None:
    """The number of the lowest rank that has one."""
    if world_size() == 1:
        return number
    return next((each for each in all_gather(number) if each is not None), None)


def all_gather(mine: Any) -> list[Any]:
    """What every rank has, in their order."""
    if world_size() == 1:
        return [mine]
    gathered: list[Any] = [None] * world_size()
    _collective(lambda: dist.all_gather_object(gathered, mine))
    return gathered


def _collective(operation: Callable[[], Any]) -> None:
    try:
        operation()
    except RuntimeError as error:
        raise connection_lost(error) from error


def is_connection_lost(error: RuntimeError) -> bool:
    """Whether the error means that another rank has exited."""
    return world_size() > 1 and (isinstance(error, dist.DistError) or _is_closed_connection(error))


def connection_lost(error: BaseException) -> RankLost:
    """The error to show. The text of a closed connection is left out: it does not help."""
    why = "" if _is_closed_connection(error) else f": {first_line(error)}"
    return RankLost(
        f"rank {rank()} of {world_size()} lost the connection to the other ranks: one of them has exited{why}. "
        "Run `vigneron resume` to continue from the last checkpoint"
    )


def _is_closed_connection(error: BaseException) -> bool:
    text = str(error).lower()
    return any(part in text for part in CONNECTION_LOST_TEXTS)


def _reported_elsewhere(error: UserError) -> UserError:
    error.reported_elsewhere = True
    return error


def _check_versions() -> None:
    """Ranks with other package versions, or other sources of Vigneron, would train different models."""
    infos = all_gather(node_info())
    for number, info in enumerate(infos):
        if (mismatch := version_mismatch(infos[0], info)) is not None:
            error = UserError(
                f"rank {number} on {info['host']} has {mismatch} on rank 0: install the same version on every node"
            )
            raise error if rank() == 0 else _reported_elsewhere(error)
