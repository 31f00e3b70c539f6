"""Intervals of a comparison: which runs, rows and seeds are paired, and that archives give the same ones."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from vigneron.core.intervals import Interval, seeds_and_rows_interval
from vigneron.recipe import load_config
from vigneron.report.comparison_files import intervals_table, write_comparison
from vigneron.report.interval_figure import bar, interval_figure, panels_of, scale_of
from vigneron.report.paired_intervals import Estimate, estimates, not_compared, too_few_evaluations
from vigneron.run_store.archive import unpacked, write_archive
from vigneron.run_store.eval_rows import FILE, KEPT, read_eval_rows
from vigneron.run_store.experiment_arms import Arm, CollectedRun, arms_of
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import Sample, SampleStore

FIRST = [[1, 1, 0, 1, 0, 1], [1, 0, 0, 1, 0, 1]]
SECOND = [[1, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 1]]
EASY = [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]]


def make_run(
    place: Path,
    recipe: str,
    seed: int,
    evaluations: Sequence[Sequence[float]],
    *,
    prompt: str = "say {}",
    answers: str = "abcdef",
    rows: bool = True,
    **keys: Any,
) -> Path:
    """A run's folder after as many evaluations, ten steps apart, as training leaves it."""
    folder = RunFolder.create(place, f"{recipe}-seed-{seed}", exact_name=True)
    folder.write_config(load_config("critic-antonyms", keys={"recipe": recipe, "seed": seed, **keys}))
    store = SampleStore(folder.path)
    for number, verdicts in enumerate(evaluations, start=1):
        mean = sum(verdicts) / len(verdicts)
        folder.append("metrics.jsonl", {"step": 10 * number, "eval/accuracy": mean, "eval/reward": mean / 2})
        store.add(
            [
                Sample(10 * number, "eval", i, prompt.format(i), "", a, v / 2, None, bool(v), False, {})
                for i, (a, v) in enumerate(zip(answers, verdicts, strict=False))
            ]
        )
    store.close()
    if not rows:
        (folder.path / "samples.sqlite").unlink()
    return folder.path


def arms_in(place: Path, *, second_seeds: Sequence[int] = (0, 1), **second: Any) -> list[Arm]:
    paths = [make_run(place, "a", seed, [FIRST[seed]]) for seed in (0, 1)]
    keys = {"optimizer": {"actor_lr": 1e-6, "critic_lr": 1e-4}, **second}
    paths += [make_run(place, "b", seed, [SECOND[i]], **keys) for i, seed in enumerate(second_seeds)]
    return arms_of([CollectedRun.read(path) for path in paths])


def found_in(arms: list[Arm], evaluations: int = 1) -> dict[tuple[str, str], Estimate]:
    return {(one.metric, one.of): one for one in estimates(arms, evaluations)}


