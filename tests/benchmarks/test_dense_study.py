"""The study of dense rewards: the driver with a tiny model, cut and resumed; the decision rule by hand."""

import json
import re
from pathlib import Path

import pytest
import torch
from benchmarks.dense_results import crossing_point, law, matter, open_verdict, verdict
from benchmarks.dense_scores import hits, retrieved
from benchmarks.dense_study import RATES, Setting, chosen_stop, crossing_cell
from benchmarks.paired import Difference, paired_difference
from benchmarks.study_settings import chosen_rate

from benchmarks import dense_study, pieces, study_store
from support.tiny_models import long_tiny_folder
from vigneron.core.intervals import seeds_and_rows_interval
from vigneron.data.tasks import load_task
from vigneron.report.paired_intervals import estimates
from vigneron.run_store.experiment_arms import CollectedRun, arms_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return long_tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.mark.slow
@pytest.mark.usefixtures("few_held_out")
def test_it_runs_in_pieces_and_shows_its_tables(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_study, "LEVELS", (2,))
    for name, kept in (("REWARDS", ("binary", "cosine")), ("CROSSING", ("annealed",))):
        arms = {
            arm: getattr(dense_study, name)[arm].replace("minilm", "lexical") for arm in kept
        }  # in half of the time
        monkeypatch.setattr(dense_study, name, arms)
    monkeypatch.setattr(dense_study, "SHAPES", {16: (4, 4)})
    monkeypatch.setattr(dense_study, "OPEN", {"binary": "{kind: binary}", "sft": None})
    runs = tmp_path / "runs"
    common = ["work", str(runs), "--smoke", "--model", model]
    assert dense_study.main([*common, "--budget", "0"]) == 0  # the time is over before the first job
    assert "the time is over" in capsys.readouterr().out
    assert dense_study.main([*common, "--resume", "--budget", "600"]) == 0
    said = capsys.readouterr().out
    assert "all jobs are done" in said
    done = {path.parent.name: path.stat().st_mtime_ns for path in runs.glob("*/result.json")}
    assert {"p0-opposites-2", "binary-k2-n16-seed-0", "cosine-k2-n16-seed-0", "open-sft-seed-0", "preference"} <= set(
        done
    )
    assert not list(runs.glob("*/checkpoints"))
    assert dense_study.main(common) == 2  # not without --resume
    assert dense_study.main([*common, "--resume"]) == 0
    assert {path.parent.name: path.stat().st_mtime_ns for path in runs.glob("*/result.json")} == done
    preferred = json.loads((runs / "preference" / "result.json").read_text())["preferred"]
    assert set(preferred) == {name for name in done if name.startswith("open-")}
    assert {len(values) for values in preferred.values()} == {len(load_task("instructions").rows("held_out"))}

    archive, figure = tmp_path / "dense.tar.xz", tmp_path / "figure.svg"
    assert dense_study.main(["pack", str(runs), str(archive)]) == 0
    capsys.readouterr()
    assert dense_study.main(["show", str(archive), "--figure", str(figure)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"\| 2 \| 16 \| [\d.e-]+ \| binary \| 1 \|", shown)
    assert "| sft |" in shown
    assert figure.read_text().startswith("<svg")
    assert study_store.unpack(archive, tmp_path / "elsewhere") == len(done)
    assert dense_study.main(["work", str(tmp_path / "elsewhere"), "--smoke", "--model", model, "--resume"]) == 0
    assert "all jobs are done" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("few_held_out")
def test_a_cut_run_is_resumed_and_ends_as_an_uncut_one(tmp_path: Path, model: str) -> None:
    setting = Setting(steps=4, eval_every=2, model=model)
    job = dense_study.opposites_job(setting, "binary", 1, 16, 2e-5, 0, tuned=True)
    assert pieces.do(job, tmp_path / "whole", until=float("inf"))
    (tmp_path / "cut" / job.name).mkdir(parents=True)  # as a process leaves it that is killed early
    assert not pieces.do(job, tmp_path / "cut", until=0.0)  # after its first step
    assert [path.name for path in (tmp_path / "cut" / job.name / "checkpoints").iterdir()] == ["step-1"]
    assert not (tmp_path / "cut" / job.name / "result.json").exists()
    assert pieces.do(job, tmp_path / "cut", until=float("inf"))
    assert not (tmp_path / "cut" / job.name / "samples.sqlite").exists()
    whole, cut = (study_store.read_result(tmp_path / name, job.name) for name in ("whole", "cut"))
    assert whole == cut
    assert whole is not None
    (run,) = arms_of([CollectedRun.read(tmp_path / "whole" / job.name)])
    (accuracy,) = [one for one in estimates([run]) if one.metric == "eval/accuracy"]
    rows = len(load_task("opposites-1").rows("held_out"))
    assert accuracy.rows == len(whole["scores"]["end"]) == rows, "`vigneron compare` reads the same rows"
    assert accuracy.interval.mean == pytest.approx(sum(whole["scores"]["end"]) / rows, abs=1e-4)
    logs = [(tmp_path / name / job.name / "metrics.jsonl").read_text() for name in ("whole", "cut")]
    assert logs[0] == logs[1]


def test_an_arm_that_this_version_cannot_run_is_named(tmp_path: Path) -> None:
    setting = Setting()
    known = dense_study.opposites_job(setting, "binary", 1, 16, 2e-5, 0, tuned=True)
    changes = tuple("reward={kind: telepathy}" if c.startswith("reward=") else c for c in known.changes)
    unknown = pieces.Job("x", known.recipe, changes, {}, 1.0)
    can, refused = pieces.available({"binary": known, "telepathy": unknown})
    assert can == ["binary"]
    assert "telepathy" in refused["telepathy"]


def test_every_arm_can_be_run_by_this_version() -> None:
    arms = dense_study.REWARDS | dense_study.CROSSING
    jobs = {arm: dense_study.opposites_job(Setting(), arm, 1, 16, 2e-5, 0, tuned=True) for arm in arms}
    assert pieces.available(jobs) == (list(arms), {})


def test_two_processes_do_not_take_the_same_job(tmp_path: Path) -> None:
    with pieces.claimed(tmp_path, "a") as first, pieces.claimed(tmp_path, "a") as second:
        assert (first, second) == (True, False)
    with pieces.claimed(tmp_path, "a") as again:
        assert again


def test_a_job_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    from vigneron.errors import UserError

    def broken(job: pieces.Job, folder: object, config: object) -> study_store.Result:
        raise UserError("no luck")

    def fine(job: pieces.Job, folder: object, config: object) -> study_store.Result:
        return {"found": 3}

    jobs = [pieces.Job(n, "demo", (), {}, 1.0, instead=w) for n, w in (("a", broken), ("b", fine))]
    said: list[str] = []
    assert pieces.work(lambda runs: pieces.Plan(jobs), tmp_path, 600.0, said.append) == 1
    assert said[0] == "failed  a: no luck"
    assert said[-1] == "1 failed: a"
    assert study_store.read_result(tmp_path, "b") == {"job": "b", "found": 3}


def test_a_job_is_done_again_if_its_rate_is_chosen_anew(tmp_path: Path) -> None:
    def once(rate: float) -> list[str]:
        job = pieces.Job("a", "demo", (), {"rate": rate}, 1.0, instead=lambda *_: {"found": rate})
        said: list[str] = []
        assert pieces.work(lambda runs: pieces.Plan([job]), tmp_path, 600.0, said.append) == 0
        assert study_store.read_result(tmp_path, "a") == {"job": "a", "rate": rate, "found": rate}
        return said

    assert [len(once(rate)) for rate in (1e-5, 1e-5, 5e-5)] == [2, 1, 2]  # the second time nothing is left


# ---------------------------------------------------------------------------------------------- the numbers


def test_scores_of_a_row_by_hand() -> None:
    """Two rows; evaluations at 0, 10, 20, 30, 40: the last three are 20, 30 and 40."""
    values = {0: [1.0, 0.0], 10: [0.0, 1.0], 20: [0.0, 1.0], 30: [1.0, 1.0], 40: [1.0, 0.0]}
    found = study_store.scores_of(values)
    assert found["before"] == [1.0, 0.0]
    assert found["last"] == pytest.approx([2 / 3, 2 / 3], abs=1e-4)
    assert found["area"] == [0.5, 0.75]
    assert found["end"] == [1.0, 0.0]


def test_intervals_are_those_of_compare() -> None:
    """`seeds_and_rows_interval` of the differences, whose numbers tests/core hold against simulations."""
    one = torch.rand(4, 30, generator=torch.Generator().manual_seed(1)).double()
    other = torch.rand(4, 30, generator=torch.Generator().manual_seed(2)).double() * 0.5
    found = paired_difference(one.tolist(), other.tolist())
    assert found == seeds_and_rows_interval(one - other)
    assert found is not None
    assert found.low < found.mean < found.high
    assert re.fullmatch(r"\+0\.\d{3} \(\+0\.\d{3} to \+0\.\d{3}\)", str(found))
    assert paired_difference([[0.5]], [[0.25]]) is None


def test_a_constant_difference_has_no_width_and_equal_arms_none() -> None:
    one = [[0.5, 0.7, 0.9], [0.1, 0.2, 0.3]]
    shifted = [[value + 0.25 for value in values] for values in one]
    assert paired_difference(shifted, one) == pytest.approx((0.25, 0.25, 0.25))
    assert paired_difference(one, one) == Difference(0, 0, 0)


@pytest.mark.parametrize(
    ("difference", "says"),
    [
        (Difference(0.05, 0.01, 0.1), "pays"),
        (Difference(0.04, 0.01, 0.1), "no difference"),
        (Difference(0.2, -0.01, 0.4), "no difference"),
        (Difference(-0.05, -0.1, -0.01), "costs"),
        (Difference(-0.3, -0.7, 0.1), "no difference"),
    ],
)
def test_rule_1(difference: Difference, says: str) -> None:
    assert verdict(difference) == says


@pytest.mark.parametrize(
    ("verdicts", "says"),
    [
        ({0.1: "pays", 3.0: "no difference"}, "holds"),
        ({0.1: "pays", 0.4: "no difference", 3.0: "costs"}, "fails"),
        ({0.1: "pays", 3.0: "pays"}, "fails"),
        ({0.1: "pays", 1.0: "costs", 3.0: "costs"}, "holds"),
        ({0.1: "pays", 1.0: "pays"}, "not tested"),
        ({3.0: "costs"}, "not tested"),
    ],
)
def test_rule_2(verdicts: dict[float, str], says: str) -> None:
    assert law(verdicts) == says


def test_rule_3_by_hand() -> None:
    """From +0.3 at 0.1 to −0.1 at 10: three quarters of two decades above 0.1."""
    assert crossing_point({10.0: -0.1, 0.1: 0.3}) == pytest.approx(10**0.5)
    assert crossing_point({0.1: 0.3, 10.0: 0.2}) is None
    assert crossing_point({0.1: -0.3, 10.0: -0.2}) is None


def test_rules_4_and_5() -> None:
    assert matter(["pays", "no difference", "pays", "costs"]) == "they matter"
    assert matter(["pays", "costs"]) == matter(["no difference"]) == "they do not matter"
    up, down, open_ended = Difference(0.2, 0.1, 0.3), Difference(-0.2, -0.3, -0.1), Difference(0.2, -0.1, 0.5)
    assert open_verdict([up, up]) == "better"
    assert open_verdict([down, down]) == "worse"
    assert open_verdict([up, open_ended]) == open_verdict([up, down]) == "neither"
    assert open_verdict([up, None]) == "–"


def test_rates_and_stops_are_chosen_on_tuning_runs() -> None:
    def tried(rate: float, area: float) -> study_store.Result:
        return {"rate": rate, "area": area}

    assert chosen_rate([tried(1e-5, 0.1), tried(2e-5, 0.1), tried(5e-5, 0.3)], RATES) == 5e-5
    assert chosen_rate([tried(1e-5, 0.0), tried(2e-5, 0.0), tried(5e-5, 0.0)], RATES) == 2e-5
    assert chosen_rate([tried(1e-5, 0.2), tried(2e-5, 0.1), tried(5e-5, 0.2)], RATES) == 1e-5
    assert chosen_rate([tried(1e-5, 0.2), None], RATES) is None
    runs = [
        {"rate": 1e-5, "curve": {"0": 0.9, "20": 0.2, "40": 0.4}},
        {"rate": 2e-5, "curve": {"0": 0.9, "20": 0.4, "40": 0.1}},
    ]
    assert chosen_stop(runs) == (2e-5, 20)
    assert chosen_stop([*runs, None]) is None


def test_the_crossing_cell_is_where_a_step_has_one_hit(tmp_path: Path) -> None:
    for level, count in ((1, 2000), (2, 160), (4, 0)):
        (tmp_path / f"p0-opposites-{level}").mkdir()
        study_store.write_result(tmp_path, f"p0-opposites-{level}", {"hits": count, "drawn": 20_000})
    assert hits({"hits": 160, "drawn": 20_000}, 100) == pytest.approx(0.8)
    assert hits({"hits": 0, "drawn": 20_000}, 16) == pytest.approx(16 / 40_000)
    assert crossing_cell(tmp_path) == (2, 100)  # 0.8; with k = 1 and 16 samples it would be 1.6
    assert crossing_cell(tmp_path / "nothing") is None


def test_the_own_answer_is_found_and_an_empty_text_finds_none() -> None:
    answers = [f"{noun} is a thing to eat" for noun in ("bread", "cheese", "apple", "soup")]
    prompts = ["Where is the key?"] * 4
    assert retrieved(answers, answers, prompts) == [1, 1, 1, 1]
    assert retrieved([answers[1], answers[0], "", answers[3]], answers, prompts) == [0, 0, 0, 1]


def test_an_echo_finds_no_answer() -> None:
    """It is nearest to its own prompt, though nearer to the own answer than to others'."""
    rows = load_task("instructions").rows("held_out")
    prompts, answers, echoes = ([row[key] for row in rows] for key in ("prompt", "answer", "input"))
    assert sum(retrieved(answers, answers, prompts)) == len(rows)
    assert sum(retrieved(echoes, answers, prompts)) < 0.1 * len(rows)
    assert sum(retrieved(echoes, answers, [""] * len(rows))) > 0.7 * len(rows)


def test_the_page_gives_the_rule_of_the_module() -> None:
    page = " ".join((ROOT / "docs" / "results" / "dense-study.md").read_text(encoding="utf-8").split())
    rule = " ".join((dense_study.__doc__ or "").partition("Decision rule")[2].split())
    assert rule in page
