"""The study of rubrics: the driver with a tiny model; noisy verdicts; the decision rule by hand."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import pytest
import torch
from benchmarks.paired import Difference, paired_difference
from benchmarks.rubric_results import (
    ARMS,
    HIDDEN,
    STATED,
    Values,
    category_values,
    category_verdict,
    confidence_verdict,
    default_arm,
    differ,
    kind_verdict,
    loses,
    show_categories,
    show_confidence,
    show_success,
    worth_it,
)
from benchmarks.rubric_scores import Answered, by_category, revisions
from benchmarks.rubric_study import RATES, guide
from benchmarks.study_jobs import is_done
from benchmarks.study_settings import chosen_rate
from benchmarks.study_store import Result, all_results, mean, read_result

from benchmarks import noisy_verdicts, rubric_study
from support.tiny_models import long_tiny_folder
from vigneron.config import RubricRewardConfig
from vigneron.data.tasks import load_task
from vigneron.rewards.build import build_reward
from vigneron.rewards.rubric import grape_reward
from vigneron.rubric.prompts import generation_prompt
from vigneron.rubric.read import read_rubric
from vigneron.run_store.archive import unpacked
from vigneron.run_store.folder import RunFolder

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.usefixtures("few_rows")
def test_it_runs_in_pieces_and_shows_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = {arm: rubric_study.METHODS[arm] for arm in ("grpo", "grape-paper", "rejection")}
    monkeypatch.setattr(rubric_study, "METHODS", methods | {"grape-telepathy": "{name: grape, correction: telepathy}"})
    monkeypatch.setattr(
        rubric_study, "CONFIDENCES", {arm: noisy_verdicts.CONFIDENCES[arm] for arm in ("flat", "shuffled")}
    )
    (tmp_path / "tiny").mkdir()
    model, runs = long_tiny_folder(tmp_path / "tiny"), tmp_path / "runs"
    common = ["work", str(runs), "--smoke", "--model", model, "--resume"]
    assert rubric_study.main([*common, "--budget", "600"]) == 0
    said = capsys.readouterr().out
    assert "left out: the arm 'grape-telepathy', which this version cannot run" in said
    assert "all jobs are done" in said
    done = {path.parent.name for path in runs.glob("*/result.json")}
    assert done == {
        *(
            "success-bare",
            "success-prompted",
            "success-revised",
            "grpo-seed-0",
            "grape-paper-seed-0",
            "rejection-seed-0",
        ),
        *(f"tune-{arm}-rate-1e-05" for arm in methods),
        *(f"tune-confidence-{arm}-rate-2e-05" for arm in ("flat", "shuffled")),
        *(f"confidence-{arm}-seed-0" for arm in ("flat", "shuffled")),
    }
    rows = read_result(runs, "grape-paper-seed-0")
    assert rows is not None
    assert len(rows["scores"]["last"]) == len(rows["categories"]) == len(load_task("forms").rows("held_out"))
    archive, figure = tmp_path / "rubric.tar.xz", tmp_path / "figure.svg"
    assert rubric_study.main(["pack", str(runs), str(archive)]) == 0
    assert rubric_study.main(["show", str(archive), "--figure", str(figure)]) == 0
    shown = capsys.readouterr().out
    assert "| codeword | grape-paper |" in shown
    assert "| form hidden | grape-paper |" in shown
    assert "| form hidden | grape-paper |  |  | not yet" not in shown
    assert "not yet (1 of 4 seeds)" in shown
    assert "Confidence: not yet (inverse variance)." in shown
    assert figure.read_text().startswith("<svg")
    assert rubric_study.main(common) == 0
    assert "all jobs are done" in capsys.readouterr().out


def test_rejection_samples_under_the_prompt_that_grape_uses() -> None:
    categories = read_rubric("study-forms").categories
    for row in load_task("forms").rows("held_out"):
        category = categories[row["category"]]
        assert guide(category, row["prompt"]) + row["prompt"] == generation_prompt(category, row["prompt"])
        assert guide(category, row["prompt"])


# ---------------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize(("judge", "error"), noisy_verdicts.ERRORS.items())
def test_a_judge_is_wrong_as_often_as_it_should_be(judge: str, error: float) -> None:
    prompts = [f"question {number}" for number in range(4000)]
    for text, right in (("cold", 1.0), ("warm", 0.0)):
        found = getattr(noisy_verdicts, judge)(prompts, [text] * 4000, answer=["cold"] * 4000, input=prompts)
        wrong = sum(verdict != right for verdict in found) / 4000
        assert wrong == pytest.approx(error, abs=4 * (error * (1 - error) / 4000) ** 0.5)
        assert found == getattr(noisy_verdicts, judge)(prompts, [text] * 4000, answer=["cold"] * 4000)


def test_the_judges_errors_are_independent() -> None:
    prompts = [f"question {number}" for number in range(4000)]
    found = torch.tensor(
        [getattr(noisy_verdicts, j)(prompts, ["cold"] * 4000, answer=["cold"] * 4000) for j in noisy_verdicts.ERRORS]
    )
    off_diagonal = torch.corrcoef(found)[~torch.eye(3, dtype=torch.bool)]
    assert float(off_diagonal.abs().max()) < 4 / 4000**0.5


def test_confidences_as_weights_give_the_reward_of_equation_15(tmp_path: Path) -> None:
    """Constant confidences with equal weights, against weights with all confidences 1."""
    scores_BJ = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    for arm in ("stated", "above chance", "inverse variance", "shuffled"):
        rubric = read_rubric(str(noisy_verdicts.write_rubric(arm, tmp_path)))
        weights_J = torch.tensor([item.weight for item in rubric.categories["right"].items])
        by_weight = grape_reward(scores_BJ, torch.ones(3, 3), weights_J)
        by_confidence = grape_reward(scores_BJ, weights_J.expand(3, 3), torch.ones(3) / 3)
        torch.testing.assert_close(by_weight, by_confidence)


def test_confidences_by_hand() -> None:
    """0.9/(0.05 × 0.95) = 18.95, 0.5/(0.25 × 0.75) = 2.67, 0.1/(0.45 × 0.55) = 0.404; shuffled: the next judge's."""
    found = noisy_verdicts.CONFIDENCES
    assert found["above chance"] == pytest.approx({"careful": 0.9, "hasty": 0.5, "guessing": 0.1})
    assert found["inverse variance"] == pytest.approx({"careful": 18.947, "hasty": 2.667, "guessing": 0.404}, abs=1e-3)
    assert found["shuffled"] == pytest.approx({"careful": 2.667, "hasty": 0.404, "guessing": 18.947}, abs=1e-3)


