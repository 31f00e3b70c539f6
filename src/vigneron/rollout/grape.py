"""GRAPE's rollout (`rlmt-grape` §6.1): a question's G responses are fresh ones, revisions of the last ones, and the
dataset's own.

A fresh response is drawn under the category's generation prompt, a revision under the question, one of the last
iteration's responses and what was said of it then. What trains is the question with the response, so the text that a
response is trained under is not always the one that it was drawn under.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from vigneron.batch import Batch, concatenate, to_device
from vigneron.core.draws import keyed_uniform
from vigneron.data.prompts import Row, columns_of, completion_text, prompt_text, prompts_token_ids
from vigneron.rollout.demonstrations import Demonstrations
from vigneron.rollout.on_policy import OnPolicy, as_completion
from vigneron.timing import phase

Origin = Literal["fresh", "revised", "demonstrated"]
# Positions of draws that are not of tokens.
OF_ORIGIN, OF_EARLIER = 2**40, 2**40 + 1
# Characters kept of what was said of a response.
LONGEST_FEEDBACK = 4_000


@dataclass(frozen=True)
class Earlier:
    """A response of the last iteration, and what was said of it."""

    response: str
    feedback: str


@dataclass(frozen=True)
class Mix:
    """How much of a group is of each origin. by probability: each sample draws its own. by proportion: the same number
    in every group."""

    fresh: float
    revised: float = 0.0
    demonstrated: float = 0.0
    by: Literal["probability", "proportion"] = "probability"

    @property
    def shares(self) -> dict[Origin, float]:
        whole = self.fresh + self.revised + self.demonstrated
        return {
            "fresh": self.fresh / whole,
            "revised": self.revised / whole,
            "demonstrated": self.demonstrated / whole,
        }

    def origins(self, draws: Sequence[float]) -> list[Origin]:
        """Of a group's samples, by a uniform draw for each."""
        if self.by == "proportion":
            return proportioned(self.shares, len(draws))
        return [_drawn(self.shares, draw) for draw in draws]


def proportioned(shares: Mapping[Origin, float], count: int) -> list[Origin]:
    """Whole numbers that come nearest to the shares, the largest remainders rounded up, the first origin first."""
    whole: dict[Origin, int] = {origin: int(share * count + 1e-9) for origin, share in shares.items()}
    by_remainder = sorted(shares, key=lambda origin: whole[origin] - shares[origin] * count)
    for origin in by_remainder[: count - sum(whole.values())]:
        whole[origin] += 1
    return [origin for origin, number in whole.items() for _ in range(number)]


def _drawn(shares: Mapping[Origin, float], draw: float) -> Origin:
    below = 0.0
    for origin, share in shares.items():
        below += share
        if draw < below:
            return origin
    return max(shares, key=lambda origin: shares[origin])


def _question(row: Row) -> str:
    """The same words in two categories are two questions: all columns count."""
    return hashlib.sha256(json.dumps(row, sort_keys=True, default=str).encode()).hexdigest()


@dataclass
class Memory:
    """The last iteration's responses to each question; a checkpoint keeps it."""

    earlier: dict[str, list[Earlier]] = field(default_factory=dict)

    def of(self, row: Row) -> list[Earlier]:
        return self.earlier.get(_question(row), [])

    def remember(self, batch: Batch, feedback_of: Callable[[Any], str]) -> None:
        """A step's responses take the place of the question's earlier ones. One without a reward is no ground to build
        on."""
        fresh: dict[str, list[Earlier]] = {}
        rewarded = (~batch.signals.rewards_B.isnan()).tolist()
        said = batch.samples.extras.get("rubric", (None,) * len(batch))
        for i, prompt in enumerate(batch.samples.prompts):
            if rewarded[i]:
                row = {"prompt": prompt, **{name: column[i] for name, column in batch.samples.columns.items()}}
                one = Earlier(completion_text(batch.samples.completions[i]), feedback_of(said[i])[:LONGEST_FEEDBACK])
                fresh.setdefault(_question(row), []).append(one)
        self.earlier.update(fresh)

    def entries(self) -> Iterator[tuple[str, Any]]:
        """By question. A question's list is replaced, never changed: a copy of the mapping is enough."""
        now = dict(self.earlier)
        return ((key, [[one.response, one.feedback] for one in some]) for key, some in now.items())

    def load(self, entries: Iterable[tuple[str, Any]]) -> None:
        self.earlier = {key: [Earlier(*one) for one in some] for key, some in entries}


