"""HealthBench's JSONL and rubrics.

Checked against HealthBench's own evaluation (openai/simple-evals, `healthbench_eval.py`) and published rows: each has a
`prompt` of messages, a `prompt_id`, and `rubrics: [{criterion, points, tags}]`. A criterion is met or not; the score is
the points of those met over the sum of the positive points. Points below 0 stand for what an answer should not do.

Every example has a rubric of its own, so it becomes a category, named by its `prompt_id`, and the JSONL itself is the
dataset: `category_column` is `prompt_id`. A criterion is a judge item that weighs |points|; one with points below 0
asks that the answer does *not* do it. With P and N the sums of positive and negative |points|, and scores of 0 and 1,
the reward is then (P · HealthBench's score + N) / (P + N): the same order of answers, and no reward below 0.
A rubric holds 100 categories. For more examples there is the generic form: one item for all, whose judge reads the
criteria from the row and scores all of them together. That is one score instead of one for each criterion.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vigneron.errors import UserError
from vigneron.rubric.formats.parts import (
    NoCounterpart,
    fitting_name,
    item_from,
    json_text,
    kept_apart,
    left_out,
    none_left,
    renamed,
)
from vigneron.rubric.model import AnyItem, Category, JudgeItem, Rubric

MOST_EXAMPLES = 100
NOT = "The answer does not do this: "
NAME_TAG = "item:"
"""HealthBench's criteria have no names: ours go into a tag of this kind."""
CRITIQUE = (
    "Read the criterion, then the response. Quote what in the response bears on it, and say what is lacking. "
    "Where a criterion lists examples, one of them is enough. Say at the end whether it is met."
)
GENERIC = (
    "These are the criteria for this answer, as JSON. `points` above 0 are earned by an answer that meets the "
    "criterion; points below 0 are lost by one that does.\n{{ row.rubrics }}"
)
GENERIC_CRITIQUE = (
    f"{GENERIC}\n\nGo through them one by one: say with a quote whether the response meets it, and its points."
)
GENERIC_SCORE = (
    f"{GENERIC}\n\nDecide for each criterion whether the response meets it. The score is the sum of the points of "
    "those that are met, divided by the sum of all points above 0; below 0 counts as 0, above 1 as 1."
)

Rows = Sequence[Mapping[str, Any]]


def rubric_of(rows: Rows, where: str, *, generic: bool = False) -> tuple[Rubric, list[str]]:
    if not rows:
        raise UserError(f"{where} has no rows")
    if generic:
        return _generic(rows, where)
    if len(rows) > MOST_EXAMPLES:
        raise UserError(
            f"{where} has {len(rows)} examples, and a rubric holds {MOST_EXAMPLES} categories, one for each: "
            "take fewer, or --generic for one item whose judge reads the criteria from the row"
        )
    notices: list[str] = []
    categories: dict[str, Category] = {}
    for number, row in enumerate(rows, start=1):
        here = f"{where}, row {number}"
        name = _category(row, here, categories)
        items = list(_items(row, here, notices))
        if not items:
            raise none_left(here, notices)
        categories[name] = Category(items=items)
    return Rubric(category_column="prompt_id", categories=categories), notices


def _generic(rows: Rows, where: str) -> tuple[Rubric, list[str]]:
    for number, row in enumerate(rows, start=1):
        for criterion in _criteria(row, f"{where}, row {number}"):
            _points(criterion, f"{where}, row {number}")
    item = JudgeItem(
        name="criteria",
        description="The answer meets the criteria of its row.",
        flow="judge",
        critique=GENERIC_CRITIQUE,
        score=GENERIC_SCORE,
    )
    notices = ["one item for all criteria of a row: which of them are met is in the critique, not in scores"]
    return Rubric(category_column=None, categories={"healthbench": Category(items=[item])}), notices


