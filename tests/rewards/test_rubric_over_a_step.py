"""A rubric over a step: eq. 15 category by category, what failed, what is kept with a sample, a file that changes."""

from collections.abc import Sequence
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest
import yaml

from vigneron.errors import UserError
from vigneron.rewards.rubric_reward import RubricReward
from vigneron.rubric.live_rubric import LiveRubric
from vigneron.rubric.model import AnyItem
from vigneron.sources.verdict import GraderInput, Verdict


class Recorded:
    """Verdicts as the row has them, under the item's name: (score, confidence), or None for a failure."""

    def __init__(self, item: AnyItem, overlaps: bool = False) -> None:
        self.name, self.overlaps = item.name, overlaps

    def __call__(self, samples: Sequence[GraderInput]) -> list[Verdict]:
        found = [sample.row[self.name] for sample in samples]
        return [Verdict.missing("no answer") if one is None else Verdict(*one, reasoning="seen") for one in found]


def item(name: str, weight: float) -> dict[str, Any]:
    return {"name": name, "description": "what it says", "weight": weight, "flow": "regex", "pattern": "x"}


def write_rubric(folder: Path, version: str = "1", **weights: dict[str, float]) -> Path:
    categories = {name: {"items": [item(*pair) for pair in items.items()]} for name, items in weights.items()}
    path = folder / "rubric.yaml"
    path.write_text(yaml.safe_dump({"version": version, "categories": categories}))
    return path


def reward_of(path: Path, **options: Any) -> RubricReward:
    return RubricReward(LiveRubric(path), Recorded, **options)


def columns(*rows: dict[str, Any]) -> dict[str, Any]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        "prompts": [row.get("prompt", "q") for row in rows],
        "completions": [row.get("said", "x") for row in rows],
        **{name: [row.get(name) for row in rows] for name in names if name not in ("prompt", "said")},
    }


TWO = {"sums": {"right": 0.75, "short": 0.25}, "poems": {"rhymes": 1.0}}
ROWS = (
    {"prompt": "a", "category": "sums", "right": (1.0, 0.8), "short": (0.5, 0.4)},
    {"prompt": "a", "category": "sums", "right": (0.0, 0.6), "short": (1.0, 0.2)},
    {"prompt": "b", "category": "poems", "rhymes": (0.4, 0.1)},
)


def test_categories_of_different_length_in_one_step_by_hand(tmp_path: Path) -> None:
    # sums: φ̄ = (0.7, 0.3), ρ = 2: 2 (0.75·1·0.7 + 0.25·0.5·0.3), 2 · 0.25·1·0.3. poems: ρ = 1, τ itself.
    found = reward_of(write_rubric(tmp_path, **TWO))(**columns(*ROWS))
    assert found == pytest.approx([1.125, 0.15, 0.4])


def test_without_confidence_it_is_the_weighted_sum(tmp_path: Path) -> None:
    found = reward_of(write_rubric(tmp_path, **TWO), weigh_by_confidence=False)(**columns(*ROWS))
    assert found == pytest.approx([0.875, 0.25, 0.4])


def test_categories_never_touch_each_other(tmp_path: Path) -> None:
    reward = reward_of(write_rubric(tmp_path, **TWO))
    alone = reward(**columns(*ROWS[:2]))
    other = {**ROWS[2], "rhymes": (1.0, 1.0)}
    assert reward(**columns(*ROWS[:2], other, other))[:2] == alone


def test_order_does_not_matter(tmp_path: Path) -> None:
    reward = reward_of(write_rubric(tmp_path, **TWO))
    assert reward(**columns(*reversed(ROWS))) == pytest.approx(list(reversed(reward(**columns(*ROWS)))))


def test_a_failed_item_leaves_the_groups_rubric_and_a_sample_without_any_is_missing(tmp_path: Path) -> None:
    reward = reward_of(write_rubric(tmp_path, **TWO), missing_limit=1.0)
    rows = [{**ROWS[0], "right": None}, ROWS[1], {**ROWS[2], "rhymes": None}]
    # Group a keeps `short` alone: its own scores.
    assert reward(**columns(*rows)) == [pytest.approx(0.5), pytest.approx(1.0), None]


def test_failures_above_the_limit_stop_with_the_commonest_reason(tmp_path: Path) -> None:
    reward = reward_of(write_rubric(tmp_path, poems={"rhymes": 1.0}), missing_limit=0.05)
    bad = {**ROWS[2], "rhymes": None}
    reward(**columns(*[ROWS[2]] * 95, *[bad] * 5))
    with pytest.raises(UserError, match=r"11 of 106 scores are missing.*poems.rhymes: no answer"):
        reward(**columns(*[bad] * 6))


