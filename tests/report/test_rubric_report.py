"""The report of a real, tiny GRAPE run: its items, canaries, origins and samples, with hostile texts everywhere."""

import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from vigneron import api
from vigneron.recipe import check_config, load_config
from vigneron.report.comparison_files import write_comparison
from vigneron.report.html import plain, write_report
from vigneron.report.rubric_part import rubric_part
from vigneron.run_store.experiment_arms import CollectedRun, arms_of
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import SampleStore

SCRIPT = "<script>alert(1)</script>"
IMAGE = "</td></table><img src=http://x.invalid/a onerror=alert(1)>"
LONG = "</details>" + "a long story " * 100
TURNED = "\u202e\x00"
"""A text turned around, and a NUL."""

FUNCTIONS = f"""
import json

def vowels(prompts, completions, **columns):
    return [min(1.0, sum(c in "aeiouAEIOU" for c in text) / 4) for text in completions]

def judge(messages):
    said = messages[1]["content"]
    if "Write your critique" in said:
        return {SCRIPT + LONG!r} + "of the critique"
    if "Criterion: moody" in said and len(said) % 4:
        return {SCRIPT!r} + " I will not say."
    reasoning = {IMAGE!r} + " of the reasoning " + {TURNED!a}
    return json.dumps({{"reasoning": reasoning, "score": len(said) % 5 / 4, "confidence": 0.25}})
"""


def item(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "description": "what it says", **keys}


