"""`vigneron view` in a real browser: a run goes live, samples filter, hostile text stays text, a reload keeps all."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml

from support import fault_runs
from support.browser import served
from support.view_data import IMAGE, SCRIPT, write_run
from vigneron import api
from vigneron.training.callbacks import Silent
from vigneron.web.guard import KEY_HEADER, cookie_of, key_of
from vigneron.web.view import view_app

pytestmark = pytest.mark.slow


class Held(Silent):
    """Goes no further than to the step that a file names."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def step(self, run: Any, *_: Any) -> None:
        while run.step >= int(self.file.read_text() or 0):
            time.sleep(0.02)


def train_held(recipe: str, runs: Path, file: Path) -> None:
    """As a process, to be watched."""
    api.train(recipe, runs=runs, name="live", view=Held(file))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs" / "first")
    write_run(tmp_path / "runs" / "second", lr=2e-5)
    return tmp_path / "runs"


@pytest.fixture
def address(runs: Path) -> Iterator[str]:
    """Name it before the page: the page, which asks for news, is then closed first."""
    with served(view_app([runs])) as address:
        yield address


def page_of(address: str, path: str) -> str:
    head, _, token = address.partition("/?")
    return f"{head}{path}{'&' if '?' in path else '?'}{token}"


def points_of(page: Any, name: str) -> int:
    plot = page.locator(f'.chart[data-name="{name}"] .plot')
    return int(plot.get_attribute("data-points") or 0) if plot.count() else 0


def until(holds: Any, seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.1)


@pytest.mark.slow
def test_a_run_goes_live_while_it_trains(browser_page: Any, tmp_path: Path, tiny_folder: Path) -> None:
    page, runs = browser_page, tmp_path / "runs"
    runs.mkdir()
    rows = "".join(f'{{"prompt": "{word}", "answer": "{word}"}}\n' for word in ("hot", "cold", "up", "down"))
    (tmp_path / "rows.jsonl").write_text(rows)
    recipe = {
        "method": {"name": "grpo"},
        "model": {"name": str(tiny_folder), "device": "cpu"},
        "data": {"train": str(tmp_path / "rows.jsonl")},
        "reward": {"kind": "binary"},
        "steps": 40,
        "prompts_per_step": 2,
        "group_size": 2,
        "max_new_tokens": 2,
    }
    (tmp_path / "live.yaml").write_text(yaml.safe_dump(recipe))
    with served(view_app([runs])) as address:
        page.goto(address)
        page.get_by_text("no runs yet").wait_for()
        (until_step := tmp_path / "until-step").write_text("10")
        training = fault_runs.started(train_held, str(tmp_path / "live.yaml"), runs, until_step)
        try:
            # It may be the first process, for which everything has to be imported.
            page.locator('tr[data-run="live"] .state', has_text="running").wait_for(timeout=900_000)
            page.get_by_role("link", name="live", exact=True).click()
            until(lambda: points_of(page, "reward") > 0)
            page.evaluate("window.sameDocument = true")
            seen = points_of(page, "reward")
            until_step.write_text("20")
            until(lambda: points_of(page, "reward") > max(seen, 10))
            page.locator('#legend [data-run="live"] .state', has_text="running").wait_for()
            until_step.write_text("41")
            page.locator('#legend [data-run="live"] .state', has_text="finished").wait_for()
            until(lambda: points_of(page, "reward") == 40)
            assert page.evaluate("window.sameDocument"), "it was loaded anew"
        finally:
            training.kill()
            training.join()
        page.get_by_role("link", name="samples").click()
        page.get_by_text("1 to 4 of 4 samples of step 40").wait_for()
        page.goto("about:blank")  # before the server, which it asks for news, is gone


def test_several_runs_in_one_figure_and_a_reload_keeps_it(address: str, browser_page: Any) -> None:
    page = browser_page
    page.goto(address)
    for name in ("first", "second"):
        page.get_by_label(f"pin {name}").check()
    page.get_by_role("button", name="Show 2 together").click()
    until(lambda: points_of(page, "reward") == 62)
    assert page.locator(".keys tr").all_inner_texts() == ["optimizer.actor_lr\t1.0e-05\t2.0e-05"]
    page.locator("#smooth").fill("0.9")
    page.locator("#filter").fill("reward")
    zoom_into(page, "reward")
    until(lambda: 0 < points_of(page, "reward") < 62)
    before = (page.url, points_of(page, "reward"), page.locator("#window").inner_text())
    page.reload()
    until(lambda: points_of(page, "reward") > 0)
    assert (page.url, points_of(page, "reward"), page.locator("#window").inner_text()) == before
    assert page.locator("#smooth").input_value() == "0.9"
    assert not page.locator('.chart[data-name="loss/policy"]').is_visible()
    page.get_by_role("button", name="Whole run").click()
    until(lambda: points_of(page, "reward") == 62)


