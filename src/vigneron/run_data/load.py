"""Load the rows of a config: from a built-in task or from files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vigneron.config import Config, LevelCurriculumConfig, MethodOptions, RubricRewardConfig, SemanticRewardConfig
from vigneron.config.values import template_columns
from vigneron.data.dataset import check_rows, distinct_rows, overlap_notices, read_rows
from vigneron.data.formats import with_prompts_and_answers, without_demonstrations
from vigneron.data.levels import rows_by_level
from vigneron.data.prompts import Row, completion_text
from vigneron.data.recorded import check_recorded, score_of, without_record
from vigneron.data.steps import LISTS, with_step_labels, with_step_texts
from vigneron.data.tasks import load_task
from vigneron.errors import UserError, did_you_mean
from vigneron.rollout.pairs import read_pairs
from vigneron.rubric.model import Rubric, needs_judge
from vigneron.rubric.read import read_rubric
from vigneron.rubric.rows import check_rubric_rows
from vigneron.text import letters_only


@dataclass(frozen=True)
class Data:
    """Training and held-out rows, with notices for the user about how they were read."""

    train: list[Row]
    held_out: list[Row]
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
    if config.model.chat == "minted" and all(isinstance(row["prompt"], str) for row in [*data.train, *data.held_out]):
        raise UserError(
            "model.chat: minted has no effect on plain text prompts: remove it, or give prompts as "
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
        train, held_out = (task.rows(part, data.template) for part in ("train", data.held_out or "held_out"))
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
    assert data.train is not None
    recorded = config.method.reads == "recorded"
    train, notices = (_recorded_rows if recorded else load_rows)(config, data.train)
    if data.held_out is None:
        return Data(train, [], tuple(notices))
    held_out, more = load_rows(config, data.held_out)
    return Data(train, held_out, (*notices, *more, *overlap_notices(train, held_out)))


def check_saved_rows(config: Config, data: Data, where: str) -> None:
    """Check the rows in a run's folder, which may have been edited since the run started."""
    for rows, part in ((data.train, "train"), (data.held_out, "held_out")):
        of = f"'{where}/{part}.jsonl'"
        if part == "held_out" and not rows:
            continue
        score = config.method.score_column
        if config.method.reads == "recorded" and part == "train":
            assert score is not None
            check_recorded(rows, score, config.method.score_range, of)
        elif config.method.reads == "pairs":
            read_pairs(rows, of)
        else:
            check_rows(rows, ["prompt", *(["answer"] if config.method.reads == "demonstrations" else [])], of)
        if score is not None and config.method.reads != "recorded":
            _with_scores(rows, config.method, of)
        if config.method.step_labels is not None:
            with_step_labels(rows, of, config.method.step_labels, check_separator=False)


def _task_pairs(rows: list[Row], task: str) -> list[Row]:
    if not all({"chosen", "rejected"} <= set(row) for row in rows):
        raise UserError(
            f"data.task: the task '{task}' has no preference pairs: give `data.train`, a file with the columns "
            "`prompt`, `chosen` and `rejected`, or the task `instructions`"
        )
    return read_pairs(rows, f"the task '{task}'")[0]


def checker_name(config: Config) -> str:
    """The name of the run's answer checker."""
    data = config.data
    return data.checker or ("equality" if data.task is None else load_task(data.task).checker)


