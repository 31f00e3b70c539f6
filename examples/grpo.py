"""GRPO in one file: a model learns antonyms, on two CPU cores, in about two minutes.

    python examples/grpo.py                              the bundled SmolLM2-135M
    python examples/grpo.py --model MODEL --steps 20     a hub id or a folder

The same four lines as every method's: sample, reward, advantage, update. What `vigneron train grpo-antonyms` adds to it
is logging, checkpoints, exact resume, several ranks, asynchronous rewards and a KL to the reference.
"""

import argparse

import torch

from vigneron.batch import Batch
from vigneron.core.advantages import group_relative
from vigneron.core.draws import Sampling
from vigneron.core.losses import aggregate, aggregate_denominator, clipped_ratio
from vigneron.data.curriculum import Curriculum
from vigneron.data.tasks import load_task
from vigneron.policy.load import load_policy
from vigneron.policy.logprobs import score
from vigneron.policy.microbatches import microbatches
from vigneron.policy.model import Policy
from vigneron.rollout.on_policy import OnPolicy
from vigneron.text import normalise

SAMPLING = Sampling(temperature=1.0)
CLIP_EPSILON = 0.2
MICROBATCH_TOKENS = 2048


def reward(batch: Batch) -> Batch:
    """R(x, y): 1 for the right word, 0 for anything else. Any function with TRL's signature would do."""
    samples = batch.samples
    answers = zip(samples.completions, samples.columns["answer"], strict=True)
    rewards = [float(normalise(completion) == normalise(answer)) for completion, answer in answers]
    return batch.with_signals(rewards_B=torch.tensor(rewards, device=samples.completion_BT.device))


def advantage(batch: Batch) -> Batch:
    """A = R − mean of the group   (Dr. GRPO), the same for every token of a completion."""
    advantages_B = group_relative(batch.signals.rewards_B, batch.samples.group_B)
    return batch.with_signals(advantages_BT=advantages_B[:, None].expand(batch.samples.completion_BT.shape))


def update(policy: Policy, optimizer: torch.optim.Optimizer, batch: Batch, epochs: int) -> float:
    """θ ← θ': L = −min(r·A, clip(r)·A) with r = π/π₀, averaged over the tokens of the whole batch."""
    tokens = aggregate_denominator(batch.trained_BT, "tokens")
    total = 0.0
    for _ in range(epochs):
        for part in microbatches(batch, MICROBATCH_TOKENS):
            now = score(policy, part, SAMPLING)
            losses_BT = clipped_ratio(
                now.logprobs_BT,
                part.samples.behaviour_BT,
                part.signals.advantages_BT,
                part.samples.mask_BT,
                epsilon=CLIP_EPSILON,
            )
            # One denominator for all microbatches: their gradients add up to that of the whole batch.
            loss = aggregate(losses_BT, part.trained_BT, mode="tokens", denominator=tokens)
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_([weight for _, weight in policy.trainable()], 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return total / epochs


def accuracy(policy: Policy, rows: list[dict[str, str]], max_new_tokens: int) -> float:
    """Of greedy completions."""
    batch = reward(OnPolicy(policy, None, max_new_tokens)(rows))
    return float(batch.signals.rewards_B.mean())


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    """Trains, and returns held-out accuracy before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--prompts-per-step", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1, help="updates on each step's samples")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    policy = load_policy(options.model)
    optimizer = torch.optim.AdamW([weight for _, weight in policy.trainable()], lr=options.learning_rate)
    rollout = OnPolicy(policy, SAMPLING, options.max_new_tokens, options.group_size, options.seed)
    task = load_task("antonyms")
    template = "The opposite of '{word}' is"
    held_out = task.rows("held_out", template)
    curriculum = Curriculum(task.rows("train", template), options.prompts_per_step, options.seed)

    before = accuracy(policy, held_out, options.max_new_tokens)
    print(f"held-out accuracy before training: {before:.2f}")
    for step in range(options.steps):
        batch = rollout(curriculum.at(step), step)  # y ~ π(·|x), G samples a prompt
        batch = reward(batch)  # R(x, y)
        batch = advantage(batch)  # A
        loss = update(policy, optimizer, batch, options.epochs)  # θ ← θ'
        mean = float(batch.signals.rewards_B.mean())
        print(f"step {step + 1}/{options.steps}  reward {mean:.3f}  loss {loss:+.4f}", flush=True)
    after = accuracy(policy, held_out, options.max_new_tokens)
    print(f"held-out accuracy after training: {after:.2f}")
    return before, after


if __name__ == "__main__":
    main()
