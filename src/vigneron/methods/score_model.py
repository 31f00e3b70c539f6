"""A reward model of people's scores (`rlmt-grape` §6.1, reward fine-tuning): answers with scores or labels.

Binary cross-entropy, with the score as the share of people who would accept the answer: the process model of texts that
are one step. In a rubric it takes its place as an item: `{flow: reward_model, model: runs/NAME, squash: sigmoid}`.
"""

from vigneron.batch import Batch
from vigneron.config import ScoreModelConfig
from vigneron.methods.process_model import Places, token_label_method
from vigneron.policy.reward_model import set_reward_model_kind
from vigneron.training.method import Method
from vigneron.training.parts import Parts


def build(parts: Parts, options: ScoreModelConfig) -> Method:
    set_reward_model_kind(parts.policy, "reward")

    def last_tokens(batch: Batch) -> Places:
        scores, widths = batch.samples.columns[options.score], batch.samples.widths
        return [[(width - 1, score)] for width, score in zip(widths, scores, strict=True)]

    return token_label_method(parts, last_tokens)
