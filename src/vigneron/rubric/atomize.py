"""Atomization (`rlmt-grape` 5b): a judge proposes verifiable parts of a vague item, and a person accepts them.

A proposal passes every check of a rubric file before it is shown. Only accepted ones are written to a rubric.
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from vigneron.errors import UserError, did_you_mean
from vigneron.rubric.fences import fenced
from vigneron.rubric.model import (
    AnyItem,
    Category,
    JudgeItem,
    Rubric,
    VerifyItem,
)
from vigneron.rubric.read import checked_item
from vigneron.rubric.templates import needed_columns
from vigneron.sources.client import Failure
from vigneron.sources.judges import Conversation, Judge
from vigneron.sources.reply_parsing import UnparsableReply, unfenced

VERIFIABLE = ("regex", "length", "string_check", "json_schema", "verify")
MAX_PROPOSALS = 8
SYSTEM = f"""\
You help to write rubrics, by which answers to questions are scored. You are given one vague criterion. Propose up to
{MAX_PROPOSALS} smaller criteria that can be checked without judgement, so that less of it is left to opinion.
Each must be a part of what the criterion means. Propose nothing that a good answer could fail. Fewer is better.

Each is a JSON object with "name" (short), "description" (one sentence), and "flow", which is one of:
- "regex": with "pattern" (Python's) and "expect": "present", "absent" or "whole"
- "length": with "unit": "characters", "words" or "sentences", and "at_least", "at_most" or both (whole numbers)
- "string_check": with "operation": "equals", "differs", "includes" or "includes_any_case", and "reference", a text that
  may name a column of the question's row, as in "{{{{ row.answer }}}}"
- "json_schema": with "json_schema" (the whole answer is JSON that it accepts)
- "verify": with "truth", the name of the column that holds the right answer, which a judge compares
"weight" may say how much it matters beside the others (1 where it is left out).

Reply with one JSON object and nothing else: {{"items": [ ... ]}}"""


@dataclass(frozen=True)
class Proposal:
    """A proposed item, or the errors that make it invalid."""

    given: Any
    item: AnyItem | None
    errors: tuple[str, ...] = ()


def find_item(rubric: Rubric, name: str, category: str | None) -> tuple[str, JudgeItem]:
    """The category and the item, which must have `flow: judge`."""
    if category is not None and category not in rubric.categories:
        known = did_you_mean(category, rubric.categories)
        raise UserError(f"--category: the rubric has no category '{category}'{known}")
    searched = [category] if category is not None else list(rubric.categories)
    matches = [(place, item) for place in searched for item in rubric.categories[place].items if item.name == name]
    if not matches:
        names = [item.name for place in searched for item in rubric.categories[place].items]
        raise UserError(f"the rubric has no item '{name}'{did_you_mean(name, names)}")
    if len(matches) > 1:
        places = ", ".join(place for place, _ in matches)
        raise UserError(f"the categories {places} all have an item '{name}': choose one with --category")
    place, item = matches[0]
    if not isinstance(item, JudgeItem):
        raise UserError(f"'{place}.{name}' has `flow: {item.flow}`: only items with `flow: judge` can be atomized")
    return place, item


def atomize_prompt(rubric: Rubric, category: str, item: JudgeItem) -> Conversation:
    chosen = rubric.categories[category]
    columns = sorted(columns_of(chosen))
    parts = [
        f"Kind of questions: {category}" + (f"\n{chosen.about}" if chosen.about else ""),
        f"Columns of a question's row that are known: {', '.join(columns) or 'none'}",
        f"Criteria that are there already: {'; '.join(other.name for other in chosen.items)}",
        fenced("criterion", f"{item.name}\n{item.description}"),
        *([] if item.critique is None else [fenced("critic", item.critique)]),
        "Propose verifiable parts of this criterion.",
    ]
    return ("system", SYSTEM), ("user", "\n\n".join(parts))


def columns_of(category: Category) -> set[str]:
    """The dataset's columns that the category's items use."""
    columns: set[str] = set()
    for item in category.items:
        for key in ("critique", "score", "reference"):
            template = getattr(item, key, None)
            columns |= needed_columns(template) if template else set()
        if isinstance(item, VerifyItem):
            columns.add(item.truth)
    return columns


def request_proposals(judge: Judge, prompt: Conversation) -> list[Any]:
    """The judge's proposals, unchecked. A reply that cannot be parsed is retried once."""
    reason = ""
    for _ in range(2):
        (reply,) = judge.complete([prompt])
        if isinstance(reply, Failure):
            raise UserError(f"the judge {judge.name} failed: it {reply.why}")
        try:
            return parse_proposals(reply)
        except UnparsableReply as error:
            reason = str(error)
            retry = (
                f'That could not be read: {reason}. Reply with one JSON object and nothing else: {{"items": [ ... ]}}'
            )
            prompt = (*prompt, ("assistant", reply), ("user", retry))
    raise UserError(f"the judge {judge.name} gave no readable proposals in two attempts: {reason}")


def parse_proposals(text: str) -> list[Any]:
    """The reply is {"items": […]}, optionally in a code fence."""
    try:
        reply = json.loads(unfenced(text))
    except (ValueError, RecursionError):
        raise UnparsableReply("it was not one JSON object and nothing else") from None
    if not isinstance(reply, dict) or list(reply) != ["items"] or not isinstance(reply["items"], list):
        raise UnparsableReply('its only key was not "items", with a list')
    if len(reply["items"]) > MAX_PROPOSALS:
        raise UnparsableReply(f"it had more than {MAX_PROPOSALS} items")
    return reply["items"]


def check_proposals(
    given: Sequence[Any], taken: Collection[str], try_out: Callable[[AnyItem], object] = lambda item: None
) -> list[Proposal]:
    """`taken` are the names in the category. `try_out` may refuse an item with a `UserError`, as building a grader
    does."""
    proposals: list[Proposal] = []
    names = set(taken)
    for each in given:
        proposal = _check(each, names, try_out)
        if proposal.item is not None:
            names.add(proposal.item.name)
        proposals.append(proposal)
    return proposals


def _check(given: Any, taken: Collection[str], try_out: Callable[[AnyItem], object]) -> Proposal:
    if not isinstance(given, dict):
        return Proposal(given, None, ("it is not a JSON object",))
    if given.get("flow") not in VERIFIABLE:
        known = ", ".join(VERIFIABLE)
        return Proposal(given, None, (f"flow: expected one of {known}, not {given.get('flow')!r:.40}",))
    try:
        item = checked_item(given)
        if item.name in taken:
            return Proposal(given, None, (f"the category already has an item {item.name!r}",))
        try_out(item)
    except UserError as error:
        return Proposal(given, None, tuple(str(error).splitlines()))
    return Proposal(given, item)


def with_parts(rubric: Rubric, category: str, name: str, parts: Sequence[AnyItem], share: float) -> Rubric:
    """The rubric's next version: `share` of the item's weight goes to its parts, in proportion to their weights, and
    the item keeps the rest. The parts follow the item."""
    total = sum(part.weight for part in parts)
    items: list[AnyItem] = []
    for item in rubric.categories[category].items:
        if item.name != name:
            items.append(item)
            continue
        items.append(item.model_copy(update={"weight": item.weight * (1 - share)}))
        to_parts = item.weight * share
        items += [part.model_copy(update={"weight": to_parts * part.weight / total}) for part in parts]
    extended = rubric.categories[category].model_copy(update={"items": items})
    changes = {"version": next_version(rubric.version), "categories": {**rubric.categories, category: extended}}
    return rubric.model_copy(update=changes)


def check_share(share: float) -> None:
    if not 0 < share < 1:
        raise UserError(
            f"--share: expected a number between 0 and 1, not {share:g} (the item keeps the rest of its weight)"
        )


def next_version(version: str) -> str:
    """1 → 1.1 → 1.2; 2.0.9 → 2.0.10; draft → draft.1."""
    match = re.fullmatch(r"(.*\.)(\d+)", version, re.DOTALL)
    return f"{match[1]}{int(match[2]) + 1}" if match else f"{version}.1"
