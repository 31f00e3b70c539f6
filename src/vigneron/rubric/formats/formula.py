"""`calculate_output` of OpenAI's multigraders, read as a weighted sum: that is what a rubric's weights are."""

import ast
from collections.abc import Collection

from vigneron.errors import UserError, did_you_mean

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