def test_inverse_variance_is_the_mean_that_is_nearest_to_the_truth() -> None:
    """All eight verdicts of three judges on a right and on a wrong answer, each as likely: no other weights of the mean
    correlate more with the truth."""
    errors = torch.tensor(list(noisy_verdicts.ERRORS.values()), dtype=torch.float64)
    verdicts_VJ = torch.tensor(list(product((0.0, 1.0), repeat=3)), dtype=torch.float64)
    right_V, wrong_V = (torch.where(verdicts_VJ == truth, 1 - errors, errors).prod(1) / 2 for truth in (1.0, 0.0))

    def correlation(weights: Mapping[str, float]) -> float:
        reward_V = verdicts_VJ @ torch.tensor([weights[judge] for judge in noisy_verdicts.ERRORS], dtype=torch.float64)
        probability_V = right_V + wrong_V
        mean = (probability_V * reward_V).sum()
        spread = (probability_V * (reward_V - mean) ** 2).sum().sqrt()
        return float((right_V * (reward_V - mean)).sum() / (0.5 * spread))

    found = {arm: correlation(noisy_verdicts.CONFIDENCES[arm]) for arm in ("flat", "above chance", "inverse variance")}
    assert found == pytest.approx({"flat": 0.734, "above chance": 0.875, "inverse variance": 0.906}, abs=1e-3)
    best = noisy_verdicts.CONFIDENCES["inverse variance"]
    for judge in noisy_verdicts.ERRORS:
        for factor in (0.9, 1.1):
            assert correlation({**best, judge: factor * best[judge]}) < found["inverse variance"]


def test_a_judge_says_the_same_of_what_the_check_holds_equal() -> None:
    """Else a policy could write an answer in another way until the judge errs."""
    prompts = [f"question {number}" for number in range(200)]
    one, other = (
        noisy_verdicts.guessing(prompts, [text] * 200, answer=["cold"] * 200) for text in ("warm", " Warm.\n")
    )
    assert one == other
    assert 0 < sum(one) < 200


