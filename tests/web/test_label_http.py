"""`vigneron label` over HTTP and as a process of its own: refused in one line, killed without a loss."""

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import httpx2 as httpx
import pytest
from starlette.testclient import TestClient

from support.command_line import vigneron, write_recipe
from support.labelling import judge_by, make_run, read_jsonl, sample, session_of, write_comparisons, write_rows
from vigneron import api
from vigneron.labels.live_sampling import load_sampler, sample_for
from vigneron.web.guard import KEY_HEADER
from vigneron.web.label import label_app


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    session = session_of(write_comparisons(tmp_path), tmp_path / "pairs.jsonl")
    return TestClient(label_app(session, "pairs"))


def test_an_item_is_judged_and_the_next_one_comes(client: TestClient, tmp_path: Path) -> None:
    state = client.get("/data/state").json()
    answer = client.post("/judge", json={"item": state["item"]["id"], "choice": "a"})
    assert answer.status_code == 200
    assert answer.json()["item"] == state["next"]
    assert answer.json()["done"] == 1
    assert read_jsonl(tmp_path / "pairs.jsonl")[0]["chosen"] == state["item"]["completions"][0]
    assert client.post("/undo").json()["item"] == state["item"]


@pytest.mark.parametrize(
    ("body", "status", "line"),
    [
        (b'{"item": "ID", "choice": "c"}', 400, "invalid choice 'c': expected a, b, tie or skip"),
        (b'{"item": "ID", "choice": 0}', 400, "invalid choice 0"),
        (b'{"item": "ID", "choice": {"a": []}}', 400, "invalid choice {'a': []}"),
        (b'{"item": "ID"}', 400, "invalid choice None"),
        (b'{"item": "nobody", "choice": "a"}', 404, "unknown item"),
        (b'{"item": ["ID"], "choice": "a"}', 400, 'send {"item"'),
        (b"item=ID&choice=a", 400, 'send {"item"'),
        (b"[" * 100_000, 400, 'send {"item"'),
        (b"\xff", 400, 'send {"item"'),
    ],
)
def test_a_bad_judgement_is_refused_in_one_line(
    client: TestClient, tmp_path: Path, body: bytes, status: int, line: str
) -> None:
    item = client.get("/data/state").json()["item"]["id"]
    answer = client.post("/judge", content=body.replace(b"ID", item.encode()))
    assert answer.status_code == status
    assert answer.json()["error"].startswith(line)
    assert not (tmp_path / "pairs.labels.jsonl").read_bytes()


def test_the_same_answer_posted_twice_and_another_one(client: TestClient, tmp_path: Path) -> None:
    item = client.get("/data/state").json()["item"]["id"]
    for _ in range(2):
        assert client.post("/judge", json={"item": item, "choice": "a"}).json()["done"] == 1
    assert client.post("/judge", json={"item": item, "choice": "b"}).status_code == 409
    assert len([e for e in read_jsonl(tmp_path / "pairs.labels.jsonl") if "label" in e]) == 1


def test_the_page_holds_no_script_and_no_text_of_a_model(tmp_path: Path) -> None:
    hostile = [{"prompt": "p", "completions": ["<script>alert(1)</script>", "b"]}]
    session = session_of(write_rows(tmp_path / "a.jsonl", hostile), tmp_path / "pairs.jsonl", labeller="<b>ann</b>")
    text = TestClient(label_app(session, "pairs")).get("/").text
    assert "alert(1)" not in text
    assert "<b>ann" not in text
    assert text.count("<script") == text.count('<script type="module" src="/static/')


def test_the_page_answers_while_the_model_is_loaded(tmp_path: Path, tiny_folder: Path) -> None:
    out, loaded = tmp_path / "pairs.jsonl", Event()
    rows = [{"prompt": f"say {n}"} for n in range(3)]

    def load() -> Any:
        assert loaded.wait(600)
        return load_sampler(str(tiny_folder), temperature=1.0, max_new_tokens=4)

    session = session_of(write_comparisons(tmp_path, 1), out)
    page = TestClient(label_app(session, "pairs"))
    thread = sample_for(session, load, rows, kind="pairs", count=2)
    state = page.get("/data/state").json()
    assert (state["of"], state["more"], state["note"]) == (1, True, "loading the model …")
    loaded.set()
    thread.join(600)
    state = page.get("/data/state").json()
    assert (state["of"], state["more"], state["note"]) == (4, False, None)
    session.journal.close()
    again = session_of(write_comparisons(tmp_path, 1), out)
    assert {item.id for item in again.offered()} == {item.id for item in session.offered()}
    sample_for(again, lambda: pytest.fail("sampled again"), rows, kind="pairs", count=2).join()
    assert not again.more


@pytest.mark.slow
def test_a_runs_child_is_sampled_too_and_groups_for_the_best(tmp_path: Path, tiny_folder: Path) -> None:
    api.train(str(write_recipe(tmp_path, tiny_folder, save_every=1)), name="run", runs=tmp_path)
    prompts = write_rows(tmp_path / "prompts.jsonl", [{"prompt": "a"}, {"prompt": "c"}])
    asked = {"best": True, "sample": str(tmp_path / "run"), "prompts": prompts, "group": 3, "max_new_tokens": 6}
    session = session_of(None, tmp_path / "best.jsonl", **asked)
    for _ in range(6000):
        if not session.more:
            break
        time.sleep(0.1)
    assert session.state()["note"] is None
    assert [len(item.record()["completions"]) for item in session.offered()] == [3, 3]


