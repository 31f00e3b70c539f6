"""Studies in pieces: several processes share jobs, a run that was cut is resumed, and one command does all."""

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.dense_study import RATES, Setting, opposites_job
from benchmarks.study_jobs import KEY, Job, Plan, do, is_of, work
from benchmarks.study_store import claimed, finished_jobs, read_result, unpack, working, write_result

from benchmarks import dense_study, pieces, rubric_study, study_jobs, study_settings, study_store, turns_study
from support.tiny_models import long_tiny_folder
from vigneron.data.tasks import load_task
from vigneron.errors import UserError
from vigneron.report.paired_intervals import estimates
from vigneron.run_store import eval_rows
from vigneron.run_store.experiment_arms import CollectedRun, arms_of
from vigneron.run_store.folder import RunFolder
from vigneron.training.setup import start
from vigneron.training.signals import Stopped


def measuring(name: str, found: Any = 3, **labels: Any) -> Job:
    """A job that trains nothing."""
    return Job(name, "demo", (), labels, 60.0, instead=lambda *_: {"found": found})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return long_tiny_folder(tmp_path_factory.mktemp("tiny"))


# ---------------------------------------------------------------------------------------------- several processes


def test_two_processes_do_not_take_the_same_job(tmp_path: Path) -> None:
    with claimed(tmp_path, "a") as first, claimed(tmp_path, "a") as second:
        assert (first, second) == (True, False)
    with claimed(tmp_path, "a") as again:
        assert again


def archive_of(runs: Path, *jobs: Job) -> Path:
    assert work(lambda _: Plan(jobs), runs, 600.0, lambda _: None) == 0
    for job in jobs:
        (runs / job.name / "metrics.jsonl").write_text("")
    study_store.pack(runs, runs / "done.tar.xz")
    return runs / "done.tar.xz"


