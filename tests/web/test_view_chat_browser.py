"""`vigneron view --chat`: a checkpoint answers in the page, and what makes no sense is refused in a line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from support.browser import served
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.web.chat import chat_device
from vigneron.web.view import view_app

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> api.Trained:
    place = tmp_path_factory.mktemp("chats")
    method = {"name": "reinforce", "baseline": "none"}
    options: dict[str, Any] = {"method": method, "optimizer": {"actor_lr": 1e-2}, "reward": {"kind": "binary"}}
    config = tiny_config(tiny_folder, write_data(place), **options, steps=2, eval_every=0, save_every=1, keep_last=2)
    return api.train(config, name="run", runs=place / "runs")


def test_the_last_checkpoint_answers_in_the_page(trained: api.Trained, browser_page: Any) -> None:
    page = browser_page
    expected = trained.sample(["say <b>hot</b>: "], seed=1)[0]
    with served(view_app([trained.folder.parent], chat=True)) as address:
        head, _, token = address.partition("/?")
        page.goto(f"{head}/samples?run=run&{token}")
        page.get_by_role("link", name="Chat").click()
        page.locator("#step", has_text="after step 2").wait_for()
        assert page.locator("#step option").all_inner_texts() == ["after step 2", "after step 1", "before training"]
        page.get_by_label("message").fill("say <b>hot</b>: ")
        page.keyboard.press("Enter")
        page.locator("#talk li:nth-child(2):not(.quiet)").wait_for()
        assert page.locator("#talk .text").first.text_content() == "say <b>hot</b>: "
        assert page.locator("#talk .text").nth(1).text_content() == expected
        page.locator("#step").select_option("0")
        page.get_by_label("message").fill("once more")
        page.get_by_role("button", name="Send").click()
        page.locator("#talk li:nth-child(4):not(.quiet)").wait_for()
        page.goto("about:blank")


def test_a_new_conversation_is_not_begun_by_an_old_reply(trained: api.Trained, browser_page: Any) -> None:
    page = browser_page
    with served(view_app([trained.folder.parent], chat=True)) as address:
        head, _, token = address.partition("/?")
        page.goto(f"{head}/chat?run=run&{token}")
        page.locator("#step", has_text="after step 2").wait_for()
        page.evaluate("""() => {
            const real = window.fetch, held = new Promise((go) => { window.letGo = go; });
            window.fetch = async (...given) => { const answer = await real(...given); await held; return answer; };
        }""")
        page.get_by_label("message").fill("hello")
        page.get_by_role("button", name="Send").click()
        page.get_by_text("waiting; the first reply").wait_for()
        page.get_by_role("button", name="New conversation").click()
        page.evaluate("letGo()")
        page.locator("#send:enabled").wait_for()
        assert page.locator("#talk li").count() == 0
        page.goto("about:blank")


@pytest.mark.parametrize(
    ("gpu", "trains", "free", "device"),
    [
        (False, True, 0, "auto"),
        (True, False, 70, "auto"),
        (True, True, 70, "cpu"),
        (True, False, 30, "cpu"),  # of a run that the list does not have
    ],
)
def test_a_chat_leaves_the_gpu_to_a_run(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, trains: bool, free: int, device: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (free, 100))
    assert chat_device(trains) == device


def test_memory_that_runs_out_is_said_and_the_model_dropped(
    trained: api.Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = {"run": "run", "step": 2, "talk": ["hello"], "temperature": 0, "max_new_tokens": 2}
    client = TestClient(view_app([trained.folder.parent], chat=True))
    with monkeypatch.context() as patched:
        patched.setattr(api.Trained, "sample", _out_of_memory)
        answer = client.post("/chat/reply", content=json.dumps(message))
    assert answer.json()["error"].startswith("out of memory: ask for fewer new tokens")
    assert client.post("/chat/reply", content=json.dumps(message)).status_code == 200


def _out_of_memory(*given: Any, **named: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_what_is_refused(trained: api.Trained) -> None:
    message = {"run": "run", "step": 2, "talk": ["hello"], "temperature": 0, "max_new_tokens": 2}
    client = TestClient(view_app([trained.folder.parent], chat=True))
    for change, status, words in (
        ({"step": 7}, 400, "7"),
        ({"step": "two"}, 400, "step: expected a whole number"),
        ({"talk": []}, 400, "talk: expected texts"),
        ({"talk": ["hello", "hi"]}, 400, "the user's first and last"),
        ({"talk": ["x" * 30_000]}, 400, "more than 20,000 characters: begin a new one"),
        ({"temperature": -1}, 400, "temperature: expected"),
        ({"max_new_tokens": 10**9}, 400, "max_new_tokens: expected"),
        ({"run": "../run"}, 404, "there is no run"),
    ):
        answer = client.post("/chat/reply", content=json.dumps({**message, **change}))
        assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text
    assert client.post("/chat/reply", content=b"[" * 10_000).status_code == 400
    without = TestClient(view_app([trained.folder.parent]))
    assert without.post("/chat/reply", content=json.dumps(message)).status_code == 404
    assert without.get("/chat", params={"run": "run"}).status_code == 404
