"""A rubric's figures in tables and on the terminal, by hand; which samples are shown."""

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from vigneron.report.figures import DASHES, comparison_figure
from vigneron.report.rubric_part import MAX_LINES, category_plot, origin_rows
from vigneron.report.terminal import TerminalView, weakest
from vigneron.rubric.model import Rubric
from vigneron.run_store.final_metrics import row_label, rubric_held_out_keys, rubric_training_keys, table_sections
from vigneron.run_store.rubric_items import (
    HELD_OUT_PREFIX,
    ITEM_METRICS,
    TRAINING_PREFIX,
    Ends,
    ItemKey,
    canaries,
    category_rewards,
    category_rows,
    ends,
    item_rows,
    items_in_order,
    items_of,
    never_varies,
    source_of,
)
from vigneron.run_store.rubric_samples import best_and_worst
from vigneron.run_store.samples import Sample

NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9 _.-]{0,20}\Z")


def rubric(**weights: dict[str, float]) -> Rubric:
    def items(of: dict[str, float]) -> list[dict[str, Any]]:
        return [{"name": n, "description": "d", "weight": w, "flow": "length", "at_most": 3} for n, w in of.items()]

    return Rubric.model_validate({"categories": {name: {"items": items(of)} for name, of in weights.items()}})


def item_metrics(prefix: str, key: str, **values: float) -> dict[str, float]:
    return {f"{prefix}{key}/{figure}": value for figure, value in values.items()}


# ---------------------------------------------------------------------------------------------- keys


@settings(max_examples=30)
@given(st.dictionaries(NAMES, st.lists(NAMES, min_size=1, max_size=4, unique=True), min_size=1, max_size=4))
def test_names_are_found_again(named: dict[str, list[str]]) -> None:
    wanted = [ItemKey(category, item) for category, items in named.items() for item in items]
    keys = [
        key.under(prefix, figure)
        for prefix in (TRAINING_PREFIX, HELD_OUT_PREFIX)
        for key in wanted
        for figure in ITEM_METRICS
    ]
    keys += [f"{prefix}{category}/reward" for prefix in (TRAINING_PREFIX, HELD_OUT_PREFIX) for category in named]
    keys += ["reward", "reward_std", "eval/reward", "eval/canary/largest", "loss/policy"]
    assert items_of(keys) == items_of(keys, HELD_OUT_PREFIX) == wanted
    assert category_rewards(keys) == {category: f"reward/{category}/reward" for category in named}
    assert canaries(keys) == {}


# ---------------------------------------------------------------------------------------------- items


def test_an_item_by_hand() -> None:
    """Two evaluations: scores are theirs; confidence, share and failures are of the run."""
    records = [
        {
            "step": 0,
            "eval/reward/a/reward": 0.1,
            **item_metrics(HELD_OUT_PREFIX, "a/x", score=0.2, spread=0.3, failed=1),
        },
        {
            "step": 1,
            **item_metrics(TRAINING_PREFIX, "a/x", score=0.0, spread=0.5, confidence=0.8, failed=2, share=0.25),
        },
        {"step": 2, **item_metrics(TRAINING_PREFIX, "a/x", score=1.0, spread=0.0, confidence=0.4, failed=0)},
        {
            "step": 2,
            "eval/reward/a/reward": 0.1,
            **item_metrics(HELD_OUT_PREFIX, "a/x", score=0.6, spread=0.1, failed=0),
        },
    ]
    (row,) = item_rows(records, rubric(a={"x": 0.75, "gone": 0.25}), {ItemKey("a", "x"): 100})
    assert (row.weight, row.flow, row.score, row.spread) == (0.75, "length", Ends(0.2, 0.6), 0.1)
    assert (row.confidence, row.share) == (pytest.approx(0.6), 0.25)
    assert (row.failed, row.judged, row.weak) == (3, 100, ())
    (unknown,) = item_rows(records, rubric(a={"other": 1.0}))
    assert (unknown.weight, unknown.flow, unknown.judged) == (None, None, None)


