"""Load the rows of a config: from a built-in task or from files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from vigneron.config import Config, LevelCurriculumConfig, MethodOptions, RubricRewardConfig
from vigneron.config.values import template_columns
from vigneron.data.first_pass import read_all
from vigneron.data.held_out_prompts import HeldOutPrompts
from vigneron.data.levels import rows_by_level
from vigneron.data.pairs import read_pairs
from vigneron.data.prompts import Row
from vigneron.data.sources import SourceRows, SourceSpec, open_source
from vigneron.data.tasks import load_task
from vigneron.errors import UserError, did_you_mean
from vigneron.rubric.model import Rubric, needs_judge
from vigneron.rubric.read import read_rubric
from vigneron.rubric.rows import check_rubric_rows
from vigneron.run_data.readers import ScoreReader, measured_columns, reader_of, saved_reader


@dataclass(frozen=True)
class Data:
    """Training and held-out rows, with notices for the user about how they were read."""

    train: Sequence[Row]
    held_out: Sequence[Row]
    notices: tuple[str, ...] = ()


def load_data(config: Config) -> Data:
    """Load and check both splits. Errors name the row by its number."""
    data = _load_parts(config)
    if config.reward.kind == "rubric":
        _check_rubric(config.reward, data)
    if isinstance(config.curriculum, LevelCurriculumConfig):
        rows_by_level(data.train, config.curriculum, "the training data")
    if config.sampling.prompt is not None:
        _check_sampling_prompt(config.sampling.prompt, data.train)
    if config.method.shows_answers and not any(row.get("answer") for row in data.train):
        raise UserError("method.mix.demonstrated: no row has an `answer`: remove the key, or add answers")
    chat_keys = {
        "chat: minted": config.model.chat == "minted",
        "chat_template_kwargs": bool(config.model.chat_template_kwargs),
        "chat_date": config.model.chat_date is not None,
    }
    given = next((key for key, is_given in chat_keys.items() if is_given), None)
    if given is not None and all(isinstance(row["prompt"], str) for row in chain(data.train, data.held_out)):
        raise UserError(
            f"model.{given} has no effect on plain text prompts: remove it, or give prompts as "
            '[{"role": "user", "content": …}]'
        )
    if config.eval_every and "eval_every" in config.model_fields_set and not data.held_out:
        unheard = f"eval_every: {config.eval_every} has no effect without held-out data: set `data.held_out`"
        data = replace(data, notices=(*data.notices, unheard))
    return data


def _check_sampling_prompt(template: str, rows: Sequence[Row]) -> None:
    for number, row in enumerate(rows, start=1):
        for column in template_columns(template):
            if row.get(column) is None:
                has = did_you_mean(column, [name for name, value in row.items() if value is not None])
                raise UserError(f"sampling.prompt: row {number} of the training data has no column '{column}'{has}")


def _check_rubric(reward: RubricRewardConfig, data: Data) -> None:
    rubric = read_rubric(reward.file)
    check_rubric_data(rubric, data)
    judged = [item for category in rubric.categories.values() for item in category.items if needs_judge(item)]
    if reward.judge is not None and not judged:
        raise UserError(f"reward.judge has no effect: no item of the rubric '{reward.file}' is scored by a judge")
    if reward.held_out_file is not None and data.held_out:
        check_rubric_rows(read_rubric(reward.held_out_file), data.held_out, "`held_out`, for reward.held_out_file")


def check_rubric_data(rubric: Rubric, data: Data) -> None:
    """Check that every row has a known category and the columns that its items need."""
    for rows, of in ((data.train, "train"), (data.held_out, "held_out")):
        if rows:
            check_rubric_rows(rubric, rows, f"`{of}`")


def _load_parts(config: Config) -> Data:
    data = config.data
    if data.task is not None and config.method.reads == "recorded":
        raise UserError(
            f"data.task: the task '{data.task}' has no recorded samples: draw some with `vigneron sample RECIPE --out "
            "FILE.jsonl`, and give the files as `data.train` and `data.held_out`"
        )
    if data.task is not None:
        task = load_task(data.task)
        evaluated = data.held_out if isinstance(data.held_out, str) else "held_out"
        train, held_out = (task.rows(part, data.template) for part in ("train", evaluated))
        if config.method.reads == "pairs":
            train, held_out = (_task_pairs(rows, data.task) for rows in (train, held_out))
        if config.method.step_labels is not None:
            raise UserError(
                f"data.task: the task '{data.task}' has no labels of steps: give `data.train`, a file with the columns "
                "`prompt`, `completion` and `labels`"
            )
        if config.method.score_column is not None:
            train, held_out = (_with_scores(rows, config.method, f"the task {data.task}") for rows in (train, held_out))
        return Data(train, held_out)
    source = open_source(_spec(config, "train"))
    if data.held_out is None and data.held_out_split is None:
        rows, notices = read_source(config, source, "train")
        return Data(rows, [], tuple(notices))
    others, more = read_source(config, open_source(_spec(config, "held_out")), "held_out")
    prompts = HeldOutPrompts(others)
    rows, notices = read_source(config, source, "train", prompts)
    return Data(rows, others, (*notices, *more, *prompts.notices()))


def _spec(config: Config, part: str) -> SourceSpec:
    data = config.data
    given = data.train if part == "train" or data.held_out is None else data.held_out
    assert given is not None
    names = (given,) if isinstance(given, str) else tuple(given)
    split, key = (data.split, "data.split") if part == "train" else (data.held_out_split, "data.held_out_split")
    return SourceSpec(names, data.config, split, data.columns or {}, split_key=key)


def read_source(
    config: Config, source: SourceRows, part: str, held_out: HeldOutPrompts | None = None
) -> tuple[Sequence[Row], list[str]]:
    """The rows of a source, with prompts from the config's template and checked columns; and notices.

    Equal recorded samples are kept: a policy may write the same text twice. Rows of a large source are hashed as they
    are in the file; those of a small one as they are read, so that the run's copy can be compared with them."""
    recorded = config.method.reads == "recorded" and part == "train"
    reader = reader_of(config, part)
    return read_all(
        source,
        reader,
        measured=measured_columns(config, part),
        distinct=not recorded,
        one_answer=getattr(reader, "one_answer", False),
        held_out=held_out,
        hash_lines=source.is_large,
    )


def load_saved_rows(config: Config, path: Path, part: str) -> Sequence[Row]:
    """Read and check the rows in a run's folder, which may have been edited since the run started."""
    source = open_source(SourceSpec((str(path),)))
    if part == "held_out" and not len(source):
        return []
    rows, _ = read_all(source, saved_reader(config, part), measured=measured_columns(config, part), distinct=False)
    return rows


def _task_pairs(rows: Sequence[Row], task: str) -> list[Row]:
    if not all({"chosen", "rejected"} <= set(row) for row in rows):
        raise UserError(
            f"data.task: the task '{task}' has no preference pairs: give `data.train`, a file with the columns "
            "`prompt`, `chosen` and `rejected`, or the task `instructions`"
        )
    return read_pairs(rows, f"the task '{task}'")[0]


def load_rows(config: Config, path: str | Path) -> tuple[Sequence[Row], list[str]]:
    """The rows of a file, as the config's held-out rows; and notices."""
    spec = SourceSpec((str(path),), columns=config.data.columns or {})
    return read_source(config, open_source(spec), "held_out")


def _with_scores(rows: Sequence[Row], method: MethodOptions, where: str) -> list[Row]:
    """Rows of a task with their scores as floats, each from 0 to 1."""
    reader = ScoreReader(method)
    return [reader(row, f"'{where}', row {number}") for number, row in enumerate(rows, start=1)]
