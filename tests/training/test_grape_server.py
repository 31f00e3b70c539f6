"""GRAPE with a judge over HTTP: a server on loopback that answers, one that misbehaves, and a run that is killed."""

import json
import signal
import sqlite3
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from support import fault_runs
from support.judged_runs import recipe_file
from support.servers import LONG_S, Seen, Sent, catches, chat, hurry_only, interrupted_twice, refusal, serving, verdict
from vigneron import api
from vigneron.errors import UserError
from vigneron.run_store.samples import SampleStore
from vigneron.sources import client as client_module

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-4f9a1c77e2")
    monkeypatch.setattr(client_module, "FIRST_WAIT_S", 0.01)


def words(seen: Seen) -> str:
    return "\n".join(message["content"] for message in seen.body["messages"])


def obliging(seen: Seen, before: int) -> Sent:
    said = words(seen)
    return verdict((len(said) % 7) / 6, 0.5) if "JSON" in said else chat("It could be kinder.")


def test_a_run_is_killed_and_no_answered_call_is_repeated(tmp_path: Path, tiny_folder: Path) -> None:
    with serving(obliging) as server:
        file = recipe_file(tmp_path, tiny_folder, server.url)
        code = fault_runs.exit_code(fault_runs.killed_at_step, str(file), str(tmp_path), "killed", 3)
        assert code == -signal.SIGKILL
        before = len(server.seen)
        assert before > 20
        api.resume(tmp_path / "killed")
        asked = [words(seen) for seen in server.seen]
        repeated = set(asked[:before]) & set(asked[before:])
        # The question before the first one, which is never kept, is the only one asked again.
        assert len(repeated) <= 1
        assert len(asked) - len(set(asked)) <= 2  # the first question of each start, and one on its way
    kept = SampleStore(tmp_path / "killed", read_only=True).page(step=6)
    said = kept[0].extras["rubric"]["items"]["kind"]
    assert said["critique"] == "It could be kinder."
    assert said["reasoning"] == "so"
    assert said["confidence"] == 0.5


BAD = {
    "500": refusal(500),
    "prose": chat('Sure! {"reasoning": "so", "score": 1, "confidence": 1} Bye.'),
    "hang": Sent(delay=LONG_S),
}


@pytest.mark.parametrize("how", [pytest.param(how, marks=[pytest.mark.slow] * (how == "hang")) for how in BAD])
def test_failures_stop_the_run_and_never_become_a_zero(
    tmp_path: Path, tiny_folder: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first scores are good, then the judge breaks: nothing kept is a zero of its, and one line ends the run."""

    def may_break(body: dict[str, Any]) -> bool:
        asked = next(m["content"] for m in body["messages"] if m["role"] == "user")  # the same when asked again
        return crc32(asked.encode()) % 2 == 0 and "JSON" in json.dumps(body)

    def script(seen: Seen, before: int) -> Sent:
        return BAD[how] if before >= 40 and may_break(seen.body) else obliging(seen, before)

    with serving(script) as server:
        hurry_only(monkeypatch, lambda body: len(server.seen) > 30 and may_break(body))  # 30 are good in any case
        file = recipe_file(
            tmp_path, tiny_folder, server.url, 1.0 if how == "hang" else 300.0, steps=30, prompts_per_step=4
        )
        with pytest.raises(UserError, match=r"scores are missing so far, above the limit.*words\.kind: ") as caught:
            api.train(str(file), name="run", runs=tmp_path)
    assert "\n" not in str(caught.value)
    store = SampleStore(tmp_path / "run", read_only=True)
    items = [
        sample.extras["rubric"]["items"]["kind"] for step in store.steps("train") for sample in store.page(step=step)
    ]
    assert any(item["score"] is None for item in items)
    assert all(item.get("why") for item in items if item["score"] is None)
    assert all("why" not in item for item in items if item["score"] is not None)


@pytest.mark.slow
def test_a_second_ctrl_c_stops_at_once_while_the_judge_hangs(tmp_path: Path, tiny_folder: Path) -> None:
    with serving(lambda seen, n: obliging(seen, n) if n < 5 else Sent(delay=LONG_S)) as server:
        file = recipe_file(tmp_path, tiny_folder, server.url)
        words = ["train", str(file), "--name", "run", "--runs", str(tmp_path)]
        process = fault_runs.started(fault_runs.command, str(tmp_path / "log"), words)
        interrupted_twice(process, lambda: len(server.seen) == 9, lambda: not catches(process, signal.SIGTERM))
        assert process.exitcode == 130
        answers = sqlite3.connect(tmp_path / "cache" / "judges.sqlite").execute("SELECT COUNT(*) FROM answers")
        # The first question only finds out whether the judge is there, and is not kept.
        assert (answers.fetchone()[0], len(server.seen)) == (4, 9)


def test_a_wrong_key_is_found_before_a_model_is_loaded(tmp_path: Path, tiny_folder: Path) -> None:
    with serving(lambda seen, before: refusal(401)) as server:
        file = recipe_file(tmp_path, tiny_folder, server.url)
        with pytest.raises(UserError, match=r"reward\.judge.*401"):
            api.train(str(file), name="run", runs=tmp_path)
        assert len(server.seen) == 1
    assert not (tmp_path / "run").exists()
