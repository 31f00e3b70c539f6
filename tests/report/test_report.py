"""The report: one file that fetches nothing, with everything a model wrote escaped."""

import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from vigneron.commands.demo import summary
from vigneron.errors import UserError
from vigneron.recipe import load_config
from vigneron.report.figures import PANELS, as_svg, comparison_figure, smaller
from vigneron.report.html import write_report
from vigneron.report.outcome_part import before_and_after
from vigneron.report.tables import BARS, sparkline
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import Sample, SampleStore
from vigneron.run_store.series import series, smoothed

HARM = "<script>alert(1)</script>"


def sample(step: int, number: int, completion: str, **changes: Any) -> Sample:
    fields: dict[str, Any] = {
        "step": step,
        "kind": "eval",
        "sample": number,
        "prompt": f"The opposite of 'word{number}' is ",
        "completion": completion,
        "answer": "cold",
        "reward": 0.5,
        "advantage": None,
        "correct": completion == "cold",
        "truncated": False,
        "extras": {},
    }
    return Sample(**fields | changes)


def make_run(place: Path, name: str, samples: list[Sample], *, after: float = 0.75) -> Path:
    """A run's folder as training leaves it, without the training."""
    folder = RunFolder.create(place, name, exact_name=True)
    folder.write_config(load_config("demo"))
    folder.append("metrics.jsonl", {"step": 0, "eval/accuracy": 0.125})
    for step in (1, 2):
        folder.append("metrics.jsonl", {"step": step, "reward": 0.1 * step, "entropy": 2.5, "kl": 0.01})
    folder.append("metrics.jsonl", {"step": 3, "reward": 0.625, "entropy": 1.5, "kl": 0.02, "eval/accuracy": after})
    store = SampleStore(folder.path)
    store.add(samples)
    store.close()
    return folder.path


def without_labels(page: str) -> str:
    """Without the attributes that name a table's cells on a phone."""
    return re.sub(r' data-label="[^"]*"', "", page)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    samples = [
        sample(0, 0, "warm before"),
        sample(3, 0, "cold"),
        sample(0, 1, f"{HARM}before", prompt=f"{HARM}prompt"),
        sample(3, 1, f"{HARM}after", prompt=f"{HARM}prompt", answer=f"{HARM}answer"),
        sample(2, 0, "of a training step", kind="train"),
    ]
    return make_run(tmp_path, "mine", samples)


def test_nothing_is_fetched_and_nothing_runs(run: Path) -> None:
    page = write_report([run]).read_text(encoding="utf-8")
    lower = page.lower()
    for forbidden in ("<script", "<link", "<iframe", "<img", "<object", "src=", "@import", "javascript:", "onload="):
        assert forbidden not in lower, forbidden
    for target in re.findall(r"""href\s*=\s*["']([^"']*)""", lower):
        assert target.startswith("#"), target
    for target in re.findall(r"url\(([^)]*)\)", lower):
        assert target.strip("\"'").startswith("#"), target
    assert "default-src 'none'" in page


def test_what_a_model_or_a_dataset_wrote_is_escaped(run: Path) -> None:
    page = write_report([run]).read_text(encoding="utf-8")
    assert HARM not in page
    for place in ("prompt", "before", "after"):
        assert f"&lt;script&gt;alert(1)&lt;/script&gt;{place}" in page


def test_a_config_and_a_name_are_escaped(tmp_path: Path) -> None:
    run = make_run(tmp_path, "<b>bold<x>", [])
    folder = RunFolder.open(run)
    folder.write_config(load_config("demo", keys={"about": "</pre><b>x"}))
    page = write_report([run]).read_text(encoding="utf-8")
    assert "<b>" not in page
    assert "&lt;b&gt;bold&lt;x&gt;" in page
    assert "&lt;/pre&gt;&lt;b&gt;x" in page


def test_before_and_after_stand_side_by_side(run: Path) -> None:
    pairs = before_and_after(run)
    assert (pairs[0][0].completion, pairs[0][1].completion) == ("warm before", "cold")
    assert [after.step for _, after in pairs] == [3, 3]
    page = without_labels(write_report([run]).read_text(encoding="utf-8"))
    row = re.search(r'no">warm before</td>\s*<td class="text yes">cold</td>\s*<td class="text">cold</td>', page)
    assert row is not None
    assert "of a training step" not in page


