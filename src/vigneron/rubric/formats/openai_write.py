"""A category of a rubric as OpenAI's grader JSON: one grader for one item, for several a `multi` that adds them up."""

import re
from keyword import iskeyword
from typing import Any

from vigneron.rubric.formats.openai_messages import ANSWER, messages_of, to_theirs
from vigneron.rubric.formats.openai_read import ANY_CASE, COSINE_BY, METRICS, OPERATIONS
from vigneron.rubric.formats.parts import NoCounterpart, kept_apart, left_out, none_left, one_category, said_of
from vigneron.rubric.model import (
    AnyItem,
    JudgeItem,
    Rubric,
    SemanticItem,
    StringCheckItem,
    TextSimilarityItem,
    VerifyItem,
)
from vigneron.rubric.read import normalised

DEFAULT_MODEL = "gpt-4.1-mini-2025-04-14"
FUNCTIONS = ("min", "max", "abs", "floor", "ceil", "exp", "sqrt", "log")
OPERATION_OF = {ours: theirs for theirs, ours in OPERATIONS.items() if theirs != "neq"}
METRIC_OF = {ours: theirs for theirs, ours in METRICS.items()}


def graders_of(
    rubric: Rubric, where: str, *, category: str | None = None, model: str | None = None
) -> tuple[dict[str, Any], list[str]]:
    name, chosen = one_category(normalised(rubric)[0], category, "OpenAI's graders")
    notices = list(kept_apart(rubric, chosen))
    graders: dict[str, dict[str, Any]] = {}
    weights: dict[str, float] = {}
    lines: list[tuple[str, str]] = []
    for item in chosen.items:
        try:
            grader, said = _grader(item, model or DEFAULT_MODEL)
        except NoCounterpart as why:
            notices.append(left_out(f"'{item.name}'", why))
            continue
        key = _variable(item.name, graders)
        graders[key], weights[key] = {"name": item.name, **grader}, item.weight
        lines += [(item.name, line) for line in said]
    if not graders:
        raise none_left(where, notices)
    notices += said_of(lines)
    if model is None and any("model" in grader for grader in graders.values()):
        notices.append(f"a rubric names no judge: the graders name '{DEFAULT_MODEL}' (another one: --model)")
    if any("input" in grader and "model" not in grader for grader in graders.values()):
        notices.append(left_out("the description of an item that no model scores", "there is no place for it"))
    if len(graders) == 1:
        return next(iter(graders.values())), notices
    formula = " + ".join(f"{_number(weight)} * {key}" for key, weight in weights.items())
    return {"type": "multi", "name": name, "graders": graders, "calculate_output": formula}, notices


def _grader(item: AnyItem, model: str) -> tuple[dict[str, Any], list[str]]:
    if isinstance(item, StringCheckItem):
        grader = {"type": "string_check", **_sides(item), "operation": OPERATION_OF[item.operation]}
        return grader, [ANY_CASE] if item.operation in ("equals", "differs") else []
    if isinstance(item, TextSimilarityItem):
        metric = METRIC_OF[item.metric]
        grader = {"type": "text_similarity", **_sides(item), "evaluation_metric": metric}
        return grader, [f"`{item.metric}` is `{metric}` there: its numbers can differ a little"]
    if isinstance(item, SemanticItem):
        if (item.embedder, item.alpha, item.form) != (COSINE_BY, 1.0, "clip"):
            raise NoCounterpart(f"only `embedder: {COSINE_BY}` with `alpha: 1` and `form: clip` is OpenAI's `cosine`")
        return {"type": "text_similarity", **_sides(item), "evaluation_metric": "cosine"}, []
    if isinstance(item, JudgeItem | VerifyItem):
        scored = {"type": "score_model", "input": messages_of(item), "model": model, "range": [0, 1]}
        return scored, ["the question is `{{ item.prompt }}`, and there is no confidence"]
    raise NoCounterpart(f"`flow: {item.flow}` has no counterpart")


def _sides(item: StringCheckItem | TextSimilarityItem | SemanticItem) -> dict[str, str]:
    return {"input": ANSWER, "reference": to_theirs(item.reference, item)}


def _variable(name: str, taken: dict[str, Any]) -> str:
    """The item's name as a formula can hold it."""
    key = re.sub(r"\W", "_", name, flags=re.ASCII)
    key = f"g_{key}" if key[0].isdigit() or key in FUNCTIONS or iskeyword(key) else key
    return key if key not in taken else _variable(f"{key}_", taken)


def _number(weight: float) -> str:
    return repr(weight) if "e" not in repr(weight) else f"{weight:.20f}"
