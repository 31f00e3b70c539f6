"""The verdict on a run: from folders made by hand, as training, a kill or a damaged file leaves them."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vigneron.core.paired import Interval, paired_interval
from vigneron.recipe import check_config
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.outcome import Evaluation, Outcome, Verdict, outcome_json, outcome_of, stored_outcome
from vigneron.run_store.outcome_text import best_text, next_steps, outcome_cell, outcome_text, rows_needed
from vigneron.run_store.samples import Sample, SampleStore
from vigneron.run_store.status import status_of, write_status

RECIPE: dict[str, Any] = {
    "recipe": "mine",
    "method": {"name": "grpo"},
    "data": {"train": "train.jsonl", "held_out": "held.jsonl"},
    "reward": {"kind": "binary"},
    "optimizer": {"actor_lr": 3e-5},
    "steps": 40,
    "group_size": 8,
}


def make_run(
    place: Path, evaluations: dict[int, dict[str, Any]], rows: dict[int, list[Any]] | None = None, **changes: Any
) -> RunFolder:
    """`rows`: at each evaluation, whether each held-out row is right; of numbers, its reward."""
    folder = RunFolder.create(place, "run", exact_name=True)
    recipe = {key: value for key, value in (RECIPE | changes).items() if value is not None}
    folder.write_config(check_config(recipe, "mine"))
    for step, values in evaluations.items():
        folder.append("metrics.jsonl", {"step": step, **values})
    store = SampleStore(folder.path)
    for step, scores in (rows or {}).items():
        store.add([row_of(step, number, score) for number, score in enumerate(scores)])
    store.close()
    write_status(folder, "finished", began=1.0, ended=2.0)
    return folder


def row_of(step: int, number: int, score: Any) -> Sample:
    right = score if isinstance(score, bool) else None
    reward = None if score is None else float(score)
    return Sample(step, "eval", number, f"q{number}", "text", "answer", reward, None, right, False, {})


def accuracies(**by_step: float | None) -> dict[int, dict[str, Any]]:
    return {int(step[1:]): {"eval/accuracy": value} for step, value in by_step.items()}


def right(count: int, of: int) -> list[bool]:
    return [number < count for number in range(of)]


def save(folder: RunFolder, *steps: int) -> None:
    for step in steps:
        (folder.checkpoints / f"step-{step}").mkdir(parents=True)
        (folder.checkpoints / f"step-{step}" / "manifest.json").write_text("{}")


def read(folder: RunFolder) -> Outcome:
    return outcome_of(status_of(folder.path))


@pytest.mark.parametrize(
    ("before", "after", "rows", "verdict"),
    [
        (4, 3, 6, "undecided"),  # the 0.67 → 0.50: one row of six
        (0, 3, 3, "undecided"),  # all of three rows say too little
        (0, 6, 6, "better"),
        (40, 20, 60, "worse"),
        (50, 51, 100, "undecided"),
        (0, 0, 20, "undecided"),
    ],
)
def test_the_verdict_depends_on_the_rows(tmp_path: Path, before: int, after: int, rows: int, verdict: Verdict) -> None:
    scores = {0: right(before, rows), 40: right(after, rows)}
    found = read(make_run(tmp_path, accuracies(_0=before / rows, _40=after / rows), scores))
    assert found.verdict == verdict
    assert found.rows == rows
    assert found.change is not None
    assert found.change.mean == pytest.approx((after - before) / rows)


def test_the_same_change_is_clearer_where_the_same_rows_stay_right(tmp_path: Path) -> None:
    """20 of 60 to 30 of 60: ten rows rise and none falls; or all 20 fall and 30 others rise."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "moved").mkdir()
    values = accuracies(_0=20 / 60, _40=30 / 60)
    kept = read(make_run(tmp_path / "kept", values, {0: right(20, 60), 40: right(30, 60)}))
    others = [number >= 30 for number in range(60)]
    moved = read(make_run(tmp_path / "moved", values, {0: right(20, 60), 40: others}))
    assert (kept.verdict, moved.verdict) == ("better", "undecided")
    assert outcome_text(kept).startswith("better: held-out accuracy rose from 0.333 to 0.500 (95 % interval of the ch")
    assert outcome_text(moved).startswith("no difference that 60 held-out rows could show: held-out accuracy rose fr")