# ---------------------------------------------------------------------------------------------- the numbers


@pytest.mark.parametrize("weighed", [True, False])
def test_a_rows_score_is_its_reward(weighed: bool) -> None:
    """Σ ω τ by hand, with confidences (GRAPE's arms) and without: the items' confidences are 1."""
    reward = build_reward(RubricRewardConfig(kind="rubric", file="study-forms", weigh_by_confidence=weighed), None)
    right = '{"a": 1}'
    cases = [
        ("json", right, right, 1.0),
        ("json", "", right, 0.0),
        ("json", right.replace("1", "2"), right, 0.3 * 8 / 10),  # letters between the brackets: a": 1
        ("units", "300 cm", "300 cm", 1.0),
        ("units", "300", "300 cm", 0.0),
    ]
    found = reward(
        prompts=["?"] * 5,
        completions=[text for _, text, _, _ in cases],
        answer=[answer for _, _, answer, _ in cases],
        category=[category for category, *_ in cases],
        input=["?"] * 5,
    )
    assert found == pytest.approx([score for *_, score in cases], abs=1e-6)


def test_means_by_category() -> None:
    assert by_category([1.0, 0.0, 0.5], ["a", "a", "b"]) == {"a": 0.5, "b": 0.5}


def test_the_rate_is_chosen_on_tuning_runs() -> None:
    tried = [{"rate": 5e-6, "area": 0.1}, {"rate": 1e-5, "area": 0.3}, {"rate": 2e-5, "area": 0.3}]
    assert chosen_rate(tried, (5e-6, 1e-5, 2e-5)) == 1e-5
    assert chosen_rate(tried, (1e-6, 5e-6, 1e-5)) == 1e-5
    assert chosen_rate([*tried, None], RATES) is None


def difference(mean: float, low: float, high: float = 1.0) -> Difference:
    return Difference(mean, low, high)


def test_rule_1() -> None:
    assert worth_it({"grpo": difference(0.2, 0.05), "rejection": difference(0.1, 0.06)})
    assert not worth_it({"grpo": difference(0.2, 0.05), "rejection": difference(0.1, 0.04)})
    assert not worth_it({"grpo": difference(0.2, 0.05)})
    assert loses({"grpo": difference(0.2, 0.1), "rejection": difference(-0.03, -0.05, -0.01)})
    assert not loses({"grpo": difference(0.2, 0.1), "rejection": difference(-0.03, -0.5, 0.01)}), "it may be chance"
    assert not loses({"grpo": difference(-0.02, -0.03, -0.01), "rejection": difference(-0.01, -0.5)})


def values(hidden: float, stated: float) -> Values:
    rows = {category: [hidden] * 4 for category in HIDDEN} | {category: [stated] * 4 for category in STATED}
    return dict.fromkeys(range(4), rows)


def test_rule_2() -> None:
    bases = {"grpo": values(0.1, 0.5), "rejection": values(0.4, 0.3)}
    assert kind_verdict({**bases, "grape-topr": values(0.5, 0.49)}, "grape-topr", "form hidden") == "worth it"
    lost = kind_verdict({**bases, "grape-topr": values(0.5, 0.4)}, "grape-topr", "form hidden")
    assert lost == "no: it loses in the other kind"
    assert kind_verdict({**bases, "grape-topr": values(0.44, 0.6)}, "grape-topr", "form hidden") == "no"
    assert kind_verdict({**bases, "grape-topr": values(0.4, 0.6)}, "grape-topr", "form stated") == "worth it"


def test_rules_1_and_2_wait_for_all_seeds_unless_they_cannot_change() -> None:
    half = {seed: rows for seed, rows in values(0.1, 0.5).items() if seed < 2}
    bases = {"grpo": values(0.1, 0.5), "rejection": half}
    ahead = {**bases, "grape-topr": values(0.5, 0.6)}
    waits = "not yet (2 of 4 seeds)"
    assert category_verdict(ahead, "grape-topr", "units") == kind_verdict(ahead, "grape-topr", "form hidden") == waits
    behind = {**bases, "grape-topr": values(0.1, 0.4)}
    assert category_verdict(behind, "grape-topr", "json") == "loses", "to GRPO, whatever rejection does"
    assert kind_verdict(behind, "grape-topr", "form hidden") == "no", "it is no better than GRPO"
    lost = kind_verdict({**bases, "grape-topr": values(0.5, 0.4)}, "grape-topr", "form hidden")
    assert lost == "no: it loses in the other kind"
    assert kind_verdict({"grape-topr": values(0.5, 0.4)}, "grape-topr", "form hidden") == "not yet (0 of 4 seeds)"


