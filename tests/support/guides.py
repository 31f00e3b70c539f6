"""The files and commands of a guide: what a reader would copy into an empty folder."""

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
FILE = re.compile(
    r"^`([\w.-]+\.\w+)`[^\n]*(?:\n[^\n`]+)*?:\n\n(?:```\w+\n(.*?)^```$|((?:    [^\n]*\n)+))", flags=re.M | re.S
)
"""A name at the beginning of a line, a colon at the end of the sentence, then a fenced or indented block."""


@dataclass(frozen=True)
class Guide:
    files: dict[str, str]
    commands: list[list[str]]
    """The words of each command, without `vigneron` and the comment."""

    def write(self, folder: Path) -> None:
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")


def read_guide(path: str, section: str | None = None) -> Guide:
    """Of a page in docs/, up to its second heading; or of one of its sections."""
    page = (DOCS / path).read_text(encoding="utf-8")
    page = (page if section is None else page.partition(f"\n## {section}\n")[2]).partition("\n## ")[0]
    files = {name: fenced or textwrap.dedent(indented) for name, fenced, indented in FILE.findall(page)}
    lines = re.findall(r"^    vigneron (.+)$", page, flags=re.M)
    return Guide(files, [shlex.split(line, comments=True) for line in lines])
