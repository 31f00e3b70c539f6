"""Convert OpenAI's grader JSON to a rubric of one category.

Checked against OpenAI's guide to graders, the API reference and the types of its Python library: `string_check` (eq,
ne, like, ilike; the guide also has neq), `text_similarity` (fuzzy_match, bleu, gleu, meteor, cosine, rouge_1 to
rouge_5, rouge_l), `score_model`, `label_model`, `python` and `multi` with `calculate_output`; templates use `item.…`
and `sample.…`. In OpenAI's graders a failure gives 0; here it is missing.
"""

import ast
from collections.abc import Collection, Mapping
from typing import Any

from vigneron.errors import UserError, did_you_mean
from vigneron.rubric.formats.openai_messages import item_of, plain, to_vigneron
from vigneron.rubric.formats.parts import (
    DEFAULT_CATEGORY,
    NoCounterpart,
    fitting_name,
    item_from,
    item_notices,
    left_out,
    none_left,
    renamed,
)
from vigneron.rubric.model import AnyItem, Category, Rubric
from vigneron.values import is_number

MAX_FORMULA = 10_000
Sum = dict[str, float]
"""The weight of each grader, and the constant under ""."""


def weighted_sum(formula: str, names: Collection[str], where: str) -> Sum:
    try:
        if len(formula) > MAX_FORMULA:
            raise ValueError("it is too long")
        return _sum(ast.parse(formula.strip(), mode="eval").body, names)
    except (SyntaxError, RecursionError, ValueError, ZeroDivisionError, OverflowError, MemoryError) as error:
        why = str(error) if type(error) is ValueError else "it cannot be parsed"
        raise UserError(
            f"{where}: calculate_output {formula[:80]!r} is not a weighted sum ({why}): "
            "write it like `0.7 * a + 0.3 * b`"
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
            raise ValueError(f"it calls `{name}`")
    raise ValueError("only sums, and products with numbers, are supported")


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
    raise ValueError("only sums, and products with numbers, are supported")


def _plus(left: Sum, right: Sum) -> Sum:
    return {name: left.get(name, 0.0) + right.get(name, 0.0) for name in {**left, **right}}


def _times(of: Sum, factor: float) -> Sum:
    return {name: weight * factor for name, weight in of.items()}


OPERATIONS = {"eq": "equals", "ne": "differs", "neq": "differs", "like": "includes", "ilike": "includes_any_case"}
METRICS = {"fuzzy_match": "ratio", "rouge_1": "token_f1", "rouge_l": "rouge_l"}
COSINE_BY = "text-embedding-3-large"
RESPONSE = "{{ response }}"
ANY_CASE = "`eq` and `ne` are case-sensitive; `equals` and `differs` ignore case and surrounding spaces and punctuation"

Given = Mapping[str, Any]
Read = tuple[dict[str, Any], list[str]]
"""An item's keys, and notices."""


def rubric_of(given: Any, where: str) -> tuple[Rubric, list[str]]:
    if isinstance(given, Mapping) and "type" not in given and isinstance(given.get("grader"), Mapping):
        given = given["grader"]
    if not isinstance(given, Mapping) or not isinstance(given.get("type"), str):
        raise UserError(f"{where}: a grader must be a JSON object with a `type`")
    graders, weights, notices = _graders(given, where)
    items: list[AnyItem] = []
    lines: list[tuple[str, str]] = []
    for key, grader in graders.items():
        given_name = grader.get("name") if isinstance(grader, Mapping) and isinstance(grader.get("name"), str) else key
        name = fitting_name(str(given_name), [item.name for item in items], "grader")
        try:
            if weights[key] == 0:
                raise NoCounterpart("its weight in `calculate_output` is 0")
            keys, about = _item(name, grader)
            items.append(item_from({**keys, "weight": weights[key]}))
            notices += renamed(str(given_name), name)
            lines += [(name, line) for line in about]
        except NoCounterpart as why:
            notices.append(left_out(f"the grader '{given_name}'", why))
    if not items:
        raise none_left(where, notices)
    is_multi = given["type"] == "multi"
    category = (
        fitting_name(str(given.get("name") or DEFAULT_CATEGORY), otherwise=DEFAULT_CATEGORY)
        if is_multi
        else DEFAULT_CATEGORY
    )
    return Rubric(category_column=None, categories={category: Category(items=items)}), [*notices, *item_notices(lines)]


def _graders(given: Given, where: str) -> tuple[Given, dict[str, float], list[str]]:
    if given["type"] != "multi":
        return {"grader": given}, {"grader": 1.0}, []
    graders, formula = given.get("graders"), given.get("calculate_output")
    if not isinstance(graders, Mapping) or not graders or not isinstance(formula, str):
        raise UserError(f"{where}: a multi grader needs `graders`, by name, and `calculate_output`")
    sum_weights = weighted_sum(formula, list(graders), where)
    notices = []
    if sum_weights.get("", 0.0):
        notices.append(
            left_out(f"the constant {sum_weights['']:g} of calculate_output", "it is the same for every answer")
        )
    weights = {name: sum_weights.get(name, 0.0) for name in graders}
    for name, weight in weights.items():
        if weight < 0:
            raise UserError(
                f"{where}: calculate_output subtracts '{name}', and a rubric's weights are positive: invert the grader "
                "so that a higher score is better"
            )
    return graders, weights, notices


def _item(name: str, grader: Any) -> Read:
    if not isinstance(grader, Mapping):
        raise NoCounterpart("it is not a JSON object")
    readers = {
        "string_check": _string_check,
        "text_similarity": _text_similarity,
        "score_model": _score_model,
        "label_model": _label_model,
    }
    kind = str(grader.get("type"))
    if kind == "python":
        raise NoCounterpart(
            "its source is not executed: put it into a module as a reward function with TRL's signature, and use "
            "`flow: python`"
        )
    if kind not in readers:
        raise NoCounterpart(f"`type: {kind}` has no counterpart")
    keys, notices, used = readers[kind](name, grader)
    more = sorted(set(grader) - {"type", "name", "input", *used})
    return keys, [*notices, *([left_out(", ".join(f"`{key}`" for key in more), "no counterpart")] if more else [])]


def _string_check(name: str, grader: Given) -> tuple[dict[str, Any], list[str], set[str]]:
    operation = OPERATIONS.get(str(grader.get("operation")))
    if operation is None:
        raise NoCounterpart(f"`operation: {grader.get('operation')}` has no counterpart")
    reference = _reference(grader, either_way=operation in ("equals", "differs"))
    what = {"equals": "is", "differs": "is not", "includes": "includes", "includes_any_case": "includes"}[operation]
    keys = {
        "name": name,
        "description": f"The answer {what} the reference.",
        "flow": "string_check",
        "operation": operation,
        "reference": reference,
    }
    return keys, [ANY_CASE] if operation in ("equals", "differs") else [], {"operation", "reference"}


def _text_similarity(name: str, grader: Given) -> tuple[dict[str, Any], list[str], set[str]]:
    metric = str(grader.get("evaluation_metric"))
    common = {"name": name, "description": "The answer is like the reference.", "reference": _reference(grader)}
    used = {"evaluation_metric", "reference"}
    if metric == "cosine":
        return {**common, "flow": "semantic", "embedder": COSINE_BY, "alpha": 1.0}, [], used
    if metric not in METRICS:
        raise NoCounterpart(f"`{metric}` has no counterpart (supported: {', '.join(METRICS)}, cosine)")
    keys = {**common, "flow": "text_similarity", "metric": METRICS[metric]}
    return (
        keys,
        [f"`{metric}` becomes `{METRICS[metric]}`, which ignores case: its scores can differ slightly"],
        used,
    )


def _reference(grader: Given, *, either_way: bool = True) -> str:
    """The side that is not the answer; a rubric always compares the whole answer."""
    sides = [grader.get("input"), grader.get("reference")]
    if not all(isinstance(side, str) for side in sides):
        raise NoCounterpart("it needs strings `input` and `reference`")
    given, reference = (to_vigneron(str(side)) for side in sides)
    if either_way and reference.strip() == RESPONSE:
        given, reference = reference, given
    if given.strip() != RESPONSE or RESPONSE in reference:
        raise NoCounterpart("it does not compare the whole answer (`{{ sample.output_text }}`) with something else")
    return reference


def _score_model(name: str, grader: Given) -> tuple[dict[str, Any], list[str], set[str]]:
    bounds = grader.get("range") or [0, 1]
    if not isinstance(bounds, list) or len(bounds) != 2 or not all(map(is_number, bounds)):
        raise NoCounterpart("its `range` is not a pair of numbers")
    low, high = bounds
    if high <= low:
        raise NoCounterpart(f"its `range` from {low} to {high} is empty")
    about, notices = "", _model_notice(grader)
    if (low, high) != (0, 1):
        about = f"Where a score from {low:g} to {high:g} is asked for above: {low:g} is 0 here, and {high:g} is 1."
        notices.append(f"its range from {low:g} to {high:g} becomes 0 to 1; the score prompt says so")
    return item_of(name, grader.get("input"), about=about), notices, {"model", "range"}


def _label_model(name: str, grader: Given) -> tuple[dict[str, Any], list[str], set[str]]:
    labels, passing = grader.get("labels"), grader.get("passing_labels")
    if not (_are_texts(labels) and _are_texts(passing)):
        raise NoCounterpart("it needs `labels` and `passing_labels`")
    assert isinstance(labels, list)
    assert isinstance(passing, list)
    about = plain(
        f"Decide for one of these labels: {'; '.join(labels)}. The score is 1 for: {'; '.join(passing)}. "
        "For any other label it is 0.",
        ("{{", "{%", "{#"),
    )
    notices = [*_model_notice(grader), "its labels are listed in the score prompt, with a score of 1 for passing ones"]
    return item_of(name, grader.get("input"), about=about), notices, {"model", "labels", "passing_labels"}


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)


def _model_notice(grader: Given) -> list[str]:
    return [f"its model '{grader.get('model')}' is not part of a rubric: set it as `reward.judge` or with --judge"]
