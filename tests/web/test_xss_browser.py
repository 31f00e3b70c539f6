"""Hostile texts in every place where a page shows a text, in a real browser.

They are shown as they are, with invisible characters escaped. Nothing runs, nothing is requested from elsewhere, and
the content security policy has nothing to block.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import yaml

from support.browser import WAIT_MS, served
from support.labelling import make_run, sample, session_of, write_rows
from support.payloads import (
    ALL,
    BODY,
    NAMES,
    NOTES,
    PAYLOADS,
    TALK,
    TEXTS,
    Payload,
    check_harmless,
    hostile_run,
    hostile_talk,
    raw_config,
    watched,
)
from vigneron.errors import visible
from vigneron.labels.items import Kind
from vigneron.labels.session import Session
from vigneron.report.comparison_files import write_comparison
from vigneron.report.html import write_report
from vigneron.run_store.experiment_arms import CollectedRun, arms_of
from vigneron.text import plain
from vigneron.web.label import label_app
from vigneron.web.view import view_app

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each name, all but two without steps; in one of them the config is no valid one."""
    place = tmp_path_factory.mktemp("hostile") / "runs"
    hostile_run(place / NAMES[0])
    hostile_run(place / NAMES[1], about=f"other {ALL}", seed=1, **{"optimizer": {"actor_lr": 1e-3}})
    for name in NAMES[2:]:
        (place / name).mkdir()
        config = raw_config(method={"name": ALL}, **{ALL: ALL})
        (place / name / "config.yaml").write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
        (place / name / "metrics.jsonl").write_text("".join(f'{{"step": {n}, "reward": {n}}}\n' for n in range(3)))
    nested = place / "a<" / f"script>{NAMES[3]}"
    nested.mkdir(parents=True)
    (nested / "config.yaml").write_text("{}")
    return place


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with served(view_app([runs])) as address:
        yield address


@contextmanager
def watching(page: Any, origin: str) -> Iterator[None]:
    """At the end the page is left, and no request went to another origin."""
    foreign = watched(page.context, origin)
    yield
    page.goto("about:blank")
    assert foreign == []


def open_page(page: Any, address: str, path: str = "/", **query: Any) -> None:
    head, _, token = address.partition("/?")
    page.goto(f"{head}{path}?{token}&{urlencode(query, doseq=True, quote_via=quote)}")


def shown(page: Any) -> str:
    return str(page.evaluate("document.documentElement.textContent"))


def check_texts(page: Any, *heads: str, show: Callable[[str], str] = plain, texts: tuple[str, ...] = TEXTS) -> None:
    """Every text is there, after each of the heads."""
    text = shown(page)
    missing = [f"{head}{one}" for head in heads for one in texts if show(f"{head}{one}") not in text]
    assert missing == []


@pytest.mark.parametrize("payload", [one for one in PAYLOADS if one.sink], ids=lambda one: one.text[:40])
def test_the_payloads_do_harm_where_nothing_is_escaped(plain_context: Any, payload: Payload) -> None:
    """Otherwise the other tests would prove nothing."""
    page = plain_context.new_page()
    evil = plain_context.expect_event("request", lambda request: "evil" in request.url)
    with evil if "evil" in payload.text else nullcontext():
        page.set_content((payload.sink or BODY).replace("TEXT", payload.text), wait_until="commit")
    if page.locator("#go").count():
        page.locator("#go").click()
    if "owned" in payload.text:
        page.wait_for_function("() => globalThis.owned === 1")
    page.close()


@pytest.fixture(scope="module")
def plain_context(browser: Any) -> Iterator[Any]:
    context = browser.new_context()
    context.set_default_timeout(WAIT_MS)
    watched(context, "data:")
    yield context
    context.close()


def test_the_list_of_runs(address: str, browser_page: Any) -> None:
    page = browser_page
    with watching(page, address.partition("?")[0]):
        open_page(page, address, search="n")
        page.get_by_text("36 of 36 runs").wait_for()
        check_texts(page, "", show=visible, texts=(*NAMES, f"a</script>{NAMES[3]}", ALL, f"error: {ALL}"))
        for box in page.locator("[type=checkbox]").all()[:3]:
            box.check()
        page.get_by_role("button", name="Show 3 together").wait_for()
        check_harmless(page)


def test_curves_with_their_names_configs_and_items(address: str, browser_page: Any) -> None:
    page = browser_page
    with watching(page, address.partition("?")[0]):
        open_page(page, address, "/curves", run=NAMES[:2], filter="<", open=TEXTS[0])
        page.get_by_text("Rubric items").click()
        page.locator(".items td").first.wait_for()
        page.locator(".differences td").first.wait_for()
        check_texts(page, "loss/")
        check_texts(page, "", "Rubric: ", "curriculum/level/", texts=NAMES)
        check_texts(page, "error: ", show=visible, texts=(ALL,))
        check_texts(page, "notice: ")
        assert page.title() == f"{visible(', '.join(NAMES[:2]))} – Vigneron"
        configs = [yaml.safe_load(text) for text in page.locator("#configs pre").all_text_contents()]
        assert [config["about"] for config in configs] == [ALL, f"other {ALL}"]
        check_harmless(page)


