"""Replies by a script, and what must hold of the conversations that a sampler makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from vigneron.core.draws import Sampling, sampled_logprobs
from vigneron.policy.model import Policy
from vigneron.rollout.engine.request import Completions, Turn


@dataclass
class Scripted:
    """Answers turn k of a sample with `lengths[sample][k]` tokens; after those it is over."""

    lengths: Sequence[Sequence[int]]
    width: int
    patience: int = 0
    turns: dict[int, list[Turn]] = field(default_factory=dict)

    def ask(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            self.turns.setdefault(turn.sample, []).append(turn)

    def take(self, samples: Sequence[int]) -> list[tuple[int, ...]]:
        return [self._reply(sample) for sample in samples]

    def _reply(self, sample: int) -> tuple[int, ...]:
        done = self.turns[sample]
        if len(done) > len(self.lengths[sample]):
            return ()
        reply = tuple(7 + (3 * len(done) + i + sample) % 90 for i in range(self.lengths[sample][len(done) - 1]))
        return reply if done[-1].start + len(done[-1].ids) + len(reply) < self.width else ()


def forced(policy: Policy, prompt: Sequence[int], completion: Sequence[int], sampling: Sampling | None) -> torch.Tensor:
    with torch.no_grad():
        whole = torch.tensor([[*prompt, *completion]], device=policy.device)
        logits = policy.model(whole).logits[0, len(prompt) - 1 : -1].float().cpu()
    return sampled_logprobs(logits, sampling or Sampling()).gather(1, torch.tensor(completion)[:, None])[:, 0]


def check(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    done: Completions,
    script: Scripted,
    sampling: Sampling | None,
    tolerance: float = 2e-4,
) -> None:
    """Turns and replies are where the script says, and each turn's log-probs are those of a plain pass over all."""
    for row, prompt in enumerate(prompts):
        ids = done.ids_BT[row, : int(done.lengths_B[row])].tolist()
        turns = script.turns[row]
        sampled = torch.zeros(len(ids), dtype=torch.bool)
        for turn in turns:
            assert ids[turn.start : turn.start + len(turn.ids)] == list(turn.ids)
            assert turn.ended == (turn.ids[-1] in policy.eos_ids)
            assert not set(turn.ids[:-1]) & policy.eos_ids
            sampled[turn.start : turn.start + len(turn.ids)] = True
        for number, (turn, after) in enumerate(pairwise(turns)):
            reply = ids[turn.start + len(turn.ids) : after.start]
            assert reply == [7 + (3 * (number + 1) + i + row) % 90 for i in range(script.lengths[row][number])]
        assert len(ids) == turns[-1].start + len(turns[-1].ids)
        behaviour = done.behaviour_BT[row, : len(ids)].cpu()
        assert (behaviour[~sampled] == 0).all()
        expected = forced(policy, prompt, ids, sampling)
        torch.testing.assert_close(behaviour[sampled], expected[sampled].to(behaviour.dtype), atol=tolerance, rtol=0)