def zoom_into(page: Any, name: str) -> None:
    page.locator(f'.chart[data-name="{name}"] .main-svg').first.wait_for()
    box = page.locator(f'.chart[data-name="{name}"] .plot').bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.3, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=5)
    page.mouse.up()


def test_the_items_of_a_rubric(address: str, browser_page: Any) -> None:
    page = browser_page
    page.goto(page_of(address, "/curves?run=first"))
    page.get_by_text("Rubric items").click()
    page.get_by_role("cell", name="never varies").first.wait_for()
    group = page.locator("details.group", has_text="Rubric: sums")
    assert not group.locator(".chart").first.is_visible()
    group.locator("summary").click()
    until(lambda: points_of(page, "reward/sums/right/score") == 31)


def test_samples_are_filtered_and_a_reload_keeps_it(address: str, browser_page: Any) -> None:
    page = browser_page
    page.goto(page_of(address, "/samples?run=first"))
    page.get_by_text("1 to 8 of 8 samples of step 30").wait_for()
    assert page.get_by_label("Kind").input_value() == "train"
    page.locator("#before").click()
    page.get_by_text("of step 29").wait_for()
    page.get_by_label("Show").select_option("wrong")
    page.get_by_text("1 to 4 of 4").wait_for()
    page.get_by_label("Sorted by").select_option("-reward")
    until(lambda: numbers(page) == ["5", "3", "1", "7"])
    page.get_by_label("Category").select_option("words")
    until(lambda: numbers(page) == ["7"])
    page.get_by_label("Category").select_option("")
    page.get_by_label("Search").fill("completion 5")
    until(lambda: numbers(page) == ["5"])
    page.reload()
    until(lambda: numbers(page) == ["5"])
    assert page.get_by_label("Show").input_value() == "wrong"
    page.get_by_role("link", name="over the steps").click()
    page.get_by_text("30 samples, the newest first").wait_for()
    page.locator("#plot .point").first.wait_for()


def numbers(page: Any) -> list[str]:
    return page.eval_on_selector_all(".sample", "cards => cards.map(card => card.dataset.sample)")


def test_what_a_model_wrote_stays_text(address: str, browser_page: Any) -> None:
    """At the end `browser_page` finds no dialog and no error."""
    page = browser_page
    page.goto(page_of(address, "/samples?run=first&search=alert"))
    card = page.locator('.prompt-group:has(.sample[data-sample="3"])')
    shown = card.inner_text()
    assert shown.count(SCRIPT) >= 4  # prompt, completion, answer, critique
    assert IMAGE in shown
    assert "\\u202e" in shown
    assert card.locator("script, img").count() == 0
    card.get_by_role("link").click()
    page.get_by_text("30 samples").wait_for()
    assert page.locator("main script, main img").count() == 0


def test_a_run_that_is_not_there_is_said(address: str, browser_page: Any) -> None:
    browser_page.goto(page_of(address, "/curves?run=../secret"))
    browser_page.get_by_text("there is no run '../secret'").wait_for()
    (complaint,) = browser_page.complaints
    assert "404" in complaint
    browser_page.complaints.clear()


def test_the_verb_serves_and_refuses_another_origin(runs: Path) -> None:
    """The real server of `vigneron view`, in a process of its own."""
    command = [sys.executable, "-m", "vigneron", "view", str(runs), "--port", "0"]
    serving = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"})
    try:
        assert serving.stdout is not None
        found = re.search(r"(http://127\.0\.0\.1:\d+)/\?token=(\S+)", serving.stdout.readline())
        assert found is not None
        cookie = {
            "Cookie": f"vigneron-{found[1].rpartition(':')[2]}={cookie_of(found[2])}",
            KEY_HEADER: key_of(found[2]),
        }
        assert status_of(found[1], cookie) == 200
        assert status_of(found[1], {**cookie, "Origin": found[1]}) == 200
        assert status_of(found[1], {**cookie, "Origin": "https://evil.example"}) == 403
        assert status_of(found[1], {**cookie, "Host": "evil.example"}) == 403
        assert status_of(found[1], {}) == 401
    finally:
        serving.terminate()
        serving.wait(60)


def status_of(address: str, headers: dict[str, str]) -> int:
    try:
        with urlopen(Request(f"{address}/data/runs", headers=headers)) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code
