"""Checks of a config against the number of ranks, and the command that resumes a sharded run."""

from pathlib import Path

from vigneron.config import Config
from vigneron.errors import UserError


def check_ranks(config: Config, total: int) -> None:
    """Raise if the config cannot be trained by `total` ranks. Called before they are started."""
    shard = config.scale.shard
    samples = config.prompts_per_step * config.group_size
    if total > samples:
        raise UserError(
            f"{total} ranks have only {samples} samples per step (prompts_per_step × group_size): start fewer ranks"
        )
    if total % shard:
        raise UserError(
            f"scale.shard: {total} {'rank is' if total == 1 else 'ranks are'} not a multiple of {shard}, the number of "
            f"ranks that share one copy of the weights: start {shard} or a multiple (--nproc {shard}), or set "
            "scale.shard=1"
        )


def resume_command(path: Path, shard: int) -> str:
    """The command that resumes the run in `path` with its number of shards."""
    return f"vigneron resume {path}" + (f" --nproc {shard}" if shard > 1 else "")