def scores(values: Sequence[Sequence[float]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_rows_and_seeds_are_paired(tmp_path: Path) -> None:
    """Other prompts for the same rows, as another template gives, are paired too."""
    found = found_in(arms_in(tmp_path, prompt="please say {}"))
    difference = found["eval/accuracy", "a − b"]
    wanted = seeds_and_rows_interval(scores(FIRST) - scores(SECOND))
    assert wanted is not None
    assert difference.interval.mean == pytest.approx(3 / 12)  # 7 right answers against 4
    assert difference.interval == (wanted.mean, max(-1.0, wanted.low), min(1.0, wanted.high))
    assert difference.covers == "paired by 6 rows and 2 seeds"
    one = found["eval/accuracy", "a"]
    assert one.interval.mean == pytest.approx(7 / 12)
    assert one.covers == "2 seeds, 6 rows"
    assert 0 <= one.interval.low <= one.interval.high <= 1
    assert found["eval/reward", "a − b"].interval.mean == pytest.approx(1.5 / 12)


def test_other_seeds_are_not_paired_and_rows_are(tmp_path: Path) -> None:
    difference = found_in(arms_in(tmp_path, second_seeds=(1, 2)))["eval/accuracy", "a − b"]
    assert difference.covers == "paired by 6 rows; other seeds"
    wanted = seeds_and_rows_interval(scores(FIRST), scores(SECOND))
    assert wanted is not None
    assert difference.interval.mean == wanted.mean


def test_without_rows_it_is_seeds(tmp_path: Path) -> None:
    found = found_in(arms_in(tmp_path, rows=False))
    difference = found["eval/accuracy", "a − b"]
    assert (difference.rows, difference.covers) == (0, "paired by 2 seeds")
    # Differences 4/6 − 2/6 and 3/6 − 2/6: mean ¼, s = √2 / 12, and t of one degree of freedom is 12.706: beyond ± 1.
    assert difference.interval == pytest.approx((0.25, 0.25 - 12.706 / 12, 1.0), abs=1e-3)
    assert found["eval/accuracy", "a"].covers == "2 seeds, 6 rows"


def test_what_was_not_scored_alike_has_no_difference(tmp_path: Path) -> None:
    (tmp_path / "reward").mkdir()
    found = found_in(arms_in(tmp_path / "reward", reward={"kind": "binary"}))
    assert ("eval/accuracy", "a − b") in found
    assert ("eval/reward", "a − b") not in found
    reasons = {
        "answers": "their held-out rows are not the same",
        "checker": "data.checker is None and 'strict_equality'",
        "part": "data.held_out is None and 'tuning'",
    }
    for name, keys in {
        "answers": {"answers": "uvwxyz"},
        "checker": {"data": {"task": "antonyms", "checker": "strict_equality"}},
        "part": {"data": {"task": "antonyms", "held_out": "tuning"}},
    }.items():
        (tmp_path / name).mkdir()
        arms = arms_in(tmp_path / name, **keys)
        assert not [of for _, of in found_in(arms) if "−" in of], name
        (line,) = not_compared(arms, estimates(arms))
        assert line == f"a and b are not compared: {reasons[name]}"
    arms = arms_in(tmp_path)
    assert not not_compared(arms, estimates(arms))


def test_one_seed_is_of_rows_and_one_number_of_nothing(tmp_path: Path) -> None:
    (one,) = arms_of([CollectedRun.read(make_run(tmp_path, "a", 0, [FIRST[0]]))])
    assert found_in([one])["eval/accuracy", "a"].covers == "6 rows"
    (bare,) = arms_of([CollectedRun.read(make_run(tmp_path, "b", 0, [FIRST[0]], rows=False))])
    assert estimates([bare]) == []


def test_rows_that_all_score_alike_leave_room_for_others(tmp_path: Path) -> None:
    """0 of 6 rows right with both seeds: Wilson's interval ends at z²/(6 + z²), and a difference is as uncertain."""
    others = {"optimizer": {"actor_lr": 1e-6, "critic_lr": 1e-4}}
    paths = [make_run(tmp_path, "a", seed, [[0] * 6]) for seed in (0, 1)]
    paths += [make_run(tmp_path, "b", seed, [[0] * 6], **others) for seed in (0, 1)]
    first, second, difference = (
        one for one in estimates(arms_of([CollectedRun.read(path) for path in paths])) if one.metric == "eval/accuracy"
    )
    for own in (first, second):
        assert own.interval == pytest.approx((0.0, 0.0, 1.96**2 / (6 + 1.96**2)), abs=1e-9)
    assert difference.interval.low < -0.2
    assert difference.interval.high > 0.2
    assert difference.interval.mean == 0.0


def test_too_few_evaluations_are_named(tmp_path: Path) -> None:
    arms = arms_in(tmp_path)
    assert estimates(arms, 2) == []
    assert too_few_evaluations(arms, 1) == []
    assert too_few_evaluations(arms, 2)[0] == (
        "a has no interval: a run has 1 evaluation after the first step, and --evaluations is 2"
    )


def test_several_evaluations_are_averaged_by_row(tmp_path: Path) -> None:
    paths = [make_run(tmp_path, "a", seed, [EASY[seed], FIRST[seed], SECOND[seed]]) for seed in (0, 1)]
    arms = arms_of([CollectedRun.read(path) for path in paths])
    wanted = seeds_and_rows_interval((scores(FIRST) + scores(SECOND)) / 2)
    assert wanted is not None
    assert found_in(arms, 2)["eval/accuracy", "a"].interval.mean == pytest.approx(wanted.mean)
    assert found_in(arms, 1)["eval/accuracy", "a"].interval.mean == pytest.approx(4 / 12)
    assert estimates(arms, 4) == [], "it was evaluated three times"


def test_an_archive_gives_the_same_intervals(tmp_path: Path) -> None:
    paths = [make_run(tmp_path, "a", seed, [[*row] for row in [EASY[seed]] * 12 + [FIRST[seed]]]) for seed in (0, 1)]
    whole = estimates(arms_of([CollectedRun.read(path) for path in paths]), 2)
    with unpacked(write_archive(paths, tmp_path / "two.tar.xz")) as folder:
        runs = [CollectedRun.read(path) for path in sorted(folder.iterdir())]
        assert estimates(arms_of(runs), 2) == whole
        assert len(runs[0].rows) == 6 * KEPT
        again = write_archive(sorted(folder.iterdir()), tmp_path / "again.tar.xz")
    assert again.read_bytes() == (tmp_path / "two.tar.xz").read_bytes()


def test_lines_that_are_no_rows_are_left_out(tmp_path: Path) -> None:
    good = {"step": 10, "row": [0, 7], "correct": 1.0, "reward": None}
    bad = [{**good, "row": row} for row in (None, [0], [0, True], ["0", 1], {}, [0, 1.5])]
    lines = [good, *bad, {**good, "row": [1, 7], "correct": "1", "reward": 1e999}]
    (tmp_path / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    first, last = read_eval_rows(tmp_path)
    assert (first.name, first.correct, first.reward) == ((0, 7), 1.0, None)
    assert (last.name, last.correct, last.reward) == ((1, 7), None, None)


@pytest.mark.slow
def test_they_are_in_the_terminal_the_page_and_a_file(tmp_path: Path) -> None:
    arms = arms_in(tmp_path)
    found = estimates(arms)
    assert [path.name for path in write_comparison(arms, tmp_path / "out", found)][-1] == "intervals.csv"
    lines = (tmp_path / "out" / "intervals.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "metric,arm,minus,mean,low,high,seeds,rows,same_seeds"
    assert len(lines) == 1 + 6  # of two metrics: two arms and one difference
    page = (tmp_path / "out" / "compare.html").read_text(encoding="utf-8")
    assert "<td>+0.250 [" in page
    console = Console(width=200, record=True, quiet=False, file=(tmp_path / "shown").open("w", encoding="utf-8"))
    table = intervals_table(found)
    assert table is not None
    console.print(table)
    shown = console.export_text()
    assert "+0.250 [" in shown
    assert "paired by 6 rows and 2 seeds" in shown
    assert intervals_table([]) is None
    narrow = intervals_table(found, 80)
    assert narrow is not None
    assert len(narrow.columns) == len(table.columns) - 1  # not drawn


def estimate(
    low: float, mean: float, high: float, minus: str | None = None, by_seed: tuple[float, ...] = ()
) -> Estimate:
    return Estimate("eval/accuracy", "a", minus, Interval(mean, low, high), 2, 4, True, by_seed)


def test_bars_are_drawn_to_one_scale() -> None:
    """25 characters from 0 to 1: 0.25 is the seventh, 0.5 the 13th, 0.75 the 19th."""
    panel = [estimate(0.25, 0.5, 0.75), estimate(0.0, 0.0, 0.0), estimate(1.0, 1.0, 1.0)]
    assert scale_of(panel) == (0.0, 1.0)
    assert bar(panel[0], (0.0, 1.0)) == " " * 6 + "├─────●─────┤" + " " * 6
    assert bar(panel[1], (0.0, 1.0)) == "●" + " " * 24
    differences = [estimate(0.25, 0.5, 0.75, "b", (0.5, 0.75))]
    assert scale_of(differences) == (0.0, 0.75)
    assert bar(estimate(-0.5, 0.25, 0.5, "b"), (-0.5, 0.5)) == "├───────────┼─────●─────┤"
    assert panels_of([differences[0], panel[0]]) == [[panel[0]], [differences[0]]]


def test_the_figure_has_a_row_per_estimate_and_a_tick_per_seed() -> None:
    found = [estimate(0.25, 0.5, 0.75, None, (0.4, 0.6)), estimate(-0.1, 0.1, 0.3, "$b", (0.0, 0.2))]
    mean, difference = interval_figure(found).axes
    assert [label.get_text() for label in difference.get_yticklabels()] == [r"a − \$b"]
    assert [list(line.get_xdata()) for line in mean.lines] == [[0.25, 0.75], [0.4, 0.6], [0.5]]
    assert difference.lines[0].get_color() == "#808080"  # holds 0
