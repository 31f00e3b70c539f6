"""A comparison's files: values worked out by hand, everything escaped, nothing fetched, small and quick."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from vigneron.commands.compare import print_full_width
from vigneron.errors import UserError
from vigneron.recipe import load_config
from vigneron.report.comparison_files import comparison_table, format_number, format_spread, write_comparison
from vigneron.report.figures import COLOURS, COMPARED, comparison_figure, for_page
from vigneron.run_store.experiment_arms import (
    Arm,
    CollectedRun,
    arms_of,
    differences,
    first_change,
    identity,
    refuse_duplicates,
)
from vigneron.run_store.final_metrics import Spread, held_out_values, spreads, training_values
from vigneron.run_store.folder import RunFolder

HARM = "<script>alert(1)</script>"


def make_run(
    place: Path,
    name: str,
    metrics: list[dict[str, Any]],
    recipe: str = "critic-antonyms",
    seconds: float = 0.5,
    **keys: Any,
) -> Path:
    """A run's folder as training leaves it, without the training."""
    folder = RunFolder.create(place, name, exact_name=True)
    folder.write_config(load_config("critic-antonyms", keys={"recipe": recipe, **keys}))
    lines = "".join(json.dumps(record) + "\n" for record in metrics)
    (folder.path / "metrics.jsonl").write_text(lines, encoding="utf-8")
    times = [{"step": record["step"], "seconds": seconds} for record in metrics if record["step"]]
    (folder.path / "timings.jsonl").write_text("".join(json.dumps(time) + "\n" for time in times), encoding="utf-8")
    return folder.path


def metrics_of(rewards: list[float], before: float, after: float) -> list[dict[str, Any]]:
    steps = [{"step": i, "reward": r, "entropy": 2.0, "kl": 0.1 * i} for i, r in enumerate(rewards, start=1)]
    return [{"step": 0, "eval/accuracy": before}, *steps[:-1], {**steps[-1], "eval/accuracy": after}]


@pytest.fixture
def arms(tmp_path: Path) -> list[Arm]:
    """Two arms: one of two seeds, one of SFT, which has no reward."""
    first = make_run(tmp_path, "a-seed-0", metrics_of([0.0, 1.0, 1.0, 1.0, 1.0, 1.0], 0.25, 0.5), "a", seed=0)
    second = make_run(tmp_path, "a-seed-1", metrics_of([0.0, 0.0, 0.0, 0.0, 0.0, 0.5], 0.25, 0.75), "a", seed=1)
    nll = [{"step": i, "loss/nll": float(i), "entropy": 1.0} for i in (1, 2)]
    keys = {"method": {"name": "sft"}, "optimizer": {"actor_lr": 1e-5}, "reward": {"kind": "binary"}}
    sft = make_run(tmp_path, "sft", [*nll, {"step": 3, "loss/nll": 3.0, "eval/accuracy": 1.0}], "b", **keys)
    return arms_of([CollectedRun.read(path) for path in (first, second, sft)])


