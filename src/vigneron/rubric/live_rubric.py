"""The rubric of a run: a file in its folder that may be edited while it runs."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from vigneron.errors import UserError, first_line
from vigneron.rubric.model import Rubric
from vigneron.rubric.read import normalised, read_rubric, rubric_version


@dataclass
class LiveRubric:
    """`rubric` is the file's content with weights normalised to sum to one, as of the last `refresh`."""

    path: Path
    rubric: Rubric = field(init=False)
    version: str = field(init=False)
    notices: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self._read()

    def _read(self) -> None:
        self._read_at = self._stamp()  # before reading, so that an edit during the read is noticed
        rubric, self.notices = normalised(read_rubric(self.path, in_run=True))
        self.rubric, self.version = rubric, rubric_version(rubric)

    def _stamp(self) -> tuple[int, int]:
        """Modification time and size; zeros for a bundled rubric, which never changes."""
        if not self.path.is_file():
            return 0, 0
        stat = self.path.stat()
        return stat.st_mtime_ns, stat.st_size

    def refresh(self, check: Callable[[Rubric], None] = lambda rubric: None) -> list[str]:
        """Read the file again if it has changed; returns notices. An edit that is broken or refused by `check` is
        ignored."""
        if self._stamp() == self._read_at:
            return []
        before, rubric, notices = self.version, self.rubric, self.notices
        try:
            self._read()
            check(self.rubric)
        except (OSError, UserError) as error:
            self.rubric, self.version, self.notices = rubric, before, notices
            return [
                f"the edited rubric '{self.path}' cannot be used, version {before} stays in use: {first_line(error)}"
            ]
        changed = [f"the rubric was edited: version {self.version} replaces {before} from the next step"]
        return [*(changed if self.version != before else ()), *self.notices]


class FixedRubric(LiveRubric):
    """A rubric that does not change, limited to some categories, with the version of the whole."""

    def __init__(self, rubric: Rubric, categories: Collection[str]) -> None:
        whole, self.notices = normalised(rubric)
        self.path, self.version = Path(), rubric_version(rubric)
        chosen = {name: category for name, category in whole.categories.items() if name in categories}
        self.rubric = whole.model_copy(update={"categories": chosen})

    def refresh(self, check: Callable[[Rubric], None] = lambda rubric: None) -> list[str]:
        return []
