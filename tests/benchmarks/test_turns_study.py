"""The study of conversations: the driver with a tiny model, and its decision rule by hand."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.paired import Difference
from benchmarks.study_settings import is_final, tuning_table
from benchmarks.study_store import all_results, read_result, row_values
from benchmarks.turns_results import (
    gain,
    is_above,
    references,
    scores_by_arm,
    show_all,
    show_nim,
    show_scores,
    show_seeds,
    unlike_starts,
    verdicts,
)
from benchmarks.turns_rows import (
    at_random,
    facts_of,
    first_moves_are_legal,
    is_scored,
    nim_rows,
    unit_means,
    write_nim_rows,
)

from benchmarks import turns_quotes, turns_study
from support.talking import talking_model
from vigneron.data.prompts import Row
from vigneron.data.tasks import load_task
from vigneron.errors import UserError
from vigneron.run_data.load import load_data
from vigneron.run_store import eval_rows
from vigneron.run_store.archive import unpacked
from vigneron.run_store.samples import Sample

LISTS = ("debate", "consultancy")
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.usefixtures("few_rows")
def test_it_runs_in_pieces_and_shows_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        turns_study,
        "ARMS",
        {name: turns_study.ARMS[name] for name in ("sums-tool", "sums", "nim", "debate", "consultancy")},
    )
    model, tokenizer = talking_model(positions=2048)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "tiny")
    runs = tmp_path / "runs"
    common = ["work", str(runs), "--smoke", "--model", str(tmp_path / "tiny"), "--resume"]
    assert turns_study.main([*common, "--budget", "600"]) == 0
    assert "all jobs are done" in capsys.readouterr().out
    finished = {path.parent.name for path in runs.glob("*/result.json")}
    done = {name for name in finished if not name.startswith("warm-up-")}
    assert done == {f"{arm}-seed-0" for arm in turns_study.ARMS} | {f"tune-{a}-rate-1e-05" for a in turns_study.ARMS}
    warm_ups = {path.name for path in (runs / ".warm-ups").iterdir() if path.is_dir()}
    names = {"sft-sums-tool", "sft-sums-tool-changed", "sft-nim", "sft-debate"}
    assert warm_ups == {f"{name}-seed-{seed}" for name in names for seed in (0, 100)}
    trained = read_result(runs, "debate-seed-0")
    assert trained is not None
    assert set(trained["curve"]) == {"0", "2"}
    began = read_result(runs, trained["warm_up"])
    assert began is not None
    assert (began["recipe"], began["weights"]) == ("sft-debate-seed-0", trained["weights"])
    for name in done:
        found = read_result(runs, name)
        assert found is not None
        held_out: Sequence[Row] = load_task("sum-lists" if found["arm"] in LISTS else "sums").rows("held_out")
        if found["arm"] == "nim":
            held_out = nim_rows()["held_out"]
        if found["tuned"]:
            assert len(found["rows"]) == len(found["scores"]["last"]) == len(held_out)  # of a debate, one debater's
    archive, figure = tmp_path / "turns.tar.xz", tmp_path / "figure.svg"
    assert turns_study.main(["pack", str(runs), str(archive)]) == 0
    assert turns_study.main(["show", str(archive), "--figure", str(figure)]) == 0
    shown = capsys.readouterr().out
    assert "accuracy | 0.000 |" in next(
        line for line in shown.splitlines() if line.startswith("| sums-tool | 1e-05 | 1 |")
    )
    assert "- sums-tool − sums: not yet (1 of 3 seeds)" in shown
    assert "| can be won |" in shown
    assert f"| sft-debate-seed-0 | {began['first_loss']:.3f} | {began['last_loss']:.3f} |" in shown
    assert "| tuning | 1e-05 |" in shown
    assert figure.read_text().startswith("<svg")


def arm(before: float, last: float, seeds: Sequence[int] = (0, 1, 2)) -> dict[int, dict[str, list[float]]]:
    """Seeds that agree, with four units."""
    return {seed: {"before": [before] * 4, "base": [before] * 4, "last": [last] * 4} for seed in seeds}


def test_the_decision_rule() -> None:
    """Where seeds and rows agree, an interval is its mean."""
    said = verdicts(
        {"guess": arm(0.25, 0.5), "maze": arm(0.5, 0.5), "sums-tool": arm(0, 1), "sums": arm(0, 0.5), "nim": arm(1, 0)}
    )
    assert [line.partition(",")[0] for line in said] == [
        "guess: learned",
        "maze: not learned",
        "sums-tool: learned",
        "nim: not learned",
        "sums-tool − sums: the calculator pays",
    ]
    assert said[0] == "guess: learned, +0.250 (+0.250 to +0.250)"
    helps = {"debate": arm(0.5, 0.75), "consultancy": arm(0.5, 0.25)}
    assert verdicts(helps) == [
        "debate: debate helps the judge, +0.250 (+0.250 to +0.250); "
        "gain of debate − gain of consultancy +0.500 (+0.500 to +0.500)"
    ]
    # Debate scores higher all along, as quotes at random do: only what training adds counts.
    head_start = {"debate": arm(0.5, 0.75), "consultancy": arm(0.25, 0.5)}
    assert verdicts(head_start)[0].endswith("gain of debate − gain of consultancy +0.000 (+0.000 to +0.000)")
    for worse in ({"debate": arm(0.75, 0.75)}, {"consultancy": arm(0.5, 0.75)}, head_start):
        assert "debate does not help the judge" in verdicts({**helps, **worse})[0]
    assert is_above(Difference(0.2, 0.1, 0.3))
    assert not is_above(Difference(0.2, 0.0, 0.3))


def test_a_verdict_waits_for_the_seeds_that_could_change_it() -> None:
    some = (0, 2)
    arms = {name: arm(0.25, 0.5, some) for name in ("guess", "sums-tool", "debate", "consultancy")}
    said = verdicts({**arms, "sums": arm(0, 0)})
    assert not any(is_final(line.partition(": ")[2]) for line in said)
    assert said[0] == "guess: not yet (2 of 3 seeds), +0.250 (+0.250 to +0.250)"
    assert said[2].startswith("sums-tool − sums: not yet (2 of 3 seeds)")
    assert said[3].startswith("debate: not yet (2 of 3 seeds)")
    # A debate that learned nothing does not help, whatever consultancy gains.
    (line,) = verdicts({"debate": arm(0.5, 0.5), "consultancy": arm(0.5, 0.5, some)})
    assert line.startswith("debate: debate does not help the judge")
    (line,) = verdicts({"debate": arm(0.5, 0.75), "consultancy": arm(0.5, 0.5, some)})
    assert line.startswith("debate: not yet (2 of 3 seeds)")


# ---------------------------------------------------------------------------------------------- units


def run(name: str, seed: int, rows: Sequence[dict[str, Any]], before: Sequence[float], last: Sequence[float]) -> Any:
    labels = {"part": "turns", "tuned": True, "arm": name, "seed": seed, "rate": 1e-5, "row_score": "correct"}
    return {**labels, "rows": rows, "scores": {"before": before, "last": last}, "weights": "a1", "curve": {}}


def test_rows_that_are_alike_count_once() -> None:
    """Question A is answered right both times, B and C are not: 1/3, not 2/4; and 3 units, not 4 rows."""
    rows = [{"unit": unit} for unit in "AABC"]
    assert unit_means([1, 1, 0, 0], rows) == [1, 0, 0]
    assert unit_means([1, 0, 0, 0.5], rows) == [0.5, 0, 0.5]
    found = gain(scores_by_arm([run("debate", seed, rows, [0] * 4, [1, 1, 0, 0]) for seed in range(3)])["debate"])
    alone = gain({seed: {"base": [0.0] * 3, "last": [1.0, 0.0, 0.0]} for seed in range(3)})
    assert found == alone
    assert found is not None
    assert found.mean == pytest.approx(1 / 3)


def test_the_units_of_the_held_out_rows() -> None:
    counts = {}
    for name, given in turns_study.ARMS.items():
        task = {"guess": "guess-16", "maze": "maze-4", "debate": "sum-lists", "consultancy": "sum-lists"}.get(
            name, "sums"
        )
        rows = nim_rows()["held_out"] if name == "nim" else load_task(task).rows("held_out")
        facts = [facts_of(row, given.unit) for row in rows]
        scored = [one for one in facts if is_scored(one)]
        counts[name] = (len(facts), len(scored), len({one["unit"] for one in scored}))
    assert counts == {
        "guess": (100, 100, 17),
        "maze": (100, 100, 100),
        "sums-tool": (160, 160, 160),
        "sums": (160, 160, 160),
        "nim": (140, 55, 13),
        "debate": (200, 200, 100),
        "consultancy": (200, 200, 100),
    }


def test_nim_is_scored_where_it_can_be_won_and_legality_alone_is_not_learned() -> None:
    """Of (0, 0, 2) one of two moves wins, taking both; of (0, 1, 2) one of three."""
    assert at_random((0, 0, 2)) == 0.5
    assert at_random((0, 1, 2)) == pytest.approx(1 / 3)
    assert at_random((2, 2, 0)) == 1  # lost
    position = {"can_be_won": True, "is_start": False}
    rows = [
        {"unit": "0 0 2", "at_random": 0.5, **position},
        {"unit": "0 1 2", "at_random": 1 / 3, **position},
        {"unit": "0 2 2", "at_random": 1.0, **position, "can_be_won": False},
        {"unit": "1 1 1", "at_random": 1.0, **position, "is_start": True},
    ]
    assert list(map(is_scored, rows)) == [True, True, False, False]
    legal = {"before": [0, 1, 0, 0], "last": [1, 1, 1, 1]}
    one = run("nim", 0, rows, [0, 0, 0, 0], [0.5, 0, 1, 1]) | {"legal": legal}
    assert scores_by_arm([one])["nim"][0] == {"before": [0, 0], "last": [0.5, 0], "base": [0.5, 0]}
    # All moves became legal, and half of them win as at random: nothing is learned.
    assert verdicts(scores_by_arm([one | {"seed": seed} for seed in range(3)]))[0].startswith(
        "nim: not learned, +0.000"
    )
    assert show_nim([one]).splitlines()[2:] == [
        "| can be won | 2 | 2 | 0.417 | 0.000 | 0.250 | 0.500 | 0.000 |",
        "| can be won, starts of training | 1 | 1 | 1.000 | 0.000 | 1.000 | 1.000 | 0.000 |",
        "| lost: every legal move scores 1 | 1 | 1 | 1.000 | 0.000 | 1.000 | 1.000 | 0.000 |",
    ]


def test_legal_moves_are_read_from_the_first_turn() -> None:
    def sample(text: str, role: str = "first") -> Any:
        said = [{"role": "assistant", "content": text}]
        return Sample(0, "eval", 0, "", "", None, 0.0, None, None, False, {"role": role, "conversation": said})

    samples = [sample("1 2"), sample("9 9", "second"), sample("1 3"), sample("one"), sample("3 1.")]
    assert first_moves_are_legal(samples, [{"piles": [2, 0, 1]}] * 4) == [1, 0, 0, 1]


def test_the_known_players() -> None:
    """Binary search finds 1, 2, 4, 8 and 1 of 16 numbers with its 1st to 5th guess of 7."""
    known = references()
    assert known["guess"]["binary search"] == pytest.approx((1 * 7 + 2 * 6 + 4 * 5 + 8 * 4 + 1 * 3) / 7 / 16)
    assert known["nim"]["legal moves at random"] == pytest.approx(0.2249, abs=1e-4)


def test_arms_that_should_have_begun_alike_are_named() -> None:
    rows = [{"unit": "A"}]
    pair = [run(name, 1, rows, [0], [0]) for name in ("debate", "consultancy")]
    assert unlike_starts(pair) == []
    assert unlike_starts(pair[:1]) == []
    (line,) = unlike_starts([pair[0], pair[1] | {"weights": "b2"}])
    assert line.startswith("debate and consultancy of seed 1 began from different weights")
    assert line in show_all([pair[0], pair[1] | {"weights": "b2"}])


def test_a_row_without_a_score_is_refused(tmp_path: Path) -> None:
    """Missing is not zero."""
    rows = [eval_rows.EvalRow(step, (n, 7), 1.0, 0.5, {}) for step in (0, 10) for n in (0, 1)]
    file = tmp_path / "a" / eval_rows.FILE
    file.parent.mkdir()
    file.write_text(eval_rows.eval_row_lines(rows))
    assert row_values(tmp_path / "a", "correct") == {0: [1.0, 1.0], 10: [1.0, 1.0]}
    for damaged in ([*rows[:-1], replace(rows[-1], correct=None)], rows[:-1]):
        file.write_text(eval_rows.eval_row_lines(damaged))
        with pytest.raises(UserError, match=r"^a: 1 of 2 held-out rows have no 'correct' at step 10, so it cannot be"):
            row_values(tmp_path / "a", "correct")


# ---------------------------------------------------------------------------------------------- jobs


def test_the_last_three_evaluations_are_of_the_end_of_training() -> None:
    for name, given in turns_study.ARMS.items():
        config = turns_study.job(turns_study.Setting(), ROOT, name, 1e-5, 0, tuned=True).config()
        evaluated = range(config.eval_every, config.steps + 1, config.eval_every)
        assert evaluated[-1] == given.steps
        assert evaluated[-3] > 0.5 * given.steps


def test_each_seed_has_its_own_warm_up() -> None:
    setting = turns_study.Setting()
    jobs = [
        turns_study.job(setting, ROOT, name, 1e-5, s, tuned=True) for name in ("debate", "consultancy") for s in (0, 1)
    ]
    begins = [job.config().model.name for job in jobs]
    assert [Path(str(name)).name for name in begins] == ["sft-debate-seed-0", "sft-debate-seed-1"] * 2
    # 42 jobs of 6 s and their steps, and 6 warm-ups of 12 s for each of 4 seeds.
    steps = sum(given.step_s * (3 * given.steps + 3 * 30) for given in turns_study.ARMS.values())
    assert turns_study.study(setting).total() == pytest.approx(42 * 6 + steps + 24 * 12)


def test_every_arm_is_tuned_on_other_rows_than_it_is_scored_on() -> None:
    setting = turns_study.Setting()
    for name, given in turns_study.ARMS.items():
        tuning, main = (turns_study.job(setting, ROOT, name, 1e-5, 0, tuned=tuned) for tuned in (False, True))
        files = [str(job.config().data.held_out) for job in (tuning, main)]
        assert [Path(file).stem.removeprefix("nim-") for file in files] == ["tuning", "held_out"]
        assert given.own_rows == (name == "nim") == (files[0] != "tuning")
        assert main.config().steps == given.steps
        assert main.config().model.name == str(turns_study.warmed_up(ROOT, given, 0))


def test_nim_is_tuned_on_positions_that_are_not_scored(tmp_path: Path) -> None:
    write_nim_rows(tmp_path)
    config = turns_study.job(turns_study.Setting(), tmp_path, "nim", 1e-5, 0, tuned=True).config()
    scored = load_data(config).held_out
    config = turns_study.job(turns_study.Setting(), tmp_path, "nim", 1e-5, 0, tuned=False).config()
    data = load_data(config)
    sets = [{tuple(sorted(row["piles"])) for row in rows} for rows in (data.held_out, scored)]
    assert (len(data.train), len(data.held_out), len(scored)) == (87, 75, 140)
    assert not sets[0] & sets[1]
    assert len(sets[0] | sets[1]) == 55  # all but the empty one
    assert {row["most_moves"] for row in (*data.held_out, *scored)} == {1}
    assert not any("most_moves" in row for row in data.train)


def test_the_page_gives_the_rule_of_the_module() -> None:
    page = " ".join((ROOT / "docs" / "results" / "turns.md").read_text(encoding="utf-8").split())
    rule = " ".join((turns_study.__doc__ or "").partition("Decision rule")[2].split())
    assert rule in page


@pytest.mark.slow
def test_the_page_gives_the_numbers_of_the_logs() -> None:
    results = ROOT / "docs" / "results"
    page = (results / "turns.md").read_text(encoding="utf-8").replace("−", "-").replace("*", "").replace("`", "")
    with unpacked(results / "logs" / "turns-study.tar.xz") as folder:
        rows, quotes = all_results(folder), turns_quotes.show(folder)
    tables = [show_scores(rows), show_seeds(rows), show_nim(rows), tuning_table(rows, "turns", lambda one: one["arm"])]
    for line in "\n".join([*tables, quotes.partition("\n\n")[0]]).splitlines():
        assert line in page
    for line in verdicts(scores_by_arm(rows)):
        answer = line.partition(": ")[2].partition(", ")[0].removeprefix("the calculator ").removeprefix("debate ")
        assert all(said in page for said in (answer, *re.findall(r"[+-]\d\.\d{3} \(.+?\)", line)))
    for number in re.findall(r"[+-]?\d\.\d{3}(?: \(.+?\))?", quotes.partition("\n\n")[2]):
        assert number in page or float(number) < 0.02, "sets of several sizes: less than 2 %"
    for arm in turns_study.ARMS:
        for tuned, name in ((True, arm), (False, f"{arm}, tuning")):
            taken = [one["seconds"] for one in rows if one.get("arm") == arm and one["tuned"] == tuned]
            if f"| {name} | " in page.partition("| planned |")[2]:
                planned = turns_study.job(turns_study.Setting(), ROOT, arm, 1e-5, 0, tuned=tuned).seconds
                assert f"| {name} | {planned:.0f} | {min(taken):.0f} to {max(taken):.0f} |" in page
    done = len(scores_by_arm(rows).get("nim", {}))
    assert ("Nim has no held-out run yet" in page and "not yet (0 of 3 seeds)" in page) == (done == 0), (
        f"the archive has {done} seeds of Nim: give the tables of `show`, the verdict and a new figure, and say "
        "so in the page's first lines, its sections Nim and Time, docs/guides, docs/README.md and reference/recipes.md"
    )


def test_what_the_judge_saw_is_found_by_its_probability() -> None:
    """Row 0 argues for X, row 1 for Y: after the same quotes their rewards cancel."""
    held_out = turns_quotes.HeldOut("consultancy")
    shown = ((("X", 1), ("Y", 2)), (("X", 2), ("X", 3), ("Y", 4)))
    rewards = []
    for number, row in enumerate(held_out.rows):
        p = held_out.questions[number].probabilities[shown[number % 2 if number < 20 else 0]]
        rewards.append(p - 0.5 if row["side"] == "X" else 0.5 - p)
    seen = held_out.seen(rewards, [1.0] * len(rewards))
    assert all(shown[n % 2 if n < 20 else 0] in found for n, found in enumerate(seen.sets))
    assert seen.one_set == pytest.approx(190 / 200, abs=0.02)
    assert seen.same_for_both_sides == pytest.approx(0.9, abs=0.02)
    assert 2.0 < seen.numbers < 2.2
    assert 0 < held_out.best_reward() < 0.5


def test_a_judge_that_knows_all_numbers_is_right() -> None:
    row = {"x": [90, 80, 70, 60], "y": [10, 20, 30, 40], "higher": "X"}
    question = turns_quotes.Question(row, 8)
    assert len(question.probabilities) == 256
    assert question.right_with(8) == 1
    assert question.right_with(0) == 0.5 + 0.5  # X where both are equally likely
    assert question.explain(0.5, "X") == question.explain(-0.5, "Y")
    assert turns_quotes.PLACES in question.explain(0.5, "X")
    assert question.most_for("Y") < 0.5 < question.most_for("X") + 0.01