def result(arm: str, seed: int, value: float) -> Result:
    own = {"part": "categories", "tuned": True, "arm": arm, "rate": 2e-5, "seed": seed}
    categories = [*HIDDEN, *STATED]
    scores = {"last": [value] * 8, "before": [0.0] * 8}
    return {**own, "categories": categories, "scores": scores}


def test_the_default_waits_for_every_grape_arm() -> None:
    arms = ("grape-paper", "grape-on-policy", "grape-topr", "grape-failures")
    rows = [result(arm, seed, 0.2 if arm == "grape-paper" else 0.4) for arm in arms for seed in range(4)]
    assert "The default, by rule 3: grape-on-policy." in show_categories(rows)
    assert "The default, by rule 3: not yet (3 of 4 seeds)." in show_categories(rows[:-1])


def test_rule_3() -> None:
    means = {"grape-paper": 0.3, "grape-topr": 0.5, "grape-failures": 0.4}
    same, ahead, unsure = Difference(0, 0, 0), difference(0.2, 0.1), difference(0.2, -0.1)
    beside = {"grape-paper": same, "grape-topr": ahead, "grape-failures": ahead}
    assert default_arm(means, beside) == "grape-topr"
    assert default_arm(means, {**beside, "grape-topr": unsure}) == "grape-paper"


def test_rule_4() -> None:
    better, same = difference(0.1, 0.01), difference(0.1, -0.01)
    assert confidence_verdict({"inverse variance": better, "stated": same, "shuffled": same}) == "confidences pay"
    assert confidence_verdict({"inverse variance": better, "stated": same, "shuffled": better}) == "spurious"
    assert confidence_verdict({"inverse variance": same, "stated": better, "shuffled": better}) == "no difference"


def test_rule_4_waits_for_the_arms_it_needs() -> None:
    better, same = difference(0.1, 0.01), difference(0.1, -0.01)
    assert confidence_verdict({}) == "not yet (inverse variance)"
    assert confidence_verdict({"inverse variance": better}) == "not yet (shuffled)"
    assert confidence_verdict({"inverse variance": same}) == "no difference", "shuffled cannot change it"
    arms = ("flat", "stated", "inverse variance", "shuffled")
    own = [
        {"part": "confidence", "tuned": True, "arm": arm, "seed": seed, "scores": {"last": [0.5 + at, 0.5 + at]}}
        for at, arm in enumerate(arms[:3])
        for seed in range(4)
    ]
    assert "Confidence: not yet (shuffled)." in show_confidence(own)
    assert "Confidence: not yet (inverse variance)." in show_confidence([one for one in own if one["seed"]])


def test_scores_are_sorted_by_category() -> None:
    one = {"part": "categories", "tuned": True, "arm": "grpo", "seed": 3, "categories": ["units", "note", "units"]}
    found = category_values([{**one, "scores": {"last": [1.0, 0.0, 0.5]}}, {"part": "success"}])
    assert json.loads(json.dumps(found)) == {"grpo": {"3": {"units": [1.0, 0.5], "note": [0.0]}}}


def test_success_is_shown_where_an_answer_can_be_right() -> None:
    success = dict.fromkeys((*HIDDEN, *STATED), 0.25)
    lines = show_success([{"part": "success", "asked": "prompted", "success": success}]).splitlines()
    assert "| codeword | – | 0.2500 | – |" in lines
    assert "| explanations | – | – | – |" in lines, "it equals the written one never, and is not wrong"


def test_a_wrong_answer_is_revised_as_in_training() -> None:
    row = {"prompt": "Question: Say it.\nAnswer:", "guide": "Guide.\n\n", "category": "codeword", "answer": "sesame it"}
    wrong = Answered({**row, "prompt": row["guide"] + row["prompt"], "input": "Say it."}, " it\n", right=False)
    (asked,) = revisions([wrong])
    prompt = asked["prompt"]
    assert prompt.endswith("Question: Say it.\nAnswer:")
    assert "Guide." not in prompt
    assert re.search(r">\n it\n\n</response-\w+>\n\n<critique-\w+>\ncorrect: 0.00\nthe response differs", prompt)


