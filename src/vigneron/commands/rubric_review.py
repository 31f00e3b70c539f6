"""`vigneron rubric review`: a run's rubric items, the weakest first."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vigneron.commands.compare import print_full_width
from vigneron.data.formats import is_conversation
from vigneron.data.prompts import completion_text, prompt_text
from vigneron.data.sources import read_rows
from vigneron.errors import UserError, visible
from vigneron.files import check_new_file, write_for_user
from vigneron.labels.from_run import EVERY, check_step, open_samples
from vigneron.report.terminal import say
from vigneron.rubric.review import ItemReview, ItemScore, Label, item_scores, labels_of, review, unmatched
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import Kind
from vigneron.text import of_cell, to_cell

KINDS: tuple[Kind, ...] = ("train", "eval")


def review_run(console: Console, run: Path, *, labels: Path | None, step: int | None, out: Path | None) -> None:
    """`step` None: all steps with stored samples, training and held-out."""
    if out is not None:
        check_new_file(out, [".csv"])
    scores = list(judged_in(RunFolder.open(run).path, step))
    human = [] if labels is None else _labels(labels)
    lost = unmatched(scores, human)
    if human and lost == len(human):
        raise UserError(
            f"labels: none of the {lost} rows of '{labels}' matches a score of '{run}': `prompt`, `completion` and "
            "`item` must be the same texts as in the run's samples"
        )
    reviewed = review(scores, human)
    print_full_width(console, review_table(reviewed, labelled=bool(human)))
    weak = [one for one in reviewed if one.weak]
    for one in weak:
        say(console, f"{one.category}.{one.item}: {', '.join(one.weak)}")
    if not weak:
        say(console, "no weak items")
    if lost:
        say(console, f"note: {lost} of {len(human)} labels match no score")
    if out is not None:
        write_for_user(out, review_csv(reviewed))
        say(console, f"wrote {out}")


def judged_in(folder: Path, step: int | None = None) -> Iterator[ItemScore]:
    with open_samples(folder) as store:
        steps = sorted({number for kind in KINDS for number in store.steps(kind)})
        check_step(store, step)
        any_scores = False
        for number in steps if step is None else [step]:
            for kind in KINDS:
                for sample in store.page(step=number, kind=kind, limit=EVERY):
                    for one in item_scores(sample.prompt, sample.completion, sample.extras.get("rubric")):
                        any_scores = True
                        yield one
        if not any_scores:
            raise UserError(
                f"'{folder}': the samples of this run have no rubric scores: it needs `reward.kind: rubric`"
            )


def _labels(path: Path) -> list[Label]:
    """Human scores. Messages become texts as in stored samples; CSV escapes are undone."""
    rows = []
    for row in read_rows(path):
        row = {name: of_cell(value) for name, value in row.items()} if path.suffix == ".csv" else row
        readers = (("prompt", prompt_text), ("completion", completion_text))
        texts = {column: text(row[column]) for column, text in readers if is_conversation(row.get(column))}
        rows.append({**row, **texts})
    return labels_of(rows, f"'{path}'")


def review_table(reviewed: Sequence[ItemReview], *, labelled: bool) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for heading in ("category", "item", "version"):
        table.add_column(heading, overflow="fold")
    for heading in ("confidence", "score", "spread", "scored", "failed"):
        table.add_column(heading, justify="right")
    for heading in ("disagreement", "correlation", "labels") if labelled else ():
        table.add_column(heading, justify="right")
    for one in reviewed:
        cells = [one.category, one.item, one.version, *map(_number, (one.confidence, one.score, one.spread))]
        cells += [str(one.scored), str(one.failed)]
        if labelled:
            cells += [_number(one.disagreement), _number(one.correlation), str(one.labelled)]
        table.add_row(
            *(Text(visible(cell), style="red" if one.weak and n == 1 else "") for n, cell in enumerate(cells))
        )
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def review_csv(reviewed: Sequence[ItemReview]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(ItemReview)]
    writer.writerow(names)
    for one in reviewed:
        cells = {**vars(one), "weak": "; ".join(one.weak)}
        writer.writerow(["" if cells[name] is None else to_cell(cells[name]) for name in names])
    return text.getvalue()
