"""The rollout slot of every method that samples: y ~ π(·|x), G samples a prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.core.draws import Sampling
from vigneron.policy.model import Policy
from vigneron.rollout.prompts import Row, prompt_token_ids
from vigneron.rollout.sample import sample


@dataclass(frozen=True)
class OnPolicy:
    """`rollout(rows, step)`; without `sampling`, greedily."""

    policy: Policy
    sampling: Sampling | None
    max_new_tokens: int
    group_size: int = 1
    seed: int = 0
    tokens_at_once: int = 65536
    mask_truncated: bool = False

    @classmethod
    def of(cls, config: Config, policy: Policy, sampling: Sampling | None) -> "OnPolicy":
        return cls(
            policy,
            sampling,
            config.max_new_tokens,
            config.group_size,
            config.seed,
            config.microbatch_tokens,
            config.sampling.mask_truncated,
        )

    @classmethod
    def greedy(cls, config: Config, policy: Policy) -> "OnPolicy":
        return cls(policy, None, config.max_new_tokens, tokens_at_once=config.microbatch_tokens)

    def __call__(self, rows: Sequence[Row], step: int = 0) -> Batch:
        repeated = [row for row in rows for _ in range(self.group_size)]
        prompt_ids = [prompt_token_ids(self.policy.tokenizer, row["prompt"]) for row in repeated]
        done = sample(
            self.policy,
            prompt_ids,
            max_new_tokens=self.max_new_tokens,
            sampling=self.sampling,
            seed=self.seed,
            step=step,
            tokens_at_once=self.tokens_at_once,
        )
        lengths = done.lengths_B.tolist()
        texts = self.policy.tokenizer.batch_decode(
            [ids[:length] for ids, length in zip(done.ids_BT.tolist(), lengths, strict=True)],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        device = self.policy.device
        return Batch(
            prompt_ids=tuple(tuple(ids) for ids in prompt_ids),
            completion_BT=done.ids_BT,
            spans=tuple(((len(ids), len(ids) + length),) for ids, length in zip(prompt_ids, lengths, strict=True)),
            behaviour_BT=done.behaviour_BT,
            truncated_B=done.truncated_B,
            excluded_B=done.truncated_B if self.mask_truncated else None,
            prompt_hidden_BH=done.prompt_hidden_BH,
            group_B=torch.arange(len(rows), device=device).repeat_interleave(self.group_size),
            sample_B=torch.arange(len(repeated), device=device),
            prompts=tuple(row["prompt"] for row in repeated),
            completions=tuple(_as_completion(row["prompt"], text) for row, text in zip(repeated, texts, strict=True)),
            columns={
                name: tuple(row.get(name) for row in repeated)
                for name in dict.fromkeys(key for row in rows for key in row)
                if name != "prompt"
            },
        )


def _as_completion(prompt: Any, text: str) -> Any:
    """TRL's form: a string for a plain prompt, messages for a conversation."""
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
