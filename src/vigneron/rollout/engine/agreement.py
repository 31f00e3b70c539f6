"""Whether a sampler's log-probs are those of a plain forward pass: any model is possible, so it is tried."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from vigneron.errors import first_line
from vigneron.policy.attention import shrunken_windows
from vigneron.policy.model import Policy
from vigneron.rollout.engine.engine import Engine
from vigneron.rollout.engine.reply_chunks import READ_FROM
from vigneron.rollout.engine.request import Request, Sampler, Turn

NEW_TOKENS = 6
REPLIES = (READ_FROM + 3, READ_FROM)
"""Tokens of the replies, long enough to be read in a chunk."""


@dataclass
class _OneReply:
    """Answers the first turn of each sample."""

    size: int
    """Of the vocabulary."""
    patience: int = NEW_TOKENS
    """Until both turns have ended: replies that come at once are read in one chunk."""
    turns: list[Turn] = field(default_factory=list)

    def ask(self, turns: Sequence[Turn]) -> None:
        self.turns += turns

    def take(self, samples: Sequence[int]) -> list[tuple[int, ...]]:
        first = {turn.sample: turn.start == 0 for turn in self.turns}
        return [tuple(i % self.size for i in range(2, 2 + REPLIES[s])) if first[s] else () for s in samples]


def engine_agrees(policy: Policy, engine: Engine) -> bool:
    with shrunken_windows(policy.causal, engine.model):
        try:
            return agrees(policy, engine)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # layers that wait for the device, such as experts in float32
            if not engine.graphed:
                raise
            engine.stop_using_graphs(first_line(error))
            return agrees(policy, engine)


def reads_chunks(policy: Policy, engine: Engine) -> bool:
    """Whether the engine reads a reply in a chunk as it reads it one token a step."""
    if policy.context_length is not None and policy.context_length < 7 + 2 * NEW_TOKENS + max(REPLIES):
        return False
    engine.reads_chunks = True
    try:
        with shrunken_windows(policy.causal, engine.model):
            return agrees(policy, engine, _OneReply(policy.text_config.vocab_size))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # any model is possible: one token a step works for all
        return False
    finally:
        engine.clear_graphs()  # of the small windows


@torch.no_grad()
def agrees(policy: Policy, sampler: Sampler, replies: _OneReply | None = None) -> bool:
    """Whether sampled log-probs, in rows of different lengths, are those of a plain forward pass. One prompt is longer
    than a shrunken window, one completion grows beyond it."""
    size = policy.text_config.vocab_size
    prompts = [[i % size for i in range(1, 8)], [8 % size]]
    width = NEW_TOKENS if replies is None else 2 * NEW_TOKENS + max(REPLIES)
    done = sampler.sample(Request(prompts, NEW_TOKENS, None, 0, 0, [0, 1], 64, replies=replies, max_tokens=width))
    for row, prompt in enumerate(prompts):
        completion = done.ids_BT[row, : int(done.lengths_B[row])]
        ids = torch.cat([torch.tensor(prompt, device=policy.device), completion])[None]
        positions = torch.arange(ids.shape[1], device=policy.device)[None] + policy.position_offset(len(prompt), width)
        with torch.compiler.set_stance("force_eager"):  # rows of one: no later pass would use what is compiled for them
            logprobs = policy.logits(policy.trunk(ids, positions))[0].log_softmax(-1)
        expected = logprobs[len(prompt) - 1 : -1].gather(1, completion[:, None])[:, 0]
        gap_T = (done.behaviour_BT[row, : len(completion)] - expected).abs()
        if replies is not None:
            last = next(turn for turn in reversed(replies.turns) if turn.sample == row)
            gap_T = gap_T[last.start : last.start + len(last.ids)]
        # Rounding to bfloat16 may send a token to other experts: of a few tokens, that changes one by much.
        if not (gap_T.median() <= 0.05 if policy.compute_dtype == torch.bfloat16 else gap_T.mean() <= 1e-3):
            return False
    return True
