"""The study of dense rewards: the driver with a tiny model, cut and resumed; the decision rule by hand."""

import json
import re
from itertools import groupby
from pathlib import Path

import pytest
import torch
from benchmarks.dense_results import (
    cells_of,
    law_line,
    named,
    open_scores,
    show_open,
    show_open_tuning,
    show_opposites,
    show_p0,
    show_tuning,
    written,
)
from benchmarks.dense_rule import (
    EVERYWHERE,
    Cell,
    better_or_worse,
    crossing_point,
    law,
    matter,
    open_verdict,
    says_something,
    verdict,
    worth_it,
)
from benchmarks.dense_scores import hits, retrieved
from benchmarks.dense_study import RATES, Setting, chosen_stop, crossing_cell
from benchmarks.paired import Difference, paired_difference
from benchmarks.study_settings import chosen_rate

from benchmarks import dense_study, study_jobs, study_store
from support.tiny_models import long_tiny_folder
from vigneron.core.intervals import seeds_and_rows_interval
from vigneron.data.tasks import load_task
from vigneron.run_store.archive import unpacked

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
    assert "| SFT |" in shown
    assert figure.read_text().startswith("<svg")
    assert "not yet (1 of 4 seeds)" in shown
    assert study_store.unpack(archive, tmp_path / "elsewhere") == len(done)
    assert dense_study.main(["plan", str(tmp_path / "new"), "--smoke", "--model", model, "--done", str(archive)]) == 0
    assert "left: 0 minutes of one process" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()
    assert dense_study.main(["work", str(tmp_path / "elsewhere"), "--smoke", "--model", model, "--resume"]) == 0
    assert "all jobs are done" in capsys.readouterr().out


def test_every_arm_can_be_run_by_this_version() -> None:
    arms = dense_study.REWARDS | dense_study.CROSSING
    jobs = {arm: dense_study.opposites_job(Setting(), arm, 1, 16, 2e-5, 0, tuned=True) for arm in arms}
    assert study_jobs.available(jobs) == (list(arms), {})


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
    up, down, unsure = Difference(0.2, 0.1, 0.3), Difference(-0.2, -0.3, -0.1), Difference(0.2, -0.1, 0.5)
    assert better_or_worse([up, up]) == "better"
    assert better_or_worse([down, down]) == "worse"
    assert better_or_worse([up, unsure]) == better_or_worse([up, down]) == "neither"
    assert worth_it("better", "neither") == worth_it("better", "better") == "yes"
    assert worth_it("better", "worse") == worth_it("neither", "better") == worth_it("worse", "neither") == "no"


# ---------------------------------------------------------------------------------------------- before all is done

WAITS = "not yet (2 of 4 seeds)"


def seeds(value: float, count: int = 4) -> dict[int, list[float]]:
    """Seeds that agree, with three rows that do."""
    return {seed: [value] * 3 for seed in range(count)}


def cell(level: int, samples: int, hits: float, **arms: dict[int, list[float]]) -> Cell:
    own = {name.replace("_", "-"): by_seed for name, by_seed in arms.items()}
    return Cell(level, samples, hits, own, own)


def test_a_cell_waits_for_all_seeds_of_both_arms() -> None:
    half = cell(2, 16, 0.2, binary=seeds(0.2), cosine=seeds(0.4), contrastive=seeds(0.4, 2))
    assert half.verdict("cosine", "binary") == "pays"
    assert half.verdict("contrastive", "binary") == WAITS
    assert half.verdict("token-f1", "binary") == "not yet (0 of 4 seeds)"


def test_a_cell_says_nothing_only_if_no_arm_can_learn_any_more() -> None:
    silent = {arm: seeds(0.0) for arm in EVERYWHERE}
    assert says_something(silent) is False
    assert says_something({**silent, "token-f1": seeds(0.0, 3)}) is None, "the fourth seed may"
    assert says_something({**silent, "token-f1": seeds(0.1, 3)}) is True, "its mean is 0.075 at least"
    assert says_something({**silent, "token-f1": seeds(0.06, 3)}) is None, "its mean may be 0.045"
    assert says_something({}) is None
    waiting = cell(4, 16, 0.0004, binary=seeds(0.0), cosine=seeds(0.0))
    assert waiting.verdict("cosine", "binary") == "not yet (other arms)"


