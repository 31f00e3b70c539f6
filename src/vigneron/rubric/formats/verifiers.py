"""Convert the criteria of verifiers' rubric judge from and to rubrics.

Checked against PrimeIntellect-ai/verifiers, `verifiers/v1/judges/rubric.py`: a .json or .toml file, a list of criteria
or an object with `criteria`, each {name, text, weight, choices}; the default `weight` is 1 and the default `choices`
are no and yes. Choices are ordered from worst to best, evenly spaced between 0 and 1; the reward is the weighted mean.
Weights are at least 0.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from vigneron.errors import UserError
from vigneron.rubric.formats.openai_messages import plain
from vigneron.rubric.formats.parts import (
    DEFAULT_CATEGORY,
    NoCounterpart,
    fitting_name,
    format_only_notices,
    item_from,
    left_out,
    none_left,
    one_category,
    renamed,
)
from vigneron.rubric.model import AnyItem, Category, JudgeItem, Rubric, VerifyItem
from vigneron.rubric.prompts import SCORE

BINARY = ["no", "yes"]
CRITIQUE = (
    "Read the criterion, then the response. Quote what in the response bears on it, and say what is lacking. "
    "Do not score it."
)
LEVELS = "Decide for one of these answers to the criterion; each has its score:\n"
KEYS = {"name", "text", "weight", "choices"}


def read_toml(text: str, where: str) -> Any:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{where}: not valid TOML: {error}") from error


def rubric_of(given: Any, where: str) -> tuple[Rubric, list[str]]:
    criteria = given.get("criteria") if isinstance(given, Mapping) else given
    if not isinstance(criteria, list) or not criteria:
        raise UserError(f"{where}: no list of `criteria`")
    notices: list[str] = []
    if isinstance(given, Mapping):
        notices += [left_out(f"`{key}`", "no counterpart") for key in sorted(set(given) - {"criteria"})]
    items: list[AnyItem] = []
    for number, criterion in enumerate(criteria, start=1):
        name, text, weight, choices = _criterion(criterion, f"{where}, criterion {number}")
        given_name, name = name, fitting_name(name, [item.name for item in items], f"criterion {number}")
        try:
            if weight == 0:
                raise NoCounterpart("its weight is 0")
            levels = {} if choices == BINARY else {"score": f"{SCORE}\n\n{_levels(choices)}"}
            item = {
                "name": name,
                "description": text,
                "weight": weight,
                "flow": "judge",
                "critique": CRITIQUE,
                **levels,
            }
            items.append(item_from(item))
            notices += renamed(given_name, name)
            more = sorted(set(criterion) - KEYS)
            notices += [left_out(f"`{key}` of '{name}'", "no counterpart") for key in more]
        except NoCounterpart as why:
            notices.append(left_out(f"'{given_name}'", why))
    if not items:
        raise none_left(where, notices)
    return Rubric(category_column=None, categories={DEFAULT_CATEGORY: Category(items=items)}), notices


def _criterion(given: Any, here: str) -> tuple[str, str, float, list[str]]:
    if not isinstance(given, Mapping) or not all(isinstance(given.get(key), str) for key in ("name", "text")):
        raise UserError(f"{here} needs strings `name` and `text`")
    weight, choices = given.get("weight", 1.0), given.get("choices", BINARY)
    if not isinstance(weight, int | float) or isinstance(weight, bool) or not weight >= 0:
        raise UserError(f"{here}: `weight` must be a number of at least 0, not {weight!r}")
    texts = isinstance(choices, list) and all(isinstance(choice, str) and choice for choice in choices)
    if not texts or len(choices) < 2 or len(set(choices)) < len(choices):
        raise UserError(f"{here}: `choices` must be two or more distinct strings, from worst to best")
    return given["name"], given["text"], weight, choices


def _levels(choices: list[str]) -> str:
    if any("\n" in choice or choice != choice.strip() for choice in choices):
        raise NoCounterpart("a choice contains a line break or surrounding spaces")
    scores = [place / (len(choices) - 1) for place in range(len(choices))]
    lines = [f"- {choice} = {score:.6g}" for choice, score in zip(choices, scores, strict=True)]
    return plain(LEVELS + "\n".join(lines), ("{{", "{%", "{#"))


def _choices(score: str | None) -> list[str] | None:
    """The choices that `_levels` wrote, or None for another prompt."""
    if score is None:
        return BINARY
    choices = re.findall(r"^- (.+) = [-+.\de]+$", score, re.MULTILINE)
    try:
        return choices if len(choices) > 1 and score == f"{SCORE}\n\n{_levels(choices)}" else None
    except NoCounterpart:
        return None


def criteria_of(rubric: Rubric, where: str, *, category: str | None = None) -> tuple[dict[str, Any], list[str]]:
    _, chosen = one_category(rubric, category, "verifiers' criteria")
    notices = list(format_only_notices(rubric, chosen))
    criteria = list(_written(chosen, notices))
    if not criteria:
        raise none_left(where, notices)
    return {"criteria": criteria}, notices


def _written(category: Category, notices: list[str]) -> Iterator[dict[str, Any]]:
    for item in category.items:
        if not isinstance(item, JudgeItem | VerifyItem):
            notices.append(left_out(f"'{item.name}'", f"`flow: {item.flow}` has no counterpart"))
            continue
        choices = _choices(item.score) if isinstance(item, JudgeItem) else BINARY if item.score is None else None
        if choices is None or (isinstance(item, JudgeItem) and item.critique != CRITIQUE):
            notices.append(left_out(f"the prompts of '{item.name}'", "a criterion is a single text"))
        if isinstance(item, VerifyItem):
            notices.append(f"'{item.name}': set `answer_field: {item.truth}` so that verifiers' judge sees the truth")
        criterion = {"name": item.name, "text": item.description, "weight": item.weight}
        yield criterion if choices in (None, BINARY) else {**criterion, "choices": choices}
