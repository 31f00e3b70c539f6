"""Supervised fine-tuning (`rlmt-grape` §2, eq. 1-2): the negative log-likelihood of demonstrations.

As a policy gradient: the rollout is a demonstration, and its advantage 1.
"""

from vigneron.batch import Batch
from vigneron.config import SftConfig
from vigneron.core.draws import Sampling
from vigneron.core.losses import nll
from vigneron.policy.scoring import Scores, score
from vigneron.rollout.demonstrations import Demonstrations
from vigneron.training.slots import Method, Parts
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

    players = players_of(config.optimizer, policy.trainable())
    apart = policy.shares_prompts or not options.packing
    return Method(
        rollout=Demonstrations(policy, options.loss_on, options.packing),
        reward=lambda batch: batch,
        advantage=lambda batch: batch,
        update=GradientUpdate.of(config, 1, score_now, loss, players),
        notices=() if apart else ("packing: this model does not keep samples apart in one row, and goes without",),
    )
