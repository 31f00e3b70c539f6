"""The rows a config asks for: a built-in task's, or a file's."""

from collections.abc import Sequence
from dataclasses import dataclass

from vigneron.config import Config
from vigneron.errors import UserError
from vigneron.rollout.dataset import check_rows, read_rows
from vigneron.rollout.prompts import Row
from vigneron.tasks.task import load_task


@dataclass(frozen=True)
class Data:
    train: list[Row]
    held_out: list[Row]


def load_data(config: Config) -> Data:
    """Both parts, checked: a row without a column that the reward needs is named by its number."""
    data = config.data
    needed = ["prompt"] if config.reward.kind == "python" else ["prompt", "answer"]
    if data.task is not None:
        task = load_task(data.task)
        return Data(task.rows("train", data.template), task.rows("held_out", data.template))
    assert data.train is not None
    parts = []
    for path in (data.train, data.held_out):
        rows = [] if path is None else read_rows(path)
        if path is not None:
            rows = _with_prompts(rows, data.template, path)
            check_rows(rows, needed, f"'{path}'")
        parts.append(rows)
    return Data(*parts)


def _with_prompts(rows: Sequence[Row], template: str | None, path: str) -> list[Row]:
    if template is None:
        return list(rows)
    made = []
    for number, row in enumerate(rows, start=1):
        try:
            made.append({**row, "prompt": template.format(**row)})
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise UserError(f"data: '{path}', row {number} cannot fill the template: {error!r}") from error
    return made