def rows_of(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return {(row["arm"], row["figure"]): row for row in csv.DictReader(file)}


# ---------------------------------------------------------------------------------------------- values


def test_the_csv_by_hand(arms: list[Arm], tmp_path: Path) -> None:
    write_comparison(arms, tmp_path / "out")
    rows = rows_of(tmp_path / "out" / "compare.csv")

    def row(arm: str, figure: str) -> list[float | None]:
        return [float(v) if (v := rows[arm, figure][key]) else None for key in ("runs", "mean", "std", "min", "max")]

    # The last five steps: 1.0 and 0.1; the sample's standard deviation of two values is their distance / √2.
    assert row("a", "reward") == pytest.approx([2, 0.55, 0.9 / 2**0.5, 0.1, 1.0])
    assert row("a", "eval/accuracy_before") == [2, 0.25, 0, 0.25, 0.25]
    assert row("a", "eval/accuracy") == pytest.approx([2, 0.625, 0.25 / 2**0.5, 0.5, 0.75])
    assert row("a", "kl") == pytest.approx([2, 0.4, 0, 0.4, 0.4])
    assert row("a", "steps") == [2, 6, 0, 6, 6]
    assert row("a", "episodes") == [2, 96, 0, 96, 96]  # 6 steps of 16 prompts
    assert row("a", "seconds") == [2, 3, 0, 3, 3]
    # Smoothed, Σ 0.9^(n−i) · 0.1 i / Σ 0.9^(n−i), the ramp rises most at its end.
    ramp = [sum(0.9 ** (n - i) * 0.1 * i for i in range(1, n + 1)) for n in (5, 6)]
    norm = [sum(0.9 ** (n - i) for i in range(1, n + 1)) for n in (5, 6)]
    rise = ramp[1] / norm[1] - ramp[0] / norm[0]
    assert row("a", "kl_largest_rise") == pytest.approx([2, rise, 0, rise, rise])
    assert row("a", "steps_without_reward") == pytest.approx([2, 0.5, (5 / 6 - 1 / 6) / 2**0.5, 1 / 6, 5 / 6])
    assert row("a", "reward_drop") == [2, 0, 0, 0, 0]
    assert row("b", "loss/nll") == [1, 2, None, 2, 2]
    assert row("b", "eval/accuracy") == [1, 1, None, 1, 1]
    assert ("b", "reward") not in rows
    assert ("b", "eval/accuracy_before") not in rows
    assert ("a", "kl_previous") not in rows


def test_a_final_value_is_of_the_last_steps_that_have_it() -> None:
    records = [{"step": i, "reward": float(i), "kl_previous": i if i == 98 else None} for i in range(1, 101)]
    values = training_values(records)
    assert values["reward"] == 98  # 96 … 100
    assert values["kl_previous"] == 98
    assert values["accuracy"] is None


def test_before_is_step_0_and_after_is_later() -> None:
    only_before = held_out_values([{"step": 0, "eval/accuracy": 0.5}, {"step": 1}])
    assert (only_before["eval/accuracy_before"], only_before["eval/accuracy"]) == (0.5, None)
    records = [{"step": 0, "eval/accuracy": 0.0}, {"step": 5, "eval/accuracy": 0.25}, {"step": 7}]
    assert (held_out_values(records)["eval/accuracy_before"], held_out_values(records)["eval/accuracy"]) == (0.0, 0.25)


def test_how_numbers_are_shown() -> None:
    assert [format_number(v) for v in (0, 0.0, 4000, 0.6123, 12345.6, 1.23e-5, 1.0)] == [
        "0",
        "0",
        "4,000",
        "0.612",
        "12,346",
        "1.23e-05",
        "1.000",
    ]
    assert format_spread(None) == "–"
    assert format_spread(Spread.of([0.5])) == "0.500"
    assert format_spread(Spread.of([0.5, 0.7])) == "0.600 ± 0.141"


def test_the_table_shows_all_of_it_when_piped(arms: list[Arm]) -> None:
    out = io.StringIO()
    print_full_width(Console(file=out, width=30), comparison_table(arms))
    table = out.getvalue()
    assert re.search(r"a \(2 seeds\) +b *$", table, re.MULTILINE)
    assert re.search(r"^ +reward +0\.550 ± 0\.636 +– *$", table, re.MULTILINE)
    assert re.search(r"^ +accuracy, before +0\.250 ± 0 +– *$", table, re.MULTILINE)
    assert re.search(r"^ +episodes +96 ± 0 +48 *$", table, re.MULTILINE)
    assert "exact match" not in table  # nobody measured it


# ---------------------------------------------------------------------------------------------- figure and page


def test_one_colour_an_arm_and_a_band_for_seeds(arms: list[Arm]) -> None:
    figure = comparison_figure(
        {arm.name: [run.records for run in arm.runs] for arm in arms}, panels=COMPARED, columns=3, x="episodes"
    )
    reward, sampled, held_out, entropy, kl, _ = figure.axes
    (line,) = reward.get_lines()
    assert list(line.get_xdata()) == [16, 32, 48, 64, 80, 96]
    assert list(line.get_ydata()) == pytest.approx([0, 0.5, 0.5, 0.5, 0.5, 0.75])
    (band,) = reward.collections
    edges = band.get_paths()[0].vertices
    assert {(x, y) for x, y in edges} >= {(32, 0), (32, 1), (96, 0.5), (96, 1)}
    assert sampled.get_lines() == []  # neither arm has it
    assert [list(line.get_ydata()) for line in held_out.get_lines()] == [[0.25, 0.625], [1.0]]
    assert [line.get_color() for line in entropy.get_lines()] == list(COLOURS[:2])
    assert [line.get_color() for line in kl.get_lines()] == [COLOURS[0]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    assert all(axis.get_xlabel() == "episodes" for axis in figure.axes)


def test_more_arms_than_colours(tmp_path: Path) -> None:
    records = [{"step": 1, "episodes": 1, "reward": 0.5}]
    figure = comparison_figure({f"arm {i}": [records] for i in range(9)}, panels=COMPARED, columns=3, x="episodes")
    assert len(figure.axes[0].get_lines()) == len(figure.legends[0].get_texts()) == 9


def test_the_page_is_one_file_and_escapes_what_it_shows(tmp_path: Path) -> None:
    records = metrics_of([0.5], 0.0, 1.0)
    paths = [make_run(tmp_path, f"{i}", records, f"{HARM}{i}", about=HARM, seed=i, steps=i + 1) for i in range(2)]
    paths.append(make_run(tmp_path, "<b>bold<i>", records, "\x1b[31m$x^{$ & \x00", data={"task": "antonyms"}))
    arms = arms_of([CollectedRun.read(path) for path in paths])
    svg, html, _ = write_comparison(arms, tmp_path / "out")
    page = html.read_text(encoding="utf-8")
    for forbidden in ("<script", "<link", "<iframe", "<img", "<object", " src=", "@import", "javascript:", "<b>"):
        assert forbidden not in page.lower(), forbidden
    assert "&lt;script&gt;alert(1)&lt;/script&gt;0" in page
    assert "&lt;b&gt;bold&lt;i&gt;" in page
    assert "default-src 'none'" in page
    assert not [c for c in page if not c.isprintable() and c != "\n"]
    ElementTree.fromstring(svg.read_text(encoding="utf-8"))
    assert for_page(svg.read_text(encoding="utf-8")) in page
    for target in re.findall(r"""href\s*=\s*["']([^"']*)""", page.lower()):
        assert target.startswith("#"), target


def test_the_page_says_what_differs(arms: list[Arm], tmp_path: Path) -> None:
    page = write_comparison(arms, tmp_path / "out")[1].read_text(encoding="utf-8")
    row = r'<td class="text">method.name</td><td class="text">actor_critic</td><td class="text">sft</td>'
    assert re.search(row, page)
    assert '<td class="text">seed</td>' not in page
    assert re.search(r"<td>a-seed-1</td><td>a</td><td>1</td><td>6</td><td>96</td>", page)


@pytest.mark.slow
def test_long_runs_are_drawn_small(tmp_path: Path) -> None:
    records = [
        {
            "step": i,
            "reward": (i * 7919 % 997) / 997,
            "accuracy": 0.5,
            "entropy": 2 - i / 9000,
            "kl": i % 13,
            "kl_previous": 0.1,
        }
        | ({"eval/accuracy": i / 10_000} if i % 10 == 0 else {})
        for i in range(10_000)
    ]
    paths = [
        make_run(tmp_path, f"{arm}-{seed}", records, arm, seed=seed, steps=steps)
        for arm, steps in (("a", 9999), ("b", 10_000))
        for seed in range(2)
    ]
    files = write_comparison(arms_of([CollectedRun.read(path) for path in paths]), tmp_path / "out")
    assert files[0].stat().st_size < 500_000
    figure = comparison_figure({"a": [records]}, panels=COMPARED, columns=3)
    for axis in figure.axes:
        assert all(len(line.get_xdata()) <= 400 for line in axis.get_lines())


# ---------------------------------------------------------------------------------------------- arms


def test_runs_that_differ_by_their_seed_are_one_arm(arms: list[Arm]) -> None:
    assert [(arm.name, [run.config.seed for run in arm.runs]) for arm in arms] == [("a", [0, 1]), ("b", [0])]
    assert spreads(arms[0])["reward"].runs == 2


def test_arms_of_one_recipe_go_by_their_folders(tmp_path: Path) -> None:
    records = metrics_of([0.5], 0.0, 1.0)
    paths = [make_run(tmp_path, name, records, "same", steps=n) for n, name in enumerate(("x-seed-0", "y"), start=1)]
    assert [arm.name for arm in arms_of([CollectedRun.read(path) for path in paths])] == ["x", "y"]
    elsewhere = make_run(tmp_path / "other", "y", records, "same", steps=3)
    named = arms_of([CollectedRun.read(path) for path in (*paths, elsewhere)])
    assert [arm.name for arm in named] == [str(path) for path in (*paths, elsewhere)]


def test_two_of_the_same_are_refused() -> None:
    config = load_config("critic-antonyms")
    renamed = load_config("critic-antonyms", keys={"recipe": "other", "microbatch_tokens": 512, "about": "else"})
    refuse_duplicates([(Path("x"), config), (Path("y"), load_config("critic-antonyms", ["seed=1"]))])
    with pytest.raises(UserError, match="'x' and 'y' have the same config and seed"):
        refuse_duplicates([(Path("x"), config), (Path("y"), renamed)])
    on = [load_config("critic-antonyms", [f"model.device={device}"]) for device in ("cuda:0", "cuda:1", "cpu")]
    assert identity(on[0]) == identity(on[1]) != identity(on[2])


def test_the_first_change_is_named() -> None:
    asked = load_config("critic-antonyms")
    resolved = ["model.device=cuda:3", "model.compile=true", "microbatch_tokens=77", "about=x"]
    started = load_config("critic-antonyms", resolved)
    assert first_change(asked, asked, started) is None  # `auto` became these
    now = load_config("critic-antonyms", ["model.device=cpu"])
    assert first_change(now, now, started) == "model.device was 'cuda:3', is now 'cpu'"
    lora = load_config("critic-antonyms", ["model.lora.rank=4"])
    assert first_change(lora, lora, asked) == "model.lora.rank was 'nothing', is now 4"
    line = load_config("critic-antonyms", ["data.template='a\n{word}'"])
    assert "\n" not in str(first_change(line, line, asked))


def test_differences_name_what_one_arm_lacks(arms: list[Arm]) -> None:
    found = dict(differences(arms))
    assert found["optimizer.critic_lr"] == [0.001, "nothing"]
    assert "seed" not in found
    assert "recipe" not in found


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("", "has no metrics yet"),
        ("{oops\n", "line 1 is not JSON"),
        ("[1]\n", "line 1 is not a JSON object"),
        ('{"step": 1}\n{"reward": 1}\n', "line 2 has no step"),
        ('{"step": "x"}\n', "line 1 has no step"),
    ],
)
def test_metrics_that_cannot_be_read(tmp_path: Path, content: str, part: str) -> None:
    path = make_run(tmp_path, "x", [])
    (path / "metrics.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=part):
        CollectedRun.read(path)
