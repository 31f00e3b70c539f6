"""`vigneron rubric infer`: principles that explain preference pairs, each tested on held-out pairs."""

from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vigneron.commands.judging import open_judge
from vigneron.commands.rubric_try import plain
from vigneron.data.pairs import PREFERRED, read_pairs
from vigneron.data.sources import read_rows
from vigneron.errors import UserError
from vigneron.files import check_new_file, write_for_user
from vigneron.labels.items import digest
from vigneron.report.terminal import say
from vigneron.rubric.infer import Tested, as_principles, merged, propose, score_principles
from vigneron.rubric.principles import principles_text

FEWEST_PAIRS = 4


def infer(
    console: Console,
    file: Path,
    *,
    judge: str,
    proposer: str | None,
    out: Path,
    from_pairs: int = 50,
    held_out: int = 50,
    most: int = 10,
    seed: int = 0,
) -> None:
    """Pairs are split by their content: `from_pairs` of them for proposals, `held_out` others for the test. Pairs whose
    soft label is a tie are left out."""
    check_new_file(out, [".yaml", ".yml"])
    rows, notices = read_pairs(read_rows(file), f"'{file}'")
    for notice in notices:
        say(console, f"note: {notice}")
    rows = [row for row in rows if row.get(PREFERRED) != 0.5]
    if len(rows) < FEWEST_PAIRS:
        raise UserError(f"'{file}' has {len(rows)} pairs that are no ties: at least {FEWEST_PAIRS} are needed")
    rows = sorted(rows, key=lambda row: digest(seed, row["prompt"], row["chosen"], row["rejected"]))
    half = len(rows) // 2
    with ExitStack() as opened:
        labeller = opened.enter_context(open_judge(console, judge))
        writer = labeller if proposer is None else opened.enter_context(open_judge(console, proposer, "--proposer"))
        proposals, failed = propose(writer, rows[:half][:from_pairs])
        if failed:
            say(console, f"note: {failed} replies had no readable proposals")
        if not proposals:
            raise UserError(f"{writer.name} proposed no principle: see that it replies with JSON")
        distinct = merged(proposals)
        say(
            console,
            f"{len(proposals)} proposals, {len(distinct)} different; "
            f"the {min(most, len(distinct))} most frequent are tested",
        )
        tested = score_principles(labeller, distinct[:most], rows[half:][:held_out])
    console.print(tested_table(tested))
    kept = [each for each in tested if each.predicts]
    if not kept:
        raise UserError(f"no principle predicts the held-out pairs better than chance: '{out}' is not written")
    write_for_user(out, principles_text(as_principles(kept), [each.line() for each in kept]))
    say(console, f"wrote {out}: {len(kept)} principles")


def tested_table(tested: list[Tested]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("principle", overflow="fold", ratio=1)
    for heading in ("proposed", "predicts", "95 %", "missing", "kept"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in tested:
        interval = f"{each.low:.0%} to {each.high:.0%}"
        cells = (
            str(each.proposed),
            f"{each.accuracy:.0%}",
            interval,
            str(each.missing),
            "yes" if each.predicts else "",
        )
        table.add_row(Text(plain(each.text)), *map(Text, cells))
    return table
