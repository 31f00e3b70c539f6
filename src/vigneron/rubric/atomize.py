"""Atomization (`rlmt-grape` 5b): verifiable parts of a vague item, proposed by a judge and accepted by a person.

What a judge proposes is data until it has passed every check that a rubric file passes. It is never in a rubric before
a person said so.
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
from vigneron.sources.reading import FENCE, Unreadable

VERIFIABLE = ("regex", "length", "string_check", "json_schema", "verify")
MOST_PROPOSALS = 8
SYSTEM = f"""\
You help to write rubrics, by which answers to questions are scored. You are given one vague criterion. Propose up to
{MOST_PROPOSALS} smaller criteria that can be checked without judgement, so that less of it is left to opinion.
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
    """An item, or what is wrong with what was proposed."""

    given: Any
    item: AnyItem | None
    wrong: tuple[str, ...] = ()


def find_item(rubric: Rubric, name: str, category: str | None) -> tuple[str, JudgeItem]:
    """The category and the item. Only what a judge scores by its own opinion is vague."""
    if category is not None and category not in rubric.categories:
        known = did_you_mean(category, rubric.categories)
        raise UserError(f"--category: the rubric has no category '{category}'{known}")
    inside = [category] if category is not None else list(rubric.categories)
    found = [(place, item) for place in inside for item in rubric.categories[place].items if item.name == name]
    if not found:
        names = [item.name for place in inside for item in rubric.categories[place].items]
        raise UserError(f"the rubric has no item '{name}'{did_you_mean(name, names)}")
    if len(found) > 1:
        places = ", ".join(place for place, _ in found)
        raise UserError(f"an item '{name}' stands in {places}: choose one with --category")
    place, item = found[0]
    if not isinstance(item, JudgeItem):
        raise UserError(f"'{place}.{name}' has the flow {item.flow}: only items of the flow judge are vague")
    return place, item


def question_about(rubric: Rubric, category: str, item: JudgeItem) -> Conversation:
    of = rubric.categories[category]
    columns = sorted(columns_of(of))
    told = [
        f"Kind of questions: {category}" + (f"\n{of.about}" if of.about else ""),
        f"Columns of a question's row that are known: {', '.join(columns) or 'none'}",
        f"Criteria that are there already: {'; '.join(other.name for other in of.items)}",
        fenced("criterion", f"{item.name}\n{item.description}"),
        fenced("critic", item.critique),
        "Propose verifiable parts of this criterion.",
    ]
    return ("system", SYSTEM), ("user", "\n\n".join(told))


def columns_of(category: Category) -> set[str]:
    """Columns that the category's items name."""
    found: set[str] = set()
    for item in category.items:
        for key in ("critique", "score", "reference"):
            template = getattr(item, key, None)
            found |= needed_columns(template) if template else set()
        if isinstance(item, VerifyItem):
            found.add(item.truth)
    return found


def proposed(judge: Judge, question: Conversation) -> list[Any]:
    """What the judge proposes, unchecked. A reply that cannot be read is asked for once more."""
    wrong = ""
    for _ in range(2):
        (reply,) = judge.texts([question])
        if isinstance(reply, Failure):
            raise UserError(f"the judge {judge.name} made no proposal: it {reply.why}")
        try:
            return read_proposals(reply)
        except Unreadable as error:
            wrong = str(error)
            told = f'That could not be read: {wrong}. Reply with one JSON object and nothing else: {{"items": [ ... ]}}'
            question = (*question, ("assistant", reply), ("user", told))
    raise UserError(f"the judge {judge.name} made no proposal that could be read, twice: {wrong}")


def read_proposals(text: str) -> list[Any]:
    """The whole reply is {"items": […]}, in one fence at most."""
    block = FENCE.fullmatch(text.strip())
    try:
        found = json.loads(block[1] if block else text)
    except (ValueError, RecursionError):
        raise Unreadable("it was not one JSON object and nothing else") from None
    if not isinstance(found, dict) or list(found) != ["items"] or not isinstance(found["items"], list):
        raise Unreadable('its only key was not "items", with a list')
    if len(found["items"]) > MOST_PROPOSALS:
        raise Unreadable(f"it had more than {MOST_PROPOSALS} items")
    return found["items"]


def checked(
    given: Sequence[Any], taken: Collection[str], try_out: Callable[[AnyItem], object] = lambda item: None
) -> list[Proposal]:
    """`taken` are names that the category has. `try_out` may refuse an item with a `UserError`, as a grader does."""
    found: list[Proposal] = []
    names = set(taken)
    for each in given:
        proposal = _checked(each, names, try_out)
        if proposal.item is not None:
            names.add(proposal.item.name)
        found.append(proposal)
    return found


def _checked(given: Any, taken: Collection[str], try_out: Callable[[AnyItem], object]) -> Proposal:
    if not isinstance(given, dict):
        return Proposal(given, None, ("it is no JSON object",))
    if given.get("flow") not in VERIFIABLE:
        known = ", ".join(VERIFIABLE)
        return Proposal(given, None, (f"flow: one of {known}, not {given.get('flow')!r:.40}",))
    try:
        item = checked_item(given)
        if item.name in taken:
            return Proposal(given, None, (f"an item is named {item.name!r} already",))
        try_out(item)
    except UserError as error:
        return Proposal(given, None, tuple(str(error).splitlines()))
    return Proposal(given, item)


def with_parts(rubric: Rubric, category: str, name: str, parts: Sequence[AnyItem], share: float) -> Rubric:
    """The rubric's next version: `share` of the item's weight goes to its parts, by their own weights; they stand
    behind it, and the rest of the weight stays with it."""
    total = sum(part.weight for part in parts)
    items: list[AnyItem] = []
    for item in rubric.categories[category].items:
        if item.name != name:
            items.append(item)
            continue
        items.append(item.model_copy(update={"weight": item.weight * (1 - share)}))
        given = item.weight * share
        items += [part.model_copy(update={"weight": given * part.weight / total}) for part in parts]
    grown = rubric.categories[category].model_copy(update={"items": items})
    changes = {"version": next_version(rubric.version), "categories": {**rubric.categories, category: grown}}
    return rubric.model_copy(update=changes)


def check_share(share: float) -> None:
    if not 0 < share < 1:
        raise UserError(f"--share: a number between 0 and 1, not {share:g}: the item keeps the rest of its weight")


def next_version(version: str) -> str:
    """1 → 1.1 → 1.2; 2.0.9 → 2.0.10; draft → draft.1."""
    found = re.fullmatch(r"(.*\.)(\d+)", version, re.DOTALL)
    return f"{found[1]}{int(found[2]) + 1}" if found else f"{version}.1"
