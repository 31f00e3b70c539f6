"""The rubric a run goes by: a file in its folder, which may be changed while it runs."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from vigneron.errors import UserError, first_line
from vigneron.rubric.model import Rubric
from vigneron.rubric.read import normalised, read_rubric, rubric_version


@dataclass
class Book:
    """`rubric` is the file's, weights brought to a sum of one. What was read last stands until `refresh`."""

    path: Path
    rubric: Rubric = field(init=False)
    version: str = field(init=False)
    notices: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self._read()

    def _read(self) -> None:
        self._seen = self._stamp()  # before reading: what is changed meanwhile is seen the next time
        rubric, self.notices = normalised(read_rubric(self.path))
        self.rubric, self.version = rubric, rubric_version(rubric)

    def _stamp(self) -> tuple[int, int]:
        """One that ships is no file here, and never changes."""
        if not self.path.is_file():
            return 0, 0
        found = self.path.stat()
        return found.st_mtime_ns, found.st_size

    def refresh(self, check: Callable[[Rubric], None] = lambda rubric: None) -> list[str]:
        """Read the file again where it has changed; what is to be said of that. One that is broken, or that `check`
        refuses, changes nothing."""
        if self._stamp() == self._seen:
            return []
        before, rubric, notices = self.version, self.rubric, self.notices
        try:
            self._read()
            check(self.rubric)
        except (OSError, UserError) as error:
            self.rubric, self.version, self.notices = rubric, before, notices
            return [f"the rubric '{self.path}' was changed and cannot be used, so {before} stands: {first_line(error)}"]
        said = f"the rubric was changed: {self.version} instead of {before}, from the next step on"
        changed = [said] if self.version != before else []
        return [*changed, *self.notices]


class StandingBook(Book):
    """A rubric that does not change: the categories that are asked for, under the version of the whole."""

    def __init__(self, rubric: Rubric, categories: Collection[str]) -> None:
        whole, self.notices = normalised(rubric)
        self.path, self.version = Path(), rubric_version(rubric)
        kept = {name: category for name, category in whole.categories.items() if name in categories}
        self.rubric = whole.model_copy(update={"categories": kept})

    def refresh(self, check: Callable[[Rubric], None] = lambda rubric: None) -> list[str]:
        return []
