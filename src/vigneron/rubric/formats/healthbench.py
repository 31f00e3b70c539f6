"""Convert HealthBench's JSONL from and to rubrics.

Checked against HealthBench's own evaluation (openai/simple-evals, `healthbench_eval.py`) and published rows: each has a
`prompt` of messages, a `prompt_id`, and `rubrics: [{criterion, points, tags}]`. A criterion is met or not; the score is
the points of those met over the sum of the positive points. Negative points are for what an answer should not do.

Every example has its own rubric, so it becomes a category named by its `prompt_id`, and the JSONL itself is the
dataset: `category_column` is `prompt_id`. A criterion is a judge item of weight |points|; one with negative points
requires that the answer does *not* do it. With P and N the sums of positive and negative |points|, and scores of 0 and
1, the reward is then (P · HealthBench's score + N) / (P + N): the same order of answers, and no negative reward. A
rubric has at most 100 categories. For more examples, the generic form has one item, whose judge reads the criteria from
the row and gives one score for all of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vigneron.errors import UserError
from vigneron.rubric.formats.parts import (
    NoCounterpart,
    fitting_name,
    format_only_notices,
    item_from,
    json_text,
    left_out,
    none_left,
    renamed,
)
from vigneron.rubric.model import AnyItem, Category, JudgeItem, Rubric

MAX_EXAMPLES = 100
NOT = "The answer does not do this: "
NAME_TAG = "item:"
"""Prefix of the tag that keeps an item's name, since HealthBench's criteria have none."""
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
    if len(rows) > MAX_EXAMPLES:
        raise UserError(
            f"{where} has {len(rows)} examples, each a category, and a rubric has at most {MAX_EXAMPLES}: "
            "use fewer, or --generic for one item whose judge reads the criteria from the row"
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
    notices = ["one item for all criteria of a row: the critique says which are met, there is one score"]
    return Rubric(category_column=None, categories={"healthbench": Category(items=[item])}), notices


def _category(row: Mapping[str, Any], here: str, taken: Mapping[str, Category]) -> str:
    name = row.get("prompt_id")
    if not isinstance(name, str) or name != fitting_name(name):
        raise UserError(
            f"{here}: `prompt_id` must be a category's name: up to 60 letters, digits, spaces, '_', '.' and '-' "
            "(not needed with --generic)"
        )
    if name in taken:
        raise UserError(f"{here}: duplicate prompt_id '{name}'")
    return name


def _criteria(row: Mapping[str, Any], here: str) -> list[Mapping[str, Any]]:
    criteria = row.get("rubrics")
    if not isinstance(criteria, list) or not criteria or not all(isinstance(c, Mapping) for c in criteria):
        raise UserError(f"{here} has no list of {{criterion, points, tags}} under `rubrics`")
    return criteria


def _points(criterion: Mapping[str, Any], here: str) -> tuple[str, float]:
    text, points = criterion.get("criterion"), criterion.get("points")
    if not isinstance(text, str) or not text or not isinstance(points, int | float) or isinstance(points, bool):
        raise UserError(f"{here}: a criterion needs a string `criterion` and a number `points`")
    return text, points


def _items(row: Mapping[str, Any], here: str, notices: list[str]) -> Iterator[AnyItem]:
    taken: list[str] = []
    for place, criterion in enumerate(_criteria(row, here), start=1):
        text, points = _points(criterion, here)
        tags = _tags(criterion.get("tags"))
        given = next((tag.removeprefix(NAME_TAG) for tag in tags if tag.startswith(NAME_TAG)), f"criterion {place}")
        name = fitting_name(given, taken, f"criterion {place}")
        try:
            if points == 0:
                raise NoCounterpart("its points are 0")
            more = sorted(set(criterion) - {"criterion", "points", "tags"})
            item = {
                "name": name,
                "description": f"{NOT}{text}" if points < 0 else text,
                "weight": abs(points),
                "tags": [tag for tag in tags if not tag.startswith(NAME_TAG)],
                "flow": "judge",
                "critique": CRITIQUE,
            }
            yield item_from(item)
            taken.append(name)
            notices += renamed(given, name)
            notices += [left_out(f"{here}: `{key}` of '{name}'", "no counterpart") for key in more]
        except NoCounterpart as why:
            notices.append(left_out(f"{here}: '{name}'", why))


def _tags(given: Any) -> list[str]:
    """Strings such as `axis:accuracy`; some copies of the data have a mapping."""
    if isinstance(given, Mapping):
        return [f"{key}:{value}" for key, value in given.items()]
    return [str(tag) for tag in given] if isinstance(given, list) else []


def text_of(rubric: Rubric, where: str) -> tuple[str, list[str]]:
    """A row for each category, without questions."""
    notices: list[str] = []
    rows = []
    for name, category in rubric.categories.items():
        notices += (f"'{name}': {line}" for line in format_only_notices(rubric, category, tags=False))
        criteria = list(_written(name, category, notices))
        if criteria:
            rows.append({"prompt_id": name, "prompt": [], "rubrics": criteria, "example_tags": []})
        else:
            notices.append(left_out(f"'{name}'", "none of its items has `flow: judge`"))
    if not rows:
        raise none_left(where, notices)
    notices.append("a rubric has no questions: fill in `prompt`, and copy the row for each question of its category")
    return "".join(json_text(row, indent=None) for row in rows), notices


def _written(name: str, category: Category, notices: list[str]) -> Iterator[dict[str, Any]]:
    for item in category.items:
        if not isinstance(item, JudgeItem):
            notices.append(left_out(f"'{name}.{item.name}'", f"`flow: {item.flow}` has no counterpart"))
            continue
        if item.critique != CRITIQUE or item.score is not None:
            notices.append(left_out(f"the prompts of '{name}.{item.name}'", "a criterion is a single text"))
        undesired = item.description.startswith(NOT)
        points = int(item.weight) if item.weight == int(item.weight) else item.weight
        yield {
            "criterion": item.description.removeprefix(NOT),
            "points": -points if undesired else points,
            "tags": [*item.tags, f"{NAME_TAG}{item.name}"],
        }
