"""The loss of each row under the policy as it is now: what self-paced learning (`curriculum.by: loss`) goes by."""

from collections.abc import Callable, Sequence

from vigneron.data.prompts import Row
from vigneron.errors import UserError
from vigneron.policy.rank_batches import assign_ranks
from vigneron.rollout.build import evaluation_rollout
from vigneron.timing import phase
from vigneron.training.method import Method
from vigneron.training.parts import Parts
from vigneron.training.update import GradientUpdate

# Rows that are padded to one length.
PART = 1024


def row_losses(parts: Parts, method: Method) -> Callable[[Sequence[Row]], list[float]]:
    """For demonstrations, pairs and recorded samples the method's own loss, a pair's once; for prompts 1 − the reward
    of a greedy completion, NaN where it is missing."""
    config, update = parts.config, method.update
    samples = config.method.reads == "prompts"
    if not samples and not isinstance(update, GradientUpdate):
        raise UserError(f"curriculum.by: loss: `method: {config.method.name}` gives no loss of a row: use `by: level`")

    def of_prompts(rows: Sequence[Row]) -> list[float]:
        evaluate = getattr(parts.reward, "evaluate", parts.reward)
        rewards_B = evaluate(evaluation_rollout(config, parts.policy)(rows)).signals.rewards_B
        return (1 - rewards_B).tolist()

    def of_texts(rows: Sequence[Row]) -> list[float]:
        assert isinstance(update, GradientUpdate)
        loss_B = update.sample_losses(method.advantage(assign_ranks(method.reward(method.rollout(rows)))))
        return loss_B.unflatten(0, (len(rows), -1)).mean(1).tolist()

    def measure(rows: Sequence[Row]) -> list[float]:
        of = of_prompts if samples else of_texts
        with phase("measure losses"):
            return [loss for at in range(0, len(rows), PART) for loss in of(rows[at : at + PART])]

    return measure
