"""`vigneron label --judge`: a judge labels pairs of completions, in both orders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from vigneron.commands.judging import check_out, note_missing, open_judge, reads_hint, write_rows
from vigneron.commands.label import LabelOptions, from_source, next_step
from vigneron.data.pairs import read_pairs
from vigneron.data.prompts import Row, prompt_text
from vigneron.data.sources import read_rows
from vigneron.errors import UserError
from vigneron.labels.by_judge import Check, label_pairs
from vigneron.labels.items import Comparison, make_comparisons
from vigneron.labels.live_sampling import rows_of, sample_groups
from vigneron.report.terminal import say
from vigneron.rewards.checkers import NEEDS, check_texts, load_checker
from vigneron.rubric.principles import Principle, read_principles
from vigneron.run_store.folder import RunFolder


def label_by_judge(console: Console, options: LabelOptions) -> None:
    """All files and the judge are checked before the first request."""
    options.check()
    assert options.judge is not None
    check_out(options.file)
    principles: Sequence[Principle] = ()
    if options.principles is not None:
        principles = read_principles(options.principles, only=options.principle)
    people: Sequence[Row] = ()
    if options.people is not None:
        people, notices = read_pairs(read_rows(options.people), f"'{options.people}'")
        for notice in notices:
            say(console, f"note: {notice}")
    check = None if options.checker is None else _check(options, options.checker)
    with open_judge(console, options.judge) as judge:
        items = _comparisons(console, options)[: options.limit]
        labelled = label_pairs(judge, items, principles=principles, people=people, check=check, seed=options.seed)
        if not labelled.rows:
            raise UserError(f"no pair has a label: {labelled.missing} are missing ({reads_hint(judge, labelled.why)})")
        write_rows(options.file, labelled.rows)
    note_missing(
        lambda text: say(console, text),
        labelled.missing,
        "pairs have no label and are left out",
        reads_hint(judge, labelled.why),
    )
    if labelled.both_wrong:
        say(console, f"note: {labelled.both_wrong} pairs of two wrong answers are left out")
    if labelled.ties == len(labelled.rows):
        say(console, "note: all pairs are ties: a method that trains on them refuses them")
    elif labelled.ties > len(labelled.rows) / 2:
        share = f"{labelled.ties} of {len(labelled.rows)} pairs are ties"
        say(
            console,
            f"warning: {share}, which teach little: the judge sees no difference. Use more varied samples "
            "(a higher --temperature), other principles, or another judge",
        )
    counts = ", ".join(f"{labelled.count(by)} by {by}" for by in ("people", "checker", "judge") if labelled.count(by))
    say(console, f"wrote {options.file}: {len(labelled.rows)} pairs ({counts}), {labelled.ties} ties")
    say(console, f"train  {next_step(options, len(labelled.rows))}")


def _comparisons(console: Console, options: LabelOptions) -> list[Comparison]:
    if options.sample is None:
        items, notices = from_source(options)
        for notice in notices:
            say(console, f"note: {notice}")
        return items
    assert options.prompts is not None
    rows = rows_of(options.prompts)[: options.limit]
    temperature = 1.0 if options.temperature is None else options.temperature
    groups = sample_groups(
        options.sample,
        rows,
        count=options.group or 2,
        temperature=temperature,
        max_new_tokens=options.max_new_tokens,
        seed=options.seed,
    )
    items = [
        item
        for row, drawn in groups
        for item in make_comparisons(row["prompt"], drawn, "pairs", options.seed, row.get("tools"))
    ]
    count = sum(len(drawn) for _, drawn in groups)
    left_out = count - 2 * len(items)
    if items and left_out:
        say(
            console,
            f"note: {left_out} of {count} completions are in no pair: empty, equal to another of the "
            "prompt, or without a partner (each is used once)",
        )
    if not items:
        raise UserError("no prompt got two different completions: try a higher --temperature")
    return items


def _check(options: LabelOptions, name: str) -> Check:
    """Whether a completion is right, by a checker of `data.checker` and the columns of the prompt's row."""
    load_checker(name)  # a wrong name is an error before the first request
    needed = NEEDS.get(name)
    rows = {prompt_text(row["prompt"]): row for row in _rows_with_columns(options)}
    if needed is not None and not any(row.get(needed) is not None for row in rows.values()):
        raise UserError(f"--checker: {name} needs the column '{needed}', which no row has")

    def check(prompt: Any, completion: Any) -> bool | None:
        row = rows.get(prompt_text(prompt), {})
        if needed is not None and row.get(needed) is None:
            return None
        columns = {key: [value] for key, value in row.items() if key != "prompt"}
        return check_texts(name, [prompt], [completion], columns)[0]

    return check


def _rows_with_columns(options: LabelOptions) -> list[Row]:
    if options.prompts is not None:
        return rows_of(options.prompts)
    source = Path(options.source or "").expanduser()
    if source.is_dir():
        folder = RunFolder.open(source)
        data = folder.data(folder.config())
        return [*data.train, *data.held_out]
    return [row for row in read_rows(source) if row.get("prompt")]