def test_what_was_said_is_kept_with_its_version(tmp_path: Path) -> None:
    reward = reward_of(write_rubric(tmp_path, **TWO))
    kept: dict[str, Any] = {}
    figures: dict[str, float] = {}
    given = columns(*ROWS)
    reward.finish(
        reward.begin(**given)(), [0, 0, 1], **given, log_extra=kept.__setitem__, log_metric=figures.__setitem__
    )
    first = kept["rubric"][0]
    assert first["category"] == "sums"
    assert first["version"].startswith("1@")
    assert first["items"]["right"] == {"score": 1.0, "confidence": 0.8, "reasoning": "seen"}
    assert kept["rubric"][1]["items"]["right"]["score"] == 0.0
    assert figures["sums/right/score"] == 0.5
    assert figures["sums/right/spread"] == 0.5
    assert figures["sums/right/confidence"] == pytest.approx(0.7)
    assert figures["sums/right/failed"] == 0
    # Contributions 1.05, 0 and 0.075, 0.15: centred ±0.525 and ∓0.0375, the advantage ±0.4875.
    assert figures["sums/right/share"] == pytest.approx(0.525 / 0.4875)
    assert figures["sums/short/share"] == pytest.approx(-0.0375 / 0.4875)
    assert figures["poems/reward"] == pytest.approx(0.4)


def test_no_confidence_at_all_is_kept_as_that(tmp_path: Path) -> None:
    reward = reward_of(write_rubric(tmp_path, sums={"right": 0.75, "short": 0.25}))
    kept: dict[str, Any] = {}
    given = columns({"category": "sums", "right": (0.5, 0.0), "short": (1.0, 1.0)})
    reward.finish(reward.begin(**given)(), [0], **given, log_extra=kept.__setitem__)
    assert kept["rubric"][0]["items"]["right"] == {"score": 0.5, "confidence": 0.0, "reasoning": "seen"}


def test_a_changed_file_counts_from_the_next_step(tmp_path: Path) -> None:
    said: list[str] = []
    reward = reward_of(write_rubric(tmp_path, **TWO), notice=said.append)
    before = reward.live_rubric.version
    reward(**columns(*ROWS))
    write_rubric(tmp_path, version="2", **{**TWO, "sums": {"right": 1.0, "short": 1.0}})
    assert reward(**columns(*ROWS)) == pytest.approx([1.125, 0.15, 0.4])
    assert reward.live_rubric.version.startswith("2@")
    assert (
        said[0] == f"the rubric was edited: version {reward.live_rubric.version} replaces {before} from the next step"
    )
    assert said[1:] == ["the weights of 'sums' sum to 2 and are normalised to sum to one"]
    # 2 · 0.5 (1·0.7 + 0.5·0.3), 2 · 0.5 · 0.3
    assert reward(**columns(*ROWS)) == pytest.approx([0.85, 0.3, 0.4])


def test_a_broken_file_changes_nothing_and_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    path = write_rubric(tmp_path, **TWO)
    reward = reward_of(path, notice=said.append)
    path.write_text("categories: {")
    assert reward(**columns(*ROWS)) == reward(**columns(*ROWS)) == pytest.approx([1.125, 0.15, 0.4])
    assert len(said) == 1
    assert "cannot be used" in said[0]


def test_items_that_wait_are_begun_at_once(tmp_path: Path) -> None:
    begun, go_on = Event(), Event()

    class Slow(Recorded):
        def __call__(self, samples: Sequence[GraderInput]) -> list[Verdict]:
            begun.set()
            assert go_on.wait(60)
            return super().__call__(samples)

    path = write_rubric(tmp_path, **TWO)
    reward = RubricReward(
        LiveRubric(path), lambda one: Slow(one, overlaps=True) if one.name == "right" else Recorded(one)
    )
    assert reward.overlaps
    wait = reward.begin(**columns(*ROWS))
    assert begun.wait(60)
    go_on.set()
    assert reward.finish(wait(), [0, 0, 1], **columns(*ROWS)) == pytest.approx([1.125, 0.15, 0.4])


def test_several_items_wait_side_by_side(tmp_path: Path) -> None:
    together = Barrier(3, timeout=60)

    class Waiting(Recorded):
        def __call__(self, samples: Sequence[GraderInput]) -> list[Verdict]:
            together.wait()
            return super().__call__(samples)

    path = write_rubric(tmp_path, **TWO)
    reward = RubricReward(LiveRubric(path), lambda one: Waiting(one, overlaps=True))
    assert reward(**columns(*ROWS)) == pytest.approx([1.125, 0.15, 0.4])


def test_an_unknown_category_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"row 1.*'sumz'"):
        reward_of(write_rubric(tmp_path, **TWO))(**columns({**ROWS[0], "category": "sumz"}))
