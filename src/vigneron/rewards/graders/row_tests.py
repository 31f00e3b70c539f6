"""The tests of a dataset's row, in the formats that datasets have."""

import json
import math
from collections.abc import Mapping
from typing import Any

from vigneron.errors import UserError, did_you_mean
from vigneron.sandbox.runner import AnyTest, ProgramTest, PythonTest

MAX_JSON = 20_000_000
NAN = "(1e999 - 1e999)"

CALLED = """
try:
    called = {name}
except NameError:
    called = Solution().{name}
nan = object()
def as_lists(value):
    if isinstance(value, float) and value != value:
        return nan
    return [as_lists(part) for part in value] if isinstance(value, (list, tuple)) else value
result = as_lists(called(*{arguments}))
assert result in ({expected}, {first}), "`{name}` is wrong"
"""
"""A test with `fn_name`: the expected value may stand in a list of its own. NaN is equal to NaN."""


class MalformedTests(ValueError):
    """The tests of one row are in no known format."""


def row_tests(row: Mapping[str, Any], column: str, where: str) -> list[AnyTest]:
    """Of the row's column: assertions as a string or a list of strings; inputs and outputs, also as JSON. Raises
    `MalformedTests`, and a `UserError` if there is no such column."""
    if column not in row:
        raise UserError(f"{where}: a row has no column '{column}'{did_you_mean(column, row)}")
    value = row[column]
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "[") and len(value) <= MAX_JSON:
        value = _json_or_text(value)
    if value is None:
        return []
    if isinstance(value, str):
        return [_python(value, row)] if value.strip() else []
    if isinstance(value, Mapping):
        return _inputs_outputs(value)
    if isinstance(value, list | tuple) and all(isinstance(test, str) for test in value):
        return [_python(test, row) for test in value if test.strip()]
    if isinstance(value, list | tuple) and all(isinstance(test, Mapping) for test in value):
        return [test for each in value for test in _inputs_outputs(each)]
    raise MalformedTests(
        f"column '{column}' is neither a string nor a list of strings, nor inputs with outputs "
        '(`{"inputs": […], "outputs": […]}` or `[{"input": …, "output": …}]`)'
    )


def _json_or_text(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict | list) else text


def _python(test: str, row: Mapping[str, Any]) -> PythonTest:
    imports = row.get("test_imports")
    setup = [*imports] if isinstance(imports, list | tuple) else [imports]
    entry = row.get("entry_point")
    texts = [text for text in (*setup, row.get("test_setup_code")) if isinstance(text, str) and text.strip()]
    return PythonTest(test, "\n".join(texts), entry if isinstance(entry, str) and entry.strip() else None)


def _inputs_outputs(case: Mapping[str, Any]) -> list[AnyTest]:
    inputs = case["inputs"] if "inputs" in case else [case["input"]] if "input" in case else None
    outputs = case["outputs"] if "outputs" in case else [case["output"]] if "output" in case else None
    if not isinstance(inputs, list | tuple) or not isinstance(outputs, list | tuple) or len(inputs) != len(outputs):
        raise MalformedTests("a test needs as many inputs as outputs (keys 'inputs' and 'outputs')")
    name = case.get("fn_name")
    if name is None:
        return [ProgramTest(_text(one), _text(two)) for one, two in zip(inputs, outputs, strict=True)]
    if not isinstance(name, str) or not name.isidentifier():
        raise MalformedTests("fn_name is not a name")
    made: list[AnyTest] = []
    for one, expected in zip(inputs, outputs, strict=True):
        if not isinstance(one, list | tuple):
            raise MalformedTests("with fn_name each of the inputs must be the list of a call's arguments")
        first = expected[0] if isinstance(expected, list) and len(expected) == 1 else expected
        arguments = _literal(tuple(one), nan=NAN)
        text = CALLED.format(name=name, arguments=arguments, expected=_literal(expected), first=_literal(first))
        made.append(PythonTest(text, entry=name))
    return made


def _literal(value: Any, nan: str = "nan") -> str:
    """Python's notation, with literals for numbers that have none."""
    if isinstance(value, float) and not math.isfinite(value):
        return nan if math.isnan(value) else "1e999" if value > 0 else "-1e999"
    if isinstance(value, list | tuple):
        parts = "".join(f"{_literal(part, nan)}, " for part in value).removesuffix(" " if len(value) == 1 else ", ")
        return f"[{parts}]" if isinstance(value, list) else f"({parts})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_literal(key, nan)}: {_literal(part, nan)}' for key, part in value.items())}}}"
    return repr(value)


def _text(value: Any) -> str:
    """Some rows have a list of lines."""
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value))
    return str(value)
