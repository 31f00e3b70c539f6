"""A frozen batch that every contestant scores: prompts, completions of different lengths, advantages, log-probs.

The log-probs are those of transformers' own forward pass in float32, which is neither ours nor a peer's; behaviour and
reference are the same with a little noise, so that some ratios are clipped and the KL is not 0.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.arguments import contestant_arguments
from benchmarks.models import model_folder
from benchmarks.prompts import exact_texts
from benchmarks.work import Work

PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS = 4, 2, 16, 12


@dataclass(frozen=True)
class Frozen:
    """B samples; completions follow their prompts directly and are padded with 0."""

    prompt_BP: np.ndarray
    completion_BT: np.ndarray
    lengths_B: np.ndarray
    advantages_B: np.ndarray
    behaviour_BT: np.ndarray
    reference_BT: np.ndarray
    plain_BT: np.ndarray
    """log π by transformers."""

    @property
    def mask_BT(self) -> np.ndarray:
        return np.arange(self.completion_BT.shape[1]) < self.lengths_B[:, None]

    def save(self, path: Path) -> None:
        np.savez(path, **{f.name: getattr(self, f.name) for f in fields(self)})

    @classmethod
    def load(cls, path: Path) -> "Frozen":
        with np.load(path) as kept:
            return cls(**{f.name: kept[f.name] for f in fields(cls)})


def freeze(work: Work) -> Frozen:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = model_folder(work.model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    size = PROMPTS * GROUP
    prompts = exact_texts(tokenizer, PROMPT_TOKENS, PROMPTS)
    completions = exact_texts(tokenizer, NEW_TOKENS, size, seed=1)
    prompt_BP = np.array([tokenizer(text)["input_ids"] for text in prompts for _ in range(GROUP)])
    lengths_B = NEW_TOKENS - np.arange(size) % 5
    mask_BT = np.arange(NEW_TOKENS) < lengths_B[:, None]
    completion_BT = np.where(mask_BT, np.array([tokenizer(text)["input_ids"] for text in completions]), 0)

    # Padding is on the right, so causal attention never sees it.
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = model.eval().to(work.device)
    ids_BS = torch.from_numpy(np.concatenate([prompt_BP, completion_BT], 1)).to(work.device)
    with torch.no_grad():
        logits_BTV = model(ids_BS).logits[:, PROMPT_TOKENS - 1 : -1] / work.temperature
    chosen_BT = logits_BTV.log_softmax(-1).gather(-1, ids_BS[:, PROMPT_TOKENS:, None]).squeeze(-1)
    plain_BT = np.where(mask_BT, chosen_BT.cpu().numpy(), 0.0).astype(np.float32)

    noise = np.random.default_rng(0)

    def near(spread: float) -> np.ndarray:
        moved_BT = plain_BT + spread * noise.standard_normal(plain_BT.shape)
        return np.where(mask_BT, moved_BT, 0.0).astype(np.float32)

    advantages_B = noise.standard_normal(size).astype(np.float32)
    return Frozen(prompt_BP, completion_BT, lengths_B, advantages_B, near(0.15), near(0.3), plain_BT)


if __name__ == "__main__":
    # In a process of its own: what it had on the GPU is free again when it ends.
    arguments = contestant_arguments(__doc__)
    freeze(arguments.work).save(arguments.out)
