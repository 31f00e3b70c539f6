"""GRAPE's rollout (`rlmt-grape` §6.1): a question's G responses are fresh samples, revisions of earlier responses, and
the dataset's answer.

A fresh response is sampled from the category's generation prompt. A revision is sampled from the question, a
response of the last iteration and the feedback on it. The policy is trained on the question and the response, so the
prompt in training can differ from the prompt in sampling.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from vigneron.batch import Batch, concatenate, to_device
from vigneron.core.draws import OTHER_DRAWS, keyed_uniform
from vigneron.data.prompts import (
    Row,
    columns_of,
    completion_text,
    continuation,
    prompt_of,
    prompt_text,
    prompts_token_ids,
)
from vigneron.rollout.demonstrations import Demonstrations
from vigneron.rollout.grape_memory import EarlierResponse, Memory
from vigneron.rollout.on_policy import OnPolicy, as_completion
from vigneron.timing import phase

Origin = Literal["fresh", "revised", "demonstrated"]
ORIGINS: tuple[Origin, ...] = ("fresh", "revised", "demonstrated")
OF_ORIGIN, OF_EARLIER = OTHER_DRAWS, OTHER_DRAWS + 1
"""Positions of the draws of a response's origin, and of the earlier response that it revises."""


@dataclass(frozen=True)
class Mix:
    """Share of each origin in a group. `by` probability: every sample draws its origin; by proportion: every group has
    the same counts."""

    fresh: float
    revised: float = 0.0
    demonstrated: float = 0.0
    by: Literal["probability", "proportion"] = "probability"

    @property
    def shares(self) -> dict[Origin, float]:
        total = self.fresh + self.revised + self.demonstrated
        return {
            "fresh": self.fresh / total,
            "revised": self.revised / total,
            "demonstrated": self.demonstrated / total,
        }

    def origins(self, draws: Sequence[float]) -> list[Origin]:
        """The origins of a group's samples, given a uniform draw for each."""
        if self.by == "proportion":
            return proportional_origins(self.shares, len(draws))
        return [_drawn_origin(self.shares, draw) for draw in draws]


def proportional_origins(shares: Mapping[Origin, float], count: int) -> list[Origin]:
    """Origins in proportion to the shares, by the largest-remainder method, in the order of `shares`."""
    counts: dict[Origin, int] = {origin: int(share * count + 1e-9) for origin, share in shares.items()}
    by_remainder = sorted(shares, key=lambda origin: counts[origin] - shares[origin] * count)
    for origin in by_remainder[: count - sum(counts.values())]:
        counts[origin] += 1
    return [origin for origin, number in counts.items() for _ in range(number)]


def _drawn_origin(shares: Mapping[Origin, float], draw: float) -> Origin:
    cumulative = 0.0
    for origin, share in shares.items():
        cumulative += share
        if draw < cumulative:
            return origin
    return max(shares, key=lambda origin: shares[origin])


