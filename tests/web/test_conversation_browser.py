"""Conversations in a real browser: what was said, called, earned and trained; on a desk and a phone, light and dark."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import expecting, served
from support.labelling import read_jsonl, session_of, write_rows
from support.talking_runs import talking_run
from vigneron.report.html import write_report
from vigneron.run_store.samples import Sample, SampleStore
from vigneron.web.label import label_app
from vigneron.web.view import view_app

pytestmark = pytest.mark.slow

CALL = {"type": "function", "id": "1", "function": {"name": "add", "arguments": {"a": 48213, "b": "x" * 80}}}
TALK: list[dict[str, Any]] = [
    {"role": "assistant", "content": "I call.", "tool_calls": [CALL], "reward": 0.0, "log": {"tool_calls": 1}},
    {"role": "tool", "name": "add", "content": "148084"},
    {"role": "assistant", "content": "It is 148084. " * 100, "reward": 1.0},
]
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run, and beside its samples one with a tool, one that was cut and one that failed."""
    folder = talking_run(tmp_path_factory.mktemp("talk"))
    store = SampleStore(folder)
    for number, (messages, reward, cut, error) in enumerate(
        [(TALK, 1.0, None, None), (TALK[:1], 0.0, "turns", None), (TALK[:1], None, None, "raised KeyError: 'lost'")]
    ):
        extras = {"conversation": messages, "turns": 1, "cut": cut, "environment_error": error}
        for kind, step in (("train", 2), ("eval", 0), ("eval", 2)):
            store.add([Sample(step, kind, number, "user: sum", "text", "?", reward, 0.0, None, False, extras)])  # type: ignore[arg-type]
    store.close()
    return folder


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    with served(view_app([run.parent])) as address:
        yield address


@pytest.fixture(scope="module")
def report(run: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report([run], tmp_path_factory.mktemp("report") / "report.html").as_uri()


def fits(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def card(page: Any, number: int) -> Any:
    return page.locator(f'.sample[data-sample="{number}"]')


def test_turns_calls_results_rewards_and_what_is_trained(address: str, browser_page: Any) -> None:
    page, (head, _, token) = browser_page, address.partition("/?")
    page.goto(f"{head}/samples?{token}&run=talk")
    card(page, 0).locator(".conversation").wait_for()
    asks, result, answers = card(page, 0).locator(".conversation li").all()
    assert asks.locator(".who").inner_text().split("\n") == ["assistant", "trained", "reward 0", "tool_calls 1"]
    assert asks.locator(".call").inner_text().startswith('add({"a": 48213')
    assert result.locator(".who").inner_text().split("\n") == ["tool: add", "not trained"]
    assert result.locator(".text").inner_text() == "148084"
    assert answers.locator("summary").inner_text().endswith("… (1400 characters)")
    edges = [turn.evaluate("one => getComputedStyle(one).borderLeftColor") for turn in (asks, result, answers)]
    assert edges[0] == edges[2] != edges[1]
    assert card(page, 1).locator(".warned").inner_text() == "ended early: environment.max_turns was reached"
    failed = card(page, 2)
    assert failed.locator(".trained").count() == 0
    assert "the environment failed, so there is no reward: it raised KeyError: 'lost'" in failed.inner_text()
    assert "environment_error" not in failed.inner_text()
    real = card(page, 4).locator(".conversation li").all_inner_texts()
    assert [text.split("\n")[1] for text in real] == ["trained", "not trained"] * (len(real) // 2) + ["trained"]
    page.get_by_label("Kind").select_option("eval")
    page.get_by_text("samples of step 2").wait_for()
    expecting(page.locator(".conversation")).to_have_count(3)
    assert page.locator(".trained").count() == 0
    card(page, 0).get_by_role("link", name="over the steps").click()
    page.get_by_text("6 samples, the newest first").wait_for()
    assert page.locator("#rows .conversation").count() == 6
    page.goto("about:blank")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_can_be_read_in_light_and_dark(
    address: str, report: str, browser: Any, scheme: str
) -> None:
    head, _, token = address.partition("/?")
    context = browser.new_context(viewport=PHONE, color_scheme=scheme)
    page = context.new_page()
    for url in (
        f"{head}/samples?{token}&run=talk",
        f"{head}/history?run=talk&kind=train&step=2&sample=0",
        report,
    ):
        page.goto(url)
        page.locator(".conversation").first.wait_for()
        assert fits(page), url
        assert contrast(page, ".conversation b") > 7
        assert contrast(page, ".conversation .quiet") > 4.5
        if "samples" in url:
            assert contrast(page, ".conversation .trained") > 4.5
    context.close()


CONTRAST = """one => {
  const of = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((value) => value / 255)
    .map((value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
  const [text, paper] = [of(getComputedStyle(one).color), of(getComputedStyle(document.body).backgroundColor)];
  return (Math.max(text, paper) + 0.05) / (Math.min(text, paper) + 0.05);
}"""


def contrast(page: Any, selector: str) -> float:
    """WCAG's, of a text to the page."""
    return float(page.locator(selector).first.evaluate(CONTRAST))


def test_a_report_has_the_turns_before_and_after(report: str, browser_page: Any) -> None:
    page = browser_page
    page.complaints.allowed = report
    page.goto(report)
    assert page.locator("td > .conversation").count() == 6
    asks = page.locator(".conversation .model").first.inner_text()
    assert asks.splitlines()[:2] == ["assistant reward 0 tool_calls 1", "I call."]
    assert 'add({"a": 48213' in asks
    text = page.locator("body").inner_text()
    assert "the model's turns, which training is on, have a coloured edge" in text
    assert "ended early: environment.max_turns was reached" in text
    assert "it raised KeyError: 'lost'" in text
    assert "reward by turn" in page.content()


def test_pairs_of_conversations_are_labelled_and_rewards_shown_on_demand(browser_page: Any, tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "sum"}]
    source = write_rows(tmp_path / "rows.jsonl", [{"prompt": asked, "completions": [TALK, TALK[:1]]}])
    page, out = browser_page, tmp_path / "pairs.jsonl"
    with served(label_app(session_of(source, out), "pairs")) as address:
        page.set_viewport_size(PHONE)
        page.goto(address)
        page.locator(".conversation").first.wait_for()
        assert fits(page)
        assert page.locator(".conversation li").count() == 4
        assert page.locator(".conversation details").count() == 0  # a labeller reads all of it
        assert not page.locator(".reward").first.is_visible()
        page.keyboard.press("r")
        assert page.locator(".reward").first.is_visible()
        place = next(n for n, one in enumerate(page.locator("article").all()) if one.locator("li").count() == 3)
        page.keyboard.press("ab"[place])
        page.wait_for_selector("#done", state="visible")
    (row,) = read_jsonl(out)
    assert row["chosen"] == [
        {"role": "assistant", "content": "I call.", "tool_calls": [CALL]},
        TALK[1],
        {"role": "assistant", "content": TALK[2]["content"]},
    ]
    assert len(row["rejected"]) == 1
