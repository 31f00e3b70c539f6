"""A calculator: `calculate` is a tool for templates that know tools, `CalculatorGame` an environment for any template.

In a recipe:

    data: {task: sums-tool}
    environment: {kind: python, class: "vigneron.environments.calculator:CalculatorGame", max_turns: 4}
    reward: {kind: environment}
"""

import re
from decimal import Context, Decimal
from fractions import Fraction

from vigneron.data.prompts import Row
from vigneron.environments.columns import needed
from vigneron.environments.reply import Reply
from vigneron.policy.message_forms import Message, message_text

LONGEST = 200
DEEPEST = 20
LARGEST = 10**30
TOKEN = re.compile(r"[0-9]+(?:\.[0-9]+)?|[-+*/()]")
SAME = str.maketrans({"−": "-", "×": "*", "·": "*", "÷": "/"})


def calculate(expression: str) -> str:
    """Work out an expression of numbers.

    Args:
        expression: Numbers with + - * / and parentheses, as "12 * (3 + 4.5)".

    Returns:
        The result, exact if it is a whole number or has at most 15 digits.
    """
    tokens = _tokens(expression)
    value = _sum(tokens, 0)
    if tokens:
        raise ValueError(f"unexpected '{tokens[-1]}'")
    return _written(value)


def _tokens(expression: str) -> list[str]:
    """The tokens, the first one last."""
    if len(expression) > LONGEST:
        raise ValueError(f"the expression is longer than {LONGEST} characters")
    text, tokens, at = expression.translate(SAME), list[str](), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
        elif (match := TOKEN.match(text, at)) is not None:
            tokens.append(match[0])
            at = match.end()
        else:
            raise ValueError(f"unexpected {text[at]!r}")
    return tokens[::-1]


def _sum(tokens: list[str], depth: int) -> Fraction:
    value = _product(tokens, depth)
    while tokens and tokens[-1] in "+-":
        sign = 1 if tokens.pop() == "+" else -1
        value = _bounded(value + sign * _product(tokens, depth))
    return value


def _product(tokens: list[str], depth: int) -> Fraction:
    value = _number(tokens, depth)
    while tokens and tokens[-1] in "*/":
        if tokens.pop() == "*":
            value = _bounded(value * _number(tokens, depth))
            continue
        divisor = _number(tokens, depth)
        if divisor == 0:
            raise ValueError("division by zero")
        value = _bounded(value / divisor)
    return value


def _number(tokens: list[str], depth: int) -> Fraction:
    """A number, a number with a sign, or what is in parentheses."""
    if depth > DEEPEST:
        raise ValueError(f"more than {DEEPEST} parentheses or signs within each other")
    if not tokens:
        raise ValueError("the expression ends too early")
    token = tokens.pop()
    if token in "+-":
        return _number(tokens, depth + 1) * (1 if token == "+" else -1)
    if token == "(":
        value = _sum(tokens, depth + 1)
        if not tokens or tokens.pop() != ")":
            raise ValueError("a parenthesis is not closed")
        return value
    if not token[0].isdigit():
        raise ValueError(f"unexpected '{token}'")
    return _bounded(Fraction(token))


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator) > LARGEST**2 or abs(value) > LARGEST:
        raise ValueError("the numbers are too large")
    return value


def _written(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    rounded = Context(prec=15).divide(Decimal(value.numerator), Decimal(value.denominator))
    return f"{rounded.normalize():f}"


class CalculatorGame:
    """A turn `calc(EXPRESSION)` is answered with its result, or with what is wrong with it; any other turn is the final
    answer, which earns 1 if it is the row's `answer` and 0 if not."""

    def __init__(self, row: Row, seed: int, calls: int = 3) -> None:
        self.answer, self.limit, self.calls = needed(row, "answer", str), calls, 0

    def reply(self, messages: list[Message]) -> Reply:
        text = message_text(messages[-1]).strip()
        expression = read_call(text)
        if expression is None:
            right = text == self.answer
            return Reply(reward=float(right), done=True, log={"right": float(right)})
        self.calls += 1
        if self.calls > self.limit:
            return Reply(reward=0.0, done=True, log={"right": 0.0, "calls": 1})
        try:
            return Reply(calculate(expression), log={"calls": 1})
        except ValueError as error:
            return Reply(f"error: {error}", log={"calls": 1, "call_errors": 1})


def read_call(text: str) -> str | None:
    """The expression of `calc(EXPRESSION)`, if the text is that and nothing else."""
    text = text.strip()
    return text[len("calc(") : -1] if text.startswith("calc(") and text.endswith(")") else None
