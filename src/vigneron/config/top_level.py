"""The top-level keys of a recipe."""

from typing import Annotated, Literal

from pydantic import Field, SerializeAsAny

from vigneron.config.curricula import CurriculumConfig
from vigneron.config.custom import SlotOptions, with_user_options
from vigneron.config.environments import EnvironmentConfig
from vigneron.config.methods import MethodConfig
from vigneron.config.parts import DataConfig, ModelConfig, OptimizerConfig, ParentConfig, SamplingConfig
from vigneron.config.rewards import RewardConfig
from vigneron.config.scale import ScaleConfig
from vigneron.config.values import Positive, Strict

DEFAULT_MICROBATCH_TOKENS = 4096
Slot = Annotated[SlotOptions, with_user_options(SlotOptions)]


class TopLevel(Strict):
    """A recipe's keys, each checked by itself."""

    recipe: str = "custom"
    """The name of the recipe; runs are named after it."""
    about: str = ""
    """One line for `vigneron recipes`."""
    method: SerializeAsAny[MethodConfig]
    model: ModelConfig = ModelConfig()
    data: DataConfig
    parent: ParentConfig | None = None
    """The model that answers the prompts. null: the dataset's column `answer`."""
    reward: RewardConfig
    """Not needed by methods that read given texts or do not learn from a reward, whose completions are then scored by
    `binary`, nor by those that read pairs."""
    sampling: SamplingConfig = SamplingConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Keys every random draw: the same seed gives the same run."""
    steps: Positive = 100
    """Turns of the loop: sample, reward, update."""
    prompts_per_step: Positive = 16
    """Prompts (or demonstrations, or pairs) of a step."""
    group_size: Positive = 1
    """Samples of each prompt; TRL calls it num_generations."""
    max_new_tokens: Positive = 16
    """The longest completion, in tokens; with an `environment`, the longest turn."""
    microbatch_tokens: Positive | Literal["auto"] = "auto"
    """Tokens in one forward and backward pass: bounds memory, changes only rounding. auto: chosen from the memory
    that is free at the start, and kept in the run's config."""
    eval_every: Annotated[int, Field(ge=0)] = 10
    """Steps between greedy evaluations on the held-out part, which also come first and last; 0: never."""
    save_every: Annotated[int, Field(ge=0)] = 50
    """Steps between checkpoints; the last step is always saved. 0: only the last."""
    keep_last: Positive = 2
    """How many of the newest checkpoints are kept."""
    keep_best: str | None = None
    """A held-out metric such as `eval/reward`: the best checkpoint by it is kept too."""
    skip_nonfinite: Annotated[int, Field(ge=0)] = 0
    """How many steps may be skipped because a loss, gradient or reward is NaN or infinite; one more stops the run."""
    successive_kl_every: Annotated[int, Field(ge=0)] = 1
    """Steps between measurements of KL(π₀ ‖ π₁) after the updates, each a forward pass; 0: never."""
    rollout: SerializeAsAny[Slot] | None = None
    """Where samples come from, if not from the method's own rollout: `name: "module:function"`, and its options."""
    environment: EnvironmentConfig | None = None
    """What the model talks with over several turns. null: it answers once."""
    curriculum: SerializeAsAny[CurriculumConfig] | None = None
    """Which rows a step works on, if not shuffled epochs: by level, loss or success, or `name: "module:function"`."""
    scale: ScaleConfig = ScaleConfig()
    trackers: list[Literal["tensorboard", "trackio", "wandb", "webhook"]] = Field(default_factory=list)
    """Trackers that receive every step's metrics too. `webhook` posts warnings and the end of the run to the address in
    the environment variable VIGNERON_WEBHOOK_URL."""

    @property
    def resolved_microbatch_tokens(self) -> int:
        """`microbatch_tokens`, with the default for `auto`."""
        return DEFAULT_MICROBATCH_TOKENS if self.microbatch_tokens == "auto" else self.microbatch_tokens

    @property
    def answers_are_optional(self) -> bool:
        """Whether the reward is a check that only measures samples: a row without an answer is trained on all the
        same."""
        trains = self.method.learns_from_reward or self.method.shows_answers or self.method.reads != "prompts"
        return self.reward.kind == "binary" and not trains

    @property
    def written_tokens(self) -> int:
        """The most tokens that the policy writes behind a prompt: a completion, or all its turns of a conversation."""
        return self.max_new_tokens * (1 if self.environment is None else self.environment.max_turns)

    @property
    def completion_tokens(self) -> int:
        """The most tokens behind a prompt: a completion, or all turns of a conversation and the replies."""
        new = self.max_new_tokens
        return new if self.environment is None else self.environment.completion_tokens(new)
