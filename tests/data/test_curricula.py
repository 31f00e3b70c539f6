"""Built-in curricula: which rows they draw, what they keep for a checkpoint, and rows that do not fit."""

import json
import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small_batch import make_batch
from vigneron.batch import Batch
from vigneron.config import LevelCurriculumConfig, LossCurriculumConfig, SuccessCurriculumConfig
from vigneron.core.curriculum import level_probabilities
from vigneron.data.curricula import ByLevel, ByLoss, BySuccess
from vigneron.data.curriculum import Curriculum
from vigneron.data.prompts import Row
from vigneron.environments.build import Environments
from vigneron.errors import UserError

LEVELS = (1, 2, 3)


def rows_of(per_level: int = 6) -> list[Row]:
    return [{"prompt": f"{level}-{i}", "level": level} for i in range(per_level) for level in LEVELS]


def by_level(schedule: str = "cosine", steps: int = 30, size: int = 8, seed: int = 0, **options: Any) -> ByLevel:
    config = LevelCurriculumConfig(by="level", schedule=schedule, **options)  # type: ignore[arg-type]
    return ByLevel(rows_of(), size, seed, config, steps)


def levels_at(curriculum: Curriculum, step: int) -> list[int]:
    return [row["level"] for row in curriculum.at(step)]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["cosine", "gaussian", "balanced", "classical"])
def test_levels_are_drawn_with_the_schedules_probabilities(schedule: str) -> None:
    """1,500 rows of each of three steps, against the schedule: at t/T = 0, ½ and 29/30."""
    curriculum = by_level(schedule, size=1500)
    for step in (0, 15, 29):
        counts = Counter(levels_at(curriculum, step))
        expected = level_probabilities(schedule, step / 30, 3).tolist()  # type: ignore[arg-type]
        assert [counts[level] / 1500 for level in LEVELS] == pytest.approx(expected, abs=0.04)


def test_classical_is_one_level_at_a_time() -> None:
    assert [set(levels_at(by_level("classical"), step)) for step in (0, 9, 10, 19, 20, 29)] == [
        {1},
        {1},
        {2},
        {2},
        {3},
        {3},
    ]


@settings(max_examples=15)
@given(
    st.sampled_from(["cosine", "gaussian", "balanced", "classical"]),
    st.integers(0, 2**40),
    st.integers(1, 20),
    st.integers(1, 12),
)
def test_a_level_is_used_up_before_it_repeats(schedule: str, seed: int, size: int, steps: int) -> None:
    curriculum = by_level(schedule, steps=steps, size=size, seed=seed)
    drawn = [row["prompt"] for step in range(steps) for row in curriculum.at(step)]
    for level in LEVELS:
        of_level = [prompt for prompt in drawn if prompt.startswith(f"{level}-")]
        for first in range(0, len(of_level), 6):
            epoch = of_level[first : first + 6]
            assert len(set(epoch)) == len(epoch)


@pytest.mark.slow
@given(st.integers(0, 40), st.integers(0, 2**62))
@settings(max_examples=5)
def test_resumed_at_any_step_the_rows_are_the_same(step: int, seed: int) -> None:
    """Also with more steps: the schedule's length is the checkpoint's, and after its end it stays there."""
    whole, resumed = by_level(steps=30, seed=seed), by_level(steps=90, seed=seed)
    resumed.load(json.loads(json.dumps(whole.scalars())))
    for earlier in range(step):
        whole.at(earlier)
    assert resumed.at(step) == whole.at(step)
    assert resumed.more(resumed.at(step), step, 1) == whole.more(whole.at(step), step, 1)


def test_without_a_checkpoints_steps_the_schedule_is_another() -> None:
    """What the test above would not notice if the draws did not depend on it."""
    assert [by_level(steps=90).at(t) for t in range(10)] != [by_level(steps=30).at(t) for t in range(10)]


def test_more_rows_follow_the_schedule_and_are_others() -> None:
    curriculum = by_level("classical", size=4)
    rows = curriculum.at(12)
    more = curriculum.more(rows, 12, 1)
    assert {row["level"] for row in more} == {2}
    assert {row["prompt"] for row in more[:2]}.isdisjoint(
        row["prompt"] for row in rows
    )  # six of the level: two are left
    assert curriculum.more(rows, 12, 1) == more != curriculum.more(rows, 12, 2)


def test_shares_of_levels_are_logged() -> None:
    curriculum = by_level("classical", levels=[3, 2.0])
    assert curriculum.levels == [2.0, 3.0]
    rows = [{"level": 2}, {"level": 3}, {"level": "3"}, {"level": 3.0}]
    assert curriculum.describe(rows) == {"curriculum/level/2": 0.25, "curriculum/level/3": 0.75}


def test_hard_only() -> None:
    curriculum = by_level(levels=[3])
    assert all(set(levels_at(curriculum, step)) == {3} for step in range(30))


