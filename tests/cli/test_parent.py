"""A parent through the command line: asked, reviewed, trained with, and its key nowhere."""

import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command_line import Answer, vigneron, write_jsonl, write_recipe
from support.servers import LONG_S, Seen, Sent, chat, refusal, serving, vectors
from vigneron.data.tasks import load_task
from vigneron.recipe import load_config
from vigneron.run_data.reference_answers import load_evaluation_rows
from vigneron.threads import DaemonPool

KEY = "sk-secret-4f9a1c77e2"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("VIGNERON_RUNS", raising=False)


def recipe_with_parent(folder: Path, model: Path | str, url: str, count: int = 12, **changes: Any) -> Path:
    """Prompts without answers, and two that are held out."""
    words = [f"w{i}" for i in range(count)]
    data = {
        "train": str(write_jsonl(folder / "train.jsonl", [json.dumps({"word": w}) for w in words])),
        "held_out": str(write_jsonl(folder / "held.jsonl", ['{"word": "h1"}', '{"word": "h2"}'])),
        "template": "say {word}: ",
    }
    parent = {
        "kind": "endpoint",
        "model": "grape",
        "url": url,
        "input": "{word}",
        "instruction": "Shout.",
        "retries": 0,
    }
    return write_recipe(folder, model, **{"data": data, "parent": parent, **changes})


def shout(seen: Seen, before: int) -> Sent:
    if seen.path.endswith("/embeddings"):
        return vectors([[float(len(text)), 1.0, float(ord(text[0]))] for text in seen.body["input"]])
    word = seen.body["messages"][1]["content"]
    return chat("two\nlines") if word == "w3" else chat(f"{word.upper()}!")


def all_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def one_line(answer: Answer) -> str:
    assert answer.code == 2, answer
    (line,) = answer.err.splitlines()
    return line


@pytest.mark.slow
def test_ask_review_write_train_resume_and_the_key_nowhere(tmp_path: Path, tiny_folder: Path) -> None:
    with serving(shout) as server:
        reward = {"kind": "semantic", "embedder": "api:vine", "url": server.url}
        recipe = recipe_with_parent(tmp_path, tiny_folder, server.url, reward=reward)
        limit = "parent.missing_limit=0.1"
        said = [vigneron("validate", recipe, limit)]
        assert "parent grape: 0 answers in the cache, 14 to request" in said[0].out
        assert server.seen == [], "validate asks nothing"

        said.append(vigneron("parent", recipe, limit, "--show", "5", "--out", "answers.jsonl"))
        out = said[-1].out
        assert said[-1].code == 0, said[-1]
        assert "answers 14/14" in out
        assert re.search(r"say w0: +W0!", out)
        assert "missing: its reply 'two\\nlines': it had more than one line" in " ".join(out.split())
        assert "… and 9 more (--show 14)" in out
        assert "13 answered, 1 missing" in out
        assert "14 prompts sent (105 tokens in, 45 out), 0 answers from the cache" in out, (
            "the missing one was asked twice"
        )
        rows = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
        assert rows[0] == {"word": "w0", "prompt": "say w0: ", "answer": "W0!"}
        assert len(rows) == 11
        assert len((tmp_path / "answers.held_out.jsonl").read_text().splitlines()) == 2

        asked = len(server.seen)
        said.append(vigneron("validate", recipe, limit))
        assert "13 answers in the cache, 1 to request" in said[-1].out
        said.append(vigneron("train", recipe, limit, "--name", "one"))
        assert said[-1].code == 0, said[-1]
        assert "1 of 14 prompts got no answer and are dropped: 'say w3: '" in said[-1].out
        chats = [seen for seen in server.seen[asked:] if seen.path.endswith("/chat/completions")]
        assert {seen.body["messages"][1]["content"] for seen in chats} == {"w3"}, "only what is missing is asked again"
        run = tmp_path / "runs" / "one"
        trained = [json.loads(line) for line in (run / "data" / "train.jsonl").read_text().splitlines()]
        assert trained == rows
        assert yaml.safe_load((run / "config.yaml").read_text())["reward"]["url"] == server.url

        chats_before = len([s for s in server.seen if s.path.endswith("/chat/completions")])
        said.append(vigneron("resume", run))
        assert said[-1].code == 0, said[-1]
        assert len([s for s in server.seen if s.path.endswith("/chat/completions")]) == chats_before

        said.append(vigneron("eval", run, "--file", "held.jsonl"))
        assert said[-1].code == 0, said[-1]
        assert "0 prompts sent, 2 answers from the cache" in said[-1].out

        recorded = ["data.train=answers.jsonl", "data.held_out=answers.held_out.jsonl", "parent=null"]
        said.append(vigneron("validate", recipe, *recorded))
        assert "is valid: 11 training rows, 2 held out" in said[-1].out
    assert any(seen.headers["authorization"] == f"Bearer {KEY}" for seen in server.seen)
    assert KEY.encode() not in all_bytes(tmp_path)
    assert KEY not in "".join(answer.out + answer.err for answer in said)


