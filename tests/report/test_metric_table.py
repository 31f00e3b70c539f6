"""The table of metrics: complete for what runs log, and the source of the docs page."""

import json
from pathlib import Path

from vigneron.commands.methods import METHODS
from vigneron.report.metrics_page import metrics_page
from vigneron.run_store.final_metrics import HELD_OUT, SIZE, TRAINING
from vigneron.run_store.headline_metrics import COMMON
from vigneron.run_store.metric_table import METRICS, SECTIONS, in_order, lower_is_better, metric
from vigneron.run_store.stability import STABILITY_KEYS

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_the_page_is_up_to_date() -> None:
    page = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert page == metrics_page(), "run: python -m vigneron.report.metrics_page > docs/reference/metrics.md"


def test_every_key_once_and_in_a_known_section() -> None:
    keys = [one.key for one in METRICS]
    assert len(set(keys)) == len(keys)
    assert {one.section for one in METRICS} == set(SECTIONS)
    assert all(one.meaning.endswith(".") for one in METRICS)


def test_every_metric_that_runs_log_has_a_meaning() -> None:
    logged = {
        key for path in DOCS.glob("*study*/*/metrics.jsonl") for line in path.open() for key in json.loads(line)
    } - {"step"}
    assert [key for key in sorted(logged) if not metric(key).meaning] == []


def test_every_metric_that_is_shown_is_in_the_table() -> None:
    keys = {one.key for one in METRICS}
    assert {key for of in METHODS.values() for key in of.metrics} | set(COMMON) <= keys
    compared = {key.removesuffix("_before") for key in (*HELD_OUT, *TRAINING, *STABILITY_KEYS, *SIZE)}
    assert all(metric(key).meaning for key in compared)


def test_families_and_held_out_metrics_are_found() -> None:
    item = metric("eval/reward/sums/right/score")
    assert (item.label, item.section, item.direction) == ("held-out right, score", "Rubric", "up")
    assert metric("eval/held_out_rubric/sums/reward").label == "held-out reward, sums"
    assert metric("eval/completions/echo").section == "Held out"
    assert metric("grad_norm/critic").label == "gradient norm, critic"


def test_a_users_metric_has_an_entry() -> None:
    assert metric("reward/mean_words").label == "mean_words"
    assert (metric("mine").section, metric("mine").meaning) == ("Training", "")
    assert metric("odd/one").section == "odd"
    assert metric("reward/a/b/c/d").section == "Reward components"


def test_direction_and_order() -> None:
    down = ("eval/loss", "eval/loss/mine", "eval/mine_error", "eval/canary/sums", "eval/completions/repetition")
    assert all(lower_is_better(key) for key in down)
    assert not any(lower_is_better(key) for key in ("eval/reward", "eval/mine", "eval/rewards/margins"))
    assert in_order(["zzz", "eval/reward", "kl", "reward"]) == ["reward", "kl", "eval/reward", "zzz"]
