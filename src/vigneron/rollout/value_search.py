"""Search at test time by a critic's value: the best of N samples, or a beam search over steps.

The value of a text is that of the state behind it: what the critic expects of whatever follows.
"""

import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from vigneron.batch import Batch
from vigneron.core.draws import Sampling
from vigneron.data.prompts import Row, prompts_token_ids, texts_of
from vigneron.errors import UserError
from vigneron.policy.logprobs import Critic, values_before
from vigneron.policy.model import Policy
from vigneron.policy.rank_batches import map_microbatches
from vigneron.rollout.demonstrations import Demonstration, batch_of_texts
from vigneron.rollout.engine.sample import sample
from vigneron.rollout.engine.stop_strings import stop_strings
from vigneron.rollout.on_policy import OnPolicy, as_completion

Ids = tuple[int, ...]


@dataclass(frozen=True)
class ValueSearch:
    """What both searches need."""

    policy: Policy
    critic: Critic
    sampling: Sampling
    max_new_tokens: int
    seed: int = 0
    microbatch_tokens: int = 65536
    stop: tuple[str, ...] = ()

    @torch.no_grad()
    def values(self, texts: Sequence[tuple[Ids, Ids]]) -> list[float]:
        """V behind each (prompt, completion); an end token at the completion's end is not counted."""
        end = min(self.policy.eos_ids)
        written = [(p, c[:-1] if c and c[-1] in self.policy.eos_ids else c) for p, c in texts]
        whole = [Demonstration((*p, *c, end), ((len(p), len(p) + len(c) + 1),)) for p, c in written]
        batch = batch_of_texts(self.policy, [{"prompt": ""}] * len(whole), whole, [""] * len(whole))
        before = partial(values_before, self.policy, critic=self.critic)
        values_BT = map_microbatches(batch, self.microbatch_tokens, before)["values_BT"]
        last_B = torch.tensor([len(c) for _, c in written], device=values_BT.device)
        return [float(value) for value in values_BT.gather(1, last_B[:, None])[:, 0].tolist()]


def samples_of_each(search: ValueSearch, rows: Sequence[Row], count: int) -> Batch:
    """`count` samples for each row, one row's behind each other."""
    policy, sampling = search.policy, search.sampling
    return OnPolicy(
        policy,
        sampling,
        search.max_new_tokens,
        count,
        search.seed,
        search.microbatch_tokens,
        stop=search.stop,
    )(rows)


def best_by_value(search: ValueSearch, batch: Batch, count: int) -> Batch:
    """Of each row's `count` samples the one with the highest value."""
    texts = [(p, tuple(c)) for p, c in zip(batch.samples.prompt_ids, batch.samples.completion_lists(), strict=True)]
    values = search.values(texts)
    groups = range(0, len(batch), count)
    return batch.rows([max(range(at, at + count), key=values.__getitem__) for at in groups])


@dataclass(frozen=True)
class Beam:
    ids: Ids
    value: float = 0.0
    done: bool = False
    truncated: bool = False


