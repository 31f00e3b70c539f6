"""Row 24 of the fault table: a canary for a key, in every place a key can come from, and in no file and no output."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from support import fault_runs
from support.command_line import vigneron, write_jsonl, write_recipe
from support.hostile_server import ECHOES, Connection, chat_json, hostile_server, score_json, whole
from support.judged_runs import recipe_file
from support.servers import Seen, Sent, chat, refusal, serving, verdict
from vigneron.errors import UserError
from vigneron.redaction import redacted, secrets

CANARY = "sk-canary-7d1f0c94aa"
PASSWORD = "hunter-canary-55aa"


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("VIGNERON_RUNS", raising=False)


def assert_nowhere(folder: Path, *said: str) -> None:
    for secret in (CANARY, PASSWORD):
        assert secret not in "".join(said)
        for path in folder.rglob("*"):
            assert secret not in path.name
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def all_of(answer: Any) -> str:
    return str(answer.out + answer.err)


def echo(seen: Seen, before: int) -> Sent:
    """A server that says in every answer what it was sent as a key."""
    key = seen.headers["authorization"]
    if "JSON" in str(seen.body["messages"]):
        return verdict(0.5, 0.5, f"you are {key}")
    return refusal(500, f"busy {key}") if before % 5 == 4 else chat(f"I see {key}")


def recipe_with_parent(folder: Path, model: Path, url: str | None) -> Path:
    data = write_jsonl(folder / "train.jsonl", [json.dumps({"prompt": f"say {w}"}) for w in "abcdef"])
    parent = {"kind": "endpoint", "model": "grape", "url": url, "retries": 1, "missing_limit": 1.0, "input": "{prompt}"}
    parent |= {"instruction": "Answer.", "reads": "text"}
    return write_recipe(folder, model, data={"train": str(data)}, parent={k: v for k, v in parent.items() if v})


@pytest.mark.slow
def test_a_run_with_a_parent_that_echoes_the_key(tmp_path: Path, tiny_folder: Path) -> None:
    with serving(echo) as server:
        recipe = recipe_with_parent(tmp_path, tiny_folder, server.url)
        said = [vigneron("parent", recipe), vigneron("train", recipe, "--name", "one")]
        said += [vigneron("report", "runs/one"), vigneron("resume", "runs/one")]
        assert [answer.code for answer in said] == [0, 0, 0, 0], said
    assert any(seen.headers["authorization"] == f"Bearer {CANARY}" for seen in server.seen)
    assert "I see Bearer [key]" in (tmp_path / "runs/one/data/train.jsonl").read_text()
    assert (tmp_path / "runs/one/report.html").is_file()
    assert list((tmp_path / "cache").rglob("*.sqlite"))
    assert_nowhere(tmp_path, *map(all_of, said))


@pytest.mark.slow
def test_a_run_with_a_judge_that_echoes_the_key(tmp_path: Path, tiny_folder: Path) -> None:
    with serving(echo) as server:
        recipe = recipe_file(tmp_path, tiny_folder, server.url, steps=2)
        said = [vigneron("train", recipe, "reward.missing_limit=1.0", "--name", "one")]
        said += [vigneron("rubric", "review", "runs/one")]
        assert said[0].code == 0, said
    assert b"you are Bearer [key]" in b"".join(p.read_bytes() for p in (tmp_path / "runs/one").glob("samples.sqlite*"))
    assert_nowhere(tmp_path, *map(all_of, said))


@pytest.mark.slow
def test_a_run_with_a_judge_that_echoes_the_key_escaped(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In JSON's escapes, once and twice, and percent-encoded: in no form in a sample, the cache, a checkpoint, the
    report or an error."""
    key = "sk-canary/7d1f+0c94aa"
    monkeypatch.setenv("OPENAI_API_KEY", key)

    def answer(to: Connection) -> None:
        ways = [whole(chat_json(score_json())), *ECHOES.values()]
        ways[server.connections.index(to) % len(ways)](to)

    with hostile_server(answer) as server:
        recipe = recipe_file(tmp_path, tiny_folder, server.url, steps=2)
        run = vigneron("train", recipe, "reward.missing_limit=1.0", "--name", "one")
        assert run.code == 0, run
        assert server.connections[-1].key == key
        assert len(server.connections) > 2 * len(ECHOES)
    texts = {path: path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()}
    texts[Path("output")] = all_of(run)
    assert any("[key]" in text for path, text in texts.items() if path.name.startswith("samples.sqlite"))
    for path, text in texts.items():
        assert redacted(text, key).count("[key]") == redacted(text).count("[key]") == text.count("[key]"), path


