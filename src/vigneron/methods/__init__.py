"""One module per method: how it fills the loop's slots."""

from collections.abc import Callable

from vigneron.methods import actor_critic, dpo, grpo, sft
from vigneron.training.slots import Method, Parts

METHODS: dict[str, Callable[[Parts], Method]] = {
    "actor_critic": actor_critic.build,
    "dpo": dpo.build,
    "grpo": grpo.build,
    "sft": sft.build,
}
