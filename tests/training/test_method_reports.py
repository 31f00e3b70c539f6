"""A report for every method: the figures that it has, none that it has not, in light and dark."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.judged_data import pairs_config, process_config, score_config, score_rows
from support.tiny_runs import tiny_config, tiny_recipe, write_data
from vigneron import api
from vigneron.recipe import check_config, load_config
from vigneron.report.figures import for_page, panels_of
from vigneron.report.html import hidden_keys, summary_of, write_report
from vigneron.run_store.archive import unpacked
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.notices import Notice, keep_notice
from vigneron.run_store.status import write_status

LOGS = Path(__file__).parent.parent.parent / "docs" / "results" / "logs"
KEPT = {
    "sft": "methods-study/sft-instructions",
    "reward_model": "methods-study/reward-instructions",
    "rejection_sampling": "methods-study/rejection-instructions-seed-0",
    "reinforce": "methods-study/reinforce-instructions-seed-0",
    "trpo": "methods-study/trpo-instructions-seed-0",
    "ppo": "methods-study/ppo-instructions-seed-0",
    "grpo": "methods-study/grpo-instructions-seed-0",
    "dpo": "methods-study/dpo-instructions-seed-0",
    "actor_critic": "pgsrm-study/pgsrm-antonyms-critic",
}
PANELS = {
    "sft": ["eval/reward", "accuracy", "loss/nll"],
    "reward_model": ["accuracy", "loss/bradley_terry", "margin"],
    "grpo": ["reward", "eval/reward", "accuracy", "entropy", "kl", "kl_previous", "frac_reward_zero_std"],
}


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, RunFolder]]:
    """A run of every method, from the studies' logs."""
    with ExitStack() as stack:
        studies = {name.split("/")[0] for name in KEPT.values()}
        folders = {name: stack.enter_context(unpacked(LOGS / f"{name}.tar.xz")) for name in studies}
        paths = {method: name.split("/") for method, name in KEPT.items()}
        yield {method: RunFolder.open(folders[study] / run) for method, (study, run) in paths.items()}


@pytest.mark.parametrize("method", KEPT)
def test_a_method_has_its_own_figures(kept: dict[str, RunFolder], method: str) -> None:
    folder = kept[method]
    config, records = folder.config(), folder.metrics()
    assert config.method.name == method
    panels = [panel.key for panel in panels_of([records], hidden_keys(config.model_dump(mode="json"), records))]
    assert panels[: len(PANELS.get(method, []))] == PANELS.get(method, [])
    summary = summary_of(["run"], [config], [records])
    (row,) = summary.rows
    assert len(row.values) == len(summary.headings)
    assert all(value is not None for value in row.values), summary
    sampled = config.method.reads == "prompts"
    assert ("reward" in summary.headings) == sampled
    assert ("reward" in panels) == sampled
    assert ("completions/mean_length" in panels) == sampled


def test_runs_of_several_methods_stand_in_one_table(kept: dict[str, RunFolder]) -> None:
    folders = [kept[method] for method in ("reward_model", "grpo")]
    summary = summary_of(["a", "b"], [f.config() for f in folders], [f.metrics() for f in folders])
    by_name = {row.name: dict(zip(summary.headings, row.values, strict=True)) for row in summary.rows}
    assert by_name["a"]["margin"] == pytest.approx(8.885)
    assert by_name["b"]["margin"] is None
    assert by_name["a"]["KL"] is None
    assert (summary.rows[0].reward, summary.rows[1].reward) == ("–", "model")


def test_a_figure_takes_the_pages_colours() -> None:
    drawn = for_page('<svg a="1"><path style="fill: #ffffff"/><path style="stroke: #000000"/></svg>')
    assert (
        drawn == '<svg fill="currentColor" a="1"><path style="fill: none"/><path style="stroke: currentColor"/></svg>'
    )


def test_notices_state_and_errors_are_shown_and_escaped(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run", exact_name=True)
    folder.write_config(load_config("demo"))
    folder.append("metrics.jsonl", {"step": 1, "reward": 0.5})
    keep_notice(folder, Notice(0, "an <i>ordinary</i> note"))
    keep_notice(folder, Notice(4, "<script>alert(1)</script> is cut", "warning", "truncation"))
    write_status(folder, "failed", error="<b>the judge</b> left")
    page = write_report([folder.path]).read_text(encoding="utf-8")
    assert '<li class="warned">step 4: &lt;script&gt;alert(1)&lt;/script&gt; is cut</li>' in page
    assert "<li>an &lt;i&gt;ordinary&lt;/i&gt; note</li>" in page
    assert '<p>failed: <span class="no">&lt;b&gt;the judge&lt;/b&gt; left</span></p>' in page
    assert "color-scheme: light dark" in page
    assert "#000000" not in page
    assert "default-src 'none'" in page


def quick(method: str, folder: Path, model: Path) -> Any:
    short = {"steps": 2, "prompts_per_step": 4, "eval_every": 1, "save_every": 0}
    if method in ("dpo", "reward_model", "preference_model"):
        return pairs_config(folder, model, method, **short)
    if method == "score_model":
        config = score_config(folder, model, score_rows("say {}:"))
        return config.model_copy(update=short)
    if method == "process_model":
        return process_config(folder, model, **short)
    if method == "sft":
        given = tiny_recipe(model, write_data(folder), method={"name": "sft"}, **short)
        return check_config({k: v for k, v in given.items() if k not in ("reward", "group_size", "optimizer")}, "tiny")
    return tiny_config(model, write_data(folder), method={"name": method}, **{**short, "optimizer": {}})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "there", "absent"),
    [
        ("sft", ["NLL", "held-out NLL before"], ["reward", "entropy"]),
        (
            "dpo",
            ["DPO loss", "reward margin", "held-out implicit accuracy before", "held-out DPO loss before"],
            ["reward", "KL"],
        ),
        ("reward_model", ["Bradley-Terry loss", "margin", "held-out accuracy before"], ["reward", "entropy"]),
        ("preference_model", ["cross-entropy", "held-out accuracy before"], ["reward", "KL"]),
        ("score_model", ["cross-entropy", "score error", "held-out score error before"], ["reward", "KL"]),
        ("rejection_sampling", ["reward", "NLL", "kept reward", "entropy", "held-out reward before"], ["KL"]),
        ("grpo", ["reward", "entropy", "KL", "zero-std groups", "held-out reward before"], ["NLL"]),
        ("reinforce", ["reward", "entropy", "held-out reward before"], ["NLL"]),
        ("actor_critic", ["reward", "entropy", "KL", "held-out reward before"], ["NLL"]),
    ],
)
def test_a_real_run_of_every_method(
    tmp_path: Path, tiny_folder: Path, method: str, there: list[str], absent: list[str]
) -> None:
    trained = api.train(quick(method, tmp_path, tiny_folder), name="run", runs=tmp_path)
    page = write_report([trained.folder]).read_text(encoding="utf-8")
    table = page[page.index('<table class="cards">') : page.index("</table>")]
    headings = re.findall(r"<th>(.*?)</th>", table)
    assert set(there) <= set(headings), headings
    assert not set(absent) & set(headings[4:]), headings
    assert "–</td>" not in table.partition('<td data-label="steps">2</td>')[2]
    assert page.count("<svg") == page.count('<div class="panel') > 1
    lower = page.lower()
    for forbidden in ("<script", "<link", "<img", " src=", "javascript:"):
        assert forbidden not in lower
