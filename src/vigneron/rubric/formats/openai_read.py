"""OpenAI's grader JSON as a rubric of one category.

Checked against OpenAI's guide to graders, the API reference and the types of its Python library: `string_check` (eq,
ne, like, ilike; the guide also says neq), `text_similarity` (fuzzy_match, bleu, gleu, meteor, cosine, rouge_1 to
rouge_5, rouge_l), `score_model`, `label_model`, `python` and `multi` with `calculate_output`; templates name `item.…`
and `sample.…`. There a grader that fails gives 0; here a failure is missing.
"""

import ast
from collections.abc import Collection, Mapping
from typing import Any

from vigneron.errors import UserError, did_you_mean
from vigneron.rubric.formats.openai_messages import item_of, plain, to_ours
from vigneron.rubric.formats.parts import (
    ONLY,
    NoCounterpart,
    fitting_name,
    item_from,
    left_out,
    none_left,
    renamed,
    said_of,
)
from vigneron.rubric.model import AnyItem, Category, Rubric
from vigneron.values import is_number

LONGEST = 10_000
Sum = dict[str, float]
"""The weight of each grader; under "" the constant."""


def weighted_sum(formula: str, names: Collection[str], where: str) -> Sum:
    try:
        if len(formula) > LONGEST:
            raise ValueError("it is too long")
        return _sum(ast.parse(formula.strip(), mode="eval").body, names)
    except (SyntaxError, RecursionError, ValueError, ZeroDivisionError, OverflowError, MemoryError) as error:
        why = str(error) if type(error) is ValueError else "it cannot be read"
        raise UserError(
            f"{where}: calculate_output {formula[:80]!r} is no weighted sum ({why}): a rubric's items are added up, "
            "so write it as in `0.7 * a + 0.3 * b`"
        ) from error


def _sum(node: ast.expr, names: Collection[str]) -> Sum:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return {"": float(value)}
        case ast.Name(id=name):
            if name not in names:
                raise ValueError(f"there is no grader '{name}'{did_you_mean(name, names)}")
            return {name: 1.0}
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _times(_sum(inner, names), -1.0)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return _sum(inner, names)
        case ast.BinOp(left=left, op=operator, right=right):
            return _combined(_sum(left, names), operator, _sum(right, names))
        case ast.Call(func=ast.Name(id=name)):
            raise ValueError(f"it has `{name}`")
    raise ValueError("it has more than sums and products with numbers")


def _combined(left: Sum, operator: ast.operator, right: Sum) -> Sum:
    match operator:
        case ast.Add():
            return _plus(left, right)
        case ast.Sub():
            return _plus(left, _times(right, -1.0))
        case ast.Mult() if set(right) <= {""}:
            return _times(left, right.get("", 0.0))
        case ast.Mult() if set(left) <= {""}:
            return _times(right, left.get("", 0.0))
        case ast.Div() if set(right) <= {""}:
            return {name: weight / right[""] for name, weight in left.items()}
    raise ValueError("it has more than sums and products with numbers")


def _plus(left: Sum, right: Sum) -> Sum:
    return {name: left.get(name, 0.0) + right.get(name, 0.0) for name in {**left, **right}}


def _times(of: Sum, factor: float) -> Sum:
    return {name: weight * factor for name, weight in of.items()}


OPERATIONS = {"eq": "equals", "ne": "differs", "neq": "differs", "like": "includes", "ilike": "includes_any_case"}
METRICS = {"fuzzy_match": "ratio", "rouge_1": "token_f1", "rouge_l": "rouge_l"}
COSINE_BY = "text-embedding-3-large"
RESPONSE = "{{ response }}"
ANY_CASE = "`eq` and `ne` mind case; `equals` and `differs` overlook case, and space and punctuation around a text"

Given = Mapping[str, Any]
Read = tuple[dict[str, Any], list[str]]
"""What the item says, and what is to be said of it."""


def rubric_of(given: Any, where: str) -> tuple[Rubric, list[str]]:
    if isinstance(given, Mapping) and "type" not in given and isinstance(given.get("grader"), Mapping):
        given = given["grader"]
    if not isinstance(given, Mapping) or not isinstance(given.get("type"), str):
        raise UserError(f"{where}: a grader is a JSON object with a `type`")
    graders, weights, notices = _graders(given, where)
    items: list[AnyItem] = []
    lines: list[tuple[str, str]] = []
    for key, grader in graders.items():
        called = grader.get("name") if isinstance(grader, Mapping) and isinstance(grader.get("name"), str) else key
        name = fitting_name(str(called), [item.name for item in items], "grader")
        try:
            if weights[key] == 0:
                raise NoCounterpart("it has no weight in `calculate_output`")
            said, about = _item(name, grader)
            items.append(item_from({**said, "weight": weights[key]}))
            notices += renamed(str(called), name)
            lines += [(name, line) for line in about]
        except NoCounterpart as why:
            notices.append(left_out(f"the grader '{called}'", why))
    if not items:
        raise none_left(where, notices)
    is_multi = given["type"] == "multi"
    category = fitting_name(str(given.get("name") or ONLY), otherwise=ONLY) if is_multi else ONLY
    return Rubric(category_column=None, categories={category: Category(items=items)}), [*notices, *said_of(lines)]