@pytest.mark.parametrize(
    ("row", "options", "line"),
    [
        ({"prompt": "x"}, {}, "curriculum.column: the training data, row 19 has no 'level'"),
        ({"prompt": "x", "level": None}, {}, "row 19 has no 'level'"),
        ({"prompt": "x", "level": "hard"}, {}, "row 19: level is 'hard', not a number"),
        ({"prompt": "x", "level": True}, {}, "level is True, not a number"),
        ({"prompt": "x", "level": "nan"}, {}, "level is 'nan', not a number"),
        ({"prompt": "x", "level": 1}, {"levels": [1, 5, 6]}, "has the level 5, 6: it has 1, 2, 3"),
    ],
)
def test_bad_levels_get_one_line(row: Row, options: dict[str, Any], line: str) -> None:
    config = LevelCurriculumConfig(by="level", **options)
    with pytest.raises(UserError, match=line) as raised:
        ByLevel([*rows_of(), row], 4, 0, config, 10)
    assert "\n" not in str(raised.value)


def by_loss(losses: list[float], size: int = 4, **options: Any) -> ByLoss:
    rows = [{"prompt": str(i)} for i in range(len(losses))]
    curriculum = ByLoss(rows, size, 0, LossCurriculumConfig(by="loss", **options))
    curriculum.measure = lambda rows: losses
    return curriculum


