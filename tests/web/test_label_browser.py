"""The pages of `vigneron label` in a real browser, by keyboard; and what is written is trained on."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.browser import expecting, served
from support.command_line import vigneron
from support.labelling import make_run, read_jsonl, sample, session_of, write_rows
from vigneron import api
from vigneron.labels.items import Kind
from vigneron.labels.session import Session
from vigneron.recipe import check_config
from vigneron.run_store.folder import RunFolder
from vigneron.web.label import label_app

pytestmark = pytest.mark.slow

HOSTILE = " <script>alert(1)</script>\u202e"


@contextmanager
def opened(browser_page: Any, session: Session, kind: Kind) -> Iterator[Any]:
    with served(label_app(session, kind)) as address:
        browser_page.goto(address)
        _expect(browser_page).to_have_text(re.compile("of"))
        yield browser_page


def _expect(page: Any) -> Any:
    return expecting(page.locator("#progress"))


def press(page: Any, key: str, then: str) -> None:
    """And wait until the progress says what it should."""
    page.keyboard.press(key)
    _expect(page).to_have_text(then)


def shown(page: Any) -> list[str]:
    return page.locator("#completions .text").all_text_contents()


def key_of(page: Any, mark: str) -> str:
    (place,) = [place for place, text in enumerate(shown(page)) if mark in text]
    return ("a", "b")[place]


def write_run(folder: Path) -> Path:
    """Samples of six prompts, each with one that ends in `!` and one that ends in `?`."""
    samples = [
        sample(1 + n % 2, 2 * n + m, f"say {n}:", f" {n}{mark}") for n in range(6) for m, mark in enumerate("!?")
    ]
    return make_run(folder / "run", samples, [f"say {n}:" for n in range(6)])


def label_by_keyboard(page: Any, run: Path, out: Path) -> None:
    """Those that end in `!`, but for a tie and a skip, which are written nowhere; one is taken back."""
    with opened(page, session_of(run, out), "pairs"):
        press(page, key_of(page, "!"), "1 of 6")
        press(page, {"a": "ArrowLeft", "b": "ArrowRight"}[key_of(page, "!")], "2 of 6")
        press(page, key_of(page, "?"), "3 of 6")
        press(page, "u", "2 of 6")
        press(page, key_of(page, "!").upper(), "3 of 6")
        press(page, "t", "4 of 6, 1 tie")
        press(page, "s", "5 of 6, 1 tie, 1 skipped")
        press(page, key_of(page, "!"), "6 of 6, 1 tie, 1 skipped")
        assert page.locator("#done").is_visible()
        assert page.locator("#rows").text_content() == "4 rows"
        assert not page.locator("#work").is_visible()
    assert [(row["chosen"][-1], row["rejected"][-1]) for row in read_jsonl(out)] == [("!", "?")] * 4


def train_on(file: Path, method: str, model: Path, runs: Path) -> list[dict[str, Any]]:
    recipe = {
        "method": {"name": method},
        "model": {"name": str(model), "device": "cpu"},
        "data": {"train": str(file)},
        "optimizer": {"actor_lr": 1e-2},
        "steps": 8,
        "prompts_per_step": 4,
        "eval_every": 0,
        "save_every": 0,
    }
    return RunFolder(api.train(check_config(recipe, "tiny"), name=method, runs=runs).folder).metrics()


def test_a_runs_samples_are_labelled_by_keyboard_and_dpo_trains_on_them(
    browser_page: Any, tmp_path: Path, tiny_folder: Path
) -> None:
    out = tmp_path / "pairs.jsonl"
    label_by_keyboard(browser_page, write_run(tmp_path), out)
    records = train_on(out, "dpo", tiny_folder, tmp_path)
    assert records[-1]["loss/dpo"] < records[0]["loss/dpo"]
    assert records[-1]["rewards/margins"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "loss"), [("reward_model", "loss/bradley_terry"), ("preference_model", "loss/preference")]
)
def test_scorers_train_on_what_was_labelled(
    browser_page: Any, tmp_path: Path, tiny_folder: Path, method: str, loss: str
) -> None:
    out = tmp_path / "pairs.jsonl"
    label_by_keyboard(browser_page, write_run(tmp_path), out)
    records = train_on(out, method, tiny_folder, tmp_path)
    assert records[-1][loss] < records[0][loss]


def test_what_a_model_wrote_stays_text_and_the_mouse_does_as_well(browser_page: Any, tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "<img src=x onerror=alert(2)>"}]
    rows = [{"prompt": asked, "completions": [HOSTILE, "plain"]}]
    out = tmp_path / "pairs.jsonl"
    with opened(browser_page, session_of(write_rows(tmp_path / "a.jsonl", rows), out), "pairs") as page:
        assert sorted(shown(page)) == [r" <script>alert(1)</script>\u202e", "plain"]
        assert page.locator("#prompt").text_content() == "<img src=x onerror=alert(2)>"
        assert page.locator("#work script, #work img").count() == 0
        page.locator(f'button[data-key="{key_of(page, "script")}"]').click()
        page.wait_for_selector("#done", state="visible")
    message = [{"role": "assistant", "content": HOSTILE}]
    rejected = [{"role": "assistant", "content": "plain"}]
    assert read_jsonl(out) == [{"prompt": asked, "chosen": message, "rejected": rejected}]


def test_a_server_that_is_gone_is_said_and_the_item_stays(browser_page: Any, tmp_path: Path) -> None:
    session = session_of(write_run(tmp_path), tmp_path / "pairs.jsonl")
    with opened(browser_page, session, "pairs") as page:
        before = shown(page)
    page.keyboard.press("a")
    page.wait_for_selector("#complaint", state="visible")
    assert "still running" in page.locator("#complaint").text_content()
    assert shown(page) == before
    page.complaints.clear()  # the browser's own line about the failed request


def test_the_best_of_a_group_is_picked_by_its_number_and_fine_tuned_on(
    browser_page: Any, tmp_path: Path, tiny_folder: Path
) -> None:
    rows = [{"prompt": f"say {n}:", "completions": [f" {n}{mark}" for mark in "!?.,"]} for n in range(4)]
    out = tmp_path / "best.jsonl"
    session = session_of(write_rows(tmp_path / "rows.jsonl", rows), out, best=True)
    with opened(browser_page, session, "best") as page:
        page.keyboard.press("7")
        page.keyboard.press("t")
        for done in range(1, 5):
            texts = shown(page)
            press(page, str(1 + next(place for place, text in enumerate(texts) if "!" in text)), f"{done} of 4")
    assert [row["completion"][-1] for row in read_jsonl(out)] == ["!"] * 4
    records = train_on(out, "sft", tiny_folder, tmp_path)
    assert records[-1]["loss/nll"] < records[0]["loss/nll"]


def test_scores_are_given_by_keyboard_and_the_review_compares_them(browser_page: Any, tmp_path: Path) -> None:
    def said(score: float, confidence: float) -> dict[str, Any]:
        words = {"critique": "dull", "reasoning": "it repeats itself"}
        return {
            "version": "1@aa",
            "category": "words",
            "items": {"nice": {"score": score, "confidence": confidence, **words}},
        }

    samples = [sample(1, n, "user: p", f"-a{n}", rubric=said(0.2 * n, 0.9 - 0.1 * n)) for n in range(6)]
    run = make_run(tmp_path / "run", samples)
    out = run / "people.csv"
    with opened(browser_page, session_of(run, out, scores=True), "scores") as page:
        assert page.locator("#completion").text_content() == "-a5"
        assert not page.locator("#reasoning").is_visible()
        page.keyboard.press("r")
        assert page.locator("#reasoning").inner_text() == "it repeats itself"
        assert not page.locator("#last").is_visible()
        press(page, "x", "1 of 6")
        assert page.locator("#last").text_content() == "Last item, nice: you 1.00, the judge 1.00 (confidence 0.40)"
        assert not page.locator("#reasoning").is_visible()
        for done, key in enumerate("0640", start=2):
            press(page, key, f"{done} of 6")
        press(page, "u", "4 of 6")
        press(page, "2", "5 of 6")
        page.locator("#slider").focus()
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        page.wait_for_selector("#done", state="visible")
    answer = vigneron("rubric", "review", run, "--labels", out, "--out", tmp_path / "review.csv")
    assert answer.code == 0, answer.err
    assert "match no score" not in answer.out
    line = (tmp_path / "review.csv").read_text().splitlines()[1].split(",")
    assert line[:5] == ["words", "nice", "1@aa", "6", "0"]
    assert line[8] == "6"
    # The judge gave 1, .8, .6, .4, .2, 0; the person 1, 0, .6, .4, .2, 1.
    assert float(line[9]) == pytest.approx((0.8 + 1.0) / 6)


def test_steps_are_labelled_by_keyboard_and_a_process_model_trains_on_them(
    browser_page: Any, tmp_path: Path, tiny_folder: Path
) -> None:
    rows = [{"prompt": f"sum {n} =\n", "completion": f"{n}\n{HOSTILE}{n}\n{n}.\n"} for n in range(4)]
    out = tmp_path / "steps.jsonl"
    session = session_of(write_rows(tmp_path / "in.jsonl", rows), out, solutions=True)
    with opened(browser_page, session, "steps") as page:
        assert page.locator("#steps li").count() == 3
        assert "<script>alert(1)</script>" in page.locator("#steps li .text").nth(1).inner_text()
        page.keyboard.press("Enter")  # nothing is marked yet
        for key in ("1", "0", "?"):
            page.keyboard.press(key)
        press(page, "Enter", "1 of 4")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("f")  # the second step is the first error
        press(page, "Enter", "2 of 4")
        page.keyboard.press("a")
        page.locator("#steps li").nth(2).locator("[data-mark=wrong]").click()
        assert page.locator("#steps [aria-pressed=true]").count() == 3
        press(page, "Enter", "3 of 4")
        press(page, "u", "2 of 4")
        page.keyboard.press("a")
        press(page, "Enter", "3 of 4")
        press(page, "s", "4 of 4, 1 skipped")
        assert page.locator("#done").is_visible()
    labels = [row["labels"] for row in read_jsonl(out)]
    assert sorted(map(str, labels)) == ["[1, 0, None]", "[1, 0, None]", "[1, 1, 1]"]
    config = check_config(
        {
            "method": {"name": "process_model"},
            "model": {"name": str(tiny_folder), "device": "cpu"},
            "data": {"train": str(out)},
            "steps": 2,
            "prompts_per_step": 2,
        },
        "tiny",
    )
    assert api.train(config, name="steps", runs=tmp_path).step == 2