def _graders(given: Given, where: str) -> tuple[Given, dict[str, float], list[str]]:
    if given["type"] != "multi":
        return {"grader": given}, {"grader": 1.0}, []
    graders, formula = given.get("graders"), given.get("calculate_output")
    if not isinstance(graders, Mapping) or not graders or not isinstance(formula, str):
        raise UserError(f"{where}: a multi grader has `graders`, by name, and `calculate_output`")
    found = weighted_sum(formula, list(graders), where)
    notices = []
    if found.get("", 0.0):
        notices.append(left_out(f"the constant {found['']:g} of calculate_output", "it is the same for every answer"))
    weights = {name: found.get(name, 0.0) for name in graders}
    for name, weight in weights.items():
        if weight < 0:
            raise UserError(
                f"{where}: calculate_output subtracts '{name}', and a rubric's weights are above 0: turn the grader "
                "round, so that more is better"
            )
    return graders, weights, notices


def _item(name: str, grader: Any) -> Read:
    if not isinstance(grader, Mapping):
        raise NoCounterpart("it is no JSON object")
    readers = {
        "string_check": _string_check,
        "text_similarity": _text_similarity,
        "score_model": _score_model,
        "label_model": _label_model,
    }
    kind = str(grader.get("type"))
    if kind == "python":
        raise NoCounterpart(
            "its source is not run here: put it into a module as a function of prompts, completions and columns, and "
            "name that with `flow: python`"
        )
    if kind not in readers:
        raise NoCounterpart(f"`type: {kind}` has no counterpart")
    said, notices, used = readers[kind](name, grader)
    more = sorted(set(grader) - {"type", "name", "input", *used})
    return said, [*notices, *([left_out(", ".join(f"`{key}`" for key in more), "no counterpart")] if more else [])]


def _string_check(name: str, grader: Given) -> tuple[dict[str, Any], list[str], set[str]]:
    operation = OPERATIONS.get(str(grader.get("operation")))
    if operation is None:
        raise NoCounterpart(f"`operation: {grader.get('operation')}` has no counterpart")
    reference = _reference(grader, either_way=operation in ("equals", "differs"))
    what = {"equals": "is", "differs": "is not", "includes": "includes", "includes_any_case": "includes"}[operation]
    said = {
        "name": name,
        "description": f"The answer {what} the reference.",
        "flow": "string_check",
        "operation": operation,
        "reference": reference,
    }
    return said, [ANY_CASE] if operation in ("equals", "differs") else [], {"operation", "reference"}


def _text_similarity(name: str, grader: Given) -> tuple[dict[str, Any], list[str], set[str]]:
    metric = str(grader.get("evaluation_metric"))
    common = {"name": name, "description": "The answer is like the reference.", "reference": _reference(grader)}
    used = {"evaluation_metric", "reference"}
    if metric == "cosine":
        return {**common, "flow": "semantic", "embedder": COSINE_BY, "alpha": 1.0}, [], used
    if metric not in METRICS:
        raise NoCounterpart(f"`{metric}` has no counterpart (available: {', '.join(METRICS)}, cosine)")
    said = {**common, "flow": "text_similarity", "metric": METRICS[metric]}
    return (
        said,
        [f"`{metric}` is `{METRICS[metric]}` here, which overlooks case: its numbers can differ a little"],
        used,
    )


def _reference(grader: Given, *, either_way: bool = True) -> str:
    """The side that is not the answer. Ours always compares the whole answer."""
    sides = [grader.get("input"), grader.get("reference")]
    if not all(isinstance(side, str) for side in sides):
        raise NoCounterpart("it has no texts under `input` and `reference`")
    given, reference = (to_ours(str(side)) for side in sides)
    if either_way and reference.strip() == RESPONSE:
        given, reference = reference, given
    if given.strip() != RESPONSE or RESPONSE in reference:
        raise NoCounterpart("it does not compare the whole answer (`{{ sample.output_text }}`) with something else")
    return reference


def _score_model(name: str, grader: Given) -> tuple[dict[str, Any], list[str], set[str]]:
    bounds = grader.get("range") or [0, 1]
    if not isinstance(bounds, list) or len(bounds) != 2 or not all(map(is_number, bounds)):
        raise NoCounterpart("its `range` is no pair of numbers")
    low, high = bounds
    if high <= low:
        raise NoCounterpart(f"its `range` from {low} to {high} is empty")
    about, notices = "", _who(grader)
    if (low, high) != (0, 1):
        about = f"Where a score from {low:g} to {high:g} is asked for above: {low:g} is 0 here, and {high:g} is 1."
        notices.append(f"its range from {low:g} to {high:g} is 0 to 1 here; the scorer is told so")
    return item_of(name, grader.get("input"), about=about), notices, {"model", "range"}


def _label_model(name: str, grader: Given) -> tuple[dict[str, Any], list[str], set[str]]:
    labels, passing = grader.get("labels"), grader.get("passing_labels")
    if not (_are_texts(labels) and _are_texts(passing)):
        raise NoCounterpart("it has no `labels` and `passing_labels`")
    assert isinstance(labels, list)
    assert isinstance(passing, list)
    about = plain(
        f"Decide for one of these labels: {'; '.join(labels)}. The score is 1 for: {'; '.join(passing)}. "
        "For any other label it is 0.",
        ("{{", "{%", "{#"),
    )
    notices = [*_who(grader), "its labels are told to the scorer, who gives 1 for those that pass"]
    return item_of(name, grader.get("input"), about=about), notices, {"model", "labels", "passing_labels"}


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)


def _who(grader: Given) -> list[str]:
    return [f"its model '{grader.get('model')}' is not the rubric's to name: give it as `reward.judge`, or --judge"]