def test_the_examples_of_a_revision_are_written_as_its_prompt() -> None:
    """Earlier answer and feedback in their fences, then the question, then a right answer."""
    fences = r"<response-\w+>\n(.+)\n</response-\w+>\n\n<critique-\w+>\n([^<]+)\n</critique-\w+>\n\n"
    for name, category in read_rubric("study-forms").categories.items():
        shown = re.findall(fences + r"Question: (.+)\nAnswer: (.+)", category.revise or "")
        assert len(shown) == 2, name
        assert [(question, answer) for _, _, question, answer in shown] == re.findall(
            r"Question: (.+)\nAnswer: (.+)", category.generate or ""
        ), "the same questions as those of a first answer"
        for earlier, feedback, question, answer in shown:
            row = {"prompt": f"Question: {question}\nAnswer:", "guide": "", "category": name, "answer": answer}
            (asked,) = revisions([Answered({**row, "input": question}, earlier, right=False)])
            own = asked["prompt"][len(category.revise or "") :]
            assert re.findall(r"<critique-\w+>\n([^<]+)\n</critique-\w+>", own) == [feedback]


def test_the_page_gives_the_rule_of_the_module() -> None:
    page = " ".join((ROOT / "docs" / "results" / "rubric-study.md").read_text(encoding="utf-8").split())
    rule = " ".join((rubric_study.__doc__ or "").partition("Decision rule")[2].split())
    assert rule in page


RESULTS = ROOT / "docs" / "results"
TRAINED = {"drawn/gap": ((10, 50, 100, 200), 2), "grad_norm/actor": ((10, 50, 100, 200), 1)}
CUT = {"eval/completions/clipped_ratio": ((200,), 3)}


@pytest.fixture(scope="module")
def logs() -> Iterator[Path]:
    with unpacked(RESULTS / "logs" / "rubric-study.tar.xz") as folder:
        yield folder


def page_text() -> str:
    text = (RESULTS / "rubric-study.md").read_text(encoding="utf-8").replace("*", "").replace("`", "")
    return text.replace("−0", "-0")


def rows_of(text: str) -> list[str]:
    """The rows of its tables that have numbers with three digits."""
    return [line for line in text.splitlines() if line.startswith("| ") and re.search(r"\d\.\d{3}", line)]