def test_two_processes_take_over_an_archive_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, runs = archive_of(tmp_path / "other", measuring("a"), measuring("b")), tmp_path / "runs"
    copy = study_store.shutil.copytree

    def slow(path: Path, to: Path) -> None:
        assert not (runs / path.name).exists(), "others see a whole folder or none"
        time.sleep(0.1)
        copy(path, to)
        time.sleep(0.1)
        assert not (runs / path.name).exists()

    monkeypatch.setattr(study_store.shutil, "copytree", slow)
    taken: list[int] = []
    threads = [threading.Thread(target=lambda: taken.append(unpack(archive, runs))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [0, 2]
    assert [result["job"] for result in study_store.all_results(runs)] == ["a", "b"]


def test_a_job_that_another_process_has_begun_is_not_taken_over(tmp_path: Path) -> None:
    archive = archive_of(tmp_path / "other", measuring("a"), measuring("b"))
    with claimed(tmp_path / "runs", "a"):
        assert unpack(archive, tmp_path / "runs") == 1
    assert read_result(tmp_path / "runs", "a") is None


def test_the_first_command_can_be_given_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever starts later finds jobs of the first; without it, they belong to an earlier study."""
    command = ["work", str(tmp_path), "--smoke", "--budget", "0"]
    assert dense_study.main(command) == 0
    assert dense_study.main(command) == 0, "nothing but the processes' own files is there yet"
    (tmp_path / "p0-opposites-1").mkdir()
    with working(tmp_path):
        assert dense_study.main(command) == 0
    capsys.readouterr()
    assert dense_study.main(command) == 2
    assert "give --resume" in capsys.readouterr().err
    assert dense_study.main([*command, "--resume"]) == 0


# ---------------------------------------------------------------------------------------------- jobs


def test_rows_are_kept_in_eight_digits(tmp_path: Path) -> None:
    run, rows = tmp_path / "run", [(1 / 3, 2e-9 / 7, 0.25), (None, 1.0, 0.0)]
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 0}\n')
    kept = [eval_rows.EvalRow(0, (at, -5), a, b, {"more": c}) for at, (a, b, c) in enumerate(rows)]
    (run / eval_rows.FILE).write_text(eval_rows.eval_row_lines(kept))
    study_store.reduce_logs(run, tmp_path / "small")
    (first, second) = eval_rows.read_kept_rows(tmp_path / "small")
    assert (first.name, first.correct, first.reward, first.others) == (
        (0, -5),
        0.33333333,
        2.8571429e-10,
        {"more": 0.25},
    )
    assert (second.name, second.correct, second.reward) == ((1, -5), None, 1.0)
    with (run / eval_rows.FILE).open("a") as file:
        file.write('{"step": 1}\n')
    with pytest.raises(UserError, match="lines that are no rows"):
        study_store.reduce_logs(run, tmp_path / "again")


def test_an_arm_that_this_version_cannot_run_is_named() -> None:
    known = opposites_job(Setting(), "binary", 1, 16, 2e-5, 0, tuned=True)
    changes = tuple("reward={kind: telepathy}" if c.startswith("reward=") else c for c in known.changes)
    can, refused = study_jobs.available({"binary": known, "telepathy": Job("x", known.recipe, changes, {}, 1.0)})
    assert can == ["binary"]
    assert "telepathy" in refused["telepathy"]


def test_a_job_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    def broken(*_: object) -> study_store.Result:
        raise UserError("no luck")

    jobs = [Job("a", "demo", (), {}, 1.0, instead=broken), measuring("b")]
    said: list[str] = []
    assert work(lambda runs: Plan(jobs), tmp_path, 600.0, said.append) == 1
    assert said[0] == "failed  a: no luck"
    assert said[-1] == "1 failed: a"
    found = read_result(tmp_path, "b")
    assert found is not None
    assert found.pop("seconds") < 60
    assert found == {"job": "b", "key": measuring("b").key(tmp_path), "found": 3}


def test_a_job_is_done_again_if_its_rate_is_chosen_anew(tmp_path: Path) -> None:
    def once(rate: float) -> list[str]:
        said: list[str] = []
        job = measuring("a", rate, rate=rate)
        assert work(lambda runs: Plan([job]), tmp_path, 600.0, said.append) == 0
        found = read_result(tmp_path, "a")
        assert found is not None
        assert (found["rate"], found["found"]) == (rate, rate)
        return said

    assert [len(once(rate)) for rate in (1e-5, 1e-5, 5e-5)] == [2, 1, 2]  # the second time nothing is left


@pytest.mark.slow
def test_every_job_has_its_own_key_wherever_its_folder_lies(tmp_path: Path) -> None:
    """Of all arms: another rate, seed, model, or number of steps is another job."""

    def all_of(runs: Path, **changed: Any) -> list[str]:
        dense, rubric = Setting(**changed), rubric_study.Setting(**changed)
        made = [
            *(opposites_job(dense, arm, 1, 16, rate, 0, tuned=True) for arm in dense_study.REWARDS for rate in RATES),
            *(
                dense_study.open_job(dense, arm, 2e-5, steps, 0, tuned=True)
                for arm in dense_study.OPEN
                for steps in (15, 30)
            ),
            *(
                rubric_study.category_job(rubric, runs, arm, r, s, tuned=True)
                for arm in rubric_study.METHODS
                for r in RATES
                for s in (0, 1)
            ),
            *(
                rubric_study.confidence_job(rubric, runs, arm, r, 0, tuned=True)
                for arm in rubric_study.CONFIDENCES
                for r in RATES
            ),
        ]
        return [job.key(runs) for job in made]

    keys = all_of(tmp_path / "here")
    assert len(set(keys)) == len(keys)
    assert all_of(tmp_path / "there") == keys
    assert not set(all_of(tmp_path / "here", model="gpt2")) & set(keys)
    assert not set(all_of(tmp_path / "here", eval_every=5)) & set(keys)


def test_a_job_of_a_smoke_test_is_not_done(tmp_path: Path) -> None:
    small, whole = (
        opposites_job(setting, "binary", 2, 16, 2e-5, 100, tuned=False)
        for setting in (dense_study.smoke("smollm2-135m"), Setting())
    )
    assert small.name == whole.name
    folder = tmp_path / small.name
    folder.mkdir()
    (folder / KEY).write_text(small.key(tmp_path))
    write_result(tmp_path, small.name, {"key": small.key(tmp_path)})
    assert is_of(small, tmp_path)
    assert study_jobs.is_done(small, tmp_path)
    assert not is_of(whole, tmp_path)
    assert not study_jobs.is_done(whole, tmp_path)
    assert study_jobs.result_of(whole, tmp_path) is None
    assert not is_of(measuring("x"), tmp_path), "a process was killed before it wrote the key"


@pytest.mark.slow
@pytest.mark.usefixtures("few_held_out")
def test_a_cut_run_is_resumed_and_ends_as_an_uncut_one(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(steps=4, eval_every=2, model=model)
    job = opposites_job(setting, "binary", 1, 16, 2e-5, 0, tuned=True)
    assert do(job, tmp_path / "whole", until=float("inf"))
    cut = tmp_path / "cut" / job.name
    cut.mkdir(parents=True)  # as a process leaves it that is killed early
    assert not do(job, tmp_path / "cut", until=0.0, memory_gb=8.0)  # after its first step
    assert [path.name for path in (cut / "checkpoints").iterdir()] == ["step-1"]
    assert not (cut / "result.json").exists()
    (cut / study_jobs.SPENT).write_text("1000")
    with monkeypatch.context() as patched:
        patched.setattr(start, "start_run", None)  # it is not begun again
        assert do(job, tmp_path / "cut", until=float("inf"))
    assert RunFolder.open(cut).config().model.memory_gb == 8, "a worker's share, which is not in the key"
    assert not (cut / "samples.sqlite").exists()
    results = [read_result(tmp_path / name, job.name) or {} for name in ("whole", "cut")]
    seconds = [result.pop("seconds") for result in results]
    assert seconds[0] < 1000 < seconds[1], "with those of earlier pieces"
    assert all(0 < result.pop("step_s") < 1000 for result in results)
    assert results[0] == results[1]
    (run,) = arms_of([CollectedRun.read(tmp_path / "whole" / job.name)])
    (accuracy,) = [one for one in estimates([run]) if one.metric == "eval/accuracy"]
    rows = len(load_task("opposites-1").rows("held_out"))
    assert accuracy.rows == len(results[0]["scores"]["end"]) == rows, "`vigneron compare` reads the same rows"
    assert accuracy.interval.mean == pytest.approx(sum(results[0]["scores"]["end"]) / rows, abs=1e-4)
    logs = [(tmp_path / name / job.name / "metrics.jsonl").read_text() for name in ("whole", "cut")]
    assert logs[0] == logs[1]


@pytest.mark.slow
@pytest.mark.usefixtures("few_held_out")
def test_a_run_that_was_cut_at_another_rate_is_begun_again(tmp_path: Path, model: str) -> None:
    setting = Setting(steps=4, eval_every=2, model=model)
    before, after = (opposites_job(setting, "cosine", 1, 16, rate, 0, tuned=True) for rate in (2e-5, 5e-5))
    assert before.name == after.name
    assert not do(before, tmp_path, until=0.0)
    assert do(after, tmp_path, until=float("inf"))
    records = RunFolder.open(tmp_path / after.name).metrics()
    assert [record["learning_rate"] for record in records if record["step"]] == [5e-5] * 4


@pytest.mark.slow
@pytest.mark.usefixtures("few_held_out")
def test_a_signal_from_outside_ends_the_process(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would resume the run at once otherwise."""
    monkeypatch.setattr(study_jobs.UntilView, "step", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    job = opposites_job(Setting(steps=4, eval_every=2, model=model), "binary", 1, 16, 2e-5, 0, tuned=True)
    with pytest.raises(Stopped):
        work(lambda _: Plan([job]), tmp_path, 600.0, lambda _: None)
    assert [path.name for path in (tmp_path / job.name / "checkpoints").iterdir()] == ["step-1"]


# ---------------------------------------------------------------------------------------------- plan and all


def toy() -> pieces.Study:
    """Two jobs of a minute, and then two that are known when these are done."""

    def plan(runs: Path) -> Plan:
        first, later = ([measuring(name) for name in names] for names in ("ab", "cd"))
        known = all(read_result(runs, job.name) for job in first)
        return Plan([*first, *later] if known else first, more=not known)

    return pieces.Study(plan, {}, lambda: 240.0)


def planned(*given: str) -> int:
    return pieces.run_study(pieces.parse("toy", None, ["plan", *given]), lambda *_: None, toy)


def finish(runs: Path, *names: str) -> None:
    for name in names:
        (runs / name).mkdir(parents=True)
        write_result(runs, name, {"job": name, "key": measuring(name).key(runs)})


def test_the_plan_says_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    assert planned(str(runs)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a: 60 s",
        "b: 60 s",
        "0 jobs are done, 2 can be begun: 2 minutes",
        "others become known when these are done: about 2 minutes",
        "left: 4 minutes of one process, 2 of 2",
        "as if nothing were done: 4 minutes of one process, 2 of 2",
    ]
    assert not runs.exists()
    finish(runs, "a", "b", "c")
    planned(str(runs))
    assert capsys.readouterr().out.splitlines()[:3] == [
        "d: 60 s",
        "3 jobs are done, 1 can be begun: 1 minutes",
        "left: 1 minutes of one process, 0 of 2",
    ]


def test_the_plan_counts_what_another_machine_has_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, runs = archive_of(tmp_path / "other", measuring("a")), tmp_path / "runs"
    finish(runs, "b")
    planned(str(runs), "--done", str(archive))
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["c: 60 s", "d: 60 s"]
    assert "left: 2 minutes of one process, 1 of 2" in said
    planned(str(archive))  # an archive in place of the folder
    assert "left: 3 minutes of one process, 2 of 2" in capsys.readouterr().out
    assert not (runs / "a").exists()
    with finished_jobs(archive, tmp_path / "nothing", runs) as folder:
        assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]


WORKER = """
import os, sys
from pathlib import Path
from benchmarks.study_jobs import Job
from benchmarks.study_store import write_result
runs, place = Path(sys.argv[1]), sys.argv[2]
if place == "fails":
    sys.exit(1)
for name in "ab" if place == "first" else "cd":
    (runs / name).mkdir()
    (runs.parent / "threads").write_text(os.environ["OMP_NUM_THREADS"])
    (runs / name / "config.yaml").write_text("")
    (runs / name / "metrics.jsonl").write_text("")
    write_result(runs, name, {"job": name, "key": Job(name, "demo", (), {}, 60.0).key(runs)})
"""


@pytest.mark.slow
def test_one_command_does_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, shown = tmp_path / "runs", []
    places = iter(["first", "fails", "first", "second"])

    def whole(*more: str) -> int:
        given = pieces.parse("toy", None, ["all", str(runs), "--workers", "2", "--figure", "f.svg", *more])
        return pieces.run_study(given, lambda *both: shown.append(both), toy)

    def command(given: object) -> list[str]:
        return [sys.executable, "-c", WORKER, str(runs), next(places)]

    monkeypatch.setattr(pieces, "worker_command", command)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["src", "."]))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(pieces, "cores", lambda: 16)
    monkeypatch.chdir(Path(__file__).parents[2])
    assert whole() == 1
    assert (tmp_path / "threads").read_text() == "8"
    assert "2 jobs are left, such as c, d: go on with --resume" in capsys.readouterr().err
    assert unpack(tmp_path / "runs.tar.xz", tmp_path / "so far") == 2
    assert whole() == 2, "it has jobs"
    for name in "ab":
        study_store.shutil.rmtree(runs / name)
    assert whole("--resume") == 0
    ((results, figure),) = shown
    assert [result["job"] for result in results] == ["a", "b", "c", "d"]
    assert figure == Path("f.svg")
    assert unpack(tmp_path / "runs.tar.xz", tmp_path / "elsewhere") == 4