def test_words_and_numbers_of_a_fall(tmp_path: Path) -> None:
    """Eight of 20 rows fall: −8/22 ± 2.0930 · √(8 + 1 − 64/22) / 22 = −0.3636 ± 0.2348."""
    folder = make_run(
        tmp_path,
        accuracies(_0=0.5, _20=0.8, _40=0.1),
        {0: right(10, 20), 20: right(16, 20), 40: right(2, 20)},
    )
    save(folder, 20, 40)
    found, status = read(folder), status_of(folder.path)
    assert outcome_text(found) == (
        "worse: held-out accuracy fell from 0.500 to 0.100 (95 % interval of the change −0.598 to −0.129, "
        "20 held-out rows)"
    )
    assert outcome_cell(found) == "0.500 → 0.100 worse"
    assert best_text(found) == "step 20: held-out accuracy 0.800 (checkpoint saved)"
    assert next_steps(found, status) == [
        ("export", f"vigneron export {folder.path} DIR --step 20"),
        ("try", f"vigneron train {folder.path}/config.yaml optimizer.actor_lr=1e-05"),
    ]
    (folder.checkpoints / "step-20" / "manifest.json").unlink()
    gone = read(folder)
    assert best_text(gone) == "step 20: held-out accuracy 0.800 (its checkpoint was not saved, or is deleted)"
    assert next_steps(gone, status)[0] == ("try", f"vigneron train {folder.path}/config.yaml steps=20")


def test_a_reward_that_never_differs_is_said_instead_of_training_further(tmp_path: Path) -> None:
    values = {0: {"eval/reward": 0.0}, 1: {"reward_std": 0.0}, 2: {"reward_std": 0.0, "eval/reward": 0.0}}
    reward = {"kind": "python", "function": "my:reward"}
    folder = make_run(tmp_path, values, {0: [0.0] * 4, 2: [0.0] * 4}, reward=reward)
    found = read(folder)
    assert outcome_text(found).endswith("reward stayed at 0.000 (95 % interval of the change +0.000 to +0.000)")
    ((name, text),) = next_steps(found, status_of(folder.path))
    assert (name, text[:41]) == ("try", "no two rewards of a step ever differed, s")
    distilled = replace(status_of(folder.path), config={"method": {"name": "distill", "parent": "p"}})
    assert next_steps(found, distilled)[0][0] == "train further", "its reward only measures"
    folder.append("metrics.jsonl", {"step": 3, "reward_std": 0.5})
    assert next_steps(found, status_of(folder.path))[0][0] == "train further"


def test_a_loss_is_better_where_it_falls(tmp_path: Path) -> None:
    values = {0: {"eval/loss/nll": 2.5}, 20: {"eval/loss/nll": 1.25}, 40: {"eval/loss/nll": 1.5}}
    folder = make_run(
        tmp_path, values, method={"name": "sft"}, group_size=1, keep_best="eval/loss/nll", save_every=10, eval_every=10
    )
    found = read(folder)
    assert (found.verdict, found.best and found.best.step, found.best_saved) == ("no interval", 20, False)
    assert outcome_text(found) == (
        "no verdict: held-out NLL fell from 2.500 to 1.500, lower is better; no scores of single rows are kept, so "
        "there is no interval"
    )
    by_rows = Outcome("eval/score_error", found.before, found.after, (-1.0, -1.5, -0.5), 9)  # type: ignore[arg-type]
    stored = stored_outcome(outcome_json(stored_outcome(vars(by_rows)) or Outcome()))
    assert stored is not None
    assert stored.verdict == "better"


def test_a_share_without_rows_has_the_wider_interval(tmp_path: Path) -> None:
    """DPO keeps no samples of held-out pairs: 8 rows, ½ to ¾, as `shares_interval` by hand."""
    values = {0: {"eval/rewards/accuracies": 0.5}, 40: {"eval/rewards/accuracies": 0.75}}
    folder = make_run(tmp_path, values, method={"name": "dpo"}, group_size=1, reward=None)
    (folder.path / "data").mkdir()
    (folder.path / "data" / "held_out.jsonl").write_text("{}\n" * 8)
    found = read(folder)
    assert (found.verdict, found.rows) == ("undecided", 8)
    assert found.change == pytest.approx((0.25, -0.22037, 0.62037), abs=1e-4)


