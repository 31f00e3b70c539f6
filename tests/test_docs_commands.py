"""Every command on a documentation page names a verb and options that exist."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from vigneron.cli.main import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
COMMAND = re.compile(r"^ {4}(?:[A-Z_]+=\S+ )*vigneron ([a-z].*(?:\\\n.*)*)$|`vigneron ([a-z][^`\n]*)`", flags=re.M)


def words(text: str) -> list[str]:
    """Without the comment, line ends and the brackets of what is optional."""
    try:
        return shlex.split(re.sub(r"[\[\]]|\\\n", " ", text), comments=True)
    except ValueError:  # an apostrophe in a sentence
        return text.split()


VERBS: Any = typer.main.get_command(app)


def fault(given: list[str]) -> str | None:
    """What the command line would not know."""
    command = VERBS
    while hasattr(command, "commands"):
        if not given or not re.fullmatch(r"[a-z][\w-]*", given[0]):
            return None  # `vigneron NAME`, or the group alone
        if given[0] not in command.commands:
            return f"no verb '{given[0]}'"
        command, given = command.commands[given[0]], given[1:]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    options = [word.partition("=")[0] for word in given if re.match(r"--?[a-z]", word)]
    unknown = [option for option in options if option not in {*known, "--help", "--debug"}]
    return f"no option {unknown} of '{command.name}'" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_exist(page: Path) -> None:
    found = [block or inline for block, inline in COMMAND.findall(page.read_text(encoding="utf-8"))]
    faults = {text: why for text in found if (why := fault(words(text))) is not None}
    assert faults == {}