def test_a_worker_gets_what_was_asked(tmp_path: Path) -> None:
    given = pieces.parse("dense_study", None, ["all", str(tmp_path), "--smoke", "--model", "tiny"])
    command = pieces.worker_command(given)
    assert command[:3] == [sys.executable, "-m", "benchmarks.dense_study"]
    again = pieces.parse("dense_study", None, command[3:])
    assert (again.verb, again.runs, again.smoke, again.model) == ("work", tmp_path, True, "tiny")
    assert (again.resume, again.budget) == (True, float("inf"))
    assert again.memory is None
    given = pieces.parse("dense_study", None, ["all", str(tmp_path), "--budget", "480", "--memory", "20.5"])
    again = pieces.parse("dense_study", None, pieces.worker_command(given)[3:])
    assert (again.budget, again.memory) == (480, 20.5)


def test_workers_share_the_free_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pieces.share_gb(3) is None or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (100 * 2**30, 140 * 2**30))
    assert pieces.share_gb(3) == 33.3


STOPPED = """
import signal, sys, time
from pathlib import Path
def stop(*_):
    Path(sys.argv[1]).write_text("stopped")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
Path(sys.argv[2]).write_text("")
while True:
    time.sleep(0.01)
"""


@pytest.mark.slow
def test_sigterm_stops_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = iter("ab")

    def command(given: object) -> list[str]:
        name = next(names)
        return [sys.executable, "-c", STOPPED, str(tmp_path / f"stopped-{name}"), str(tmp_path / f"begun-{name}")]

    def stop_when_begun() -> None:
        while not all((tmp_path / f"begun-{name}").exists() for name in "ab"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(pieces, "worker_command", command)
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=stop_when_begun)
    thread.start()
    given = pieces.parse("toy", None, ["all", str(tmp_path / "runs"), "--workers", "2"])
    assert pieces.run_study(given, lambda *_: None, toy) == 1
    thread.join()
    assert sorted(path.name for path in tmp_path.glob("stopped-*")) == ["stopped-a", "stopped-b"]
    assert "go on with --resume" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before


