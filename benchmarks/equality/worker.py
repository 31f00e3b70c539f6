"""Runs the stages of a job with the `vigneron` that PYTHONPATH names. A script: it imports nothing of `benchmarks`.

    python worker.py JOB.json

A job is `{"cases": [{"name", "stages": [{"do", …}]}], "results": PATH}`. After each case one line is appended to
`results`: `{"case", "error", "evaluations"}`. Only public entry points are used, since modules move.
"""

import json
import os
import random
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vigneron


def run_stage(stage: dict[str, Any], evaluations: dict[str, Any]) -> None:
    run = Path("runs") / stage["run"]
    if stage["do"] == "train":
        vigneron.train(stage["recipe"], name=stage["run"], runs="runs")
    elif stage["do"] == "resume":
        vigneron.resume(run, *stage["overrides"])
    elif stage["do"] == "evaluate":
        evaluations[stage["run"]] = vigneron.load_run(run).evaluate()
    else:
        command_line(stage["arguments"])


def command_line(arguments: list[str]) -> None:
    """The `vigneron` command in this process."""
    before = sys.argv, sys.excepthook
    sys.argv = ["vigneron", *arguments]
    try:
        runpy.run_module("vigneron", run_name="__main__")
    except SystemExit as left:
        if left.code:
            raise RuntimeError(f"vigneron {' '.join(arguments)}: exit status {left.code}") from left
    finally:
        sys.argv, sys.excepthook = before


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """Every case begins with the same generators, whichever cases ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    evaluations: dict[str, Any] = {}
    error = None
    try:
        for stage in case["stages"]:
            run_stage(stage, evaluations)
    except Exception as failure:  # of the code under test: the other cases are still compared
        traceback.print_exc()
        error = f"{type(failure).__name__}: {failure}"
    return {"case": case["name"], "error": error, "evaluations": evaluations}


def check_code() -> None:
    """The package may be installed as well: what runs has to be the checkout's."""
    wanted, found = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]), Path(str(vigneron.__file__))
    if not found.is_relative_to(wanted):
        raise SystemExit(f"vigneron comes from '{found}', not from '{wanted}'")


def main() -> None:
    check_code()
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with Path(job["results"]).open("a", encoding="utf-8") as file:
        for case in job["cases"]:
            print(f"== {case['name']}", flush=True)
            file.write(json.dumps(run_case(case)) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
