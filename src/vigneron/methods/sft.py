"""Supervised fine-tuning (`rlmt-grape` §2, eq. 1-2): the negative log-likelihood of demonstrations.

As a policy gradient: the rollout is a demonstration, and its advantage 1.
"""

from collections.abc import Sequence

from vigneron.batch import Batch
from vigneron.config import SftConfig
from vigneron.core.draws import Sampling
from vigneron.core.losses import nll
from vigneron.data.prompts import Row
from vigneron.policy.logprobs import Scores, score
from vigneron.rollout.demonstrations import Demonstrations
from vigneron.training.method import Method, Metrics, Parts
from vigneron.training.update import GradientUpdate, Term, players_of


def build(parts: Parts) -> Method:
    config, policy = parts.config, parts.policy
    options = config.method
    assert isinstance(options, SftConfig)
    whole = Sampling()

    def score_now(batch: Batch) -> Scores:
        return score(policy, batch, whole)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −log π(aₜ | sₜ)   (eq. 1), on the answers' tokens, or on all of the text's but the first."""
        return [
            Term("loss/nll", nll(now.logprobs_BT), 1.0, options.aggregation),
            Term("entropy/demonstrated", now.entropy_BT.detach()),
        ]

    rollout = Demonstrations(policy, options.loss_on, options.packing)
    update = GradientUpdate.of(config, 1, score_now, loss, players_of(config.optimizer, policy.trainable()))

    def held_out_loss(rows: Sequence[Row]) -> Metrics:
        """Of the answers that are held out: it rises where the child learns its demonstrations by heart."""
        shown = [row for row in rows if row.get("answer")]
        return {"loss/nll": update.figures(rollout(shown))["loss/nll"]} if shown else {}

    apart = policy.shares_prompts or not options.packing
    return Method(
        rollout=rollout,
        reward=lambda batch: batch,
        advantage=lambda batch: batch,
        update=update,
        evaluate_beside=held_out_loss,
        notices=() if apart else ("packing: this model does not keep samples apart in one row, and goes without",),
    )