def tried_rate(rate: float) -> Job:
    return measuring(f"tune-{rate:g}", rate=rate)


def tried_rates(runs: Path, areas: Mapping[float, float], rates: Sequence[float]) -> list[float]:
    """The rates of a grid that are tried in the end, if these areas are found."""
    while True:
        tried = [job.labels["rate"] for job in study_settings.tuning(tried_rate, rates, runs)]
        missing = [rate for rate in tried if not (runs / tried_rate(rate).name).exists()]
        if not missing:
            return tried
        for rate in missing:
            job = tried_rate(rate)
            (runs / job.name).mkdir(parents=True)
            write_result(runs, job.name, {"key": job.key(runs), "rate": rate, "area": areas[rate]})


def test_where_a_rate_at_the_edge_is_best_the_next_is_tried(tmp_path: Path) -> None:
    grid = (1e-5, 2e-5, 5e-5)
    up = {1e-5: 0.1, 2e-5: 0.2, 5e-5: 0.3, 1e-4: 0.4, 2e-4: 0.4}
    assert tried_rates(tmp_path / "up", up, grid) == [*grid, 1e-4, 2e-4]
    jobs = study_settings.tuning(tried_rate, grid, tmp_path / "up")
    assert study_settings.rate_of(jobs, tmp_path / "up") == 1e-4, "of equals the smaller"
    assert tried_rates(tmp_path / "inside", {1e-5: 0.1, 2e-5: 0.3, 5e-5: 0.2}, grid) == [*grid]
    down = {rate: 1 - rate for rate in (1e-6, 2e-6, 5e-6, *grid)}
    assert tried_rates(tmp_path / "down", down, grid) == [2e-6, 5e-6, *grid], "at most two more"
    assert tried_rates(tmp_path / "flat", dict.fromkeys(grid, 0.0), grid) == [*grid]
    assert tried_rates(tmp_path / "one", {2e-5: 0.5}, (2e-5,)) == [2e-5], "one rate is no choice"


