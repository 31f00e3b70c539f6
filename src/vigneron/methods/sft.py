"""Supervised fine-tuning (`rlmt-grape` §2, eq. 1-2): the negative log-likelihood of demonstrations."""

from collections.abc import Sequence

from vigneron.batch import Batch
from vigneron.config import SftConfig
from vigneron.core.losses import nll
from vigneron.data.prompts import Row
from vigneron.policy.logprobs import Scores
from vigneron.training.method import Method, Metrics, unchanged
from vigneron.training.parts import Parts
from vigneron.training.update import Term


def build(parts: Parts, options: SftConfig) -> Method:
    policy, rollout = parts.policy, parts.rollout

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −log π(aₜ | sₜ)   (eq. 1), on the answers' tokens, or on all of the text's but the first."""
        return [
            Term("loss/nll", nll(now.logprobs_BT), 1.0, options.aggregation),
            Term("entropy/demonstrated", now.entropy_BT.detach()),
        ]

    update = parts.gradient_update(parts.score_untruncated, loss)

    def held_out_loss(rows: Sequence[Row]) -> Metrics:
        """Of the held-out answers: it rises where the model overfits its demonstrations."""
        answered = [row for row in rows if row.get("answer")]
        return {"loss/nll": update.evaluate(rollout(answered))["loss/nll"]} if answered else {}

    packs = policy.shares_prompts or not options.packing
    notices = () if packs else ("packing: this model cannot keep samples apart in one row, so nothing is packed",)
    return Method(rollout, unchanged, unchanged, update, evaluate_beside=held_out_loss, notices=notices)