def test_weak_items_are_marked() -> None:
    def weak(asked: int = 100, **values: float) -> tuple[str, ...]:
        figures = {"score": 0.5, "spread": 0.1, "confidence": 1.0, "failed": 0} | values
        records = [{"step": step, **item_metrics(TRAINING_PREFIX, "a/x", **figures)} for step in (1, 2)]
        return item_rows(records, None, {ItemKey("a", "x"): asked})[0].weak

    assert weak() == ()
    assert weak(confidence=0.5) == ()
    assert weak(confidence=0.49) == ("low confidence",)
    assert weak(spread=0.0) == ("never varies",)
    assert weak(failed=2.5) == ()  # 5 of 100 in two steps
    assert weak(failed=3) == ("fails often",)
    nothing = [{"step": 1, "reward/a/x/failed": 4}]
    assert item_rows(nothing, None)[0].weak == ("fails often",)
    assert never_varies([0.0, 1.0], [0.0, 0.0]) is False  # one sample a step


def test_held_out_is_shown_from_two_evaluations_on() -> None:
    one = [{"step": 0, "eval/reward/a/reward": 0.5}, {"step": 1, "reward/a/reward": 0.5}]
    assert source_of(one, "a") == TRAINING_PREFIX
    assert source_of([*one, {"step": 2, "eval/reward/a/reward": 0.5}], "a") == HELD_OUT_PREFIX
    assert source_of([*one, {"step": 2, "eval/reward/a/reward": 0.5}], "b") == TRAINING_PREFIX


def test_the_order_is_the_rubric_s_and_what_left_it_comes_last() -> None:
    found = ["b/y", "a/gone", "a/x", "b/z", "c/w"]
    records = [{"step": 1, **{f"reward/{key}/score": 0.5 for key in found}}]
    assert ["/".join(key) for key in items_in_order(records, rubric(a={"x": 1}, b={"z": 1, "y": 1}))] == [
        "a/x",
        "a/gone",
        "b/z",
        "b/y",
        "c/w",
    ]


@pytest.mark.parametrize(
    ("values", "exact", "expected"),
    [
        ([], False, Ends()),
        ([0.5], True, Ends(0.5, None)),
        ([0.0, 0.2, 1.0], True, Ends(0.0, 1.0)),
        ([0.0, 0.2, 1.0], False, Ends(0.0, 1.0)),
        ([0.0, 0.2, 0.4, 1.0], False, Ends(0.1, 0.7)),
        ([*range(12)], False, Ends(2, 9)),  # the first and the last five
    ],
)
def test_ends(values: list[float], exact: bool, expected: Ends) -> None:
    assert ends(values, exact=exact) == pytest.approx(expected)


def test_categories_stand_beside_canaries_and_the_second_rubric() -> None:
    records = [
        {
            "step": 0,
            "eval/reward": 0.5,
            "eval/canary/a": 0.1,
            "eval/canary/largest": 0.9,
            "eval/held_out_rubric/reward": 0,
        },
        {"step": 1, "reward": 0.3, "reward/a/reward": 0.2, "reward/a/x/score": 1.0, "eval/canary/a": 0.4},
    ]
    whole, one = category_rows(records)
    assert (whole.name, whole.training, whole.held_out, whole.held_out_rubric) == (
        "all categories",
        Ends(0.3),
        Ends(0.5),
        Ends(0),
    )
    assert (one.name, one.training, one.canary, one.held_out_rubric) == ("a", Ends(0.2), Ends(0.1, 0.4), Ends())


def test_origins_are_counted() -> None:
    records = [
        {"step": 0, "eval/reward": 1.0},
        {"step": 1, "origin/revised": 0.0, "origin/demonstrated": 0.25, "drawn/gap": 0.1},
        {"step": 2, "origin/revised": 0.5, "origin/demonstrated": 0.125},
    ]
    rows = [(row.when, row.fresh, row.revised, row.demonstrated, row.gap) for row in origin_rows(records, 8)]
    assert rows == [("first step", 6, 0, 2, 0.1), ("last step", 3, 4, 1, None), ("all 2 steps", 9, 4, 3, 0.1)]
    assert origin_rows(records[:1], 8) == []


def test_many_items_are_told_apart_and_not_all_drawn() -> None:
    records = [{"step": 1, **{f"reward/a/i{n}/score": n / 20 for n in range(20)}}]
    drawn = category_plot(records, "a", item_rows(records, None))
    assert (drawn.items, drawn.left_out) == (MAX_LINES, 20 - MAX_LINES)
    lines = comparison_figure({f"i{n}": [[{"step": 1, "reward": n}]] for n in range(20)}).axes[0].get_lines()
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 20
    assert {line.get_linestyle() for line in lines} == set(DASHES)


# ---------------------------------------------------------------------------------------------- compared