@pytest.mark.parametrize("start", [0, len(NAMES) - 9])
def test_the_names_of_runs_in_a_plot(address: str, browser_page: Any, start: int) -> None:
    """Drawn by plotly, which reads some markup and placeholders."""
    page, names = browser_page, NAMES[start : start + 9]
    page.set_viewport_size({"width": 1280, "height": 2000})
    with watching(page, address.partition("?")[0]):
        open_page(page, address, "/curves", run=[visible(name) for name in names], filter="reward")
        plot = page.locator('.chart[data-name="reward"] .plot')
        plot.locator(".nsewdrag").wait_for()
        plot.locator(".nsewdrag").hover(position={"x": 5, "y": 60})
        page.locator(".hoverlayer .hovertext").first.wait_for()
        drawn = page.locator(".hoverlayer .name").all_text_contents()
        assert not [name for name in names if visible(name) not in drawn]
        check_harmless(page)
        if start == 0:  # the first two runs have warnings, whose texts are drawn at their step
            box = plot.locator(".nsewdrag").bounding_box()
            plot.locator(".nsewdrag").hover(position={"x": box["width"] / 2, "y": box["height"] - 4})
            page.locator(".hoverlayer .hovertext", has_text="notice:").first.wait_for()
            check_harmless(page)


def test_samples_and_a_prompt_over_the_steps(address: str, browser_page: Any) -> None:
    page = browser_page
    with watching(page, address.partition("?")[0]):
        open_page(page, address, "/samples", run=NAMES[0], search="p")
        page.get_by_text("1 to 36 of 36 samples of step 2").wait_for()
        check_texts(
            page, *(f"{of}: " for of in ("prompt", "completion", "answer", "critique", "reasoning", "why", "value"))
        )
        check_texts(page, *(f"{of}: " for of in (*TALK, *NOTES)))
        check_texts(page, "principle: ")
        check_texts(page, "column: ", show=visible)
        check_texts(page, "", "category ", show=visible, texts=NAMES)
        assert page.locator("#category option").all_text_contents()[1:] == sorted(map(plain, (*NAMES, "all")))
        page.get_by_role("button", name="tokens", exact=True).click()
        page.locator(".token").first.wait_for()
        check_texts(page, "token: ")
        check_harmless(page)
        page.locator('.sample[data-sample="35"]').get_by_role("link").click()
        page.get_by_text("2 samples, the newest first").wait_for()
        page.locator("#plot .point").first.wait_for()
        check_texts(page, "prompt: ", "answer: ", *(f"{of}: " for of in ("completion", *TALK, *NOTES)), texts=(ALL,))
        check_harmless(page)


def test_what_an_address_holds(address: str, browser_page: Any) -> None:
    """Followed from another site it may hold anything."""
    page = browser_page
    with watching(page, address.partition("?")[0]):
        open_page(page, address)
        for text in {payload.sink: payload.text for payload in PAYLOADS}.values():
            page.goto(f"{address.partition('/?')[0]}/curves?run={quote(text)}")
            check_texts(page, "", show=visible, texts=(repr(text)[1:-1][:100],))
            check_harmless(page)
        page.complaints.clear()  # these pages have the status 404
        open_page(
            page,
            address,
            "/samples",
            run=NAMES[0],
            **dict.fromkeys(("search", "category", "which", "sort", "step", "kind"), ALL),
        )
        page.locator("#message", has_text="is not one of").wait_for()
        check_harmless(page)
        page.complaints.clear()