@pytest.mark.parametrize(
    "rates",
    [dense_study.RATES, dense_study.SFT_RATES, rubric_study.RATES, rubric_study.CONFIDENCE_RATES, turns_study.RATES],
)
def test_the_grid_of_every_study_goes_on(rates: Sequence[float]) -> None:
    assert study_settings.previous_rate(rates[0]) < rates[0]
    assert study_settings.next_rate(rates[-1]) > rates[-1]
    assert study_settings.previous_rate(rates[0]) == pytest.approx(rates[0] / 2, rel=0.34)
    assert study_settings.next_rate(rates[-1]) == pytest.approx(rates[-1] * 2, rel=0.26)


def test_the_rates_by_hand() -> None:
    assert [study_settings.next_rate(rate) for rate in (1e-5, 2e-5, 3e-5, 5e-5, 1e-4)] == [2e-5, 5e-5, 5e-5, 1e-4, 2e-4]
    assert [study_settings.previous_rate(rate) for rate in (1e-5, 2e-5, 3e-6, 5e-6)] == [5e-6, 1e-5, 2e-6, 2e-6]


def test_a_run_at_a_rate_that_is_not_chosen_any_more_is_not_shown() -> None:
    def one(arm: str, rate: float, area: float | None = None) -> study_store.Result:
        return {"arm": arm, "rate": rate, "tuned": area is None, "area": area or 0.0}

    tuning = [one("a", 1e-5, 0.1), one("a", 2e-5, 0.3), one("a", 5e-5, 0.2)]
    runs = [one("a", 1e-5), one("a", 2e-5), one("b", 5e-5), {"part": "p0"}]
    found = study_settings.current([*tuning, *runs], lambda row: row["arm"], study_settings.chosen_label)
    assert found == [*tuning, one("a", 2e-5), one("b", 5e-5), {"part": "p0"}]
