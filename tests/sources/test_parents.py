"""Parents over real servers, and a local one: nothing is asked twice, nothing missing becomes an answer."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from support.servers import LONG_S, Seen, Sent, chat, expiring_key, interrupted_twice, port_of_nobody, refusal, serving
from vigneron.config import EndpointParentConfig, LocalParentConfig
from vigneron.errors import UserError
from vigneron.sources import client as client_module
from vigneron.sources.answer_cache import AnswerCache, answer_key
from vigneron.sources.parents import Answers, Parent, build_parent, conversation
from vigneron.threads import DaemonPool


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setattr(client_module, "FIRST_WAIT_S", 0.01)


def endpoint(url: str, folder: Path, reads: str = "text", **keys: Any) -> Parent:
    config = EndpointParentConfig(kind="endpoint", model="grape", url=url, **{"retries": 1, "timeout_s": 60.0, **keys})
    return build_parent(config, reads=reads, cache=AnswerCache(folder / "answers.sqlite"))


def asking(words: Sequence[str], instruction: str | None = "Say the opposite.") -> list[Any]:
    return [conversation(instruction, word) for word in words]


def answers(found: Answers) -> list[str | None]:
    return [outcome.answer for outcome in found.outcomes]


def reasons(found: Answers) -> list[str | None]:
    return [outcome.why for outcome in found.outcomes]


def word_of(seen: Seen) -> str:
    return next(m["content"] for m in seen.body["messages"] if m["role"] == "user")


def upper(seen: Seen, before: int) -> Sent:
    return chat(word_of(seen).upper())


def test_answers_in_order_each_question_once_and_never_again(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(30)] * 2
    with serving(upper) as server:
        progress: list[tuple[int, int]] = []
        found = endpoint(server.url, tmp_path).answer(asking(words), progress=lambda *p: progress.append(p))
        assert answers(found) == [word.upper() for word in words]
        assert (found.sent, found.cached, found.missing) == (30, 0, 0)
        assert found.tokens == (30 * 7, 30 * 3)
        assert progress == [(i, 30) for i in range(1, 31)]
        assert sorted(server.inputs) == sorted(set(words))
        assert server.seen[0].body["messages"] == [
            {"role": "system", "content": "Say the opposite."},
            {"role": "user", "content": "w0"},
        ]
        again = endpoint(server.url, tmp_path).answer(asking([*words, "new"]))
        assert answers(again) == [word.upper() for word in [*words, "new"]]
        assert (again.sent, again.cached) == (1, 30)
        assert len(server.seen) == 31
    # All of it is in the cache: nobody needs to be there.
    offline = endpoint(server.url, tmp_path).answer(asking(words))
    assert (offline.sent, offline.cached, offline.tokens) == (0, 30, (0, 0))


def test_what_was_asked_otherwise_is_another_question(tmp_path: Path) -> None:
    key = answer_key("m", "url", [{"role": "user", "content": "x"}], {"max_tokens": 3})
    others = [
        answer_key("n", "url", [{"role": "user", "content": "x"}], {"max_tokens": 3}),
        answer_key("m", "url2", [{"role": "user", "content": "x"}], {"max_tokens": 3}),
        answer_key("m", "url", [{"role": "user", "content": "y"}], {"max_tokens": 3}),
        answer_key("m", "url", [{"role": "system", "content": "x"}], {"max_tokens": 3}),
        answer_key("m", "url", [{"role": "user", "content": "x"}], {"max_tokens": 4}),
    ]
    assert len({key, *others}) == 6
    with serving(upper) as server:
        for keys in ({}, {"max_tokens": 3}, {"reads": "json"}, {"model": "other"}):
            parent = endpoint(server.url, tmp_path, **keys) if "model" not in keys else None
            if parent is None:
                config = EndpointParentConfig(kind="endpoint", url=server.url, **keys)
                parent = build_parent(config, reads="text", cache=AnswerCache(tmp_path / "answers.sqlite"))
            assert parent.cached(asking(["x"])) == {}
            parent.answer(asking(["x"]))


def test_at_most_so_many_at_a_time_and_really_so_many(tmp_path: Path) -> None:
    barrier = Barrier(3, timeout=LONG_S)  # breaks unless three are asked together

    def script(seen: Seen, before: int) -> Sent:
        if before > 0:
            barrier.wait()
        return chat("yes")

    with serving(script) as server:
        found = endpoint(server.url, tmp_path, concurrency=3).answer(asking([f"w{i}" for i in range(10)]))
    assert found.missing == 0


def test_ctrl_c_as_a_request_is_sent_keeps_its_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(seen: Seen, before: int) -> Sent:
        time.sleep(0.3 * before)
        return upper(seen, before)

    submit = DaemonPool.submit

    def interrupted(*given: Any) -> None:
        submit(*given)
        while len(server.seen) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(DaemonPool, "submit", interrupted)
    questions = asking(["w0", "w1"])
    with serving(script) as server:
        parent = endpoint(server.url, tmp_path)
        with pytest.raises(KeyboardInterrupt):
            parent.answer(questions)
        assert [outcome.answer for outcome in parent.cached(questions).values()] == ["W0", "W1"]


def test_the_first_question_goes_alone(tmp_path: Path) -> None:
    def script(seen: Seen, before: int) -> Sent:
        if before == 0:
            time.sleep(0.2)
            assert len(server.seen) == 1
        return upper(seen, before)

    with serving(script) as server:
        assert endpoint(server.url, tmp_path).answer(asking("abcdef")).missing == 0


def test_what_cannot_be_read_is_asked_once_more_and_told_why(tmp_path: Path) -> None:
    def script(seen: Seen, before: int) -> Sent:
        word, again = word_of(seen), len(seen.body["messages"]) > 2
        good = chat('{"OUTPUT": "fine"}')
        return {
            "mends": good if again else chat("Sure: fine"),
            "cut": good if again else chat('{"OUTPUT": "fi', "length"),
            "cut but whole": good if again else chat('{"OUTPUT": "fi"}', "length"),
            "never": chat("I would say: fine"),
            "silent": chat(None),
            "breaks": refusal(400) if again else chat("so"),
        }.get(word, good)

    words = ["good", "mends", "cut", "cut but whole", "never", "silent", "breaks"]
    with serving(script) as server:
        parent = endpoint(server.url, tmp_path, reads="json")
        found = parent.answer(asking(words))
        assert answers(found) == ["fine"] * 4 + [None] * 3
        assert found.tokens == (7 * 12, 3 * 12)
        assert "'I would say: fine': it was not one JSON object" in reasons(found)[4]
        assert "'': it was not one JSON object" in reasons(found)[5]
        assert "'so'" in reasons(found)[6]
        assert len(server.seen) == 13
        told = next(
            s.body["messages"]
            for s in server.seen
            if s.body["messages"][1]["content"] == "mends" and len(s.body["messages"]) > 2
        )
        assert told[2] == {"role": "assistant", "content": "Sure: fine"}
        assert told[3]["role"] == "user"
        assert "it was not one JSON object" in told[3]["content"]
        # What failed was not kept, what was mended was, under the question itself.
        again = endpoint(server.url, tmp_path, reads="json").answer(asking(words))
        assert (again.cached, again.sent, again.missing) == (4, 3, 3)


def test_failures_are_missing_with_a_reason_and_are_not_kept(tmp_path: Path) -> None:
    broken = True

    def script(seen: Seen, before: int) -> Sent:
        return refusal(500) if broken and word_of(seen) in "ce" else upper(seen, before)

    with serving(script) as server:
        found = endpoint(server.url, tmp_path).answer(asking("abcdef"))
        assert answers(found) == ["A", "B", None, "D", None, "F"]
        assert reasons(found)[2] == "answered 500 ('no') (2 times)"
        assert found.missing == 2
        broken = False
        assert answers(endpoint(server.url, tmp_path).answer(asking("abcdef"))) == list("ABCDEF")
        assert sorted(server.inputs[-2:]) == ["c", "e"]


def test_after_too_many_failures_no_more_is_asked(tmp_path: Path) -> None:
    with serving(lambda seen, n: upper(seen, n) if n == 0 else refusal(400)) as server:
        found = endpoint(server.url, tmp_path, concurrency=1).answer(
            asking([f"w{i}" for i in range(200)]), allowed_missing=2
        )
    assert len(server.seen) < 20
    assert found.missing == 199
    assert reasons(found)[-1] == "not sent: too many other requests failed"


@pytest.mark.parametrize(
    ("sent", "line"),
    [
        (refusal(401), "answered 401: it needs a key: set OPENAI_API_KEY"),
        (refusal(404, "no grape"), "answered 404: it has no model 'grape'"),
        (refusal(400, "unknown model"), "answered 400 ('unknown model')"),
        (refusal(503), "answered 503 ('no') (2 times)"),
        (Sent(body="<html>"), "returned a malformed response (2 times)"),
    ],
)
def test_a_parent_that_cannot_answer_fails_at_the_first_question(tmp_path: Path, sent: Sent, line: str) -> None:
    with serving(lambda seen, n: sent) as server:
        with pytest.raises(UserError) as caught:
            endpoint(server.url, tmp_path).answer(asking("abcdef"))
        assert str(caught.value).startswith("parent: ")
        assert line in str(caught.value)
        assert server.url in str(caught.value)
        assert len(set(server.inputs)) <= 2


def test_nobody_there_is_one_line(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{port_of_nobody()}/v1"
    with pytest.raises(UserError, match=r"^parent: 'grape' at '.*' cannot be reached \(Connection refused\)"):
        endpoint(url, tmp_path, retries=20).answer(asking("ab"))


def test_one_refused_question_at_the_start_is_only_that(tmp_path: Path) -> None:
    with serving(lambda seen, n: refusal(400) if word_of(seen) == "a" else upper(seen, n)) as server:
        assert answers(endpoint(server.url, tmp_path).answer(asking("abc"))) == [None, "B", "C"]


def test_a_key_that_expires_midway_ends_it_and_what_came_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, stopped = expiring_key(upper)
    with serving(script) as server:
        parent = endpoint(server.url, tmp_path, concurrency=2, timeout_s=LONG_S)
        stop = parent.backend.stop
        monkeypatch.setattr(parent.backend, "stop", lambda: (stop(), stopped.set()))
        with pytest.raises(UserError, match="answered 401"):
            parent.answer(asking([f"w{i}" for i in range(50)]))
        assert len(server.seen) < 15
    kept = endpoint(server.url, tmp_path).cached(asking([f"w{i}" for i in range(50)]))
    assert len(kept) == 5


KILLED = """
import sys
from pathlib import Path
from vigneron import threads
from vigneron.config import EndpointParentConfig
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.parents import build_parent, conversation
config = EndpointParentConfig(kind="endpoint", model="grape", url=sys.argv[1], concurrency=4, timeout_s=600)
stop = threads.DaemonPool.stop
threads.DaemonPool.stop = lambda pool: (stop(pool), Path(sys.argv[2], "stopped").touch())
parent = build_parent(config, reads="text", cache=AnswerCache(Path(sys.argv[2]) / "answers.sqlite"))
found = parent.answer([conversation(None, f"w{i}") for i in range(100)])
print(found.sent, found.cached, found.missing, [o.answer for o in found.outcomes] == [f"W{i}" for i in range(100)])
"""


def answers_in(folder: Path) -> int:
    return sqlite3.connect(folder / "answers.sqlite").execute("SELECT COUNT(*) FROM answers").fetchone()[0]


@pytest.mark.slow
def test_killed_in_the_middle_the_next_run_asks_only_what_is_missing(tmp_path: Path) -> None:
    """When 40 are answered, and four under way."""
    under_way = Barrier(4, timeout=LONG_S)

    def script(seen: Seen, before: int) -> Sent:
        if 40 <= before < 44:
            if under_way.wait() == 0:
                process.kill()
                process.wait()
            under_way.wait()
        return upper(seen, before)

    with serving(script) as server:
        command = [sys.executable, "-c", KILLED, server.url, str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.wait(timeout=LONG_S) == -signal.SIGKILL
        assert len(server.seen) == 44
        assert answers_in(tmp_path) == 40, "all but those under way"
        second = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=True)
        assert second.stdout.split() == ["60", "40", "0", "True"]
        assert len(server.seen) == 44 + 60


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_under_way(tmp_path: Path) -> None:
    """Four, which are answered when the process is stopping."""
    under_way = Barrier(4, timeout=LONG_S, action=lambda: process.send_signal(signal.SIGINT))

    def script(seen: Seen, before: int) -> Sent:
        if before >= 20:
            under_way.wait()
            while not (tmp_path / "stopped").exists():
                time.sleep(0.01)
        return upper(seen, before)

    with serving(script) as server:
        command = [sys.executable, "-c", KILLED, server.url, str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        _, err = process.communicate(timeout=LONG_S)
        assert "KeyboardInterrupt" in err
        assert answers_in(tmp_path) == len(server.seen) == 24


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_an_endpoint_that_hangs(tmp_path: Path) -> None:
    with serving(lambda seen, n: upper(seen, n) if n < 20 else Sent(delay=LONG_S)) as server:
        command = [sys.executable, "-c", KILLED, server.url, str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        interrupted_twice(process, lambda: len(server.seen) == 24, (tmp_path / "stopped").exists)
        assert (answers_in(tmp_path), len(server.seen)) == (20, 24)


def test_the_cache_is_json_and_what_is_wrong_with_it_is_one_line(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "deep" / "answers.sqlite")
    cache.put("k", "naïve 'quoted\"", "m")
    assert cache.get("k") == "naïve 'quoted\""
    assert cache.get("other") is None
    (row,) = sqlite3.connect(tmp_path / "deep" / "answers.sqlite").execute("SELECT value FROM answers")
    assert json.loads(row[0]) == {"answer": "naïve 'quoted\"", "model": "m"}
    (tmp_path / "broken.sqlite").write_bytes(b"grapes" * 1000)
    with pytest.raises(UserError, match=r"^cannot use the answer cache '.*broken\.sqlite': file is not a database"):
        AnswerCache(tmp_path / "broken.sqlite")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="VIGNERON_CACHE"):
        AnswerCache(tmp_path / "file" / "answers.sqlite")


# ---------------------------------------------------------------------------------------------- a local model


def local(folder: str, cache: Path, **keys: Any) -> Parent:
    config = LocalParentConfig(kind="local", model=folder, **{"max_tokens": 4, "reads": "text", **keys})
    return build_parent(config, reads="json", cache=AnswerCache(cache / "answers.sqlite"), device="cpu")


def test_a_local_model_answers_greedily_through_its_chat_template(tmp_path: Path, obliging_folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    words = [f"w{i}" for i in range(20)]
    found = local(str(obliging_folder), tmp_path).answer(asking(words, "Say x."))
    assert set(answers(found)) == {"xy"}, reasons(found)[:2]
    model, tokenizer = (c.from_pretrained(obliging_folder) for c in (AutoModelForCausalLM, AutoTokenizer))
    ids = tokenizer("system: Say x.\nuser: w0\nanswer: ", return_tensors="pt").input_ids
    written = model.generate(ids, max_new_tokens=4, do_sample=False)[0, ids.shape[1] :]
    assert tokenizer.decode(written, skip_special_tokens=True) == "xy"
    assert found.tokens == (sum(len(f"system: Say x.\nuser: {w}\nanswer: ") for w in words), 20 * 3)
    again = local(str(obliging_folder), tmp_path).answer(asking(words, "Say x."))
    assert (again.sent, again.cached) == (0, 20)


def test_other_weights_of_the_same_name_are_another_parent(tmp_path: Path, obliging_folder: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(obliging_folder, copy)
    local(str(obliging_folder), tmp_path).answer(asking("a"))
    before = local(str(copy), tmp_path).backend.source
    assert before == local(str(obliging_folder), tmp_path).backend.source
    os.rename(copy / "generation_config.json", copy / "other.json")
    changed = local(str(copy), tmp_path)
    assert changed.backend.source != before
    assert changed.answer(asking("a")).cached == 0


def test_another_address_is_another_parent(tmp_path: Path) -> None:
    with serving(upper) as one, serving(upper) as other:
        endpoint(one.url, tmp_path).answer(asking("ab"))
        again = endpoint(one.url, tmp_path).answer(asking("ab"))
        elsewhere = endpoint(other.url, tmp_path).answer(asking("ab"))
    assert (again.sent, again.cached) == (0, 2)
    assert (elsewhere.sent, elsewhere.cached) == (2, 0)


def test_what_a_local_model_cannot_say_is_missing(tmp_path: Path, obliging_folder: Path) -> None:
    cut = local(str(obliging_folder), tmp_path, max_tokens=1).answer(asking("ab"))
    assert answers(cut) == [None, None]
    assert "it was cut after 1 tokens" in reasons(cut)[0]
    unread = local(str(obliging_folder), tmp_path, reads="json").answer(asking("ab"))
    assert "'xy': it was not one JSON object" in reasons(unread)[1]


def test_a_local_model_that_is_none_is_one_line(tmp_path: Path, tiny_folder: Path) -> None:
    with pytest.raises(UserError, match=r"^parent\.model: '/no/such' is not a folder"):
        local("/no/such", tmp_path)
    with pytest.raises(UserError, match=r"^parent\.model: 1 prompts do not fit"):
        local(str(tiny_folder), tmp_path).answer(asking(["x" * 100]))
