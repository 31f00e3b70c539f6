"""The study of conversations: the driver with a tiny model, and its decision rule by hand."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.paired import Difference
from benchmarks.study_store import read_result
from benchmarks.turns_results import is_above, verdicts
from benchmarks.turns_rows import nim_rows, write_nim_rows

from benchmarks import turns_study
from support.talking import talking_model
from vigneron.data.prompts import Row
from vigneron.data.tasks import load_task
from vigneron.run_data.load import load_data

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
    done = {path.parent.name for path in runs.glob("*/result.json")}
    assert done == {f"{arm}-seed-0" for arm in turns_study.ARMS} | {f"tune-{a}-rate-1e-05" for a in turns_study.ARMS}
    warm_ups = {path.name for path in (runs / ".warm-ups").iterdir() if path.is_dir()}
    assert warm_ups == {"sft-sums-tool", "sft-sums-tool-changed", "sft-nim", "sft-debate"}
    trained = read_result(runs, "debate-seed-0")
    assert trained is not None
    assert set(trained["curve"]) == {"0", "2"}
    for name in done:
        found = read_result(runs, name)
        assert found is not None
        held_out: Sequence[Row] = load_task("sum-lists" if found["arm"] in LISTS else "sums").rows("held_out")
        if found["arm"] == "nim":
            held_out = nim_rows()["held_out"]
        assert not found["tuned"] or len(found["scores"]["last"]) == len(held_out)  # of a debate, one debater's
    archive, figure = tmp_path / "turns.tar.xz", tmp_path / "figure.svg"
    assert turns_study.main(["pack", str(runs), str(archive)]) == 0
    assert turns_study.main(["show", str(archive), "--figure", str(figure)]) == 0
    shown = capsys.readouterr().out
    assert "| sums-tool | 1e-05 | 1 | accuracy | 0.000 |" in shown
    assert "- sums-tool − sums: the calculator does not pay" in shown
    assert figure.read_text().startswith("<svg")


def arm(before: float, last: float) -> dict[int, dict[str, list[float]]]:
    """Three seeds that agree, with four rows."""
    return {seed: {"before": [before] * 4, "last": [last] * 4} for seed in range(3)}


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


def test_every_arm_is_tuned_on_other_rows_than_it_is_scored_on() -> None:
    setting = turns_study.Setting()
    for name, given in turns_study.ARMS.items():
        tuning, main = (turns_study.job(setting, ROOT, name, 1e-5, 0, tuned=tuned) for tuned in (False, True))
        files = [str(job.config().data.held_out) for job in (tuning, main)]
        assert [Path(file).stem.removeprefix("nim-") for file in files] == ["tuning", "held_out"]
        assert given.own_rows == (name == "nim") == (files[0] != "tuning")
        assert main.config().steps == given.steps
        assert main.config().model.name == str(turns_study.warmed_up(ROOT, given))


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
