"""Row 27: a tracker that is down, hangs or dies never stops a run, and its logs are complete. By real trackers,
real processes and real dead ports."""

import importlib.util
import json
import os
import signal
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from support.servers import Sent, serving
from vigneron import Progress, api
from vigneron.errors import UserError
from vigneron.recipe import check_config
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.notices import Notice, keep_notice, kept_notices
from vigneron.trackers import tracking, worker
from vigneron.trackers import webhook as webhooks
from vigneron.trackers.tracking import Tracker, Tracking
from vigneron.trackers.webhook import webhook

KEY = "canarycanarycanarycanarycanarycanary1234"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker that will finish has as long as it takes, however slow the machine is."""
    monkeypatch.setattr(tracking, "FINISH_WITHIN", 600.0)


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


def config(folder: Path, model: Path, *trackers: str, **changes: Any) -> Any:
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"say {w}:", "answer": w}) + "\n" for w in "abcd"))
    given = {
        "recipe": "tracked",
        "method": {"name": "reinforce", "baseline": "none"},
        "model": {"name": str(model), "device": "cpu"},
        "data": {"train": str(rows), "held_out": None},
        "reward": {"kind": "binary"},
        "steps": 4,
        "prompts_per_step": 2,
        "max_new_tokens": 2,
        "eval_every": 0,
        "save_every": 0,
        "trackers": list(trackers),
    }
    return check_config(given | changes, "tracked")


def metrics_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def check_whole(tmp_path: Path, model: Path, run: Path) -> None:
    """To the last byte what a run without trackers logs."""
    alone = api.train(config(tmp_path, model), name="alone", runs=tmp_path).folder
    assert (run / "metrics.jsonl").read_bytes() == (alone / "metrics.jsonl").read_bytes()
    assert [record["step"] for record in metrics_of(run)] == [1, 2, 3, 4]
    assert json.loads((run / "status.json").read_text())["state"] == "finished"


def soon(done: Callable[[], bool]) -> bool:
    until = time.monotonic() + 600
    while time.monotonic() < until:
        if done():
            return True
        time.sleep(0.02)
    return False


def dies(pid: int) -> bool:
    def dead() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    return soon(dead)


def logged(run: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


# ---------------------------------------------------------------------------------------------- before anything


def test_a_tracker_that_is_not_there_is_said_at_once(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"trackers: wandb not installed: run `pip install wandb` or remove"):
        api.train(config(tmp_path, tiny_folder, "wandb"), name="run", runs=tmp_path)
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused(tmp_path: Path, tiny_folder: Path) -> None:
    with pytest.raises(UserError, match="trackers"):
        config(tmp_path, tiny_folder, "tensorbord")


# ---------------------------------------------------------------------------------------------- TensorBoard


@pytest.mark.slow
@needs("tensorboard")
def test_tensorboard_gets_every_step_also_after_a_resume(tmp_path: Path, tiny_folder: Path) -> None:
    def stop(now: Progress) -> None:
        if now.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(SystemExit):
        api.train(config(tmp_path, tiny_folder, "tensorboard"), name="run", runs=tmp_path, view=stop)
    api.resume(tmp_path / "run")
    found = logged(tmp_path / "run", "completions/mean_length")
    assert found == [(record["step"], record["completions/mean_length"]) for record in metrics_of(tmp_path / "run")]
    assert kept_notices(tmp_path / "run") == []


@needs("tensorboard")
def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    made = Tracking(["tensorboard"], tmp_path, {})
    said: list[str] = []
    for step in range(50):
        made.log(step, {"reward": 0.5})
    assert soon(lambda: bool(said.extend(made.take_warnings()) or said))
    said += made.close()
    (line,) = said
    assert line.startswith("the tracker tensorboard stopped (")
    assert line.endswith("); the run continues, and the run's own logs are complete")


@pytest.mark.slow
@needs("tensorboard")
def test_a_folder_that_goes_away_stops_nothing(tmp_path: Path, tiny_folder: Path) -> None:
    def remove(now: Progress) -> None:
        if now.step == 1:
            assert soon(lambda: (now.folder / "tensorboard").is_dir())
            (now.folder / "tensorboard").rename(tmp_path / "away")  # at once, whatever is being written in it

    run = api.train(config(tmp_path, tiny_folder, "tensorboard"), name="run", runs=tmp_path, view=remove).folder
    check_whole(tmp_path, tiny_folder, run)


@pytest.mark.slow
@needs("tensorboard")
def test_one_that_is_killed_is_said_once_and_the_run_goes_on(tmp_path: Path, tiny_folder: Path) -> None:
    said: list[str] = []

    def kill(now: Progress) -> None:
        said.extend(now.notices)
        if now.step == 2:
            assert soon(lambda: trackers[0]._process is not None)
            process = trackers[0]._process
            assert process is not None
            os.kill(process.pid, signal.SIGKILL)
            assert soon(lambda: not trackers[0].warnings.empty())

    trackers: list[Tracker] = []
    with pytest.MonkeyPatch.context() as patch:
        started = Tracker.__init__

        def keep(self: Tracker, *arguments: Any) -> None:
            started(self, *arguments)
            trackers.append(self)

        patch.setattr(Tracker, "__init__", keep)
        run = api.train(config(tmp_path, tiny_folder, "tensorboard"), name="run", runs=tmp_path, view=kill).folder
    check_whole(tmp_path, tiny_folder, run)
    line = "the tracker tensorboard stopped (exit code -9); the run continues, and the run's own logs are complete"
    assert [text for text in said if "tracker" in text] == [line]
    assert [notice.text for notice in kept_notices(run)] == [line]


@needs("tensorboard")
def test_one_that_hangs_is_never_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped by SIGSTOP: the pipe fills up, then the queue, and a step still takes no time."""
    monkeypatch.setattr(tracking, "QUEUED", 100)
    monkeypatch.setattr(tracking, "FINISH_WITHIN", 1.0)
    made = Tracking(["tensorboard"], tmp_path, {})
    (tracker,) = made._trackers
    assert soon(lambda: tracker._process is not None)
    process = tracker._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    taken = []
    for step in range(2000):
        began = time.perf_counter()
        made.log(step, {f"figure/{n}": 0.123456 for n in range(40)})
        taken.append(time.perf_counter() - began)
    assert statistics.median(taken) < 0.05, "nobody waits for it"
    assert made.take_warnings() == [
        "the tracker tensorboard is too slow and misses steps; the run's own logs are complete"
    ]
    made.close()
    assert dies(process.pid), "no process is left behind"


