"""`vigneron process label`: label the steps of solutions by continuations from their ends."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vigneron.commands.judging import check_out
from vigneron.core.draws import Sampling
from vigneron.data.dataset import check_rows
from vigneron.data.prompts import Row, completion_text
from vigneron.data.sources import read_rows
from vigneron.data.steps import step_spans
from vigneron.errors import UserError
from vigneron.labels.live_sampling import NEW_TOKENS
from vigneron.labels.monte_carlo import MonteCarlo
from vigneron.rewards.checkers import Check, build_check, build_run_check
from vigneron.rollout.on_policy import OnPolicy

PART = 64
"""Rows that are labelled together, then written."""


@dataclass(frozen=True)
class ProcessLabelOptions:
    """The command's options. `source` is a run or a model; without a `file`, the run's training prompts."""

    source: str
    file: Path | None
    out: Path
    continuations: int = 8
    solutions: int | None = None
    hard: bool = False
    separator: str = "\n"
    checker: str | None = None
    temperature: float = 1.0
    max_new_tokens: int | None = None
    seed: int = 0


def label_steps(options: ProcessLabelOptions, tell: Callable[[str], None]) -> None:
    """Writes rows with `prompt`, `completion` and `labels`, which `process_model` reads. They are in OUT.part until
    all are done."""
    check_out(options.out)
    rows: Sequence[Row] | None = None if options.file is None else read_rows(options.file)
    if rows is not None:
        check_rows(rows, ["prompt"], f"'{options.file}'")
        # As this command writes it, beside a completion.
        rows = [{"answer": row["reference"], **row} if row.get("reference") is not None else row for row in rows]
    policy, own_rows, check, tokens, stop = _load(options, tell, needs_rows=rows is None)
    rows = own_rows if rows is None else rows
    given = [row.get("completion") not in (None, "") for row in rows]
    if any(given) and options.solutions is not None:
        raise UserError("--solutions samples solutions, and the rows have a `completion`: leave out one")
    if any(given) and not all(given):
        raise UserError(f"row {given.index(False) + 1} has no `completion`, and others have: give all or none")
    sampling = Sampling(temperature=options.temperature)
    sampler = OnPolicy(
        policy, sampling, options.max_new_tokens or tokens, options.continuations, options.seed, stop=stop
    )
    labeller = MonteCarlo(sampler, check, options.separator, options.hard)
    done, labels = 0, list[float]()
    part = options.out.with_name(f"{options.out.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            for row in _labelled(labeller, rows, None if any(given) else options.solutions or 1, options.separator):
                file.write(json.dumps(_exported(row), ensure_ascii=False) + "\n")
                done, labels = done + 1, [*labels, *row["labels"]] if len(labels) < 10**6 else labels
        if done:
            part.replace(options.out)
        else:
            part.unlink()
    except OSError as error:
        raise UserError(f"cannot write '{options.out}': {error.strerror}") from error
    if not done:
        raise UserError("no solution has a step: sample from a model that answers, or check --separator")
    wrong = sum(label == 0 for label in labels) / len(labels)
    tell(
        f"wrote {options.out}: {done} solutions, {len(labels)} steps, {wrong:.0%} of them without a right continuation"
    )
    if len(labels) == done:
        tell(
            f"note: no solution has two steps: {options.separator!r} may not be what stands between them (--separator)"
        )
    separator = "" if options.separator == "\n" else f", separator: {json.dumps(options.separator)}"
    tell(f"next    method: {{name: process_model{separator}}}\n        data: {{train: {options.out}}}")


def _labelled(labeller: MonteCarlo, rows: Sequence[Row], solutions: int | None, separator: str) -> Iterator[Row]:
    steps = 0
    for at in range(0, len(rows), PART):
        part = rows[at : at + PART]
        if solutions is not None:
            part = labeller.solutions(part, solutions, at)
        yield from labeller.labelled(part, steps)
        steps += sum(max(0, len(step_spans(completion_text(row["completion"]), separator)) - 1) for row in part)


def _exported(row: Row) -> Row:
    kept = {name: row[name] for name in ("prompt", "completion", "labels", "correct")}
    return {**kept, **({"reference": row["answer"]} if row.get("answer") is not None else {})}


def _load(
    options: ProcessLabelOptions, tell: Callable[[str], None], *, needs_rows: bool
) -> tuple[Any, Sequence[Row], Check, int, tuple[str, ...]]:
    """The policy, the run's training rows, the check, the length limit and the stop strings."""
    from vigneron.run_store.folder import RunFolder, run_path

    if (run_path(options.source) / "config.yaml").is_file():
        from vigneron.api import load_run
        from vigneron.run_data.readers import checker_name

        trained = load_run(options.source)
        if trained.config.method.trains == "scorer":
            raise UserError(f"'{options.source}' trained a reward model, which cannot continue a solution")
        if trained.config.environment is not None:
            raise UserError(
                f"'{options.source}' was trained with an `environment`: its samples are conversations, not steps"
            )
        rows = RunFolder(trained.folder).data(trained.config).train if needs_rows else []
        if trained.config.rollout is not None:
            tell("note: the run's own `rollout` cannot continue a solution: the model samples without it")
        check = build_run_check(trained.config, options.checker or checker_name(trained.config))
        return trained.policy, rows, check, trained.config.max_new_tokens, tuple(trained.config.sampling.stop)
    if needs_rows:
        raise UserError(f"'{options.source}' is not a run: give a file of prompts or solutions (.jsonl, .csv)")
    from vigneron.policy.load import load_policy

    return load_policy(options.source), [], build_check(options.checker or "equality"), NEW_TOKENS, ()