CATEGORIES = {
    "words": {
        "generate": "Use many vowels.",
        "items": [
            item("vowels", flow="python", function="report_functions:vowels", weight=3),
            item("sounds", flow="judge", critique="You are a critic.", weight=1),
        ],
    },
    "names": {
        "items": [
            item("any", flow="length", at_most=500),
            item("moody", flow="verify"),
            item("vowels", flow="python", function="report_functions:vowels"),
        ]
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    place = tmp_path_factory.mktemp("grape")
    roomy = place / "roomy"
    shutil.copytree(tiny_folder, roomy)
    shape = json.loads((roomy / "config.json").read_text())
    (roomy / "config.json").write_text(json.dumps({**shape, "max_position_embeddings": 16384}))
    (place / "report_functions.py").write_text(FUNCTIONS)
    rows = [
        {"prompt": f"{SCRIPT}say {i}: ", "answer": f"{IMAGE}{i}", "category": ("words", "names")[i % 2]}
        for i in range(8)
    ]
    for name in ("train", "held_out"):
        (place / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows[: 8 if name == "train" else 4])
        )
    (place / "rubric.yaml").write_text(yaml.safe_dump({"categories": CATEGORIES}, sort_keys=False))
    other = {
        "category_column": None,
        "categories": {"theirs": {"items": [item("never", flow="regex", pattern="qqqq")]}},
    }
    (place / "other.yaml").write_text(yaml.safe_dump(other))
    judge = {"kind": "python", "function": "report_functions:judge"}
    given = {
        "recipe": "tiny",
        "method": {"name": "grape", "mix": {"fresh": 0.4, "revised": 0.4, "demonstrated": 0.2}},
        "model": {"name": str(roomy), "device": "cpu"},
        "data": {"train": str(place / "train.jsonl"), "held_out": str(place / "held_out.jsonl")},
        "reward": {
            "kind": "rubric",
            "file": str(place / "rubric.yaml"),
            "judge": judge,
            "held_out_file": str(place / "other.yaml"),
            "missing_limit": 1.0,
        },
        "optimizer": {"actor_lr": 1e-3},
        "steps": 4,
        "prompts_per_step": 4,
        "group_size": 4,
        "max_new_tokens": 12,
        "eval_every": 2,
        "save_every": 0,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        return api.train(check_config(given, "tiny"), name="grape", runs=place).folder


class Page(HTMLParser):
    """Tags, and the cells of every table of a class, as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.attributes: Counter[str] = Counter()
        self.tables: list[tuple[str, list[list[str]]]] = []
        self._cell: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes.update(name for name, _ in attrs)
        if tag == "table":
            self.tables.append((dict(attrs).get("class") or "", []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("td", "th"):
            self._cell = []

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._cell is not None:
            self.tables[-1][1][-1].append("".join(self._cell))
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)

    def rows(self, name: str) -> list[list[str]]:
        return [row for kind, rows in self.tables if kind == name for row in rows]


@pytest.fixture(scope="module")
def text(run: Path) -> str:
    return write_report([run]).read_text(encoding="utf-8")


def metrics_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_nothing_is_fetched_and_nothing_runs(text: str) -> None:
    page = Page(text)
    assert not {"script", "img", "link", "iframe", "object"} & set(page.tags)
    assert not {"src", "onerror", "onload"} & set(page.attributes)
    for target in re.findall(r"""(?:href\s*=\s*["']|url\()([^"')]*)""", text.lower()):
        assert target.startswith("#"), target
    assert not [c for c in text if not c.isprintable() and c not in "\n\t"]


@pytest.mark.slow
def test_hostile_words_of_everybody_are_shown_as_words(text: str) -> None:
    assert SCRIPT not in text
    assert IMAGE not in text
    said = [cell for row in Page(text).rows("judged") for cell in row]
    questions = [row[1] for row in Page(text).rows("texts") if row[0] == "question"]
    assert questions
    assert all(question.startswith(SCRIPT + "say ") for question in questions)
    assert any(cell.startswith(IMAGE + " of the reasoning \\u202e\\x00") for cell in said)
    assert any(row == "dataset's answer" and IMAGE in answer for row, answer in Page(text).rows("texts"))
    drawn = [under for row, under in Page(text).rows("texts") if row == "sampled with"]
    assert any(SCRIPT in under and "an earlier response" in under for under in drawn), "the prompt of a revision"


@pytest.mark.slow
def test_a_long_text_is_folded_and_whole(text: str) -> None:
    folded = re.findall(r'<details class="long"><summary><span>(.*?)</span></summary>(.*?)</details>', text, re.DOTALL)
    assert folded
    for short, whole in folded:
        assert len(short) < 250
        assert re.search(r"(of the critique|say \d: )$", whole), "a critique, or a prompt, which ends with the question"
        assert whole.startswith(short.removesuffix("…"))
    page = Page(text)
    assert page.tags["details"] == text.count("</details>")


@pytest.mark.slow
def test_the_items(run: Path, text: str) -> None:
    records = metrics_of(run)
    heads, *rows = Page(text).rows("items")
    cells = {(row[0], row[1]): dict(zip(heads[2:], row[2:], strict=True)) for row in rows}
    assert list(cells) == [("words", "vowels"), ("", "sounds"), ("names", "any"), ("", "moody"), ("", "vowels")]
    assert [row[3] for row in rows] == ["0.750", "0.250", "0.333", "0.333", "0.333"]
    assert [row[2] for row in rows] == ["python", "judge", "length", "verify", "python"]
    evaluated = [record for record in records if "eval/reward" in record]
    assert [record["step"] for record in evaluated] == [0, 2, 4]
    sounds = cells["", "sounds"]
    assert sounds["score, first"] == f"{evaluated[0]['eval/reward/words/sounds/score']:.3f}"
    assert sounds["last"] == f"{evaluated[-1]['eval/reward/words/sounds/score']:.3f}"
    shares = [s for r in records if (s := r.get("reward/words/sounds/share")) is not None]
    assert sounds["share of the advantage"] == f"{sum(shares) / len(shares):.3f}"
    assert (sounds["confidence"], sounds["weak"]) == ("0.250", "low confidence")
    assert cells["names", "any"]["weak"] == "never varies"
    failed = sum(r.get(f"{at}reward/names/moody/failed", 0) for r in records for at in ("", "eval/"))
    assert failed > 0
    # 4 training steps and 3 evaluations of the 2 held-out names
    names = sum(len(asked(run, step)) for step in range(1, 5)) + 3 * 2
    assert cells["", "moody"]["failed"] == f"{int(failed)} of {names}"
    assert "fails often" in cells["", "moody"]["weak"]


def asked(run: Path, step: int) -> list[Any]:
    kept = SampleStore(run, read_only=True).page(step=step)
    return [sample for sample in kept if sample.extras["rubric"]["category"] == "names"]


@pytest.mark.slow
def test_categories_with_canaries_and_the_second_rubric(run: Path, text: str) -> None:
    first, *_, last = [record for record in metrics_of(run) if "eval/reward" in record]
    _, heads, *rows = Page(text).rows("categories")
    assert heads == ["", *["first", "last"] * 4]
    cells = {row[0]: row[1:] for row in rows}
    assert set(cells) == {"all categories", "words", "names", "theirs"}
    assert cells["all categories"][2:6] == [
        f"{r[key]:.3f}" for key in ("eval/reward", "eval/held_out_rubric/reward") for r in (first, last)
    ]
    assert cells["words"][4:6] == ["–", "–"]  # the second rubric has a category of its own
    assert cells["theirs"] == ["–"] * 4 + ["0.000"] * 2 + ["–"] * 2
    assert cells["words"][6:] == [f"{r['eval/canary/words']:.3f}" for r in (first, last)]
    assert cells["names"][2:4] == [f"{r['eval/reward/names/reward']:.3f}" for r in (first, last)]
    assert f"{first['eval/canary/largest']:.3f}</span> at the first evaluation" in text


@pytest.mark.slow
def test_where_responses_came_from(run: Path, text: str) -> None:
    store = SampleStore(run, read_only=True)
    by_step = {step: Counter(s.extras["origin"] for s in store.page(step=step)) for step in range(1, 5)}
    whole = sum(by_step.values(), Counter())
    assert min(whole["revised"], whole["demonstrated"]) > 0
    rows = {row[0]: row[1:4] for row in Page(text).rows("origins")[1:]}
    for name, counted in (("first step", by_step[1]), ("last step", by_step[4]), ("all 4 steps", whole)):
        assert rows[name] == [str(counted[origin]) for origin in ("fresh", "revised", "demonstrated")]


@pytest.mark.slow
def test_a_sample_is_shown_with_all_that_was_said(run: Path, text: str) -> None:
    stages = re.findall(r'<details class="stage"><summary>([^<]*)', text)
    assert stages == ["training, step 1", "training, step 4", "held out, greedy, step 0", "held out, greedy, step 4"]
    kept = SampleStore(run, read_only=True).page(step=4)
    for category in ("words", "names"):
        best = max((s for s in kept if s.extras["rubric"]["category"] == category), key=lambda s: s.reward or 0)
        numbers = f"reward {best.reward:.3f} · advantage {best.advantage:.3f} · {best.extras['origin']} · "
        part = text[text.index("training, step 4") : text.index("held out, greedy, step 0")]
        assert f"<b>{category}</b> · best · {numbers}" in part.replace(" · truncated", "")
    heads = [row for row in Page(text).rows("judged") if row[0] == "item"]
    assert all(row == ["item", "score", "confidence", "critique", "reasoning"] for row in heads)


@pytest.mark.slow
def test_one_figure_a_category(text: str) -> None:
    assert text.count("<svg") == 2 + text.count('<div class="panel')  # one a category
    assert re.search(r"<h3>words</h3>\s*<svg", text)
    assert re.search(r"<h3>names</h3>\s*<svg", text)


@pytest.mark.slow
def test_a_broken_rubric_costs_only_the_weights(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "rubric.yaml").write_text("categories: [")
    folder = RunFolder.open(copy)
    part = rubric_part(folder, folder.config(), folder.metrics())
    assert part is not None
    assert {row.weight for row in part.items} == {None}
    assert part.items[0].score.first is not None
    assert part.stages


@pytest.mark.slow
def test_a_run_of_another_reward_has_none_of_this(run: Path, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "plain", exact_name=True)
    folder.write_config(load_config("demo"))
    for record in metrics_of(run):  # even if its figures were called so
        folder.append("metrics.jsonl", record)
    text = write_report([folder.path]).read_text(encoding="utf-8")
    assert text.count("<svg") == text.count('<div class="panel')
    assert not set(Page(text).tags) & {"h3", "section"}
    assert ".sample" not in text
    both = write_report([folder.path, run], tmp_path / "both.html").read_text(encoding="utf-8")
    assert both.count("<h3>Items</h3>") == 1


@pytest.mark.slow
def test_category_rewards_are_compared_and_items_only_in_the_csv(run: Path, tmp_path: Path) -> None:
    records = metrics_of(run)
    _, page, table = write_comparison(arms_of([CollectedRun.read(run)]), tmp_path / "out")
    lines = [line.split(",") for line in table.read_text(encoding="utf-8").splitlines()]
    means = {line[1]: float(line[3]) for line in lines[1:]}
    last, first = records[-1], records[0]
    assert means["eval/reward/words/reward"] == last["eval/reward/words/reward"]
    assert means["eval/reward/words/reward_before"] == first["eval/reward/words/reward"]
    assert means["eval/reward/words/sounds/confidence"] == 0.25
    assert means["eval/canary/largest"] == last["eval/canary/largest"]
    assert means["eval/held_out_rubric/reward"] == last["eval/held_out_rubric/reward"]
    trained = [r["reward/names/reward"] for r in records if r.get("reward/names/reward") is not None]
    assert means["reward/names/reward"] == pytest.approx(sum(trained) / len(trained))
    assert "reward/names/moody/failed" in means
    shown = [row[0] for _, rows in Page(page.read_text(encoding="utf-8")).tables for row in rows]
    assert {"reward, words", "reward, names", "reward, words, before", "reward, held-out rubric"} <= set(shown)
    assert not [title for title in shown if "sounds" in title or "moody" in title]


def test_lines_and_tabs_stay_and_the_rest_is_escaped() -> None:
    assert plain("a\n\tb\r\x1b[0m é 漢\u200f\ud800") == "a\n\tb\\r\\x1b[0m é 漢\\u200f\\ud800"