@dataclass(frozen=True)
class GrapeRollout:
    """`rollout(rows, step, first)`. What has nothing to revise, or nothing left to show, is fresh."""

    on_policy: OnPolicy
    mix: Mix
    memory: Memory
    generation_prompt: Callable[[Row], Any]
    revision_prompt: Callable[[Row, Earlier], Any]
    trained_under: Literal["question", "generation_prompt"] = "question"

    def __call__(self, rows: Sequence[Row], step: int = 0, first: int = 0) -> Batch:
        size, policy = self.on_policy.group_size, self.on_policy.policy
        names = list(range(first * size, (first + len(rows)) * size))
        repeated = [row for row in rows for _ in range(size)]
        earlier = self._earlier(repeated, step, names)
        origins = self._origins(repeated, earlier, step, names)
        with phase("tokenize"):
            fresh_ids = self._ids([self.generation_prompt(row) for row in rows])
            trained_ids = self._ids([row["prompt"] for row in rows]) if self.trained_under == "question" else fresh_ids
            drawn_ids = [fresh_ids[i // size] for i in range(len(repeated))]
            too_long = self._revised_ids(drawn_ids, repeated, earlier, origins)
        drawn = [i for i, origin in enumerate(origins) if origin != "demonstrated"]
        shown = [i for i, origin in enumerate(origins) if origin == "demonstrated"]
        parts = []
        if drawn:
            batch = self.on_policy.of_samples(
                [repeated[i] for i in drawn], [drawn_ids[i] for i in drawn], step, [names[i] for i in drawn]
            )
            parts.append(under(batch, [trained_ids[i // size] for i in drawn]))
        if shown:
            parts.append(self._demonstrated([repeated[i] for i in shown], [names[i] for i in shown]))
        whole = concatenate(parts)
        if shown:
            places = drawn + shown
            whole = whole.rows(sorted(range(len(places)), key=places.__getitem__))
        return (
            whole.with_packing(share_prompts=policy.shares_prompts)
            .with_samples(
                extras={
                    **whole.samples.extras,
                    "origin": tuple(origins),
                    "drawn_under": self._drawn_under(repeated, earlier, origins),
                }
            )
            .with_signals(
                metrics={
                    **{
                        f"origin/{origin}": origins.count(origin) / len(origins)
                        for origin in ("revised", "demonstrated")
                    },
                    "origin/too_long": too_long / len(origins),
                }
            )
        )

    def _drawn_under(
        self, rows: Sequence[Row], earlier: Sequence[Earlier | None], origins: Sequence[Origin]
    ) -> tuple[str | None, ...]:
        """The text that the child was given, where it is not the question itself. What is shown was not drawn."""
        found: list[str | None] = []
        for row, one, origin in zip(rows, earlier, origins, strict=True):
            revised = origin == "revised" and one is not None
            asked = self.revision_prompt(row, one) if revised else self.generation_prompt(row)  # type: ignore[arg-type]
            same = origin == "demonstrated" or asked == row["prompt"]
            found.append(None if same else prompt_text(asked))
        return tuple(found)

    def _ids(self, prompts: Sequence[Any]) -> list[tuple[int, ...]]:
        return prompts_token_ids(self.on_policy.policy.tokenizer, prompts)

    def _earlier(self, rows: Sequence[Row], step: int, names: Sequence[int]) -> list[Earlier | None]:
        """For each sample one of the last iteration's responses to its question, by its own draw."""
        draws = keyed_uniform(self.on_policy.seed, step, torch.tensor(names), OF_EARLIER).tolist()
        known = [self.memory.of(row) for row in rows]
        return [some[int(draw * len(some))] if some else None for some, draw in zip(known, draws, strict=True)]

    def _origins(
        self, rows: Sequence[Row], earlier: Sequence[Earlier | None], step: int, names: Sequence[int]
    ) -> list[Origin]:
        draws = keyed_uniform(self.on_policy.seed, step, torch.tensor(names), OF_ORIGIN).tolist()
        size = self.on_policy.group_size
        origins: list[Origin] = []
        for start in range(0, len(rows), size):
            group = self.mix.origins(draws[start : start + size])
            for i, origin in enumerate(group):
                nothing = (origin == "revised" and earlier[start + i] is None) or (
                    origin == "demonstrated"
                    and (rows[start].get("answer") in (None, "") or "demonstrated" in origins[start:])
                )
                origins.append("fresh" if nothing else origin)
        return origins

    def _revised_ids(
        self,
        drawn_ids: list[tuple[int, ...]],
        rows: Sequence[Row],
        earlier: Sequence[Earlier | None],
        origins: list[Origin],
    ) -> int:
        """Puts the texts of revisions in their places. One that does not fit into the model is a fresh response; how
        many those are."""
        at = [i for i, origin in enumerate(origins) if origin == "revised"]
        found = self._ids([self.revision_prompt(rows[i], one) for i in at if (one := earlier[i]) is not None])
        limit, too_long = self.on_policy.policy.context_length, 0
        for i, ids in zip(at, found, strict=True):
            if limit is not None and len(ids) + self.on_policy.max_new_tokens > limit:
                origins[i] = "fresh"
                too_long += 1
            else:
                drawn_ids[i] = ids
        return too_long

    def _shown(self, row: Row) -> Row:
        asked = row["prompt"] if self.trained_under == "question" else self.generation_prompt(row)
        goes_on = {"completion": row["completion"]} if isinstance(row.get("completion"), str) else {}
        return {"prompt": asked, "answer": row["answer"], **goes_on}

    def _demonstrated(self, rows: Sequence[Row], names: Sequence[int]) -> Batch:
        """The dataset's answers as if they had been drawn: behind the text that the group trains behind, and nothing
        but the answer, whatever else the row's conversation holds."""
        policy, size = self.on_policy.policy, self.on_policy.group_size
        batch = Demonstrations(policy)([self._shown(row) for row in rows])
        return batch.with_samples(
            prompts=tuple(row["prompt"] for row in rows),
            completions=tuple(as_completion(row["prompt"], completion_text(row["answer"])) for row in rows),
            columns=columns_of(rows),
            group_B=to_device([name // size for name in names], policy.device),
            sample_B=to_device(list(names), policy.device),
            behaviour_BT=torch.full_like(batch.samples.behaviour_BT, torch.nan),
            drawn_BT=torch.full_like(batch.samples.behaviour_BT, torch.nan),
            drawn_ids=((),) * len(rows),
        ).with_signals(
            excluded_B=torch.zeros_like(batch.samples.truncated_B) if self.on_policy.mask_truncated else None
        )


def behind_drawn_text(batch: Batch) -> Batch:
    """Samples that were drawn, put back behind the text they were drawn under."""
    assert batch.samples.drawn_ids is not None
    return under(batch, batch.samples.drawn_ids).with_samples(
        behaviour_BT=batch.samples.drawn_BT, drawn_BT=batch.samples.drawn_BT
    )


def under(batch: Batch, prompt_ids: Sequence[tuple[int, ...]]) -> Batch:
    """The same completions behind other texts. What a policy thinks of them there is not known yet: NaN."""
    same = [now == before for now, before in zip(prompt_ids, batch.samples.prompt_ids, strict=True)]
    known_B = torch.tensor(same, device=batch.samples.behaviour_BT.device)
    spans = tuple(
        ((len(ids), len(ids) + spans[-1][1] - spans[0][0]),)
        for ids, spans in zip(prompt_ids, batch.samples.spans, strict=True)
    )
    return batch.with_samples(
        prompt_ids=tuple(prompt_ids),
        spans=spans,
        behaviour_BT=torch.where(known_B[:, None], batch.samples.behaviour_BT, torch.nan),
        drawn_BT=batch.samples.behaviour_BT,
        drawn_ids=batch.samples.prompt_ids,
        prompt_hidden_BH=None,
    )