def test_why_nothing_can_be_sampled_stands_on_the_page(tmp_path: Path) -> None:
    session = session_of(write_comparisons(tmp_path, 1), tmp_path / "pairs.jsonl")
    load = lambda: load_sampler(str(tmp_path), temperature=1.0, max_new_tokens=4)  # noqa: E731
    sample_for(session, load, [{"prompt": "p"}], kind="pairs", count=2).join(600)
    assert "has no config.json" in session.state()["note"]


@contextmanager
def labelling(*words: Any) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A process, and whoever has opened its address."""
    command = [sys.executable, "-m", "vigneron", "label", "--port", "0", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            with httpx.Client(base_url=address.split("?")[0], follow_redirects=True, trust_env=False) as client:
                opened = client.get(address)
                assert opened.status_code == 200
                client.headers[KEY_HEADER] = opened.url.fragment.removeprefix("key=")
                yield process, client
        finally:
            process.kill()


@pytest.mark.slow
def test_a_killed_process_loses_nothing_and_a_second_one_is_refused(tmp_path: Path) -> None:
    source, out = write_comparisons(tmp_path), tmp_path / "pairs.jsonl"
    with labelling(source, "--out", out, "--as", "ann") as (process, client):
        refused = vigneron("label", source, "--out", out)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert "another process is writing labels to" in refused.err
        state = client.get("/data/state").json()
        chosen = state["item"]["completions"][1]
        client.post("/judge", json={"item": state["item"]["id"], "choice": "b"})
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert [row["chosen"] for row in read_jsonl(out)] == [chosen]
    again = session_of(source, out)
    assert again.state()["done"] == 1
    assert again.state()["item"] == state["next"]


@pytest.mark.slow
def test_a_run_is_labelled_and_the_command_given_at_the_end_trains_on_it(tmp_path: Path, tiny_folder: Path) -> None:
    run = api.train(str(write_recipe(tmp_path, tiny_folder, group_size=4)), name="run", runs=tmp_path).folder
    with labelling(run, "--out", tmp_path / "pairs.jsonl", "--as", "ann") as (process, client):
        state = client.get("/data/state").json()
        while (item := state["item"]) is not None:
            state = client.post("/judge", json={"item": item["id"], "choice": "a"}).json()
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        said = process.stdout.read().splitlines()
        process.wait()
    assert f"{state['done']} of {state['of']} labelled, {state['rows']} rows in {tmp_path}/pairs.jsonl" in said
    assert said[-1] == f"next  {state['then']}"
    words = shlex.split(state["then"])
    assert words[:3] == ["vigneron", "train", f"{tmp_path}/pairs-dpo.yaml"]
    answer = vigneron(*words[1:], "steps=1", "--runs", tmp_path / "runs", "model.device=cpu")
    assert answer.code == 0, answer.err
    assert (tmp_path / "runs" / "pairs-dpo" / "metrics.jsonl").is_file()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["source.jsonl", "--out", "/sys/pairs.jsonl"], "cannot write '/sys/pairs.labels.jsonl': "),
        (["source.jsonl", "--out", "none/pairs.jsonl"], "cannot write 'none/pairs.labels.jsonl': No such file"),
        (["source.jsonl", "--out", "pairs.csv"], "'pairs.csv' should end in .jsonl"),
        (["source.jsonl", "--scores"], "--scores needs the folder of a run"),
        (["source.jsonl", "--best", "--scores"], "--best and --scores exclude each other"),
        (["source.jsonl", "--prompts", "source.jsonl"], "--prompts needs --sample"),
        (["source.jsonl", "--sample", "tiny"], "--sample samples new completions"),
        (["--sample", "tiny"], "--sample needs --prompts"),
        (["--sample", "tiny", "--prompts", "none.jsonl"], "data: file not found"),
        ([], "nothing to label: name the folder of a run"),
        (["nowhere"], "there is no run 'nowhere' in 'runs'"),
        (["run", "--step", "7"], "--step: no stored samples of step 7; available steps: 1"),
        (["run", "--scores"], "'run': the samples of this run have no rubric scores"),
        (["broken"], "cannot read 'broken/samples.sqlite'"),
        (["source.jsonl", "--as", "\n"], "--as: '\\n' is not a name"),
        (["source.jsonl", "--agreement"], "no labels for 'pairs.jsonl' yet"),
    ],
)
def test_what_cannot_be_labelled_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_comparisons(tmp_path)
    make_run(Path("run"), [sample(1, 0, "p", "a"), sample(1, 1, "p", "b")])
    make_run(Path("broken"), [])
    Path("broken", "samples.sqlite").write_text("this is no database, however long it is made to look like one")
    answer = vigneron("label", *words)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert answer.err.startswith(f"error: {line}")


def test_agreement_on_the_command_line(tmp_path: Path) -> None:
    source, out = write_comparisons(tmp_path), tmp_path / "pairs.jsonl"
    for who, marks in (("ann", "!!!!"), ("bob", "!!??")):
        session = session_of(source, out, labeller=who)
        for mark in marks:
            judge_by(session, mark)
        session.journal.close()
    answer = vigneron("label", source, "--out", out, "--agreement")
    assert answer.out == "ann and bob agree on 50% of 4 items; Cohen's kappa 0.00\n"