def load_rows(config: Config, path: str | Path) -> tuple[list[Row], list[str]]:
    """The rows of a file, with prompts from the config's template and checked columns; and notices."""
    rows = _with_prompts(read_rows(path), config.data.template, path)
    if config.method.reads == "pairs":
        pairs, notices = read_pairs(rows, f"'{path}'")
        distinct, more = distinct_rows(pairs, f"'{path}'", one_answer=False)
        return distinct, [*notices, *more]
    steps = config.method.step_labels
    in_lists = any(isinstance(row.get(name), list) for row in rows for name in LISTS)
    if steps is not None:
        rows = with_step_texts(rows, f"'{path}'", steps)
    if config.method.reads == "recorded":
        rows = [without_record(row, config.method.score_column) for row in rows]
    if config.method.reads == "demonstrations" and (config.method.score_column or steps) is not None:
        rows = [_with_reference(row) for row in rows]
        if config.parent is None:
            _check_labelled(config.method, rows, path)
    rows = with_prompts_and_answers(rows, f"'{path}'")
    compares = any(part.kind in ("semantic", "binary") for part in config.reward.parts)
    demonstrations = config.method.reads == "demonstrations"
    recorded = config.parent is None and (compares or demonstrations)
    if config.parent is not None:
        rows = [without_demonstrations(row) if {"messages", "completion"} & set(row) else row for row in rows]
    needed = ["prompt", *(["answer"] if recorded else []), *(["input"] if _checker_needs_input(config) else [])]
    check_rows(rows, needed, f"'{path}'")
    if config.method.score_column is not None and config.method.reads != "recorded":
        rows = _with_scores(rows, config.method, path)
    if recorded:
        for number, row in enumerate(rows, start=1):
            if not can_be_compared(config, row["answer"]):
                raise UserError(f"data: '{path}', row {number}: the answer has no letters: set `reward.clean: none`")
            if demonstrations and not completion_text(row["answer"]).strip():
                raise UserError(f"data: '{path}', row {number}: the answer is empty: remove the row or fill it in")
    unlabelled: list[str] = []
    if steps is not None:
        rows, unlabelled = with_step_labels(rows, f"'{path}'", steps, check_separator=not in_lists)
    distinct, notices = distinct_rows(rows, f"'{path}'", one_answer=recorded and not demonstrations)
    return distinct, [*unlabelled, *notices]


def _recorded_rows(config: Config, path: str | Path) -> tuple[list[Row], list[str]]:
    """The recorded samples of a file, and notices. Equal rows are kept: a policy may write the same text twice."""
    rows, column = _with_prompts(read_rows(path), config.data.template, path), config.method.score_column
    assert column is not None
    return check_recorded(rows, column, config.method.score_range, f"'{path}'")


def _with_scores(rows: Sequence[Row], method: MethodOptions, path: str | Path) -> list[Row]:
    """Rows with their scores as floats, each from 0 to 1."""
    column = method.score_column
    assert column is not None
    check_rows(rows, [column], f"'{path}'")
    scored = []
    for number, row in enumerate(rows, start=1):
        score = score_of(row, column, (0.0, 1.0), f"data: '{path}', row {number}")
        if method.scores_above_zero and not score:
            raise UserError(
                f"data: '{path}', row {number}: {column} is 0, and `method: {method.name}` samples in proportion to "
                "it: leave out the row"
            )
        scored.append({**row, column: score})
    return scored


def _with_reference(row: Row) -> Row:
    """A sample with a score may have the prompt's reference as `answer`, as `vigneron sample` writes it: it is kept as
    `reference`, and the text that is trained on is the `completion`."""
    completion, answer = row.get("completion"), row.get("answer")
    if completion is None or answer is None or completion_text(answer) == completion_text(completion):
        return row
    return {"reference": answer, **{name: value for name, value in row.items() if name != "answer"}}


def _check_labelled(method: MethodOptions, rows: Sequence[Row], path: str | Path) -> None:
    """Raise for the first row without a text."""
    column = method.score_column or (method.step_labels and method.step_labels.column)
    for number, row in enumerate(rows, start=1):
        if any(row.get(name) not in (None, "", []) for name in ("completion", "answer", "messages")):
            continue
        is_pair = row.get("chosen") is not None and row.get("rejected") is not None
        pair = "; this row is a pair: use `method: dpo`, or write its texts as two rows" if is_pair else ""
        raise UserError(
            f"data: '{path}', row {number} has no 'completion': `method: {method.name}` reads `prompt`, `completion` "
            f"and `{column}`{pair}"
        )


def _checker_needs_input(config: Config) -> bool:
    return checker_name(config) == "sentiment_inversion"


def can_be_compared(config: Config, answer: Any) -> bool:
    """Whether the semantic reward can embed an answer: with `reward.clean` it must contain letters."""
    cleans = any(isinstance(part, SemanticRewardConfig) and part.clean == "letters" for part in config.reward.parts)
    return not cleans or bool(letters_only(completion_text(answer)))


def _with_prompts(rows: Sequence[Row], template: str | None, path: str | Path) -> list[Row]:
    if template is None:
        return list(rows)
    filled = []
    for number, row in enumerate(rows, start=1):
        try:
            filled.append({**row, "prompt": template.format(**row)})
        except (KeyError, IndexError, ValueError, AttributeError, TypeError, MemoryError, OverflowError) as error:
            raise UserError(f"data: '{path}', row {number} does not fit the template: {error!r}") from error
    return filled