def test_one_evaluation_has_no_after(tmp_path: Path) -> None:
    run = make_run(tmp_path, "mine", [sample(0, 0, "lukewarm")])
    assert before_and_after(run) == []
    assert "lukewarm" not in write_report([run]).read_text(encoding="utf-8")


def test_the_summary_is_of_the_first_and_the_last_evaluation(run: Path) -> None:
    page = without_labels(write_report([run]).read_text(encoding="utf-8"))
    for figure in ("0.125", "0.750", "0.625", "1.500", "0.020"):
        assert f"<td>{figure}</td>" in page


def test_several_runs_share_each_figure(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, name, [], after=after) for name, after in (("first", 0.25), ("second", 0.5))]
    path = write_report(runs)
    page = without_labels(path.read_text(encoding="utf-8"))
    assert path == runs[0] / "report.html"
    assert page.count("<svg") == 5  # the held-out accuracy, then reward, accuracy, entropy, KL
    assert "first and second" in page
    assert "<td>0.250</td>" in page
    assert "<td>0.500</td>" in page
    assert not (runs[1] / "report.html").exists()


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
    runs = [make_run(tmp_path / place, "same", [], after=after) for place, after in (("a", 0.25), ("b", 0.5))]
    page = without_labels(write_report(runs).read_text(encoding="utf-8"))
    for run, after in zip(runs, ("0.250", "0.500"), strict=True):
        assert re.search(rf"<td>{re.escape(str(run))}</td>.*\n.*\n?.*<td>{after}</td>", page)


def test_the_folder_one_stands_in_has_a_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    assert "<h1>mine</h1>" in write_report(["."]).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["try#2", "50%25", "what?", "a b", "$x^{$"])
def test_odd_names_of_runs_do_no_harm(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path, name, [sample(0, 0, "warm"), sample(3, 0, "cold")])
    page = write_report([run]).read_text(encoding="utf-8")
    assert ">warm</td>" in page


def test_out_is_where_it_is_written(run: Path, tmp_path: Path) -> None:
    assert write_report([run], tmp_path / "else.html") == tmp_path / "else.html"
    assert (tmp_path / "else.html").is_file()
    assert not (run / "report.html").exists()


def test_a_run_without_steps_has_nothing_to_report(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "empty", exact_name=True)
    folder.write_config(load_config("demo"))
    with pytest.raises(UserError, match="nothing to report"):
        write_report([folder.path])


def test_a_line_cut_by_a_kill_is_left_out(run: Path) -> None:
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 4, "rew')
    assert RunFolder.open(run).metrics()[-1]["step"] == 3


def test_the_demos_summary_by_hand() -> None:
    """Of three steps, one has rewards that differ within a group."""
    records = [
        {"step": 0, "eval/exact_match": 0.0, "eval/answer_included": 0.125},
        {"step": 1, "reward": 0.0, "frac_reward_zero_std": 1.0},
        {"step": 2, "reward": 0.5, "frac_reward_zero_std": 0.5},
        {"step": 3, "reward": 0.0, "frac_reward_zero_std": 1.0, "eval/exact_match": 0.5, "eval/answer_included": 0.75},
    ]
    wanted = {"exact_before": 0.0, "exact": 0.5, "included_before": 0.125, "included": 0.75, "steps": 3, "taught": 1}
    assert summary(records) == wanted
    assert summary(records[:3])["included"] is None


@pytest.mark.slow
def test_runs_that_began_alike_are_side_by_side(run: Path, tmp_path: Path) -> None:
    begun = [sample(0, 0, "warm before"), sample(3, 0, "cold")]
    one, other = make_run(tmp_path, "one", begun), make_run(tmp_path, "other", [begun[0], sample(3, 0, f"{HARM}hot")])
    page = without_labels(write_report([one, other]).read_text(encoding="utf-8"))
    assert "<th>before</th><th>one</th><th>other</th>" in page
    row = r'no">warm before</td><td class="text yes">cold</td><td class="text no">[^<]*hot</td>'
    assert re.search(row, page) is not None
    assert HARM not in page
    assert "Side by side" not in write_report([one]).read_text(encoding="utf-8")
    assert "Side by side" not in write_report([one, run]).read_text(encoding="utf-8"), "others began otherwise"