@pytest.mark.parametrize("url", [f"http://user:{PASSWORD}@127.0.0.1:1/v1", f"http://127.0.0.1:1/v1?api_key={PASSWORD}"])
def test_a_secret_in_an_address_is_refused_and_not_repeated(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    recipe = recipe_with_parent(tmp_path, tiny_folder, None)
    in_recipe = recipe_with_parent(tmp_path, tiny_folder, url).read_text()
    recipe_with_parent(tmp_path, tiny_folder, None)
    said = [vigneron("train", recipe, f"parent.url={url}"), vigneron("train", recipe, f"parent.url=[{url}")]
    said.append(vigneron("train", recipe, f"{url}"))
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    said.append(vigneron("train", recipe))
    assert [answer.code for answer in said] == [2, 2, 2, 2]
    assert "OPENAI_BASE_URL should have no user, password or query" in said[-1].err
    assert PASSWORD in in_recipe
    assert_nowhere(tmp_path, *map(all_of, said))


REWARD = """
import os

calls = []

def reward(prompts, completions, **columns):
    calls.append(1)
    if len(calls) <= 2:  # the trial before a run
        return [0.0] * len(completions)
    raise RuntimeError("cannot ask http://me:{password}@host/?token={password} with " + os.environ["OPENAI_API_KEY"])
"""


def test_an_exception_with_the_key_in_it(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a reward of one's own: on the terminal, in status.json, and in the traceback of --debug."""
    (tmp_path / "leaking_rewards.py").write_text(REWARD.replace("{password}", PASSWORD))
    recipe = write_recipe(tmp_path, tiny_folder, reward={"kind": "python", "function": "leaking_rewards:reward"})
    answer = vigneron("train", recipe, "--name", "one")
    assert answer.code == 2
    assert "raised RuntimeError: cannot ask http://[key]@host/?token=[key] with [key]" in answer.err
    assert json.loads((tmp_path / "runs/one/status.json").read_text())["error"].count("[key]") == 3
    (tmp_path / "leaking_rewards.py").unlink()
    assert_nowhere(tmp_path / "runs", all_of(answer))


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_traceback_of_debug_has_no_key(tmp_path: Path, tiny_folder: Path, status: int) -> None:
    with serving(lambda seen, n: refusal(status, f"wrong key {seen.headers['authorization']}")) as server:
        recipe = recipe_with_parent(tmp_path, tiny_folder, server.url)
        log = tmp_path / "log"
        words = ["--debug", "train", str(recipe), "parent.missing_limit=0"]
        given = {"OPENAI_LOG": "debug", "HF_TOKEN": PASSWORD}
        fault_runs.ended(fault_runs.started(fault_runs.command, str(log), words, environment=given))
    assert "Traceback" in log.read_text()
    assert f"answered {status}" in log.read_text()
    assert_nowhere(tmp_path, log.read_text())


def test_what_is_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "HF_TOKEN": "hf-canary-1",
        "WANDB_API_KEY": "wb-canary-2",
        "MY_PASSWORD": "pw-canary-3",
        "SHORT_TOKEN": "abc",
        "OTHER_URL": "https://me:url-canary-4@host/v1?api-version=2024-10-21&key=url-canary-5",
        "TOKENIZERS_PARALLELISM": "false-or-not",
    }.items():
        monkeypatch.setenv(name, value)
    found = secrets()
    assert {"hf-canary-1", "wb-canary-2", "pw-canary-3", "url-canary-4", "url-canary-5", CANARY} <= set(found)
    assert not {"abc", "2024-10-21", "false-or-not"} & set(found)
    assert redacted("a hf-canary-1 b abc") == "a [key] b abc"
    assert str(UserError("no pw-canary-3")) == "no [key]"
    assert redacted("see http://127.0.0.1:8000/v1?step=3") == "see http://127.0.0.1:8000/v1?step=3"


@pytest.mark.parametrize(
    "secret",
    ["sk-canary/7d1f+0c94aa", "pa\\ss\\\\word-1", "ümlaut-geheim", "u0073k-secret", "100%-sure%73", "\\begin\\"],
)
def test_a_secret_is_found_in_every_form(secret: str) -> None:
    """As it is, in JSON of JSON of JSON, in escapes of either case, percent-encoded; the text around it stays."""
    escaped = "".join(f"\\u{ord(c):04x}" for c in secret)
    forms = [secret, escaped, escaped.upper().replace("\\U", "\\u"), quote(secret, safe=""), secret.replace("/", "\\/")]
    forms += [quote(quote(secret, safe=""), safe=""), "".join(f"%2525{b:02X}" for b in secret.encode())]
    forms += [escaped.replace("\\", "\\u005c"), escaped.replace("\\", "%5C")]
    for form in forms:
        for depth in range(4):
            text = f"before {form} after"
            for _ in range(depth):
                text = json.dumps({"a": text})
            hidden = redacted(text, secret)
            assert hidden.count("[key]") == 1
            assert hidden.startswith(text[: text.index("before") + 7])
            assert hidden.endswith(text[text.index(" after") :])


def test_texts_that_are_no_secret_stay() -> None:
    for text in ("\\u0073k-canary/7d1f", "50 % of \\ and \\u0041", "%73k", "sk-canary%2f", "\\" * 50):
        assert redacted(text, "sk-canary/7d1f+0c94aa") == text
