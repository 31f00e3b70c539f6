"""PGSRM's Algorithm 1: policy gradient − entropy + KL on the actor, a value head with its own optimizer.

`faithful` is the paper's appendix A.4 to the letter. The default differs in two places: the KL has a gradient
(exact, over the vocabulary), and the baseline V(s) is read before the answer, as §3.3 writes it; read after the
answer's last token it has seen the action, and shrinks the gradient as it learns. With `clip_epsilon` and several
updates a step it is §3.3's clipped objective. Masks come from lengths in all of them.
"""

from dataclasses import replace

import torch
from torch import Tensor

from vigneron.batch import Batch, map_parts
from vigneron.config import ActorCriticConfig
from vigneron.core import kl
from vigneron.core.draws import Sampling
from vigneron.core.losses import clipped_ratio, policy_gradient, squared_error
from vigneron.policy.evaluate import Critic, Evaluation, evaluate, reference_view, values_before
from vigneron.policy.model import ValueHead
from vigneron.rollout.on_policy import OnPolicy
from vigneron.training.kl_controller import KlController
from vigneron.training.slots import Method, Parts
from vigneron.training.update import GradientUpdate, Player, Term


def build(parts: Parts) -> Method:
    config, policy, reference = parts.config, parts.policy, parts.reference
    options, optimizer = config.method, config.optimizer
    sampling = Sampling(**config.sampling.model_dump())
    critic = Critic(ValueHead(policy.hidden_size).to(policy.device), options.value_position)
    controller = KlController.of(options.kl)
    exact = options.kl.estimator == "exact"
    adamw = {"weight_decay": optimizer.weight_decay, "max_grad_norm": optimizer.max_grad_norm}

    def advantage(batch: Batch) -> Batch:
        """A = R − V   (Algorithm 1, lines 4 and 7-10)."""
        seen = map_parts(batch, config.microbatch_tokens, look)
        advantages_B1 = (batch.rewards_B - seen["values_B"])[:, None]
        return replace(batch, **seen, advantages_BT=advantages_B1.expand(batch.completion_BT.shape))

    @torch.no_grad()
    def look(part: Batch) -> dict[str, Tensor]:
        seen = reference_view(reference, part, sampling, keep_hidden=exact)
        return {**seen, "values_B": values_before(policy, part, critic)}

    def loss(batch: Batch, now: Evaluation) -> list[Term]:
        """L = −(log π · A) − β_ent H + λ_KL D_KL, and λ_v (v − r)²   (Algorithm 1, lines 11-17)."""
        if options.clip_epsilon is None:
            policy_BT = policy_gradient(now.logprobs_BT, batch.advantages_BT)
        else:
            policy_BT = clipped_ratio(
                now.logprobs_BT,
                batch.behaviour_BT,
                batch.advantages_BT,
                batch.mask_BT,
                epsilon=options.clip_epsilon,
            )
        against_BT = batch.reference_BT if options.kl.against == "reference" else batch.behaviour_BT
        penalty_BT = now.exact_kl_BT if exact else kl.ESTIMATORS[options.kl.estimator](now.logprobs_BT, against_BT)
        return [
            Term("loss/policy", policy_BT, 1.0),
            Term("entropy", now.entropy_BT, -options.entropy_coefficient),
            Term("loss/kl", penalty_BT, controller.coefficient),
            Term(
                "loss/value",
                squared_error(now.values_B, batch.rewards_B),
                options.value_coefficient,
                "samples",
            ),
            Term("kl", kl.k1(now.logprobs_BT, batch.reference_BT).detach()),
            Term("logprob_mismatch", (now.logprobs_BT - batch.behaviour_BT).abs().detach()),
        ]

    def judge_now(batch: Batch) -> Evaluation:
        return evaluate(policy, batch, sampling, critic=critic, reference=reference if exact else None)

    def moved(batch: Batch) -> Term:
        """KL(π₀ ‖ π₁) after the updates: how far the step has moved the policy."""
        return Term("kl_previous", kl.k3(batch.behaviour_BT, evaluate(policy, batch, sampling).logprobs_BT))

    return Method(
        rollout=OnPolicy(
            policy, sampling, config.max_new_tokens, config.group_size, config.seed, config.microbatch_tokens
        ),
        reward=parts.reward,
        advantage=advantage,
        update=GradientUpdate(
            evaluate=judge_now,
            loss=loss,
            measure=moved,
            measure_every=config.successive_kl_every,
            players=[
                Player("actor", policy.trainable(), optimizer.actor_lr, **adamw),
                Player("critic", list(critic.head.named_parameters()), optimizer.critic_lr, **adamw),
            ],
            total_updates=config.steps * options.updates_per_step,
            updates_per_step=options.updates_per_step,
            microbatch_tokens=config.microbatch_tokens,
            schedule=optimizer.schedule,
            warmup_updates=optimizer.warmup_steps * options.updates_per_step,
            controller=controller,
        ),
        critic=critic,
        notices=_notices(options),
    )


def _notices(options: ActorCriticConfig) -> tuple[str, ...]:
    if options.updates_per_step > 1:
        return ()
    idle = []
    if options.clip_epsilon is not None:
        idle.append("clip_epsilon")
    if options.kl.against == "previous":
        idle.append("kl.against: previous")
    if not idle:
        return ()
    return (f"one update a step: the trained policy is the one that sampled, so {' and '.join(idle)} has no effect",)