@pytest.mark.parametrize(
    ("values", "verdict", "text"),
    [
        ({}, "not evaluated", "no verdict: nothing was evaluated on held-out rows"),
        (accuracies(_0=0.0), "one evaluation", "no verdict: held-out accuracy is 0.000 at step 0, the only evaluation"),
        (accuracies(_0=None, _40=None), "not evaluated", "no verdict: no evaluation has a value"),
        (
            accuracies(_0=None, _20=0.5, _40=0.5),
            "no interval",
            "no verdict: held-out accuracy stayed at 0.500; no scores of single rows are kept, so there is no "
            "interval; the first evaluation with a value is that of step 20",
        ),
        (
            accuracies(_0=0.5, _20=0.25, _40=None),
            "no interval",
            "no verdict: held-out accuracy fell from 0.500 to 0.250; no scores of single rows are kept, so there is no "
            "interval; the evaluation of step 40 has no value",
        ),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, values: Any, verdict: Verdict, text: str) -> None:
    found = read(make_run(tmp_path, values))
    assert (found.verdict, outcome_text(found)) == (verdict, text)


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        ({"train": "a.jsonl"}, "data.held_out=FILE and eval_every=10 show"),
        ({"train": "a.jsonl", "held_out": "b.jsonl"}, "eval_every=10 shows"),
        ({"task": "antonyms"}, "eval_every=10 shows"),
    ],
)
def test_a_run_without_evaluation_is_told_the_keys_that_it_lacks(
    tmp_path: Path, data: dict[str, str], keys: str
) -> None:
    folder = make_run(tmp_path, {}, data=data)
    ((_, text),) = next_steps(read(folder), status_of(folder.path))
    assert text == f"{keys} whether the model gets better on rows it never saw"


def test_a_zero_is_shown_and_comes_last_where_answers_are_free_text(tmp_path: Path) -> None:
    """Texts of one's own, scored by a function: the reward says more than an exact match that never happens."""
    reward = {"kind": "python", "function": "rewards:f"}
    values = {step: {"eval/accuracy": 0.0, "eval/reward": 0.25 + step / 100} for step in (0, 40)}
    rows = {0: [0.25] * 8, 40: [0.65] * 8}
    found = read(make_run(tmp_path, values, rows, reward=reward))
    assert (found.metric, found.verdict, found.rows) == ("eval/reward", "better", 8)
    (tmp_path / "checked").mkdir()
    data = {**RECIPE["data"], "checker": "inclusion"}
    checked = read(make_run(tmp_path / "checked", values, rows, reward=reward, data=data))
    assert (checked.metric, outcome_cell(checked)) == ("eval/accuracy", "0.000 → 0.000")


def test_rows_without_a_score_are_left_out(tmp_path: Path) -> None:
    reward = {"kind": "python", "function": "rewards:f"}
    values = {0: {"eval/reward": 0.5}, 40: {"eval/reward": 0.5}}
    found = read(make_run(tmp_path, values, {0: [0.5, None, 0.5, 0.5], 40: [0.5, 0.5, None, 0.5]}, reward=reward))
    assert (found.rows, found.verdict) == (2, "undecided")


def test_a_run_that_was_killed_and_resumed_is_judged_by_what_is_left(tmp_path: Path) -> None:
    """The evaluation of step 20 is repeated after the resume: its last record counts, and step 0 stays."""
    folder = make_run(tmp_path, accuracies(_0=0.0, _20=1.0), {0: right(0, 8), 20: right(8, 8)})
    folder.append("metrics.jsonl", {"step": 20, "eval/accuracy": 0.5})
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "eval/accuracy": 0.7')
    write_status(folder, "running")
    found = read(folder)
    assert (found.before and found.before.value, found.after and found.after.value) == (0.0, 0.5)
    assert status_of(folder.path).state == "killed"