def test_a_parent_that_fails_trains_nothing_and_leaves_no_folder(tmp_path: Path) -> None:
    sent = refusal(401, f"wrong key {KEY}")
    with serving(lambda seen, n: sent) as server:
        recipe = recipe_with_parent(tmp_path, "smollm2-135m", server.url)
        for verb in ("train", "parent"):
            assert "answered 401: the key in OPENAI_API_KEY is not accepted" in one_line(vigneron(verb, recipe))
        assert KEY not in one_line(vigneron("train", recipe))
    with serving(lambda seen, n: shout(seen, n) if n == 0 else refusal(400)) as server:
        recipe = recipe_with_parent(tmp_path, "smollm2-135m", server.url)
        line = one_line(vigneron("train", recipe))
        assert re.search(r"parent: \d+ of 14 prompts got no answer( \(\d+ more were not sent\))?, more than", line)
        assert "`parent.missing_limit: 0.05` allows; the first error: answered 400" in line
    with serving(lambda seen, n: chat("")) as server:
        recipe = recipe_with_parent(tmp_path, "smollm2-135m", server.url)
        line = one_line(vigneron("train", recipe, "parent.missing_limit=1"))
        assert "14 of 14 prompts got no answer, so no row is left to train on; the first error: " in line
    line = one_line(vigneron("train", recipe, "parent.url=http://127.0.0.1:1/v1"))
    assert "parent: 'grape' at 'http://127.0.0.1:1/v1' cannot be reached (Connection refused)" in line
    assert not (tmp_path / "runs").exists()


def test_what_a_user_can_get_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_with_parent(tmp_path, "smollm2-135m", "http://127.0.0.1:1/v1")
    assert "has no parent, it uses recorded answers" in one_line(vigneron("parent", "pgsrm-antonyms"))
    assert "parent.input: row 1 does not fit '{wrd}'" in one_line(vigneron("parent", recipe, "parent.input='{wrd}'"))
    (tmp_path / "there.jsonl").write_text("")
    assert "'there.jsonl' exists" in one_line(vigneron("parent", recipe, "--out", "there.jsonl"))
    assert "'a.csv' should end in .jsonl" in one_line(vigneron("parent", recipe, "--out", "a.csv"))
    monkeypatch.delenv("OPENAI_API_KEY")
    line = one_line(vigneron("validate", recipe, "parent.url=https://there.example/v1"))
    assert "OPENAI_API_KEY is not set" in line


def test_the_parent_fills_in_only_what_a_file_lacks(tmp_path: Path) -> None:
    with serving(shout) as server:
        config = load_config(str(recipe_with_parent(tmp_path, "smollm2-135m", server.url)))
        file = write_jsonl(tmp_path / "some.jsonl", ['{"word": "a", "answer": "own"}', '{"word": "b"}'])
        rows = load_evaluation_rows(config, file, lambda text: None)
        assert [(row["word"], row["answer"]) for row in rows] == [("a", "own"), ("b", "B!")]
        assert len(server.seen) == 1


@pytest.mark.slow
def test_a_task_asks_with_its_own_instruction(tmp_path: Path) -> None:
    def script(seen: Seen, before: int) -> Sent:
        return chat(json.dumps({"OUTPUT": f"un{seen.body['messages'][-1]['content']}"}))

    with serving(script) as server:
        recipe = write_recipe(
            tmp_path,
            "smollm2-135m",
            data={"task": "antonyms"},
            parent={"kind": "endpoint", "model": "grape", "url": server.url},
        )
        answer = vigneron("parent", recipe, "--show", "1", "--out", str(tmp_path / "mine.jsonl"))
    assert answer.code == 0, answer
    assert re.search(r"The opposite of 'hot' is +unhot", answer.out)
    # What it says to train on the written files is a command that can be run.
    (command,) = re.findall(r"^train  vigneron train (.*)$", answer.out, flags=re.M)
    assert "is valid: 254 training rows, 126 held out" in vigneron("validate", *command.split(), "model.device=cpu").out
    assert server.seen[0].body["messages"][0]["content"].startswith("You give the opposite of a word.")
    asked = [seen.body["messages"][1]["content"] for seen in server.seen]
    words = [row["word"] for part in ("train", "held_out") for row in load_task("antonyms").rows(part)]
    assert sorted(asked) == sorted(words)


