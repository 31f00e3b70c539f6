"""Pages of `vigneron view`: the focus stays, groups, tokens, differences, notifications, phone widths."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.browser import served
from support.view_data import write_run
from vigneron.run_store.curves import CurveStore
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.notices import Notice, keep_notice
from vigneron.run_store.samples import Sample, SampleStore
from vigneron.web.view import view_app

pytestmark = pytest.mark.slow

LONG = "a-run-with-a-long-name-of-a-study-with-many-seeds-seed-17"


def write_groups(folder: Path) -> Path:
    """Two prompts with four completions each, in two steps; a metric that is constant but for rounding."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"recipe": "groups", "method": {"name": "grpo"}, "steps": 2}))
    (folder / "status.json").write_text(json.dumps({"state": "finished"}))
    records = [{"step": step, "reward": 0.1 + 0.2 if step % 2 else 0.3, "kl": 1e-9 * step} for step in range(9)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    store = SampleStore(folder)
    rewards = (0.25, 1.0, 0.0, 0.5)
    store.add(
        [
            Sample(step, "train", 4 * p + g, f"Question {p}", f"the answer {g} of step {step}", f"right {p}",
                   rewards[g], rewards[g] - 0.5, None, False, {"origin": "fresh" if g < 2 else "revised", "form": 0.5})
            for step in (1, 2)
            for p in range(2)
            for g in range(4)
        ]
    )  # fmt: skip
    store.close()
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs" / "first")
    write_run(tmp_path / "runs" / LONG, state="failed", error="the reward function failed: " + "why " * 30)
    write_groups(tmp_path / "runs" / "groups")
    return tmp_path / "runs"


@pytest.fixture
def address(runs: Path) -> Iterator[str]:
    with served(view_app([runs])) as address:
        yield address


def page_of(address: str, path: str) -> str:
    head, _, token = address.partition("/?")
    return f"{head}{path}{'&' if '?' in path else '?'}{token}"


def add_step(runs: Path) -> None:
    """One more step of the run `first`."""
    record = {"step": 31, "reward": 0.5}
    with (runs / "first" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    store = CurveStore(runs / "first")
    store.add([record])
    store.close()


def test_the_focus_stays_where_it_is_while_the_list_changes(runs: Path, address: str, browser_page: Any) -> None:
    page = browser_page
    page.goto(address)
    link = page.locator('tr[data-run="first"] a').first
    link.focus()
    page.evaluate("window.focused = document.activeElement")
    add_step(runs)
    page.locator('tr[data-run="first"]', has_text="31 / 30").wait_for()
    assert page.evaluate("document.activeElement === window.focused && window.focused.isConnected")
    page.get_by_label("pin groups").check()
    assert page.locator("#runs tr").first.get_attribute("data-run") == "groups"
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "pin groups"
    page.goto(page_of(address, "/"))
    page.get_by_label("pin groups").wait_for()
    assert page.get_by_label("pin groups").is_checked(), "a pin is remembered"


def test_a_prompt_is_shown_once_with_its_completions_by_reward(address: str, browser_page: Any) -> None:
    page = browser_page
    page.goto(page_of(address, "/samples?run=groups"))
    groups = page.locator(".prompt-group")
    groups.nth(1).wait_for()
    assert groups.count() == 2
    assert groups.first.inner_text().count("Question 0") == 1
    assert groups.first.inner_text().count("right 0") == 1
    numbers = "cards => cards.map(card => Number(card.dataset.sample))"
    assert groups.first.locator(".sample").evaluate_all(numbers) == [1, 3, 0, 2]
    bars = groups.first.locator(".advantage i").evaluate_all("bars => bars.map(bar => bar.getAttribute('style'))")
    assert [bar.partition("; ")[0] for bar in bars] == ["width: 50%", "width: 0%", "width: 25%", "width: 50%"]
    assert ["--good" in bar for bar in bars] == [True, True, False, False]
    assert page.locator("#histograms svg").count() == 2
    page.get_by_label("Origin").select_option("revised")
    page.get_by_text("1 to 4 of 4 samples of step 2").wait_for()
    page.get_by_label("Reward from").fill("0.4")
    page.get_by_text("1 to 2 of 2 samples of step 2").wait_for()


def test_tokens_are_coloured_and_their_values_shown(address: str, browser_page: Any) -> None:
    page = browser_page
    page.goto(page_of(address, "/samples?run=first"))
    page.get_by_role("button", name="tokens", exact=True).click()
    tokens = page.locator(".token")
    tokens.nth(2).wait_for()
    card = page.locator('.sample[data-sample="0"]')
    assert not card.locator(".completion").is_visible()
    colours = tokens.evaluate_all("all => all.map(one => one.getAttribute('style'))")
    assert "11%" in colours[0]  # 45% · 0.5 / 2
    assert "45%" in colours[1]
    assert colours[2] == ""
    tokens.nth(1).hover()
    card.get_by_text("token 2 of 3, log-prob -2, advantage 0.5").wait_for()
    card.get_by_label("tokens", exact=True).focus()
    page.keyboard.press("ArrowLeft")
    card.get_by_text("token 1 of 3, log-prob -0.5, advantage 0.5").wait_for()
    page.get_by_label("value that colours the tokens").select_option("advantage")
    assert "--good" in tokens.nth(0).get_attribute("style")
    page.get_by_role("button", name="text", exact=True).click()
    assert card.locator(".completion").is_visible()
    page.locator("#before").click()
    page.get_by_role("button", name="step 30").click()
    page.get_by_text("of step 30").wait_for()


def test_two_samples_of_a_prompt_are_compared(address: str, browser_page: Any) -> None:
    page = browser_page
    page.goto(page_of(address, "/history?run=groups&kind=train&step=2&sample=0"))
    page.locator("#difference ins").first.wait_for()
    assert page.locator("#difference del").all_inner_texts() == ["1"]
    assert page.locator("#difference ins").all_inner_texts() == ["2"]
    page.locator("#after").select_option(label="step 2, #1, reward 1")
    assert page.locator("#difference ins").all_inner_texts() == ["1", "2"]
    page.reload()
    page.locator("#difference ins").nth(1).wait_for()


def test_constants_and_warnings_on_the_curves(address: str, browser_page: Any) -> None:
    page = browser_page
    page.goto(page_of(address, "/curves?run=groups"))
    page.locator('.chart[data-name="kl"] .main-svg').first.wait_for()
    ranges = "name => document.querySelector(`.chart[data-name='${name}'] .plot`)._fullLayout.yaxis.range"
    assert page.evaluate(ranges, "reward") == pytest.approx([0.27, 0.33])
    assert page.evaluate(ranges, "kl") == [-0.5, 0.5]
    page.goto(page_of(address, "/curves?run=first"))
    page.locator('.chart[data-name="reward"] .main-svg').first.wait_for()
    assert page.locator('.chart[data-name="reward"] .plot').get_attribute("data-marks") == "1"
    page.locator("#notices li.warning", has_text="entropy is low").wait_for()
    page.get_by_role("button", name="step 12").click()
    page.locator("#window", has_text="steps 0 to 37").wait_for()


SHOWN = """
window.shown = [];
window.Notification = class { 
  constructor(title, { body }) { document.body.dataset.shown = shown.push(`${title}: ${body}`); }
  addEventListener() {}
};
Notification.permission = "granted";
Notification.requestPermission = async () => "granted";
"""


def test_the_end_of_a_run_and_its_warnings_are_notified(runs: Path, address: str, browser_page: Any) -> None:
    page, run = browser_page, RunFolder(runs / "first")
    (run.path / "status.json").write_text(json.dumps({"state": "running"}))
    run.lock()
    page.add_init_script(SHOWN)
    page.goto(address)
    page.locator('tr[data-run="first"] .state', has_text="running").wait_for()
    page.get_by_role("button", name="Notify me").click()
    page.get_by_role("button", name="Notifications on").wait_for()
    keep_notice(run, Notice(30, "rewards are <b>flat</b>", "warning"))
    page.locator('body[data-shown="1"]').wait_for()
    (run.path / "status.json").write_text(json.dumps({"state": "failed", "error": "the disk is full"}))
    run.unlock()
    page.locator('body[data-shown="2"]').wait_for()
    expected = ["first: warning: rewards are <b>flat</b>", "first: failed: the disk is full"]
    assert page.evaluate("shown") == expected


NUMBERS = {1230.4: "1230", 2000.3: "2000", 0.1: "0.1", 1e-4: "1.00e-4", 12.3456: "12.35", 30: "30", 123456.7: "1.23e+5"}


def test_numbers_keep_their_size(address: str, browser_page: Any) -> None:
    page = browser_page
    page.goto(address)
    written = "async values => values.map((await import('/static/common.js')).formatNumber)"
    assert page.evaluate(written, list(NUMBERS)) == list(NUMBERS.values())


PAGES = {
    "/": "#runs tr",
    f"/curves?run=first&run={LONG}": ".chart svg",
    "/samples?run=first": ".judged",
    "/samples?run=groups": ".sample",
    "/history?run=first&kind=train&step=30&sample=3": "#plot .point",
}


def test_nothing_is_wider_than_a_phone(address: str, browser_page: Any) -> None:
    page = browser_page
    page.set_viewport_size({"width": 360, "height": 740})
    for path, shown in PAGES.items():
        page.goto(page_of(address, path))
        page.locator(shown).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