def test_the_share_grows_and_is_drawn_in_shuffled_epochs() -> None:
    """Of 8 rows: 2, ⌈2.6⌉ = 3, ⌈3.38⌉ = 4 …: rows 0 to n − 1, as row i has the loss i. λ is the largest loss."""
    curriculum = by_loss([float(i) for i in range(8)], every=3, start=0.25, growth=1.3)
    seen = {}
    for step in range(9):
        rows = curriculum.at(step)
        seen.setdefault(step // 3, []).extend(int(row["prompt"]) for row in rows)
        pool = [2, 3, 4][step // 3]
        assert curriculum.describe(rows) == {"curriculum/share": pool / 8, "curriculum/threshold": pool - 1}
    assert [set(drawn) for drawn in seen.values()] == [{0, 1}, {0, 1, 2}, {0, 1, 2, 3}]
    assert Counter(seen[2]) == dict.fromkeys(range(4), 3)  # 12 draws: three epochs
    late = by_loss([float(i) for i in range(8)], every=1)
    assert {int(row["prompt"]) for row in late.at(50) + late.at(50)} <= set(range(8))
    assert late.describe([])["curriculum/share"] == 1.0


def test_losses_are_measured_once_a_round_and_kept() -> None:
    calls = []

    def measure(rows: Any) -> list[float]:
        calls.append(len(rows))
        return [float(i) for i in range(8)]

    whole, resumed = by_loss([0.0] * 8, every=3), by_loss([0.0] * 8, every=3)
    whole.measure = resumed.measure = measure
    for step in range(5):
        whole.at(step)
    assert calls == [8, 8]
    resumed.load(json.loads(json.dumps(whole.scalars())))
    assert [resumed.at(5), resumed.more([], 5, 1)] == [whole.at(5), whole.more([], 5, 1)]
    assert calls == [8, 8]
    assert resumed.at(6) == whole.at(6)
    assert calls == [8, 8, 8, 8]


def test_a_missing_loss_is_the_largest_and_survives_a_checkpoint() -> None:
    curriculum = by_loss([math.nan, 1.0, math.nan, 0.0], start=0.5)
    assert {row["prompt"] for row in curriculum.at(0)} == {"1", "3"}
    assert curriculum.describe([])["curriculum/threshold"] == 1.0
    other = by_loss([0.0] * 4, start=0.5)
    other.load(json.loads(json.dumps(curriculum.scalars())))
    assert other.at(1) == curriculum.at(1)


def by_success(count: int = 12, size: int = 4, staleness: int = 0, **options: Any) -> BySuccess:
    rows = [{"prompt": f"p{i}"} for i in range(count)]
    return BySuccess(rows, size, 0, SuccessCurriculumConfig(by="success", **options), staleness)


def rewarded(prompts: list[str], rewards: list[float], **signals: Any) -> Batch:
    batch = make_batch([1] * len(prompts), [2] * len(prompts), rewards_B=torch.tensor(rewards))
    return batch.with_samples(prompts=tuple(prompts)).with_signals(**signals)


def test_unseen_prompts_come_first() -> None:
    curriculum = by_success()
    seen: list[str] = []
    for step in range(3):
        prompts = [row["prompt"] for row in curriculum.at(step)]
        assert curriculum.describe(curriculum.at(step))["curriculum/success/unseen"] == 1.0
        seen += prompts
        curriculum.observe(rewarded(prompts, [0.5, 0.5, 0.5, math.nan]))  # one reward is missing: seen all the same
    assert len(set(seen)) == 12
    assert curriculum.describe(curriculum.at(3))["curriculum/success/between"] == 1.0


def test_a_running_mean_by_hand() -> None:
    """First the mean of two samples, (1 + 0)/2; then 0.75 · 0.5 + 0.25 · 1 = 0.625. NaN is left out."""
    curriculum = by_success(decay=0.75)
    curriculum.observe(rewarded(["p3", "p3", "p5"], [1.0, 0.0, math.nan]))
    assert curriculum.mean_N[3] == 0.5
    assert curriculum.scalars() == {"means": {"3": 0.5, "5": None}}
    curriculum.observe(rewarded(["p3", "p3"], [1.0, math.nan]))
    assert curriculum.mean_N[3] == 0.625


@pytest.mark.slow
def test_solved_and_hopeless_prompts_are_drawn_rarely() -> None:
    """Of 12 prompts 4 are solved, 4 hopeless, 4 in between; of one row a step, 4/(4 + 8 · 0.1) are in between."""
    curriculum = by_success(size=1)
    prompts = [f"p{i}" for i in range(12)]
    curriculum.observe(rewarded(prompts, [1.0] * 4 + [0.0] * 4 + [0.5] * 4))
    drawn = [int(curriculum.at(step)[0]["prompt"][1:]) // 4 for step in range(900)]
    shares = [drawn.count(kind) / 900 for kind in range(3)]
    assert shares == pytest.approx([0.4 / 4.8, 0.4 / 4.8, 4 / 4.8], abs=0.05)
    assert curriculum.describe(curriculum.rows[3:9]) == {
        "curriculum/success/solved": pytest.approx(1 / 6),
        "curriculum/success/hopeless": pytest.approx(4 / 6),
        "curriculum/success/between": pytest.approx(1 / 6),
        "curriculum/success/unseen": 0.0,
    }


def test_success_can_be_the_verdict() -> None:
    curriculum = by_success(measure="verdict")
    curriculum.observe(rewarded(["p0", "p0", "p1"], [0.0, 0.0, 7.0], correct=(True, None, False)))
    assert curriculum.scalars() == {"means": {"0": 1.0, "1": 0.0}}
    with pytest.raises(UserError, match=r"curriculum.measure: verdict: the checker gave no verdict"):
        curriculum.observe(rewarded(["p0"], [1.0], correct=(None,)))


def test_rows_with_one_prompt_share_its_mean_and_demonstrations_are_left_out() -> None:
    rows = [{"prompt": "a", "kind": 1}, {"prompt": "b"}, {"prompt": "a", "kind": 2}]
    curriculum = BySuccess(rows, 1, 0, SuccessCurriculumConfig(by="success"))
    batch = rewarded(["a", "a"], [0.25, 1.0])
    curriculum.observe(batch.with_samples(extras={"origin": ("fresh", "demonstrated")}))
    assert curriculum.scalars() == {"means": {"0": 0.25, "2": 0.25}}
    with pytest.raises(UserError, match="the samples have other prompts than the rows, as those of games do"):
        curriculum.observe(rewarded(["other"], [1.0]))


def test_a_text_that_an_environment_made_a_message_of_is_found() -> None:
    curriculum = by_success()
    environments = Environments("test", make=None, options=None)  # type: ignore[arg-type]
    (prompt,) = (environments.prepared(row)["prompt"] for row in curriculum.rows if row["prompt"] == "p7")
    curriculum.observe(rewarded([prompt], [0.25]))
    assert curriculum.scalars() == {"means": {"7": 0.25}}


def test_more_rows_go_on_in_the_steps_order() -> None:
    """Whatever is observed meanwhile: with asynchronous rollouts that is another thread's timing."""
    curriculum = by_success()
    rows = curriculum.at(0)
    before = curriculum.more(rows, 0, 1)
    curriculum.observe(rewarded([row["prompt"] for row in curriculum.rows], [0.5] * 12))
    assert curriculum.more(rows, 0, 1) == before
    assert len({row["prompt"] for row in rows + before + curriculum.more(rows, 0, 2)}) == 12
    assert curriculum.at(0) == rows


def test_steps_in_flight_draw_other_unseen_rows() -> None:
    """With a staleness of 2, three steps are drawn before the first rewards are there."""
    curriculum = by_success(staleness=2)
    prompts = [row["prompt"] for step in range(3) for row in curriculum.at(step)]
    assert len(set(prompts)) == 12


@given(st.integers(0, 10**6), st.integers(0, 12))
@settings(max_examples=20)
def test_a_resumed_run_draws_the_same_rows(seed: int, steps: int) -> None:
    def make() -> BySuccess:
        return BySuccess([{"prompt": f"p{i}"} for i in range(9)], 3, seed, SuccessCurriculumConfig(by="success"))

    whole, resumed = make(), make()
    for step in range(steps):
        prompts = [row["prompt"] for row in whole.at(step)]
        whole.observe(rewarded(prompts, [int(prompt[1:]) / 8 for prompt in prompts]))
    resumed.load(json.loads(json.dumps(whole.scalars())))
    assert [row["prompt"] for row in resumed.at(steps)] == [row["prompt"] for row in whole.at(steps)]


def test_a_checkpoint_of_other_rows_or_without_state_is_taken() -> None:
    curriculum = by_success(count=3)
    curriculum.load({"means": {"1": 0.5, "7": 0.5}})
    assert curriculum.scalars() == {"means": {"1": 0.5}}
    for one in (by_success(), by_loss([1.0] * 4), by_level()):
        one.load({})
        assert one.at(0)