def beam_search(search: ValueSearch, rows: Sequence[Row], *, beams: int, expand: int, separator: str = "\n") -> Batch:
    """Each round continues every unfinished beam `expand` times up to the next separator, and keeps the `beams`
    candidates with the highest value; the answer is the best finished one."""
    prompts = prompts_token_ids(search.policy.tokenizer, [row["prompt"] for row in rows])
    kept = [[Beam(())] for _ in rows]
    for number in range(search.max_new_tokens):
        # The numbers of a beam's samples do not depend on which beams of other rows are open.
        open_beams = [
            (at, beam, (at * beams + place) * expand)
            for at, own in enumerate(kept)
            for place, beam in enumerate(own)
            if not beam.done
        ]
        if not open_beams:
            break
        grown = _continued(search, prompts, open_beams, number, expand, separator)
        first_steps = texts_of(search.policy.tokenizer, [beam.ids for _, beam in grown]) if number == 0 else [separator]
        if not any(separator in text for text in first_steps):
            raise UserError(
                f"the separator {separator!r} occurs in none of {len(grown)} samples: give one that ends the steps of "
                "an answer (--separator), or use --best-of"
            )
        values = search.values([(prompts[at], beam.ids) for at, beam in grown])
        for at, own in enumerate(kept):
            candidates = {beam.ids: beam for beam in own if beam.done}
            for (place, beam), value in zip(grown, values, strict=True):
                if place == at:
                    candidates.setdefault(beam.ids, Beam(beam.ids, value, beam.done, beam.truncated))
            own[:] = sorted(candidates.values(), key=lambda beam: -beam.value)[:beams]
    best = [own[0] for own in kept]
    texts = texts_of(search.policy.tokenizer, [beam.ids for beam in best])
    whole = [
        Demonstration((*p, *beam.ids), ((len(p), len(p) + len(beam.ids)),), beam.truncated)
        for p, beam in zip(prompts, best, strict=True)
    ]
    completions = [as_completion(row["prompt"], text) for row, text in zip(rows, texts, strict=True)]
    return batch_of_texts(search.policy, rows, whole, completions)


def _continued(
    search: ValueSearch,
    prompts: Sequence[Ids],
    open_beams: Sequence[tuple[int, Beam, int]],
    number: int,
    expand: int,
    separator: str,
) -> list[tuple[int, Beam]]:
    """`expand` continuations of each beam, each up to its first separator, its end token or stop string, or the longest
    completion."""
    repeated = [(at, beam, first + i) for at, beam, first in open_beams for i in range(expand)]
    drawn = _drawn(search, [((*prompts[at], *beam.ids), len(beam.ids), name) for at, beam, name in repeated], number)
    stops = stop_strings(search.policy.tokenizer, search.stop)
    grown = []
    for (at, beam, _), ids in zip(repeated, drawn, strict=True):
        stop = None if stops is None else stops.end((*beam.ids, *ids), len(beam.ids))  # may begin in the beam
        ids = ids if stop is None else ids[: stop - len(beam.ids)]
        step = _first_step(search.policy, ids, separator)
        whole = (*beam.ids, *step)
        ended = bool(step) and (step[-1] in search.policy.eos_ids or len(whole) == stop)
        truncated = not ended and len(step) == len(ids)  # nothing follows: no separator, or it was the last token
        grown.append((at, Beam(whole, done=ended or truncated, truncated=truncated)))
    return grown


def _drawn(search: ValueSearch, starts: Sequence[tuple[Ids, int, int]], number: int) -> list[Ids]:
    """A continuation of each (text, its length without the prompt, sample number). Texts for which the context leaves
    less room than for the others are sampled apart."""
    longest = search.max_new_tokens - min(length for _, length, _ in starts)
    limit = search.policy.context_length or sys.maxsize
    by_room: dict[int, list[int]] = defaultdict(list)
    for place, (ids, length, _) in enumerate(starts):
        fits = len(ids) + longest <= limit
        by_room[longest if fits else min(search.max_new_tokens - length, limit - len(ids))].append(place)
    drawn: dict[int, Ids] = {}
    for room, places in by_room.items():
        done = sample(
            search.policy,
            [starts[place][0] for place in places],
            max_new_tokens=max(room, 1),
            sampling=search.sampling,
            seed=search.seed,
            step=number,
            sample_ids=[starts[place][2] for place in places],
            microbatch_tokens=search.microbatch_tokens,
            stop=search.stop,
        )
        for place, row, length in zip(places, done.ids_BT.tolist(), done.lengths_B.tolist(), strict=True):
            drawn[place] = tuple(row[: min(length, search.max_new_tokens - starts[place][1])])
    return [drawn[place] for place in range(len(starts))]


def _first_step(policy: Policy, ids: Ids, separator: str) -> Ids:
    """The tokens up to the one that completes the first separator; all of them if there is none."""
    counts = range(1, len(ids) + 1)
    ends = bisect_left(counts, True, key=lambda count: separator in texts_of(policy.tokenizer, [ids[:count]])[0])
    return ids[: ends + 1]
