"""What a class of the user's checks before a run."""

from typing import Any

import pytest

from vigneron.config import PythonEnvironmentConfig
from vigneron.environments.build import check_environment
from vigneron.errors import UserError


class WithOptions:
    """Checks its options before a run."""

    def __init__(self, row: Any, seed: int, words: str) -> None: ...

    @staticmethod
    def check_options(words: str) -> None:
        if words == "missing":
            raise FileNotFoundError("no such list")

    def reply(self, messages: list[Any]) -> str:
        return ""


class Judged(WithOptions):
    """A method of the same name that is not for this."""

    def check_options(self, answer: str) -> None:  # type: ignore[override]
        raise AssertionError


def test_a_class_may_check_its_options_before_a_run() -> None:
    def check(name: str, words: str) -> None:
        given = {"kind": "python", "class": f"{__name__}:{name}", "options": {"words": words}}
        check_environment(PythonEnvironmentConfig.model_validate(given))

    check("WithOptions", "short")
    check("Judged", "missing")
    with pytest.raises(UserError, match=r"WithOptions' raised FileNotFoundError: no such list .* in `check_options`"):
        check("WithOptions", "missing")
