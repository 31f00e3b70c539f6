"""What the label pages show beside the texts: differences, whitespace, what is hidden until it is asked for, progress
and the next command; on a desk and by touch on a phone."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.browser import served
from support.labelling import make_run, sample, session_of, write_comparisons, write_rows
from vigneron.commands.label import LabelOptions, next_step
from vigneron.web.label import label_app

pytestmark = pytest.mark.slow

LEFT = "The sum is 12, I think.\nDone."
RIGHT = "The sum is 13, I  think.\nDone."
PHONE = {"width": 390, "height": 844}
CONTRAST = """element => {
  const canvas = document.createElement("canvas").getContext("2d");
  const light = (colour) => {
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(element);
  const [one, other] = [light(style.color), light(style.backgroundColor)].sort((a, b) => b - a);
  return (one + 0.05) / (other + 0.05);
}"""


def opened(page: Any, address: str) -> None:
    page.goto(address)
    page.locator("#completions .text, #steps .text").first.wait_for()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two prompts, each with a right and a wrong completion, their rewards and the reference answer."""
    samples = [
        replace(sample(1, 2 * n + m, f"sum {n}", text), reward=float(m == 0), answer="12")
        for n in range(2)
        for m, text in enumerate((LEFT, RIGHT))
    ]
    return make_run(tmp_path / "run", samples, ["sum 0", "sum 1"])


@pytest.fixture
def address(run: Path, tmp_path: Path) -> Iterator[str]:
    out = tmp_path / "pairs.jsonl"
    with served(label_app(session_of(run, out), "pairs", lambda rows: next_step(LabelOptions(run, out), rows))) as url:
        yield url


def marks(page: Any) -> list[list[str]]:
    return sorted(article.locator("mark").all_text_contents() for article in page.locator("article").all())


def test_a_text_that_begins_with_a_space_is_plain(tmp_path: Path, browser_page: Any) -> None:
    """As most completions of base models do: only spaces themselves are ever dotted."""
    page = browser_page
    with served(label_app(session_of(write_comparisons(tmp_path), tmp_path / "pairs.jsonl"), "pairs")) as address:
        opened(page, address)
        page.keyboard.press("d")
        assert page.locator("#completions .space, #completions mark").count() == 0
        page.keyboard.press("w")
        assert page.locator("#completions .space").all_text_contents() == [" ", " "]
        page.goto("about:blank")


def test_the_difference_is_marked_and_whitespace_made_visible(address: str, browser_page: Any) -> None:
    page = browser_page
    opened(page, address)
    assert marks(page) == [["12", " "], ["13", "  "]]
    assert page.locator("mark .space").count() == 2  # spaces that differ are always visible
    page.keyboard.press("d")
    assert marks(page) == [[], []]
    assert sorted(page.locator("#completions .text").all_text_contents()) == [LEFT, RIGHT]
    page.keyboard.press("w")
    assert page.locator("#completions .space").count() == 2 * 5
    signs = page.locator("#completions .break").evaluate_all("all => all.map((one) => one.dataset.sign)")
    assert signs == ["¶", "¶"]
    assert sorted(page.locator("#completions .text").all_text_contents()) == [LEFT, RIGHT]
    page.keyboard.press("a")
    page.locator("#progress", has_text="1 of 2").wait_for()
    assert page.locator("#spaces").get_attribute("aria-pressed") == "true"  # also for the next item
    assert marks(page) == [[], []]


def test_texts_with_little_in_common_are_not_marked_and_long_ones_are_quick(browser_page: Any, tmp_path: Path) -> None:
    words = [" ".join(f"{mark}{n}" for n in range(16_000)) for mark in "xy"]
    rows = [
        {"prompt": "p", "completions": ["cold", "hot and humid"]},
        {"prompt": "q", "completions": [f"same {text} end" for text in words]},
        {"prompt": "r", "completions": ["x" + " " * 99_000, "y"]},
    ]
    session = session_of(write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "pairs.jsonl")
    with served(label_app(session, "pairs")) as url:
        opened(browser_page, url)
        for done in range(1, 4):
            assert browser_page.locator("mark").count() == 0
            assert browser_page.locator("#unlike").is_visible()
            browser_page.keyboard.press("w")
            browser_page.keyboard.press("a")
            browser_page.locator("#progress", has_text=f"{done} of 3").wait_for()  # a key before the next item is lost
        browser_page.wait_for_selector("#done", state="visible")


def test_the_reference_answer_and_rewards_are_announced_and_shown_on_demand(address: str, browser_page: Any) -> None:
    page = browser_page
    opened(page, address)
    assert "Hidden, so that it does not decide for you: the reference answer, the rewards." in page.inner_text("#work")
    assert not page.locator("#answer").is_visible()
    assert "reward 1" not in page.inner_text("#completions")
    page.keyboard.press("r")
    assert page.inner_text("#answer") == "12"
    assert sorted(page.locator("h2 .hidden-part").all_text_contents()) == [" reward 0", " reward 1"]
    page.keyboard.press("a")
    page.locator("#progress", has_text="1 of 2").wait_for()
    assert not page.locator("#answer").is_visible()  # hidden again for the next item


def test_progress_says_how_long_and_the_end_what_to_run(
    address: str, run: Path, tmp_path: Path, browser_page: Any
) -> None:
    page = browser_page
    opened(page, address)
    page.keyboard.press("a")
    page.locator("#use", has_text="1 row in").wait_for()
    assert not page.locator("#then").is_visible()  # folded, until all is labelled
    page.keyboard.press("a")
    page.wait_for_selector("#done", state="visible")
    command = f"vigneron train {tmp_path}/pairs-dpo.yaml steps=3 prompts_per_step=2"
    assert page.inner_text("#then") == command
    assert "ann chose the completion with the highest reward in" in page.inner_text("#done")
    assert f'model: {{name: "{run}"}}' in (tmp_path / "pairs-dpo.yaml").read_text()


def test_the_time_left_is_from_the_usual_pace(browser_page: Any, tmp_path: Path) -> None:
    rows = [{"prompt": f"p {n}", "completions": ["a", "b"]} for n in range(30)]
    session = session_of(write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "pairs.jsonl")
    with served(label_app(session, "pairs")) as url:
        now = datetime(2030, 1, 1, tzinfo=UTC)  # it stands still, however long a press takes
        browser_page.clock.set_fixed_time(now)
        opened(browser_page, url)
        for done, seconds in enumerate([10, 10, 600, 10, 10, 10], start=1):  # one pause
            browser_page.clock.set_fixed_time(now := now + timedelta(seconds=seconds))
            browser_page.keyboard.press("a")
            browser_page.locator("#progress", has_text=f"{done} of 30").wait_for()
        assert browser_page.inner_text("#progress") == "6 of 30, about 4 min left"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_by_touch_on_a_phone(address: str, browser: Any, scheme: str) -> None:
    context = browser.new_context(viewport=PHONE, color_scheme=scheme, has_touch=True, is_mobile=True)
    page = context.new_page()
    opened(page, address)
    page.locator("#reveal").tap()
    page.locator("#spaces").tap()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    buttons = page.locator("#work button:visible")
    sizes = [one.bounding_box() for one in buttons.all()]
    assert min(min(box["width"], box["height"]) for box in sizes) >= 44
    assert page.locator("mark").first.evaluate(CONTRAST) > 4.5
    page.locator(".choice[data-key=b]").tap()
    page.locator("#progress", has_text="1 of 2").wait_for()
    context.close()