@pytest.mark.parametrize(
    ("verdicts", "says"),
    [
        ({0.1: "pays", 3.0: WAITS}, "not yet"),
        ({0.1: "no difference", 0.2: WAITS, 3.0: "costs"}, "fails"),
        ({0.1: "no difference", 3.0: WAITS}, "not yet"),  # above, no cell may say something
        ({0.1: WAITS, 3.0: "pays"}, "not yet"),
        ({0.1: "pays", 0.2: WAITS, 3.0: "pays"}, "fails"),
        ({0.1: "pays", 1.0: WAITS, 3.0: "costs"}, "holds"),
        ({0.1: "nothing is learned", 3.0: "costs"}, "not tested"),
        ({0.1: "pays", 0.2: "nothing is learned", 3.0: "costs"}, "holds"),
    ],
)
def test_the_law_is_decided_as_soon_as_nothing_can_change_it(verdicts: dict[float, str], says: str) -> None:
    assert law(verdicts) == says


def test_the_laws_line_names_the_cells_against_it() -> None:
    low = cell(2, 16, 0.18, binary=seeds(0.4), cosine=seeds(0.42), contrastive=seeds(0.6, 2))
    high = cell(1, 16, 4.0, binary=seeds(0.7), cosine=seeds(0.68), contrastive=seeds(0.7))
    against = "k = 2 × 16 (0.18): no difference"
    assert law_line([low, high], "cosine") == ["cosine", "fails", against, "0.85"]
    assert law_line([low, high], "contrastive") == ["contrastive", "not yet", "", "not yet"]


def test_whether_embeddings_matter_waits_for_cells_that_could_change_it() -> None:
    assert matter(["pays", "no difference", WAITS]) == "not yet (2 of 3 cells)"
    assert matter(["pays", "pays", WAITS]) == "they matter"
    assert matter(["costs", "no difference", WAITS]) == "they do not matter"
    assert matter([WAITS] * 6) == "not yet (0 of 6 cells)"


def test_the_open_task_waits_for_all_seeds_of_both_scores() -> None:
    one, other = seeds(0.4), seeds(0.2)
    assert open_verdict([one, one], [other, other]) == "better"
    assert open_verdict([one, one], [other, seeds(0.2, 2)]) == WAITS
    assert open_verdict([one, {}], [other, {}]) == "not yet (0 of 4 seeds)"
    assert worth_it("better", WAITS) == worth_it(WAITS, "neither") == WAITS
    assert worth_it(WAITS, "worse") == worth_it("neither", WAITS) == "no"


def test_a_preference_for_texts_of_another_rate_does_not_count(tmp_path: Path) -> None:
    """If an arm's rate or stop is chosen anew, the preference model scores all texts again; until then, it has none."""
    run = {"part": "open", "tuned": True, "arm": "sft", "rate": 1e-5, "steps": 45, "seed": 0, "job": "open-sft-seed-0"}
    run["scores"] = {"end": [1.0]}
    job = dense_study.preference_job(Setting(), {"sft": (1e-5, 45)})
    (tmp_path / job.name).mkdir()
    study_store.write_result(
        tmp_path, job.name, {"key": job.key(tmp_path), **job.labels, "preferred": {"open-sft-seed-0": [0.7]}}
    )
    assert study_jobs.is_done(job, tmp_path)
    judged = study_store.read_result(tmp_path, job.name)
    assert judged is not None
    assert open_scores([run, judged])["preference"] == {"sft": {0: [0.7]}}
    for stop in ((2e-5, 45), (1e-5, 60)):
        assert not study_jobs.is_done(dense_study.preference_job(Setting(), {"sft": stop}), tmp_path)
        again = {**run, "rate": stop[0], "steps": stop[1]}
        assert open_scores([again, judged])["preference"] == {}


# ---------------------------------------------------------------------------------------------- data


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
        job = dense_study.p0_job(Setting(), f"opposites-{level}")
        (tmp_path / job.name).mkdir()
        result = {"key": job.key(tmp_path), "hits": count, "drawn": 20_000}
        study_store.write_result(tmp_path, job.name, result)
    assert hits({"hits": 160, "drawn": 20_000}, 100) == pytest.approx(0.8)
    assert hits({"hits": 0, "drawn": 20_000}, 16) == pytest.approx(16 / 40_000)
    assert crossing_cell(Setting(), tmp_path) == (2, 100)  # 0.8; with k = 1 and 16 samples it would be 1.6
    assert crossing_cell(Setting(), tmp_path / "nothing") is None


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


