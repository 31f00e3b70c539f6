"""The rollout of methods that train on given answers (SFT): prompts with their answers, as a batch of samples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch

from vigneron.batch import Batch, Samples, Span
from vigneron.data.formats import conversation_of, is_continued
from vigneron.data.prompts import Row, columns_of, completion_text, continuation, in_row, numbered
from vigneron.errors import UserError
from vigneron.policy.chat import Conversation, turn_end_ids
from vigneron.policy.model import Policy
from vigneron.policy.token_boundaries import continuations, plain_ids

LossOn = Literal["answers", "text"]


@dataclass(frozen=True)
class Demonstration:
    """A prompt with its answer as token ids, and the spans that the loss is on. `cut`: truncated to the context."""

    ids: tuple[int, ...]
    spans: tuple[Span, ...]
    cut: bool = False

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.ids[: self.spans[0][0]]

    @property
    def completion_ids(self) -> tuple[int, ...]:
        """From the first token with a loss to the last, including other roles' turns in between."""
        return self.ids[self.spans[0][0] : self.spans[-1][1]]


@dataclass(frozen=True)
class Demonstrations:
    """`rollout(rows, step)`: every answer with its end."""

    policy: Policy
    loss_on: LossOn = "answers"
    packing: bool = False
    sampled: bool = False

    def __call__(self, rows: Sequence[Row], step: int = 0, first: int = 0) -> Batch:
        texts = demonstrations(self.policy, rows, self.loss_on, sampled=self.sampled)
        answers = [completion_text(row["answer"]) for row in rows]
        return batch_of_texts(self.policy, rows, texts, answers, first, packing=self.packing)


def batch_of_texts(
    policy: Policy,
    rows: Sequence[Row],
    texts: Sequence[Demonstration],
    completions: Sequence[Any],
    first: int = 0,
    *,
    packing: bool = False,
) -> Batch:
    """Given texts as samples; log-probs of the policy that wrote them are set to 0."""
    ids = [text.completion_ids for text in texts]
    width, count, device = max(map(len, ids)), len(rows), policy.device
    return Batch(
        Samples(
            prompt_ids=tuple(text.prompt_ids for text in texts),
            completion_BT=torch.tensor([[*own, *[policy.pad_id] * (width - len(own))] for own in ids], device=device),
            completion_ids=tuple(ids),
            spans=tuple(text.spans for text in texts),
            behaviour_BT=torch.zeros(count, width, device=device),
            truncated_B=torch.tensor([text.cut for text in texts], device=device),
            group_B=torch.arange(first, first + count, device=device),
            sample_B=torch.arange(first, first + count, device=device),
            prompts=tuple(row["prompt"] for row in rows),
            completions=tuple(completions),
            columns=columns_of(rows),
        ),
        packing=replace(policy.packing(), pack=packing and policy.shares_prompts),
    )


def demonstrations(
    policy: Policy, rows: Sequence[Row], loss_on: LossOn = "answers", of: str = "the step", *, sampled: bool = False
) -> list[Demonstration]:
    """Rows as token ids, truncated to the model's context. `of` names the rows in error messages.

    `sampled`: the answers are what a policy wrote after the generation prompt, and not messages for the template.
    """
    plain = iter(_plain(policy, [row for row in rows if isinstance(row["prompt"], str)]))
    texts = []
    for number, row in enumerate(rows, start=1):
        place = numbered(row, number, of)
        if isinstance(row["prompt"], str):
            whole = next(plain)
        else:
            whole = in_row(*place, _sampled if sampled else _conversational, policy, row)
        texts.append(in_row(*place, within_context, whole, policy.context_length, loss_on))
    return texts


def _plain(policy: Policy, rows: Sequence[Row]) -> list[Demonstration]:
    """A `completion` follows its prompt directly, an `answer` as `continuation` says. One that is written with its end
    gets no second one."""
    if not rows:
        return []
    texts = [completion_text(row["answer"]) for row in rows]
    spaced = [
        text if row.get("completion") is not None else continuation(row["prompt"], text)
        for row, text in zip(rows, texts, strict=True)
    ]
    end, demonstrated = _end_id(policy), []
    for prompt, answer in continuations(partial(plain_ids, policy.tokenizer), [r["prompt"] for r in rows], spaced):
        ended = answer if answer[-1:] and answer[-1] in policy.eos_ids else (*answer, end)
        demonstrated.append(Demonstration((*prompt, *ended), ((len(prompt), len(prompt) + len(ended)),)))
    return demonstrated


def _conversational(policy: Policy, row: Row) -> Demonstration:
    """Exactly what the template writes for the conversation, up to the end of its last answer. The loss is on what the
    model would have written: everything after a generation prompt, with the special tokens that end the turn."""
    messages, first = conversation_of(row)
    talk = Conversation.of(policy.tokenizer, messages, row.get("tools"))
    if is_continued(messages, first):
        return _after_prompt(policy, talk, turn_end_ids(policy.tokenizer) or [_end_id(policy)])
    turns = [turn for turn in range(first, len(messages)) if messages[turn]["role"] == "assistant"]
    answers = talk.assistant_spans(turns)
    if answers is None:
        return _after_prompt(policy, talk, [_end_id(policy)])
    cuts = [place for span in answers.spans for place in span]
    ids, at = talk.cut_ids(answers.text, cuts)
    spans = list(zip(at[0::2], at[1::2], strict=True))
    if not answers.ended:
        ids.append(_end_id(policy))
        spans[-1] = (spans[-1][0], len(ids))
    return Demonstration(tuple(ids), tuple(spans))


def _sampled(policy: Policy, row: Row) -> Demonstration:
    messages, _ = conversation_of(row)
    talk = Conversation.of(policy.tokenizer, messages, row.get("tools"))
    return _after_prompt(policy, talk, turn_end_ids(policy.tokenizer) or [_end_id(policy)])


def _after_prompt(policy: Policy, talk: Conversation, end: Sequence[int]) -> Demonstration:
    """The last answer's text, as it is, between the generation prompt and an end."""
    last = len(talk.messages) - 1
    before = talk.before(last)
    ids, (start,) = talk.cut_ids(before + talk.text(last), [len(before)])
    return Demonstration((*ids, *end), ((start, len(ids) + len(end)),))


def within_context(whole: Demonstration, limit: int | None, loss_on: LossOn) -> Demonstration:
    start = whole.spans[0][0]
    if start == 0:
        raise UserError("the prompt has no tokens: give a prompt")
    if limit is not None and start >= limit:
        raise UserError(f"the prompt has {start} tokens, which fill the model's context of {limit}: shorten it")
    # The first token of a text cannot be predicted.
    spans = whole.spans if loss_on == "answers" else ((1, len(whole.ids)),)
    if limit is None or len(whole.ids) <= limit:
        return Demonstration(whole.ids, spans)
    within = tuple((start, min(stop, limit)) for start, stop in spans if start < limit)
    return Demonstration(whole.ids[:limit], within, cut=True)


def _end_id(policy: Policy) -> int:
    if not policy.eos_ids:
        raise UserError("model: it has no end-of-text token to train on: set `eos_token_id` in its config.json")
    own = policy.tokenizer.eos_token_id
    return own if own in policy.eos_ids else min(policy.eos_ids)
