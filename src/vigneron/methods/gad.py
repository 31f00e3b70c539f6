"""Generative adversarial distillation (GAD, Ye et al. 2025), for a parent that only speaks: GRPO, rewarded by a
discriminator D that is trained beside the child.

    child          max E[D(x, y)], y its own sample: GRPO with R = D
    discriminator  min E[−log σ(D(x, parent's answer) − D(x, y))]: Bradley-Terry, the parent's answer above the sample

D begins as the child's model with a new head. A step rewards by D as it is, updates the child, then D on the same
samples. D reads texts, with an end token behind each: a sample that was cut looks complete to it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import GadConfig
from vigneron.core.losses import bradley_terry
from vigneron.data.formats import answered
from vigneron.data.prompts import completion_text, continuation, prompt_of
from vigneron.methods import grpo
from vigneron.methods.terms import pair_term, sides
from vigneron.policy.from_config import new_scorer
from vigneron.policy.model import Policy
from vigneron.policy.rank_batches import assign_ranks
from vigneron.policy.reward_model import scores, scores_in_parts, set_reward_model_kind
from vigneron.rollout.demonstrations import Demonstrations
from vigneron.rollout.pairs import Pairs
from vigneron.training.method import Method, Metrics, Update
from vigneron.training.optimizers import make_optimizers
from vigneron.training.parts import Parts
from vigneron.training.update import GradientUpdate, Term


def build(parts: Parts, options: GadConfig) -> Method:
    discriminator = load_discriminator(parts)
    tokens = parts.config.resolved_microbatch_tokens

    def reward(batch: Batch, *, whole_step: bool = True) -> Batch:
        """R = D(x, y)."""
        rows = [answered(prompt_of(row), row["sampled"]) for row in rows_of(batch, "sampled")]
        texts = Demonstrations(discriminator)(rows)
        scores_B = scores_in_parts(discriminator, assign_ranks(texts), tokens)
        return batch.with_signals(rewards_B=scores_B.float().to(batch.samples.completion_BT.device))

    def pairs(batch: Batch) -> Batch | None:
        """The parent's answer and the child's sample, for samples whose row has an answer."""
        answers = batch.samples.columns.get("answer", (None,) * len(batch))
        rows = [
            {**row, "chosen": continuation(row["prompt"], completion_text(answer))}
            for row, answer in zip(rows_of(batch, "rejected"), answers, strict=True)
            if answer
        ]
        return assign_ranks(Pairs(discriminator)(rows)) if rows else None

    def loss(batch: Batch, scores_B: Tensor) -> list[Term]:
        """L = −log σ(D(parent's answer) − D(child's sample))."""
        parent_N, child_N = sides(scores_B)
        margin_N = (parent_N - child_N).detach()
        return [
            pair_term("loss/discriminator", bradley_terry(parent_N, child_N, None), 1.0),
            pair_term("discriminator/accuracy", (margin_N > 0).to(margin_N.dtype)),
            pair_term("discriminator/margin", margin_N),
        ]

    child = grpo.build(replace(parts, reward=reward), options)
    own, seed = parts.policy.trainable(), parts.config.seed
    optimizers = make_optimizers(parts.config.optimizer, own, discriminator.trainable(), seed=seed)[1:]
    beside = parts.gradient_update(lambda batch: scores(discriminator, batch), loss, optimizers=optimizers)
    return replace(child, update=AdversarialUpdate(child.update, beside, pairs, options.warmup))


def load_discriminator(parts: Parts) -> Policy:
    """The child's base model as a reward model with a new head."""
    weights = parts.config.model.weights
    discriminator = new_scorer(parts.config, weights="auto" if weights == "4bit" else weights)
    set_reward_model_kind(discriminator, "reward")
    return discriminator


def rows_of(batch: Batch, column: str) -> list[dict[str, Any]]:
    """The samples as rows, their texts in a column."""
    samples = batch.samples
    tools = samples.columns.get("tools", (None,) * len(batch))
    rows = zip(samples.prompts, samples.completions, tools, strict=True)
    return [{"prompt": prompt, column: completion_text(text), "tools": each} for prompt, text, each in rows]


@dataclass
class AdversarialUpdate:
    """The child's update, then the discriminator's; in the first steps the discriminator's alone."""

    child: Update
    discriminator: GradientUpdate
    pairs: Callable[[Batch], Batch | None]
    warmup: int = 0
    done: int = 0

    def __call__(self, batch: Batch) -> Metrics:
        metrics: Metrics = {}
        if self.done < self.warmup:
            self.child.begin_at(self.done + 1)
        else:
            metrics = self.child(batch)
        self.done += 1
        pairs = self.pairs(batch)
        if pairs is None:
            self.discriminator.begin_at(self.done)
            return metrics
        applied = ", after the child's update of this step, which stays" if metrics else ""
        return {**self.discriminator(pairs, applied), **metrics}

    def begin_at(self, step: int) -> None:
        self.done = step
        self.child.begin_at(step)
        self.discriminator.begin_at(step)

    def tensors(self) -> dict[str, Any]:
        return {**self.child.tensors(), **self.discriminator.tensors()}

    def weights(self) -> dict[str, Any]:
        return {**self.child.weights(), **self.discriminator.weights()}

    def scalars(self) -> dict[str, Any]:
        return {"child": self.child.scalars(), "discriminator": self.discriminator.scalars(), "done": self.done}

    def load(self, tensors: dict[str, Any], scalars: dict[str, Any]) -> None:
        self.child.load(tensors, scalars["child"])
        self.discriminator.load(tensors, scalars["discriminator"])
        self.done = int(scalars["done"])