@pytest.fixture(scope="module")
def archived() -> list[study_store.Result]:
    with unpacked(ROOT / "docs" / "results" / "logs" / "dense-study.tar.xz") as folder:
        return study_store.all_results(folder)


@pytest.mark.slow
def test_the_page_gives_the_numbers_of_the_logs(archived: list[study_store.Result]) -> None:
    """Every table that `show` prints: p₀, tuning, cells, law, embeddings, the open task's tuning, scores, verdicts."""
    page = tables((ROOT / "docs" / "results" / "dense-study.md").read_text(encoding="utf-8"))
    every = (show_p0, show_tuning, show_opposites, show_open_tuning, show_open)
    shown = [table for part in every for table in tables(part(archived))]
    assert [len(table) for table in shown] == [5, 11, 27, 4, 13, 5, 5, 6]
    for table in shown:
        assert table in page, "\n".join(table)


def tables(text: str) -> list[list[str]]:
    """The lines of each, without bold type, spaces and rules."""
    lines = [re.sub(r"\*\*|\s+", "", line) for line in text.splitlines()]
    found = [[*some] for is_table, some in groupby(lines, lambda line: line.startswith("|")) if is_table]
    return [[line for line in table if set(line) != {"|", "-"}] for table in found]


@pytest.mark.slow
def test_the_page_gives_the_seeds_of_the_logs(archived: list[study_store.Result]) -> None:
    """The table by seed at k = 4, and what the summary says of differences."""
    page = (ROOT / "docs" / "results" / "dense-study.md").read_text(encoding="utf-8")
    for cell in cells_of(archived):
        for arm, own in cell.last.items() if cell.level == 4 else ():
            means = [study_store.mean(own[seed]) for seed in range(4)]
            by_seed = ", ".join(f"{value:.2f}" if value else "0" for value in means)
            learned = sum(value >= 0.05 for value in means)
            assert f"| {cell.samples} | {named(arm)} | {by_seed} | {learned} of 4 |" in page
    summary = page.partition("## Question")[0]
    claims = ((4, 100, "cosine"), (4, 16, "token-f1"), (2, 100, "annealed"), (2, 100, "tie-breaker"))
    for level, samples, arm in claims:
        (cell,) = (cell for cell in cells_of(archived) if (cell.level, cell.samples) == (level, samples))
        assert written(cell.difference(arm, "binary")) in " ".join(summary.split())


@pytest.mark.slow
def test_the_page_tells_how_the_open_tasks_models_answer(archived: list[study_store.Result]) -> None:
    """Empty texts before training, and after it in the binary arm; copies of the instruction."""
    page = " ".join((ROOT / "docs" / "results" / "dense-study.md").read_text(encoding="utf-8").split())
    texts = {one["job"]: one["texts"] for one in archived if one.get("part") == "open" and one["tuned"]}
    empty = {
        job: [sum(not text for text in of_job[name]) for name in ("before", "last")] for job, of_job in texts.items()
    }
    assert {before for before, _ in empty.values()} == {105}
    assert "ends at once in 105 of the 122 held-out rows" in page
    assert [empty[f"open-binary-seed-{seed}"][1] for seed in range(4)] == [117, 105, 6, 0]
    assert "answers nothing in 117 rows (retrieval 0.02), seeds 2 and 3 in 6 and 0" in page
    inputs = [row["input"].lower() for row in load_task("instructions").rows("held_out")]
    copies = {
        arm: [
            sum(bool(text) and text.lower() in own for text, own in zip(texts[job]["last"], inputs, strict=True))
            for seed in range(4)
            for job in [f"open-{arm}-seed-{seed}"]
        ]
        for arm in ("cosine", "contrastive", "sft")
    }
    spans = [f"{min(counts)} to {max(counts)}" for counts in copies.values()]
    assert f"{spans[0]} are copied from the instruction word for word ({spans[1]}, {spans[2]})" in page