def test_ctrl_c_leaves_what_was_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way then is answered when the command is stopping."""
    stopping, stop = threading.Event(), DaemonPool.stop
    monkeypatch.setattr(DaemonPool, "stop", lambda pool: (stop(pool), stopping.set()))

    def script(seen: Seen, before: int) -> Sent:
        if before == 10:
            stopping.clear()
            os.kill(os.getpid(), signal.SIGINT)
        if before >= 10:
            assert stopping.wait(LONG_S)
        return shout(seen, before)

    with serving(script) as server:
        recipe = recipe_with_parent(tmp_path, "smollm2-135m", server.url, count=100)
        patient = f"parent.timeout_s={LONG_S}"
        answer = vigneron("parent", recipe, "parent.concurrency=2", "parent.missing_limit=0.1", patient)
    assert answer.code == 130, answer
    kept = re.search(r"stopped: (\d+) answers are cached, (\d+) are left to request", answer.out)
    assert kept, answer
    missing = 1  # w3, which cannot be read
    assert int(kept[1]) + missing == len({seen.body["messages"][1]["content"] for seen in server.seen}) < 30
    assert int(kept[1]) + int(kept[2]) == 102


@pytest.mark.slow
def test_a_local_parent_trains_a_child(tmp_path: Path, tiny_folder: Path, obliging_folder: Path) -> None:
    recipe = recipe_with_parent(
        tmp_path,
        tiny_folder,
        "",
        parent={"kind": "local", "model": str(obliging_folder), "input": "{word}", "max_tokens": 4},
    )
    answer = vigneron("train", recipe, "--name", "one")
    assert answer.code == 0, answer
    assert "14 prompts sent" in answer.out
    rows = [json.loads(line) for line in (tmp_path / "runs/one/data/train.jsonl").read_text().splitlines()]
    assert {row["answer"] for row in rows} == {"xy"}
    again = vigneron("train", recipe)
    assert "0 prompts sent, 14 answers from the cache" in again.out


# ---------------------------------------------------------------------------------------------- recorded answers


def row(prompt: str, answer: str | None = "b", **columns: Any) -> str:
    return json.dumps({"prompt": prompt, "answer": answer, **columns})


def test_recorded_rows_that_contradict_each_other(tmp_path: Path) -> None:
    def line(rows: list[str]) -> str:
        data = {"train": str(write_jsonl(tmp_path / "clashing.jsonl", rows))}
        return one_line(vigneron("validate", write_recipe(tmp_path, "smollm2-135m", data=data)))

    assert "row 2 has no 'answer'" in line([row("a"), row("c", None), row("d", ""), row("e", None)])
    assert "nor do 2 other rows" in line([row("a"), row("c", None), row("d", ""), row("e", None)])
    twice = line([row("a"), row("c"), row("a", "z"), row("c", "z")])
    assert "rows 1 and 3 have the same prompt and different answers (2 such rows in total)" in twice


def test_what_is_trained_on_and_held_out_is_said_so(tmp_path: Path) -> None:
    parts = {"train": [row("a"), row("c")], "held_out": [row("x"), row("c"), row("a")]}
    data = {name: str(write_jsonl(tmp_path / f"{name}.jsonl", rows)) for name, rows in parts.items()}
    answer = vigneron("validate", write_recipe(tmp_path, "smollm2-135m", data=data))
    assert answer.code == 0, answer
    assert "2 of 3 prompts of `held_out` are also in `train`, the first in row 2: 'c'" in answer.out


def test_exact_repeats_are_left_out_and_said_so(tmp_path: Path) -> None:
    rows = [row("a"), row("c"), row("a"), row("a", more=1), row("c")]
    data = {"train": str(write_jsonl(tmp_path / "repeats.jsonl", rows))}
    answer = vigneron("validate", write_recipe(tmp_path, "smollm2-135m", data=data))
    assert answer.code == 0, answer
    assert "repeats.jsonl': 2 duplicate rows are dropped" in answer.out
    assert "3 training rows" in answer.out
