"""Templates of OpenAI's graders and ours: `{{ item.x }}` is `{{ row.x }}`, `{{ sample.output_text }}` is
`{{ response }}`, and `{{ item.prompt }}` the question. What is more than a variable has no counterpart."""

import re

from vigneron.rubric.formats.parts import NoCounterpart
from vigneron.rubric.model import AnyItem

OUTPUT = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
PATH = r"[A-Za-z]\w*(?:\.[A-Za-z]\w*|\[\d+\])*"
ANSWER = "{{ sample.output_text }}"
QUESTION = "{{ item.prompt }}"


def to_ours(text: str) -> str:
    def ours(found: re.Match[str]) -> str:
        variable = found[1].strip()
        if variable == "sample.output_text":
            return "{{ response }}"
        if variable == "item.prompt":
            return "{{ question }}"
        column = re.fullmatch(rf"item\.({PATH})", variable, re.ASCII)
        if column is None:
            raise NoCounterpart(f"`{found[0]}` has no counterpart in a rubric")
        return f"{{{{ row.{column[1]} }}}}"

    plain(OUTPUT.sub("", text), ("{{", "{%", "{#"))
    return OUTPUT.sub(ours, text)


def to_theirs(text: str, item: AnyItem) -> str:
    own = {"item.name": item.name, "item.description": item.description}

    def theirs(found: re.Match[str]) -> str:
        variable = found[1].strip()
        if variable == "response":
            return ANSWER
        if variable == "question":
            return QUESTION
        if variable in own:
            return plain(own[variable])
        bracketed = re.sub(r"""\[(["'])([A-Za-z]\w*)\1\]""", r".\2", variable)
        column = re.fullmatch(rf"row\.({PATH})", bracketed, re.ASCII)
        if column is None:
            raise NoCounterpart(f"`{found[0]}` has no counterpart there")
        return f"{{{{ item.{column[1]} }}}}"

    plain(OUTPUT.sub("", text), ("{{", "{%", "{#"))
    return OUTPUT.sub(theirs, text)


def plain(text: str, marks: tuple[str, ...] = ("{{",)) -> str:
    """A text that is no template, on the other side either."""
    for mark in marks:
        if mark in text:
            raise NoCounterpart(f"it holds `{mark}`, which is read as the beginning of a template")
    return text
