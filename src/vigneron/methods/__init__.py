"""One module per method: how it fills the loop's slots."""

from collections.abc import Callable

from vigneron.methods import (
    actor_critic,
    dpo,
    grape,
    grpo,
    ppo,
    preference_model,
    reinforce,
    rejection_sampling,
    reward_model,
    score_model,
    sft,
    trpo,
)
from vigneron.training.method import Method, Parts

METHODS: dict[str, Callable[[Parts], Method]] = {
    "actor_critic": actor_critic.build,
    "dpo": dpo.build,
    "grape": grape.build,
    "grpo": grpo.build,
    "ppo": ppo.build,
    "preference_model": preference_model.build,
    "reinforce": reinforce.build,
    "rejection_sampling": rejection_sampling.build,
    "reward_model": reward_model.build,
    "score_model": score_model.build,
    "sft": sft.build,
    "trpo": trpo.build,
}
