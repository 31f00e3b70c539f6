"""What can be spread over how many ranks, and how a run that was goes on."""

from pathlib import Path

from vigneron.config import Config
from vigneron.errors import UserError


def check_ranks(config: Config, total: int) -> None:
    """What cannot be spread over so many ranks, before they are started."""
    shard = config.scale.shard
    samples = config.prompts_per_step * config.group_size
    if total > samples:
        raise UserError(
            f"{total} ranks have only {samples} samples a step to share (prompts_per_step × group_size): start fewer"
        )
    if total % shard:
        raise UserError(
            f"scale.shard: {total} {'rank does' if total == 1 else 'ranks do'} not divide into copies of the weights "
            f"of {shard} ranks each: start {shard} or a multiple (--nproc {shard}), or set scale.shard=1"
        )


def resume_command(path: Path, shard: int) -> str:
    """What goes on with a run as it was."""
    return f"vigneron resume {path}" + (f" --nproc {shard}" if shard > 1 else "")