def _category(row: Mapping[str, Any], here: str, taken: Mapping[str, Category]) -> str:
    name = row.get("prompt_id")
    if not isinstance(name, str) or name != fitting_name(name):
        raise UserError(
            f"{here}: `prompt_id` names the category: a text of up to 60 letters, digits, spaces, '_', '.' and '-' "
            "(--generic needs none)"
        )
    if name in taken:
        raise UserError(f"{here}: the prompt_id '{name}' stands in an earlier row too")
    return name


def _criteria(row: Mapping[str, Any], here: str) -> list[Mapping[str, Any]]:
    criteria = row.get("rubrics")
    if not isinstance(criteria, list) or not criteria or not all(isinstance(c, Mapping) for c in criteria):
        raise UserError(f"{here} has no list of {{criterion, points, tags}} under `rubrics`")
    return criteria


def _points(criterion: Mapping[str, Any], here: str) -> tuple[str, float]:
    text, points = criterion.get("criterion"), criterion.get("points")
    if not isinstance(text, str) or not text or not isinstance(points, int | float) or isinstance(points, bool):
        raise UserError(f"{here}: a criterion has a text `criterion` and a number of `points`")
    return text, points


def _items(row: Mapping[str, Any], here: str, notices: list[str]) -> Iterator[AnyItem]:
    taken: list[str] = []
    for place, criterion in enumerate(_criteria(row, here), start=1):
        text, points = _points(criterion, here)
        tags = _tags(criterion.get("tags"))
        called = next((tag.removeprefix(NAME_TAG) for tag in tags if tag.startswith(NAME_TAG)), f"criterion {place}")
        name = fitting_name(called, taken, f"criterion {place}")
        try:
            if points == 0:
                raise NoCounterpart("it has no points")
            more = sorted(set(criterion) - {"criterion", "points", "tags"})
            said = {
                "name": name,
                "description": f"{NOT}{text}" if points < 0 else text,
                "weight": abs(points),
                "tags": [tag for tag in tags if not tag.startswith(NAME_TAG)],
                "flow": "judge",
                "critique": CRITIQUE,
            }
            yield item_from(said)
            taken.append(name)
            notices += renamed(called, name)
            notices += [left_out(f"{here}: `{key}` of '{name}'", "no counterpart") for key in more]
        except NoCounterpart as why:
            notices.append(left_out(f"{here}: '{name}'", why))


def _tags(given: Any) -> list[str]:
    """Texts, as in `axis:accuracy`; some copies of the data have a mapping instead."""
    if isinstance(given, Mapping):
        return [f"{key}:{value}" for key, value in given.items()]
    return [str(tag) for tag in given] if isinstance(given, list) else []


def text_of(rubric: Rubric, where: str) -> tuple[str, list[str]]:
    """A row for each category, in want of its questions."""
    notices: list[str] = []
    rows = []
    for name, category in rubric.categories.items():
        notices += (f"'{name}': {line}" for line in kept_apart(rubric, category, tags=False))
        criteria = list(_written(name, category, notices))
        if criteria:
            rows.append({"prompt_id": name, "prompt": [], "rubrics": criteria, "example_tags": []})
        else:
            notices.append(left_out(f"'{name}'", "none of its items is scored by a judge alone"))
    if not rows:
        raise none_left(where, notices)
    notices.append("a rubric has no questions: fill in `prompt`, and repeat a row for each question of its category")
    return "".join(json_text(row, indent=None) for row in rows), notices


def _written(name: str, category: Category, notices: list[str]) -> Iterator[dict[str, Any]]:
    for item in category.items:
        if not isinstance(item, JudgeItem):
            notices.append(left_out(f"'{name}.{item.name}'", f"`flow: {item.flow}` has no counterpart"))
            continue
        if item.critique != CRITIQUE or item.score is not None:
            notices.append(left_out(f"the prompts of '{name}.{item.name}'", "a criterion is one text"))
        undesired = item.description.startswith(NOT)
        points = int(item.weight) if item.weight == int(item.weight) else item.weight
        yield {
            "criterion": item.description.removeprefix(NOT),
            "points": -points if undesired else points,
            "tags": [*item.tags, f"{NAME_TAG}{item.name}"],
        }