def label_session(kind: Kind, folder: Path) -> Session:
    labeller, out = visible(NAMES[18]), folder / f"{NAMES[20]}.jsonl"
    rows: list[dict[str, Any]]
    if kind == "scores":
        item = {"score": 0.5, "critique": f"critique: {ALL}", "reasoning": f"reasoning: {ALL}"}
        judged = [
            {"category": ALL, "items": {f"item: {ALL}": {**item, "confidence": 0.1}}},
            {"category": "words", "items": {"nice": {**item, "confidence": 0.9}}},
        ]
        run = make_run(folder / "run", [sample(1, n, f"prompt: {ALL}", ALL, rubric=judged[n]) for n in range(2)])
        described = {"name": "nice", "description": f"description: {ALL}", "flow": "length", "at_most": 3}
        (run / "rubric.yaml").write_text(json.dumps({"categories": {"words": {"items": [described]}}}))
        return session_of(run, out.with_suffix(".csv"), scores=True, labeller=labeller)
    if kind == "steps":
        rows = [{"prompt": f"prompt: {ALL}", "completion": "\n".join(TEXTS), "answer": f"answer: {ALL}"}]
    elif kind == "pairs":
        end = {"role": "assistant", "content": "end"}
        asked = [{"role": "user", "content": f"prompt: {ALL}"}]
        rows = [{"prompt": asked, "completions": [[*hostile_talk(ALL, str(n)), end] for n in range(2)], "tools": [ALL]}]
        rows[0]["answer"] = f"answer: {ALL}"
    else:
        rows = [{"prompt": f"prompt: {ALL}", "completions": [f"{n}: {ALL}" for n in range(2)]}]
        rows[0]["answer"] = f"answer: {ALL}"
    return session_of(
        write_rows(folder / "in.jsonl", rows), out, labeller=labeller, best=kind == "best", solutions=kind == "steps"
    )


@pytest.mark.parametrize("kind", ["pairs", "best", "scores", "steps"])
def test_the_pages_that_label(browser_page: Any, tmp_path: Path, kind: Kind) -> None:
    page, session = browser_page, label_session(kind, tmp_path)
    session.note = f"note: {ALL}"
    app = label_app(session, kind, then=lambda rows: f"then {rows}: {ALL}")
    with served(app) as address, watching(page, address.partition("?")[0]):
        open_page(page, address)
        page.locator("#prompt", has_text="prompt: ").wait_for()
        check_texts(page, "prompt: ", "note: ", texts=(ALL,))
        check_texts(page, "", show=visible, texts=(NAMES[18], NAMES[20]))
        if kind == "steps":
            check_texts(page, "")
        elif kind == "scores":
            check_texts(page, "item: ", "critique: ", "reasoning: ", texts=(ALL,))
            page.keyboard.press("r")
            page.keyboard.press("5")
            page.locator("#last", has_text="Last item").wait_for()
            check_texts(page, "Last item, item: ", "description: ", texts=(ALL,))
        else:
            check_texts(page, "0: ", "1: ", texts=(ALL,))
        if kind == "pairs":
            check_texts(page, *(f"{of}: " for of in TALK), texts=(ALL,))
            page.keyboard.press("d")
        if kind != "scores":
            page.keyboard.press("w")
            page.keyboard.press("r")
            page.locator("#answer", has_text="answer: ").wait_for()
            check_texts(page, "answer: ", texts=(ALL,))
        if kind == "pairs":
            page.locator(".reward", has_text="0.5").first.wait_for()
        check_harmless(page)
        for key in {"pairs": "a", "best": "1", "scores": "5", "steps": "1"}[kind], "Enter":
            page.keyboard.press(key)
        page.locator("#then", has_text="then ").wait_for()
        check_texts(page, f"then {session.out.rows}: ", show=visible, texts=(ALL,))
        check_harmless(page)


def open_file(page: Any, path: Path) -> None:
    page.goto(path.as_uri())
    assert page.evaluate("location.protocol") == "file:"


def test_a_report_opened_from_disk(runs: Path, browser_page: Any, tmp_path: Path) -> None:
    page, path = browser_page, write_report([runs / NAMES[0]], tmp_path / "report.html")
    page.complaints.allowed = path.as_uri()
    with watching(page, path.as_uri()):
        open_file(page, path)
        check_texts(
            page,
            *(
                f"{of}: "
                for of in ("notice", "prompt", "completion", "answer", "critique", "reasoning", "why", "drawn")
            ),
            *(f"{of}: " for of in (*TALK, *NOTES)),
        )
        check_texts(page, "", show=visible, texts=NAMES)
        check_texts(page, "rubric version: ")
        check_texts(page, "error: ", show=visible, texts=(ALL,))
        config = yaml.safe_load(page.locator("pre").first.text_content())
        assert (config["about"], config["model"]["name"]) == (ALL, ALL)
        check_harmless(page)


def test_a_comparison_opened_from_disk(runs: Path, browser_page: Any, tmp_path: Path) -> None:
    page, arms = browser_page, arms_of([CollectedRun.read(runs / name) for name in NAMES[:2]])
    picture, path, _ = write_comparison(arms, tmp_path / "out")
    page.complaints.allowed = (tmp_path / "out").as_uri()
    with watching(page, (tmp_path / "out").as_uri()):
        open_file(page, path)
        check_texts(page, "reward, ", show=visible, texts=NAMES)
        check_texts(page, "", show=visible, texts=NAMES[:2])
        check_harmless(page)
        open_file(page, picture)
        assert page.evaluate("document.querySelectorAll('script, a, image, foreignObject').length") == 0
        check_harmless(page)