# ---------------------------------------------------------------------------------------------- figures


def lines_of(figure: Figure, panel: int) -> list[tuple[list[float], list[float]]]:
    lines = figure.axes[panel].get_lines()
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in lines]


def test_series_leaves_out_what_is_not_there() -> None:
    records = [{"step": 0}, {"step": 1, "kl": 0.5}, {"step": 2, "kl": None}, {"step": 3, "kl": 0.0}]
    assert series(records, "kl") == ([1, 3], [0.5, 0.0])
    assert series(records, "reward") == ([], [])


def test_smoothed_by_hand() -> None:
    # weight 0.5: sums 0.5, 1.25 and 2.625 over norms 0.5, 0.75 and 0.875
    assert smoothed([1.0, 2.0, 4.0], weight=0.5) == pytest.approx([1.0, 1.25 / 0.75, 2.625 / 0.875])
    assert smoothed([3.0] * 5) == pytest.approx([3.0] * 5)
    assert smoothed([]) == []


def test_a_figure_has_one_line_a_run_and_dots_for_what_was_held_out() -> None:
    runs = {
        "first": [[{"step": 0, "eval/accuracy": 0.1}, {"step": 1, "reward": 0.5, "accuracy": 0.2}]],
        "second": [[{"step": 1, "reward": 0.7, "accuracy": 0.3}]],
    }
    figure = comparison_figure(runs)
    assert [panel.key for panel in PANELS] == ["reward", "accuracy", "entropy", "kl", "kl_previous"]
    assert lines_of(figure, 0) == [([1], [0.5]), ([1], [0.7])]
    assert lines_of(figure, 1) == [([1], [0.2]), ([0], [0.1]), ([1], [0.3]), ([], [])]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["first", "second"]
    colours = [line.get_color() for line in figure.axes[0].get_lines()]
    assert len(set(colours)) == 2


def test_a_long_run_is_also_drawn_smoothed() -> None:
    values = [float(i % 3) for i in range(40)]
    records = [{"step": i, "reward": value} for i, value in enumerate(values)]
    raw, smooth = lines_of(comparison_figure({"long": [records]}), 0)
    assert raw[1] == values
    assert smooth[1] == pytest.approx(smoothed(values))


def test_the_same_run_gives_the_same_bytes() -> None:
    records = [{"step": 1, "reward": 0.5}]
    first, second = (as_svg(comparison_figure({"run": [records]})) for _ in range(2))
    assert first == second
    assert first.startswith("<svg")


def test_paths_are_shortened_by_hand() -> None:
    curve = "C 0.5303 2 1 1 10.06 7.123 \nL 1.5 2 \nz\n"
    before = f'<g>\n  <path d="M 36.325 89.899 \nL 38.80 -178.71 \nL 41.0 5 \n{curve}" style="a: 0.123456"/>\n</g>'
    after = "M 36.3 89.9\n38.8 -178.7\n41 5\nC 0.53 2 1 1 10.1 7.12\nL 1.5 2\nz\n"
    assert smaller(before) == f'<g>\n<path d="{after}" style="a: 0.123456"/>\n</g>'


# ---------------------------------------------------------------------------------------------- sparkline


def test_a_sparkline_spans_the_bars() -> None:
    assert sparkline([0.0, 1.0], 10) == "▁█"
    assert sparkline([float(i) for i in range(8)], 10) == BARS
    assert sparkline([5.0, 5.0], 10) == "▁▁"


def test_a_sparkline_shows_the_last_values_and_leaves_gaps() -> None:
    assert sparkline([9.0, 0.0, 1.0], 2) == "▁█"
    assert sparkline([0.0, float("nan"), 1.0], 10) == "▁ █"
    assert sparkline([float("nan")], 10) == ""
    assert sparkline([], 10) == ""
