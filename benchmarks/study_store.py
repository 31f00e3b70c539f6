"""What studies keep of a finished job: its result, the scores of its held-out rows, and reduced logs in archives.

`result.json` has the job's labels and what was measured of it as a whole; the scores of single rows are in the run
store's `eval_rows.jsonl`, which `vigneron compare` reads too.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from vigneron.errors import UserError
from vigneron.run_store import eval_rows
from vigneron.run_store.archive import RESULT, SUFFIX, unpacked, write_archive
from vigneron.run_store.samples import Sample, SampleStore

LAST = 3
"""A run's score is the mean of its last evaluations, of this number."""
# Every tenth step of a run, and all evaluated ones.
KEPT_EVERY = 10
Result = dict[str, Any]
"""What `result.json` holds. As it is read, with `scores`: a list with a value of each held-out row, for each name of
`scores_of`."""
Scoring = Callable[[Sequence[Sample]], list[float]]
"""A score of each of an evaluation's rows."""


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def read_result(runs: Path, name: str) -> Result | None:
    """None: the job is not done. `row_score` names the score of its rows."""
    file = runs / name / RESULT
    if not file.is_file():
        return None
    result: Result = json.loads(file.read_text(encoding="utf-8"))
    if "row_score" in result:
        result["scores"] = scores_of(row_values(file.parent, result["row_score"]))
    return result


def all_results(runs: Path) -> list[Result]:
    """Of all finished jobs, by name."""
    names = sorted(file.parent.name for file in runs.glob(f"*/{RESULT}"))
    return [found for name in names if (found := read_result(runs, name)) is not None]


def write_result(runs: Path, name: str, result: Result) -> None:
    draft = runs / name / f".{RESULT}"
    draft.write_text(json.dumps(result), encoding="utf-8")
    draft.replace(runs / name / RESULT)


def write_once(file: Path, text: str) -> None:
    """A file that several processes may write, always the same."""
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f"{file.name}.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)


# ---------------------------------------------------------------------------------------------- processes


@contextmanager
def lock_file(runs: Path, name: str) -> Iterator[IO[str]]:
    """A file that processes lock. A lock ends with its process. Names of jobs do not begin with a dot."""
    place = runs / ".claims"
    place.mkdir(parents=True, exist_ok=True)
    with (place / name).open("w") as file:
        yield file