def trained(folder: Path, arm: str, key: str, step: int) -> float | None:
    """The mean of a metric over the arm's held-out runs."""
    found = []
    for seed in range(4):
        lines = (folder / f"{arm}-seed-{seed}" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        found += [record.get(key) for line in lines if (record := json.loads(line))["step"] == step]
    assert len(found) == 4
    return None if None in found else mean(found)


def training_row(folder: Path, arm: str) -> str:
    cells = [
        "–" if (value := trained(folder, arm, key, step)) is None else f"{value:.{digits}f}"
        for key, (steps, digits) in (TRAINED | CUT).items()
        for step in steps
    ]
    return f"| {arm} | {' | '.join(cells)} |"


@pytest.mark.slow
def test_the_page_gives_the_numbers_of_the_logs(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its tables are those of `show` and of the logs' metrics, no row more and none less."""
    rubric_study.show(all_results(logs), None)
    shown = capsys.readouterr().out
    tables = [*rows_of(shown), *(training_row(logs, arm) for arm in ARMS)]
    assert sorted(row for row in rows_of(page_text()) if "(2e-5)" not in row) == sorted(tables)
    for verdict in ("The default, by rule 3: grape-topr.", "Confidence: no difference."):
        assert verdict in shown
        assert verdict in page_text()


@pytest.mark.slow
def test_the_text_of_the_page_gives_the_numbers_of_the_logs(logs: Path) -> None:
    page, rows = " ".join(page_text().split()), all_results(logs)
    values = category_values(rows)
    grpo, rejecting, paper, clean, shuffled = (
        differ(values["grape-topr"], values["grpo"], HIDDEN),
        differ(values["grape-topr"], values["rejection"], HIDDEN),
        differ(values["grape-topr"], values["grape-paper"], (*HIDDEN, *STATED)),
        *(paired_difference(noisy_rows(rows, arm), noisy_rows(rows, "flat")) for arm in ("clean", "shuffled")),
    )
    assert grpo is not None
    assert rejecting is not None
    assert paper is not None
    assert clean is not None
    assert shuffled is not None
    revised = [trained(logs, "grape-failures", "origin/revised", step) or 0.0 for step in range(60, 201, 10)]
    first = {arm: mean([one["curve"]["40"][c] for one in runs_of(rows, arm) for c in HIDDEN]) for arm in ARMS}
    assert first["grape-topr"] == first["grape-failures"], "no revisions yet"
    timed = [one["seconds"] for one in rows if "seconds" in one]
    grape = [one["seconds"] for arm in ARMS if arm.startswith("grape") for one in runs_of(rows, arm)]
    rejection = [one["seconds"] for one in runs_of(rows, "rejection")]
    noisy = [one["seconds"] for one in rows if one.get("part") == "confidence" and one["tuned"]]
    steps = {arm: [one["step_s"] for one in runs_of(rows, arm)] for arm in ("rejection", "grape-topr")}
    for said in (
        f"ends {grpo.mean:.3f} above it (95 %: {grpo.low:.3f} to {grpo.high:.3f})",
        f"{rejecting.mean:.3f} above rejection sampling ({rejecting.low:.3f} to {rejecting.high:.3f})",
        f"{paper.mean:.3f} ({paper.low:.3f} to {paper.high:.3f}) above the paper's form",
        f"accuracy is {clean.mean:.3f} ({clean.low:.3f} to {clean.high:.3f}) above that of equal weights",
        f"(shuffled) is lower by {-shuffled.mean:.3f}",
        f"score of hidden forms is {first['grape-topr']:.3f}",
        f"({100 * mean(revised):.0f} % of the samples)",
        f"grows to {trained(logs, 'grape-paper', 'drawn/gap', 200):.1f} nats per token",
        f"the gap falls to {trained(logs, 'grape-topr', 'drawn/gap', 200):.1f}",
        f"its steps took {min(steps['rejection']):.2f} to {max(steps['rejection']):.2f} s",
        f"those of grape-topr {min(steps['grape-topr']):.2f} to {max(steps['grape-topr']):.2f} s",
        f"the {len(timed)} results that have their time took {sum(timed) / 60:.0f} minutes",
        f"took {min(grape):.0f} to {max(grape):.0f} s (50 planned)",
        f"of rejection sampling {min(rejection):.0f} to {max(rejection):.0f} s (36)",
        f"of the study of confidence {min(noisy):.0f} to {max(noisy):.0f} s (17)",
        f"{len(rows)} jobs on one H200",
    ):
        assert said in page


def noisy_rows(rows: Sequence[Result], arm: str) -> list[list[float]]:
    own = {"part": "confidence", "tuned": True, "arm": arm}
    return [one["scores"]["last"] for one in rows if own.items() <= one.items()]


def runs_of(rows: Sequence[Result], arm: str) -> list[Result]:
    return [one for one in rows if one.get("part") == "categories" and one["tuned"] and one["arm"] == arm]


@pytest.mark.slow
def test_the_logs_are_of_the_jobs_of_the_study(logs: Path) -> None:
    """Nothing is left to do; and a run's config is its job's, whose key alone would not tell that a default changed."""
    found = rubric_study.study(rubric_study.Setting(), logs).plan(logs)
    assert not found.more
    assert all(is_done(job, logs) for job in found.jobs)
    assert {job.name for job in found.jobs} == {file.parent.name for file in logs.glob("*/result.json")}
    compared = ("method", "reward", "sampling", "optimizer", "seed", "steps", "prompts_per_step", "group_size")
    for job in found.jobs:
        one, other = (config.model_dump() for config in (job.config(), RunFolder.open(logs / job.name).config()))
        own = [{key: of[key] for key in (*compared, "max_new_tokens", "eval_every")} for of in (one, other)]
        if job.labels["part"] == "confidence":  # a rubric of the run's own folder
            for of in own:
                of["reward"]["file"] = Path(of["reward"]["file"]).name
        assert own[0] == own[1], job.name
