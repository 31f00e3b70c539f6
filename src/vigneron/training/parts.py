"""What a method is built of: its rollout, its order of prompts, its models, its optimizers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.core import kl
from vigneron.core.draws import Sampling
from vigneron.data.curricula import build_curriculum
from vigneron.data.curriculum import Curriculum
from vigneron.data.prompts import Row
from vigneron.policy.logprobs import Critic, ExactKl, Scores, TopKl, reference_view, score
from vigneron.policy.model import Policy
from vigneron.policy.parent import Parent
from vigneron.policy.rank_batches import map_microbatches
from vigneron.policy.reference import Reference
from vigneron.rollout.build import Rollout, build_rollout
from vigneron.rollout.on_policy import sampling_of
from vigneron.training.optimizers import Optimized, make_optimizers
from vigneron.training.token_recorder import TokenRecorder
from vigneron.training.update import GradientUpdate, Term


@dataclass(frozen=True)
class Parts:
    """A method's `build(parts, options)` is handed these."""

    config: Config
    policy: Policy
    reference: Reference
    rollout: Rollout
    reward: Callable[..., Batch]
    curriculum: Curriculum
    folder: Path | None = None
    """The run's folder; None where no run is trained. Ranks other than 0 have a temporary one."""
    parent: Parent = None  # type: ignore[assignment]
    """Of methods that learn from a parent's log-probs, while a run is trained."""
    tokens: TokenRecorder = field(default_factory=TokenRecorder)
    """Records what updates compute of each token."""

    @classmethod
    def of(
        cls,
        config: Config,
        policy: Policy,
        reference: Reference,
        reward: Callable[..., Batch],
        rows: Sequence[Row] = (),
        folder: Path | None = None,
        parent: Parent | None = None,
    ) -> "Parts":
        """With the rollout and the curriculum that the config asks for."""
        rollout, curriculum = build_rollout(config, policy), build_curriculum(config, rows)
        return cls(config, policy, reference, rollout, reward, curriculum, folder, parent)  # type: ignore[arg-type]

    @cached_property
    def sampling(self) -> Sampling:
        return sampling_of(self.config)

    def score(self, batch: Batch, *, critic: Critic | None = None, exact_kl: ExactKl | TopKl | None = None) -> Scores:
        """Log-probs, entropy and values of given completions under the policy as it is now, as it samples."""
        return score(self.policy, batch, self.sampling, critic=critic, exact_kl=exact_kl)

    def score_untruncated(self, batch: Batch) -> Scores:
        """The same at temperature 1, without top-k and top-p: for texts that are given, not sampled."""
        return score(self.policy, batch, Sampling())

    def policy_pass(self, batch: Batch) -> dict[str, Tensor]:
        """For `precompute`: log-probs under the policy as it is now, as `behaviour_BT`."""
        return {"behaviour_BT": self.score(batch).logprobs_BT}

    def reference_pass(self, batch: Batch, *, keep_hidden: bool = False) -> dict[str, Tensor]:
        """For `precompute`: log-probs under the reference as `reference_BT`, and its hidden states if an exact KL needs
        them."""
        return reference_view(self.reference, batch, self.sampling, keep_hidden=keep_hidden)

    def precompute(self, batch: Batch, *passes: Callable[[Batch], dict[str, Tensor]]) -> dict[str, Any]:
        """Signals that passes over microbatches compute before the step's updates, without gradient."""
        if not passes:
            return {}
        with torch.no_grad(), self.reference.kept_loaded():
            return map_microbatches(batch, self.config.resolved_microbatch_tokens, *passes)

    def kl_previous(self, batch: Batch) -> Term:
        """KL(π₀ ‖ π₁) after the updates: how far the step has moved the policy."""
        return Term("kl_previous", kl.k3(batch.samples.behaviour_BT, self.score(batch).logprobs_BT))

    def optimizers(self, critic: Critic | None = None) -> list[Optimized]:
        """The policy's, and the critic's where there is one, as `optimizer` in the config says."""
        parameters = () if critic is None else critic.parameters()
        return make_optimizers(self.config.optimizer, self.policy.trainable(), parameters, seed=self.config.seed)

    def gradient_update(
        self,
        score: Callable[[Batch], Any],
        loss: Callable[[Batch, Any], list[Term]],
        critic: Critic | None = None,
        updates_per_step: int = 1,
        minibatches: int = 1,
        *,
        optimizers: list[Optimized] | None = None,
        after_update: Callable[[Batch], Term] | None = None,
        controller: Any = None,
        idle: Callable[[Batch], Tensor] | None = None,
    ) -> GradientUpdate:
        """The update slot by gradient: `loss(batch, score(batch))` over microbatches, then a clipped optimizer step."""
        config, per_step = self.config, updates_per_step * minibatches
        return GradientUpdate(
            score,
            loss,
            self.optimizers(critic) if optimizers is None else optimizers,
            total_updates=config.steps * per_step,
            updates_per_step=updates_per_step,
            minibatches=minibatches,
            seed=config.seed,
            microbatch_tokens=config.resolved_microbatch_tokens,
            schedule=config.optimizer.schedule,
            warmup_updates=config.optimizer.warmup_steps * per_step,
            after_update=after_update,
            after_update_every=config.successive_kl_every,
            controller=controller,
            idle=idle,
            observe=self.tokens.observe,
        )