def locks(file: IO[str]) -> bool:
    """Whether this process has the lock now, since no other had it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def claimed(runs: Path, name: str) -> Iterator[bool]:
    """Whether no other process has this job."""
    with lock_file(runs, name) as file:
        yield locks(file)


@contextmanager
def working(runs: Path) -> Iterator[None]:
    """Other processes can see that this one works in the folder."""
    with lock_file(runs, ".workers") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def is_worked_in(runs: Path) -> bool:
    """Whether another process works in the folder."""
    if not (runs / ".claims" / ".workers").is_file():
        return False
    with lock_file(runs, ".workers") as file:
        return not locks(file)


# ---------------------------------------------------------------------------------------------- rows


def keep_rows(path: Path, others: Mapping[str, Scoring] | None = None, role: str | None = None) -> None:
    """Write the rows of every evaluation, with the scores that a study adds; the samples are not needed any more. Of a
    game, whose rows have a sample for each role, those of `role`."""
    rows = eval_rows.read_eval_rows(path, every=True)
    if role is not None:
        found = [one for samples in evaluations(path).values() for one in samples]
        own = {(sample.step, sample.sample) for sample in found if sample.extras.get("role") == role}
        rows = [row for row in rows if (row.step, row.name[0]) in own]
    for name, scoring in (others or {}).items():
        values = {
            (step, sample.sample): value
            for step, samples in evaluations(path).items()
            for sample, value in zip(samples, scoring(samples), strict=True)
        }
        rows = [replace(row, others={**row.others, name: values[row.step, row.name[0]]}) for row in rows]
    (path / eval_rows.FILE).write_text(eval_rows.eval_row_lines(rows), encoding="utf-8")


def evaluations(path: Path) -> dict[int, list[Sample]]:
    """The greedy answers to all held-out rows, by step."""
    store = SampleStore(path, read_only=True)
    try:
        return {step: store.page(step=step, kind="eval", limit=100_000) for step in store.steps("eval")}
    finally:
        store.close()


def row_values(path: Path, score: str) -> dict[int, list[float]]:
    """The scores of all rows, in their order, by step. A row that lacks one is refused: missing is not zero, and other
    runs are compared row by row."""
    found: dict[int, dict[tuple[int, int], float | None]] = {}
    for row in eval_rows.read_kept_rows(path):
        found.setdefault(row.step, {})[row.name] = row.score(score)
    names = sorted({name for by_name in found.values() for name in by_name})
    for step, by_name in found.items():
        if missing := [name for name in names if by_name.get(name) is None]:
            raise UserError(
                f"{path.name}: {len(missing)} of {len(names)} held-out rows have no '{score}' at step {step}, so it "
                "cannot be compared with other runs: see why in its samples, then delete its folder to train it again"
            )
    return {step: [float(found[step][name] or 0.0) for name in names] for step in sorted(found)}


def scores_of(values: Mapping[int, Sequence[float]]) -> dict[str, list[float]]:
    """Of values by step, for each row: `before` training, `last` (the mean of the last evaluations), `area` (of all
    after the first step) and `end` (the last evaluation)."""
    steps = sorted(values)
    after = [step for step in steps if step > 0]

    def means(over: Sequence[int]) -> list[float]:
        return [round(mean(each), 4) for each in zip(*(values[step] for step in over), strict=True)]

    return {"before": means(steps[:1]), "last": means(after[-LAST:]), "area": means(after), "end": means(after[-1:])}


# ---------------------------------------------------------------------------------------------- archives


def reduce_logs(run: Path, into: Path) -> None:
    """A run's config, every tenth and every evaluated step in four digits, its rows in eight, and its result."""
    into.mkdir(parents=True, exist_ok=True)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = [r for r in records if r["step"] % KEPT_EVERY == 0 or any(name.startswith("eval/") for name in r)]
    lines = [json.dumps({name: _short(value) for name, value in record.items()}) + "\n" for record in kept]
    (into / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    if (run / eval_rows.FILE).is_file():
        rows = [_short_row(row) for row in eval_rows.read_kept_rows(run)]
        if len(rows) < len((run / eval_rows.FILE).read_text(encoding="utf-8").splitlines()):
            raise UserError(f"{run.name}: {eval_rows.FILE} has lines that are no rows")
        (into / eval_rows.FILE).write_text(eval_rows.eval_row_lines(rows), encoding="utf-8")
    for name in ("config.yaml", RESULT):
        if (run / name).is_file():
            shutil.copy(run / name, into / name)


def _short(value: Any, digits: int = 4) -> Any:
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def _short_row(row: eval_rows.EvalRow) -> eval_rows.EvalRow:
    others = {name: _short(value, 8) for name, value in row.others.items()}
    return replace(row, correct=_short(row.correct, 8), reward=_short(row.reward, 8), others=others)


def pack_runs(runs: Sequence[Path], file: Path) -> None:
    """Reduced logs in one file that `vigneron compare` reads."""
    with TemporaryDirectory() as place:
        for run in runs:
            reduce_logs(run, Path(place) / run.name)
        write_archive(sorted(Path(place).iterdir()), file)


def pack(runs: Path, file: Path) -> None:
    """The logs of finished jobs."""
    pack_runs(sorted(path.parent for path in runs.glob(f"*/{RESULT}")), file)


def unpack(file: Path, runs: Path) -> int:
    """Take over the finished jobs of an archive, as on another machine; returns their number. One process at a time,
    and no job that another process has begun."""
    taken = 0
    with lock_file(runs, ".archive") as lock, unpacked(file) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in sorted(folder.iterdir()):
            with claimed(runs, path.name) as free:
                if free and not (runs / path.name).exists():
                    draft = runs / ".claims" / ".draft"
                    shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
                    shutil.copytree(path, draft)
                    draft.rename(runs / path.name)  # with all its files, or not at all
                    taken += 1
    return taken


@contextmanager
def finished_jobs(*places: Path | None) -> Iterator[Path]:
    """A folder with the results of all jobs that are finished in these folders and archives; the last has precedence. A
    folder that is not there has none."""
    with TemporaryDirectory() as temporary:
        for place in places:
            if place is None or not (place.exists() or place.name.endswith(SUFFIX)):
                continue
            with unpacked(place) as folder:
                for result in folder.glob(f"*/{RESULT}"):
                    own = Path(temporary) / result.parent.name
                    own.mkdir(exist_ok=True)
                    for file in (result, result.with_name(eval_rows.FILE)):
                        if file.is_file():
                            shutil.copy(file, own)
        yield Path(temporary)