def test_damaged_samples_cost_only_the_interval(tmp_path: Path) -> None:
    folder = make_run(tmp_path, accuracies(_0=0.0, _40=1.0), {0: right(0, 8), 40: right(8, 8)})
    (folder.path / "samples.sqlite").write_bytes(b"no database" * 1000)
    assert read(folder).verdict == "no interval"


def test_more_rows_are_named_where_they_would_help(tmp_path: Path) -> None:
    folder = make_run(tmp_path, accuracies(_0=4 / 6, _40=0.5), {0: right(4, 6), 40: right(3, 6)})
    found = read(folder)
    assert rows_needed(found) == 86  # 2.04 · 6 · (0.43999 / 0.16667)² = 85.3
    assert next_steps(found, status_of(folder.path)) == [
        ("try", "about 86 held-out rows (data.held_out) would show a change of this size"),
        ("train further", f"vigneron resume {folder.path} steps=80"),
    ]


def test_so_many_rows_show_a_change_in_four_of_five_draws() -> None:
    """Of 40 rows two more rise than fall, of ten that change: with as many rows as are advised, most draws show it."""
    seen = paired_interval([1.0] * 6 + [-1.0] * 4 + [0.0] * 30, 1.0)
    rows = rows_needed(Outcome("eval/accuracy", Evaluation(0, 0.5), Evaluation(1, 0.55), seen, 40))
    assert rows is not None
    draw, shown = random.Random(1), 0
    for _ in range(300):
        moves = draw.choices([1.0, -1.0, 0.0], weights=[6, 4, 30], k=rows)
        change = paired_interval(moves, 1.0)
        shown += change is not None and change.low > 0
    assert 0.7 < shown / 300 < 0.9


def test_a_change_that_is_rounding_calls_for_no_rows_and_is_no_rise(tmp_path: Path) -> None:
    """0.3 − 0.1 and 0.7 − 0.9 are not quite opposite: the mean change is −5e-17."""
    reward = {"kind": "python", "function": "rewards:f"}
    rows = {0: [0.1, 0.9, 0.5, 0.2], 40: [0.3, 0.7, 0.5, 0.2]}
    values = {0: {"eval/reward": 0.425}, 40: {"eval/reward": 0.425 + 1e-16}}
    folder = make_run(tmp_path, values, rows, reward=reward)
    found = read(folder)
    assert found.change is not None
    assert 0 < abs(found.change.mean) < 1e-15
    assert [name for name, _ in next_steps(found, status_of(folder.path))] == ["train further"]
    assert "held-out reward stayed at 0.425" in outcome_text(found)
    assert rows_needed(replace(found, change=Interval(1e-300, -1.0, 1.0))) is None


def test_a_small_change_is_not_written_as_zero() -> None:
    found = Outcome("eval/reward", Evaluation(0, 1e-4), Evaluation(40, 3e-4), Interval(2e-4, 1e-4, 3e-4), 60)
    assert outcome_text(found) == (
        "better: held-out reward rose from 1.0e-04 to 3.0e-04 (95 % interval of the change +1.0e-04 to +3.0e-04, "
        "60 held-out rows)"
    )


def test_a_run_of_several_processes_is_resumed_with_them(tmp_path: Path) -> None:
    scores = {0: right(4, 6), 40: right(3, 6)}
    folder = make_run(tmp_path, accuracies(_0=4 / 6, _40=0.5), scores, scale={"shard": 2})
    assert next_steps(read(folder), status_of(folder.path))[-1] == (
        "train further",
        f"vigneron resume {folder.path} --nproc 2 steps=80",
    )


FOREIGN: tuple[Any, ...] = (
    None,
    3,
    "x",
    {"metric": 3},
    {"before": {"step": "no"}},
    {"rows": [1]},
    {"change": [0, float("nan"), 1], "rows": 3},
    {"change": [0, -1, 1], "rows": -3},
    {"before": {"step": 0, "value": float("inf")}},
)


@pytest.mark.parametrize("value", FOREIGN)
def test_a_status_of_somebody_else_is_not_believed(value: Any) -> None:
    assert stored_outcome(value) is None
    assert stored_outcome(json.loads(json.dumps(outcome_json(Outcome("eval/accuracy"))))) == Outcome("eval/accuracy")
