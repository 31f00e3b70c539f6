"""What the CUDA graphs of sampling keep of a GPU's memory, while the policy is updated too."""

from typing import Any

from vigneron.config import Config
from vigneron.config.phases import engine_samples
from vigneron.policy.model import MOST_GRAPHED
from vigneron.policy.pass_memory import inner_size
from vigneron.rollout.on_policy import sampling_of
from vigneron.values import GB

TRUNCATING_PLANES = 5
"""Tensors of logits' size, in float32, that top-k and top-p have at once; without them a kernel reads the logits."""
BESIDE_CACHE = GB
"""Bytes for what sampling needs beside weights and cache: prompts in flight, logits."""


def logit_planes(config: Config, vocabulary: int) -> int:
    """Tensors of logits' size that the choice of a token has at once."""
    return TRUNCATING_PLANES if sampling_of(config).drops_some(vocabulary) else 1


def sampling_graph_bytes(
    config: Config, text: Any, parameters: int, longest_prompt: int, most_tokens: int, held_out: int
) -> int:
    """The most that one graph takes, since all share one pool: of prompts that are read together, up to `most_tokens`,
    of the replies of an environment, or of a decode step of all samples. `text` is the config of the text model,
    `held_out` the number of rows that are evaluated on."""
    if not engine_samples(config, held_out=held_out > 0):
        return 0
    prompts = max(config.prompts_per_step, held_out if config.eval_every else 0)
    samples = max(config.prompts_per_step * config.group_size, prompts)
    # In a layer: the sum in float32, its norm, gate and up, and their product in bfloat16.
    per_token = (4 + 2) * text.hidden_size + 3 * 2 * inner_size(text)
    replies = 0 if config.environment is None else samples * config.environment.max_reply_tokens
    tokens = max(prompts * longest_prompt, replies)
    read = min(tokens, max(longest_prompt, most_tokens), int(MOST_GRAPHED / parameters)) * per_token
    decoded = samples * logit_planes(config, text.vocab_size) * text.vocab_size * 4
    return min(max(read, decoded), BESIDE_CACHE)
