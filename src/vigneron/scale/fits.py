"""What can be spread over how many ranks."""

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
        raise UserError(f"scale.shard: {total} ranks do not divide into copies of the weights of {shard} ranks each")