@dataclass(frozen=True)
class GrapeRollout:
    """`rollout(rows, step, first)`. A sample with nothing to revise or no dataset answer left is fresh."""

    on_policy: OnPolicy
    mix: Mix
    memory: Memory
    generation_prompt: Callable[[Row], Any]
    revision_prompt: Callable[[Row, EarlierResponse], Any]
    trained_under: Literal["question", "generation_prompt"] = "question"
    needs_revision: Callable[[Sequence[EarlierResponse]], bool] = bool
    """Whether a question with these earlier responses is answered by revisions too."""
    scaffolded: Callable[[Row, int, int], Any] | None = None
    """The prompt of a fresh response, given its step and its number, where it differs from response to response."""

    def __call__(self, rows: Sequence[Row], step: int = 0, first: int = 0) -> Batch:
        size, policy = self.on_policy.group_size, self.on_policy.policy
        if self.on_policy.environments is not None:
            rows = [self.on_policy.environments.prepared(row) for row in rows]
        names = list(range(first * size, (first + len(rows)) * size))
        repeated = [row for row in rows for _ in range(size)]
        earlier = self._earlier(repeated, step, names)
        origins = self._origins(repeated, earlier, step, names)
        with phase("tokenize"):
            fresh, drawn_ids = self._fresh(rows, repeated, step, names)
            asked = [row["prompt"] for row in rows]
            trained_ids = self._ids(asked, rows) if self.trained_under == "question" else drawn_ids[::size]
            too_long = self._revised_ids(drawn_ids, repeated, earlier, origins)
        drawn = [i for i, origin in enumerate(origins) if origin != "demonstrated"]
        shown = [i for i, origin in enumerate(origins) if origin == "demonstrated"]
        parts = []
        if drawn:
            batch = self.on_policy.of_samples(
                [repeated[i] for i in drawn], [drawn_ids[i] for i in drawn], step, [names[i] for i in drawn]
            )
            parts.append(with_prompts(batch, [trained_ids[i // size] for i in drawn]))
        if shown:
            parts.append(self._demonstrated([repeated[i] for i in shown], [names[i] for i in shown]))
        whole = concatenate(parts)
        if shown:
            places = drawn + shown
            whole = whole.rows(sorted(range(len(places)), key=places.__getitem__))
        drawn_under = self._drawn_under(fresh, repeated, earlier, origins)
        return (
            whole.with_packing(share_prompts=policy.shares_prompts, masked=not policy.unpacks())
            .with_samples(
                extras={
                    **whole.samples.extras,
                    "origin": tuple(origins),
                    "drawn_under": drawn_under,
                }
            )
            .with_metrics(
                {
                    **{f"origin/{origin}": origins.count(origin) / len(origins) for origin in ORIGINS},
                    "drawn/helped": sum(text is not None for text in drawn_under) / len(origins),
                    "drawn/too_long": too_long / len(origins),
                }
            )
        )

    def _fresh(
        self, rows: Sequence[Row], repeated: Sequence[Row], step: int, names: Sequence[int]
    ) -> tuple[list[Any], list[tuple[int, ...]]]:
        """The prompt of each sample if it is fresh, and its token ids."""
        if self.scaffolded is not None:
            prompts = [self.scaffolded(row, step, name) for row, name in zip(repeated, names, strict=True)]
            return prompts, self._ids(prompts, repeated)
        size, prompts = self.on_policy.group_size, [self.generation_prompt(row) for row in rows]
        ids = self._ids(prompts, rows)
        return [one for one in prompts for _ in range(size)], [one for one in ids for _ in range(size)]

    def _drawn_under(
        self,
        fresh: Sequence[Any],
        rows: Sequence[Row],
        earlier: Sequence[EarlierResponse | None],
        origins: Sequence[Origin],
    ) -> tuple[str | None, ...]:
        """The sampling prompt of each sample; None if it is the question itself, or for a dataset answer."""
        texts: list[str | None] = []
        for own, row, one, origin in zip(fresh, rows, earlier, origins, strict=True):
            prompt = self.revision_prompt(row, one) if origin == "revised" and one is not None else own
            same = origin == "demonstrated" or prompt == row["prompt"]
            texts.append(None if same else prompt_text(prompt))
        return tuple(texts)

    def _ids(self, prompts: Sequence[Any], rows: Sequence[Row]) -> list[tuple[int, ...]]:
        return prompts_token_ids(self.on_policy.policy.tokenizer, prompts, rows=rows)

    def _earlier(self, rows: Sequence[Row], step: int, names: Sequence[int]) -> list[EarlierResponse | None]:
        """For each sample a random one of the last iteration's responses to its question; None: nothing to revise."""
        draws = keyed_uniform(self.on_policy.seed, step, torch.tensor(names), OF_EARLIER).tolist()
        earlier = [self.memory.of(row) for row in rows]
        candidates = [some if self.needs_revision(some) else [] for some in earlier]
        return [some[int(draw * len(some))] if some else None for some, draw in zip(candidates, draws, strict=True)]

    def _origins(
        self, rows: Sequence[Row], earlier: Sequence[EarlierResponse | None], step: int, names: Sequence[int]
    ) -> list[Origin]:
        draws = keyed_uniform(self.on_policy.seed, step, torch.tensor(names), OF_ORIGIN).tolist()
        size = self.on_policy.group_size
        origins: list[Origin] = []
        for start in range(0, len(rows), size):
            group = self.mix.origins(draws[start : start + size])
            for i, origin in enumerate(group):
                unavailable = (origin == "revised" and earlier[start + i] is None) or (
                    origin == "demonstrated"
                    and (rows[start].get("answer") in (None, "") or "demonstrated" in origins[start:])
                )
                origins.append("fresh" if unavailable else origin)
        return origins

    def _revised_ids(
        self,
        drawn_ids: list[tuple[int, ...]],
        rows: Sequence[Row],
        earlier: Sequence[EarlierResponse | None],
        origins: list[Origin],
    ) -> int:
        """Set the prompt ids of revisions in `drawn_ids`. A revision that does not fit into the context becomes fresh;
        returns the number of those."""
        at = [i for i, origin in enumerate(origins) if origin == "revised"]
        prompts = [self.revision_prompt(rows[i], one) for i in at if (one := earlier[i]) is not None]
        revision_ids = self._ids(prompts, [rows[i] for i in at])
        limit, too_long = self.on_policy.policy.context_length, 0
        for i, ids in zip(at, revision_ids, strict=True):
            if limit is not None and len(ids) + self.on_policy.max_new_tokens > limit:
                origins[i] = "fresh"
                too_long += 1
            else:
                drawn_ids[i] = ids
        return too_long

    def _demonstration(self, row: Row) -> Row:
        prompt = row["prompt"] if self.trained_under == "question" else self.generation_prompt(row)
        completion = {"completion": row["completion"]} if isinstance(row.get("completion"), str) else {}
        return {**prompt_of(row), "prompt": prompt, "answer": row["answer"], **completion}

    def _demonstrated(self, rows: Sequence[Row], names: Sequence[int]) -> Batch:
        """The dataset's answers as samples after the group's training prompt, without a conversation's other turns."""
        policy, size = self.on_policy.policy, self.on_policy.group_size
        batch = Demonstrations(policy)([self._demonstration(row) for row in rows])
        return batch.with_samples(
            prompts=tuple(row["prompt"] for row in rows),
            completions=tuple(_given(row) for row in rows),
            columns=columns_of(rows),
            group_B=to_device([name // size for name in names], policy.device),
            sample_B=to_device(list(names), policy.device),
            behaviour_BT=torch.full_like(batch.samples.behaviour_BT, torch.nan),
            drawn_BT=torch.full_like(batch.samples.behaviour_BT, torch.nan),
            drawn_ids=((),) * len(rows),
        ).with_signals(
            excluded_B=torch.zeros_like(batch.samples.truncated_B) if self.on_policy.mask_truncated else None
        )


def _given(row: Row) -> Any:
    """The dataset's answer as the completion that is trained: of a text, as it follows the prompt."""
    answer = completion_text(row["answer"])
    if row.get("completion") is None:
        answer = continuation(row["prompt"], answer)
    return as_completion(row["prompt"], answer)


def with_sampling_prompts(batch: Batch) -> Batch:
    """The batch with the prompts that its completions were sampled from."""
    assert batch.samples.drawn_ids is not None
    return with_prompts(batch, batch.samples.drawn_ids).with_samples(
        behaviour_BT=batch.samples.drawn_BT, drawn_BT=batch.samples.drawn_BT
    )


def with_prompts(batch: Batch, prompt_ids: Sequence[tuple[int, ...]]) -> Batch:
    """The same completions after other prompts. Their log-probs there are not known yet: NaN."""
    same = [now == before for now, before in zip(prompt_ids, batch.samples.prompt_ids, strict=True)]
    known_B = torch.tensor(same, device=batch.samples.behaviour_BT.device)
    spans = tuple(
        tuple((len(ids) + start - spans[0][0], len(ids) + stop - spans[0][0]) for start, stop in spans)
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