def test_what_is_compared_and_what_is_shown_of_it() -> None:
    records = [
        {"step": 0, "eval/reward/a/reward": 0.5, "eval/reward/a/x/score": 0.5, "eval/canary/a": 0.1},
        {"step": 1, "reward/a/reward": 0.5, "reward/a/x/share": 1.0, "origin/revised": 0.0, "kl": 0.1},
    ]
    assert rubric_training_keys(records) == ["reward/a/reward", "origin/revised", "reward/a/x/share"]
    assert rubric_held_out_keys(records) == [
        f"{key}{when}"
        for key in ("eval/reward/a/reward", "eval/canary/a", "eval/reward/a/x/score")
        for when in ("_before", "")
    ]
    sections = table_sections(["eval/reward/a/reward_before", "eval/reward/a/x/score", "reward/a/x/score", "kl"])
    assert [key for keys in sections.values() for key in keys] == ["eval/reward/a/reward_before", "kl"]
    assert row_label("eval/reward/a/reward_before") == "reward, a, before"
    assert row_label("eval/canary/largest") == "largest canary reward"


# ---------------------------------------------------------------------------------------------- samples


def sample(number: int, reward: float | None, category: str | None = "a", said: str | None = None) -> Sample:
    extras = {} if category is None else {"rubric": {"version": "1@x", "category": category, "items": {}}}
    said = f"said {number}" if said is None else said
    return Sample(1, "train", number, "q", said, None, reward, None, None, False, extras)


def places(samples: list[Sample]) -> list[tuple[str, str, int]]:
    return [(shown.category, shown.place, shown.sample.sample) for shown in best_and_worst(samples)]


def test_the_best_and_the_worst_of_each_category() -> None:
    of_a = [sample(n, reward) for n, reward in enumerate((0.3, 0.9, None, 0.1, 0.5, 0.7))]
    assert places(of_a) == [("a", "best", 1), ("a", "best", 5), ("a", "worst", 0), ("a", "worst", 3)]
    others = [sample(10, 0.5, "b"), sample(11, 0.2, "c"), sample(12, 0.4, "c"), sample(13, 1.0, None)]
    assert places([*of_a, *others]) == [
        ("a", "best", 1),
        ("a", "worst", 3),
        ("b", "best", 10),
        ("c", "best", 12),
        ("c", "worst", 11),
    ]
    assert places([sample(0, 0.5), sample(1, 0.7), sample(2, 0.1)]) == [
        ("a", "best", 1),
        ("a", "best", 0),
        ("a", "worst", 2),
    ]


def test_an_answer_given_twice_is_shown_once() -> None:
    assert places([sample(0, 0.9, said="same"), sample(1, 0.9, said="same"), sample(2, 0.1)]) == [
        ("a", "best", 0),
        ("a", "worst", 2),
    ]


# ---------------------------------------------------------------------------------------------- terminal


def test_the_weakest_categories_are_named_as_far_as_they_fit() -> None:
    rewards = {"reward": 0.5, "reward/a/reward": 0.9, "reward/b/reward": 0.25, "reward/c/reward": 0.5}
    assert weakest({**rewards, "reward/d/reward": 1.0, "reward/a/x/score": 0.0}) == "b 0.250, c 0.500, a 0.900"
    assert weakest({"reward": 0.5, "reward/a/reward": 0.5}) == ""
    long = {f"reward/{letter * 40}/reward": n for n, letter in enumerate("xyz")}
    assert weakest(long) == "x" * 40 + " 0.000"


class Named:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


@pytest.mark.parametrize("kind", ["rubric", "python"])
def test_the_step_s_line_has_them_for_rubrics_alone(tmp_path: Path, kind: str) -> None:
    out = io.StringIO()
    config = Named(steps=2, method=None, reward=Named(kind=kind), model_dump=lambda mode: {"reward": {"kind": kind}})
    run = Named(step=1, config=config, folder=Named(path=tmp_path))
    with TerminalView(Console(file=out, width=20), "title") as view:
        view.step(run, {"reward": 0.5, "reward/a/reward": 0.9, "reward/b/reward": 0.1}, [0, 1], 1.0)  # type: ignore[arg-type]
    shown = "  weakest: b 0.100, a 0.900" if kind == "rubric" else ""
    assert out.getvalue() == f"step 1/2  reward 0.500{shown}  2.0 samples/s  0:01 left\n"
