"""What the rest of the code may ask of any method's options."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from vigneron.config.values import Strict

Aggregation = Literal["tokens", "samples", "sum_over_samples"]


Reads = Literal["prompts", "demonstrations", "pairs", "recorded"]
"""What rows are: prompts to sample for, prompts with answers, pairs, or prompts with a sample and its reward."""


@dataclass(frozen=True)
class StepLabels:
    """A column of lists, one label for each step of a completion."""

    column: str
    separator: str | None
    """What stands between steps; None: the completion is one step."""
    last: bool = False
    """Whether the last step alone is learned."""

    def used(self, labels: Sequence[float | None]) -> Sequence[float | None]:
        return labels[-1:] if self.last else labels


class MethodOptions(Strict):
    """What the rest of the code asks a method's options, so that it never asks for a method's name.

    A method of your own subclasses it, adds its keys, and overrides what differs.
    """

    name: str

    imported: ClassVar[bool] = True
    """False for options of user code that was not imported: what the method needs is then unknown, and not checked."""
    description: ClassVar[str] = ""
    """One line for `vigneron methods`."""
    card: ClassVar[str] = ""
    """The model card's sentence about the method."""
    metrics: ClassVar[tuple[str, ...]] = ()
    """Metrics that are shown beside the common ones; `run_store/metric_table.py` describes them."""
    trains: ClassVar[Literal["policy", "scorer"]] = "policy"
    """A language model, or a model that gives a text one number."""
    joins_pairs: ClassVar[bool] = False
    """Whether both texts of a pair are read as one sequence."""
    weighs_samples: ClassVar[bool] = False
    """Whether its loss compares samples with the policy that wrote them: they then get no other importance weight."""
    has_advantages: ClassVar[bool] = True
    """Whether samples have advantages, which importance weights multiply; without them stale samples are trained on
    as they are."""
    compares_prompts: ClassVar[bool] = False
    """Whether it needs a prompt's rewards by themselves: those that compare samples of a group have no common scale."""
    scores_above_zero: ClassVar[bool] = False
    """Whether a score of 0 cannot be learned from."""
    needs_win_rates: ClassVar[bool] = False
    """Whether a reward must be a share of comparisons won, from 0 to 1."""
    keeps_previous: ClassVar[bool] = False
    """Whether it keeps a frozen copy of the policy that sampled, for the exact KL from it."""
    learns_from_reward: ClassVar[bool] = True
    """Whether samples are trained by their reward. If not, the reward measures them, and may be left out of a recipe:
    the checker is the default."""
    trains_its_reward: ClassVar[bool] = False
    """Whether the reward is a model that is trained beside the policy, by the critic's optimizer."""
    loss_falls: ClassVar[bool] = True
    """Whether a low loss of a given text means that it is learned, as `curriculum.by: loss` takes it."""

    @property
    def reads(self) -> Reads:
        """What its rows are: prompts to sample for, or texts that are there already, which nothing is sampled for."""
        return "prompts"

    @property
    def uses_reference(self) -> bool:
        """Whether training needs the policy at the run's start: it is copied, which takes memory."""
        return self.trains == "policy"

    @property
    def has_own_critic(self) -> bool:
        """Whether its critic is a model of its own, as large as the policy."""
        return self.has_critic and getattr(getattr(self, "critic", None), "network", None) == "own"

    @property
    def smallest_group(self) -> int:
        """Samples of a prompt that it cannot do without."""
        return 1

    @property
    def steps_by_gradient(self) -> bool:
        """Whether the policy's updates are steps of an optimizer, with a learning rate."""
        return True

    @property
    def has_critic(self) -> bool:
        return False

    @property
    def needs_rubric(self) -> bool:
        """Whether responses are drawn as a rubric's categories say."""
        return False

    @property
    def shows_answers(self) -> bool:
        """Whether the dataset's answers stand among the samples."""
        return False

    @property
    def shows_items(self) -> bool:
        """Whether a rubric's items stand in prompts that are sampled from."""
        return False

    @property
    def parent_model(self) -> str | None:
        """A frozen model in this process, whose log-probs of the samples it learns from: a hub id, a folder, a run."""
        return None

    @property
    def smallest_step(self) -> int:
        """Rows of a step that it cannot do without."""
        return 1

    @property
    def score_column(self) -> str | None:
        """A column of scores, where it learns from them."""
        return None

    @property
    def step_labels(self) -> StepLabels | None:
        """A column of labels of steps, where it learns from them."""
        return None

    @property
    def takes_step_rewards(self) -> bool:
        """Whether it can use rewards at the ends of steps beside one at the end of a text."""
        return False

    @property
    def score_range(self) -> tuple[float, float] | None:
        """The least and the largest score that it can learn from; None: any."""
        return 0.0, 1.0