# ---------------------------------------------------------------------------------------------- wandb and trackio


@needs("wandb")
@pytest.mark.slow
def test_wandb_offline_keeps_its_own_files(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = api.train(config(tmp_path, tiny_folder, "wandb"), name="run", runs=tmp_path).folder
    assert kept_notices(run) == []
    (kept,) = (run / "wandb").glob("offline-run-*/run-*.wandb")
    assert kept.stat().st_size > 0
    assert json.loads((run / "trackers.json").read_text())["id"] in kept.name
    check_whole(tmp_path, tiny_folder, run)


@needs("wandb")
@pytest.mark.slow
def test_wandb_at_a_dead_port_costs_the_last_seconds_and_no_more(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setattr(tracking, "FINISH_WITHIN", 8.0)
    steps: list[float] = []
    began = time.perf_counter()
    run = api.train(
        config(tmp_path, tiny_folder, "wandb"), name="run", runs=tmp_path, view=lambda now: steps.append(now.seconds)
    ).folder
    assert time.perf_counter() - began < 90
    (notice,) = kept_notices(run)
    assert notice.text == "the tracker wandb did not finish in time and was killed; the run's own logs are complete"
    check_whole(tmp_path, tiny_folder, run)
    for path in run.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path


@needs("trackio")
@pytest.mark.slow
@pytest.mark.parametrize("dead", [False, True])
def test_trackio_here_and_at_a_dead_address(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, dead: bool
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    if dead:
        monkeypatch.setenv("TRACKIO_SERVER_URL", f"http://127.0.0.1:9/?write_token={KEY}")
    run = api.train(config(tmp_path, tiny_folder, "trackio"), name="run", runs=tmp_path).folder
    assert kept_notices(run) == [], "it keeps what it cannot send"
    assert list((tmp_path / "trackio").glob("*.db"))
    check_whole(tmp_path, tiny_folder, run)
    for path in run.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path


# ---------------------------------------------------------------------------------------------- the process itself


def test_a_webhook_gets_warnings_and_the_end(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning of before the tracker is none of its own; one of before its process runs is."""
    monkeypatch.delenv("VIGNERON_WEBHOOK_URL", raising=False)
    with pytest.raises(UserError, match="webhook needs the environment variable VIGNERON_WEBHOOK_URL"):
        api.train(config(tmp_path, tiny_folder, "webhook"), name="none", runs=tmp_path)
    with serving(lambda seen, before: Sent(body="ok")) as server:
        monkeypatch.setenv("VIGNERON_WEBHOOK_URL", server.url)
        run = api.train(config(tmp_path, tiny_folder, "webhook"), name="watched", runs=tmp_path).folder
        own = len(server.seen)
        keep_notice(RunFolder(run), Notice(4, "of an earlier start", "warning"))
        monkeypatch.setenv("OTHER_API_KEY", KEY)
        trackers = Tracking(["webhook"], run, {})
        (run / "status.json").write_text(json.dumps({"state": "failed", "error": f"no disk {KEY}"}))
        keep_notice(RunFolder(run), Notice(5, "entropy is low", "warning"))
        keep_notice(RunFolder(run), Notice(5, "a note"))
        trackers.log(5, {})
        assert trackers.close() == []
    bodies = [seen.body for seen in server.seen]
    assert [(body["state"], body["step"]) for body in bodies[:own]][-1] == ("finished", 4)
    assert [body["text"] for body in bodies[own:]] == [
        "watched: warning in step 5: entropy is low",
        "watched: failed after step 5: no disk [key]",
    ]
    assert all(body["text"] == body["content"] and body["run"] == "watched" for body in bodies)


@pytest.mark.parametrize(("status", "dies"), [(503, False), (429, False), (404, True)])
def test_a_webhook_that_fails_for_now_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, dies: bool
) -> None:
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 600.0)
    monkeypatch.setattr(webhooks, "RETRY_S", 3600.0)
    with serving(lambda seen, before: Sent(status if before == 0 else 200)) as server:
        monkeypatch.setenv("VIGNERON_WEBHOOK_URL", server.url)
        log, finish = webhook({"name": "run", "folder": str(tmp_path), "notices": 0})
        keep_notice(RunFolder(tmp_path), Notice(1, "one", "warning"))
        with pytest.raises(HTTPError) if dies else nullcontext():
            log(1, {})
        if dies:
            return
        log(2, {})
        assert len(server.seen) == 1, "not at every step"
        finish()
    assert [seen.body["text"] for seen in server.seen[1:]] == [
        "run: warning in step 1: one",
        "run: killed after step 2",
    ]


def test_an_error_holds_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert worker.one_line(ValueError(f"bad\nkey {KEY} at http://x")) == "bad key [key] at http://x"


@needs("tensorboard")
def test_a_run_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    """Its end of the pipe closes, and the tracker finishes by itself."""
    made = Tracker("tensorboard", {"name": "run", "folder": str(tmp_path), "config": {}, "id": "1"})
    assert soon(lambda: made._process is not None)
    process = made._process
    assert process is not None
    assert process.stdin is not None
    assert soon(lambda: any(tmp_path.rglob("*tfevents*"))), "it was told of the run"
    process.stdin.close()
    assert process.wait(600) == 0
