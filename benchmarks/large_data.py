"""Time and memory to start and to resume a run on a large dataset, above those of a run on ten rows.

    python -m benchmarks.large_data --rows 1000000
    python -m benchmarks.large_data --rows 100000 --kinds prompts --source OLD/src

Every figure is of a process of its own with the bundled model on the CPU; none trains a step. On a busy machine go by
the CPU seconds, which are those of all processes together.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state")
TURNS = 4
KINDS = ("prompts", "conversations")
VERBS = ("start", "resume")
SMALL = 10

CHILD = """
import json, resource, sys, time
from pathlib import Path

from vigneron.methods import build_method
from vigneron.recipe import check_config
from vigneron.run_store.folder import RunFolder
from vigneron.training.callbacks import Silent
from vigneron.training.setup.start import start_run
from vigneron.training.setup.resume import resume_run


def cpu():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def peak():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


config, runs, verb = check_config(json.loads(sys.argv[1]), "benchmark"), Path(sys.argv[2]), sys.argv[3]
began, used = time.perf_counter(), cpu()
if verb == "start":
    run = start_run(config, runs, build_method, name="run", view=Silent())
else:
    run = resume_run(RunFolder.open(runs / "run"), build_method, view=Silent())
seconds, rows = time.perf_counter() - began, len(run.data.train)
run.close()
print(json.dumps({"seconds": seconds, "cpu": cpu() - used, "mib": peak(), "rows": rows}))
"""


def write_rows(path: Path, kind: str, rows: int) -> None:
    """Sentences of 8 to 24 words; a conversation has two turns of each role."""
    random = Random(0)

    def sentence() -> str:
        return " ".join(random.choices(WORDS, k=random.randint(8, 24)))

    with path.open("w") as file:
        for number in range(rows):
            if kind == "prompts":
                row: dict[str, Any] = {"prompt": f"{number}: {sentence()}", "answer": random.choice(WORDS)}
            else:
                roles = ("user", "assistant") * (TURNS // 2)
                row = {"messages": [{"role": role, "content": f"{number}: {sentence()}"} for role in roles]}
            file.write(json.dumps(row) + "\n")


def recipe(kind: str, data: Path) -> dict[str, Any]:
    method = {"name": "grpo"} if kind == "prompts" else {"name": "sft"}
    base: dict[str, Any] = {
        "method": method,
        "model": {"name": "smollm2-135m", "device": "cpu", "chat": "auto"},
        "data": {"train": str(data)},
        "steps": 1,
        "eval_every": 0,
    }
    if kind == "prompts":
        return base | {"reward": {"kind": "binary"}, "group_size": 2}
    return base | {"model": {**base["model"], "chat": "minted"}}


def measure(command: list[str], kind: str, rows: int, place: Path) -> dict[str, dict[str, float]]:
    data, runs = place / f"{kind}-{rows}.jsonl", place / f"runs-{kind}-{rows}"
    place.mkdir(exist_ok=True)
    write_rows(data, kind, rows)
    figures = {}
    for verb in VERBS:
        done = subprocess.run(
            [*command, json.dumps(recipe(kind, data)), str(runs), verb],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        figures[verb] = json.loads(done.stdout.splitlines()[-1])
        assert figures[verb]["rows"] == rows
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--source", help="the `src` of another checkout to measure")
    options = parser.parse_args()
    if options.source:
        os.environ["PYTHONPATH"] = options.source
    command = [sys.executable, "-c", CHILD]
    head = [f"{verb}, {unit}" for verb in VERBS for unit in ("s", "CPU s", "MiB")]
    print(f"| kind | rows | {' | '.join(head)} |\n|---|---:{'|---:' * len(head)}|")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("VIGNERON_CACHE", str(Path(folder) / "cache"))
        for kind in options.kinds:
            measure(command, kind, SMALL, Path(folder) / "first")  # the first run fills caches
            small = measure(command, kind, SMALL, Path(folder))
            for rows in options.rows:
                large = measure(command, kind, rows, Path(folder))
                cells = [f"{large[v][f] - small[v][f]:.1f}" for v in VERBS for f in ("seconds", "cpu", "mib")]
                print(f"| {kind} | {rows} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
