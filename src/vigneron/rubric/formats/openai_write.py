"""Convert a category of a rubric to OpenAI's grader JSON: one grader for one item, a `multi` grader for several."""

import re
from keyword import iskeyword
from typing import Any

from vigneron.rubric.formats.openai_messages import ANSWER, messages_of, to_openai
from vigneron.rubric.formats.openai_read import ANY_CASE, COSINE_BY, METRICS, OPERATIONS
from vigneron.rubric.formats.parts import (
    NoCounterpart,
    format_only_notices,
    item_notices,
    left_out,
    none_left,
    one_category,
)
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
    notices = list(format_only_notices(rubric, chosen))
    graders: dict[str, dict[str, Any]] = {}
    weights: dict[str, float] = {}
    lines: list[tuple[str, str]] = []
    for item in chosen.items:
        try:
            grader, about = _grader(item, model or DEFAULT_MODEL)
        except NoCounterpart as why:
            notices.append(left_out(f"'{item.name}'", why))
            continue
        key = _variable(item.name, graders)
        graders[key], weights[key] = {"name": item.name, **grader}, item.weight
        lines += [(item.name, line) for line in about]
    if not graders:
        raise none_left(where, notices)
    notices += item_notices(lines)
    if model is None and any("model" in grader for grader in graders.values()):
        notices.append(f"a rubric has no judge: the graders use '{DEFAULT_MODEL}' (change it with --model)")
    if any("input" in grader and "model" not in grader for grader in graders.values()):
        notices.append(left_out("the description of an item without a model", "no counterpart"))
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
        return grader, [f"`{item.metric}` becomes `{metric}`: its scores can differ slightly"]
    if isinstance(item, SemanticItem):
        if (item.embedder, item.alpha, item.form) != (COSINE_BY, 1.0, "clip"):
            raise NoCounterpart(
                f"only `embedder: {COSINE_BY}` with `alpha: 1` and `form: clip` equals OpenAI's `cosine`"
            )
        return {"type": "text_similarity", **_sides(item), "evaluation_metric": "cosine"}, []
    if isinstance(item, JudgeItem | VerifyItem):
        scored = {"type": "score_model", "input": messages_of(item), "model": model, "range": [0, 1]}
        return scored, ["the question is `{{ item.prompt }}`; confidence has no counterpart"]
    raise NoCounterpart(f"`flow: {item.flow}` has no counterpart")


def _sides(item: StringCheckItem | TextSimilarityItem | SemanticItem) -> dict[str, str]:
    return {"input": ANSWER, "reference": to_openai(item.reference, item)}


def _variable(name: str, taken: dict[str, Any]) -> str:
    """The item's name as an identifier for the formula."""
    key = re.sub(r"\W", "_", name, flags=re.ASCII)
    key = f"g_{key}" if key[0].isdigit() or key in FUNCTIONS or iskeyword(key) else key
    return key if key not in taken else _variable(f"{key}_", taken)


def _number(weight: float) -> str:
    return repr(weight) if "e" not in repr(weight) else f"{weight:.20f}"
