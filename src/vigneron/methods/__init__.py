"""One module per method: how it fills the loop's slots."""

from collections.abc import Callable

from vigneron.methods import actor_critic, grpo, ppo, reinforce, sft, trpo
from vigneron.training.slots import Method, Parts

METHODS: dict[str, Callable[[Parts], Method]] = {
    "actor_critic": actor_critic.build,
    "grpo": grpo.build,
    "ppo": ppo.build,
    "reinforce": reinforce.build,
    "sft": sft.build,
    "trpo": trpo.build,
}
