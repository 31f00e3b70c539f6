"""`vigneron pairs`: preference pairs by construction, from easy to hard, with the column `level`."""

from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from vigneron.commands.judging import check_out, note_missing, open_judge, prompt_rows, write_rows
from vigneron.errors import UserError
from vigneron.labels.graded_pairs import LEVELS, graded_pairs
from vigneron.report.terminal import say
from vigneron.rubric.principles import read_principles


def write_graded_pairs(
    console: Console,
    source: str,
    *,
    principles: str,
    model: str,
    judge: str | None,
    out: Path,
    levels: str = "1,2,3",
    temperature: float = 1.0,
    limit: int | None = None,
    seed: int = 0,
) -> None:
    """All files, the model and the judge are checked before the first request."""
    check_out(out)
    wanted = _levels(levels)
    if 3 in wanted and judge is None:
        raise UserError("level 3 compares two random answers, which needs --judge: give one, or set --levels 1,2")
    if 3 not in wanted and judge is not None:
        raise UserError(
            "--judge has no effect without level 3: the pairs of levels 1 and 2 are labelled by their guides"
        )
    by = read_principles(principles)
    rows, _ = prompt_rows(source, limit)
    with ExitStack() as opened:
        writer = opened.enter_context(open_judge(console, model, "--model"))
        labeller = None if judge is None else opened.enter_context(open_judge(console, judge))
        prompts = [row["prompt"] for row in rows]
        graded = graded_pairs(writer, labeller, prompts, by, levels=wanted, temperature=temperature, seed=seed)
        if not graded.rows:
            raise UserError(
                f"no pair was made: {graded.missing} answers are missing ({graded.why}), {graded.equal} equal"
            )
        write_rows(out, graded.rows)
    note_missing(lambda text: say(console, text), graded.missing, "answers or labels are missing", graded.why)
    if graded.equal:
        say(console, f"note: {graded.equal} pairs of equal texts are left out")
    counts = ", ".join(f"{sum(row['level'] == level for row in graded.rows)} of level {level}" for level in wanted)
    say(console, f"wrote {out}: {len(graded.rows)} pairs ({counts})")
    say(console, f"method: {{name: reward_model}}\ndata: {{train: {out}}}\ncurriculum: {{by: level}}")


def _levels(option: str) -> list[int]:
    parts = [part.strip() for part in option.split(",")]
    if not all(part in map(str, LEVELS) for part in parts) or len(set(parts)) < len(parts):
        raise UserError(f"--levels: expected levels of 1 to 3 such as 1,2, not {option!r}")
    return sorted(map(int, parts))
