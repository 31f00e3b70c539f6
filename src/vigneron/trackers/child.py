"""The process that talks to one tracker: `python -m vigneron.trackers.child NAME`, with lines of JSON to its input.

The first line says what the run is, each that follows is a step's figures. What it says on its error output, in one
line, is why it stopped. When its input ends it has so many seconds to finish.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from vigneron.redaction import redacted

FINISH_WITHIN = 60

Metrics = dict[str, float]
Log = Callable[[int, Metrics], None]


def tensorboard(run: dict[str, Any]) -> tuple[Log, Callable[[], None]]:
    """Events in the run's own folder, without TensorFlow."""
    writer = import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter(
        run["folder"] + "/tensorboard"
    )
    events = import_module("tensorboard.compat.proto.event_pb2")
    summaries = import_module("tensorboard.compat.proto.summary_pb2")

    def log(step: int, metrics: Metrics) -> None:
        values = [summaries.Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        writer.add_event(events.Event(step=step, wall_time=time.time(), summary=summaries.Summary(value=values)))
        writer.flush()

    return log, writer.close


def wandb(run: dict[str, Any]) -> tuple[Log, Callable[[], None]]:
    """Where, by whose key and whether offline at all is said by wandb's own variables (WANDB_MODE, …)."""
    package: Any = import_module("wandb")
    settings = package.Settings(silent=True, console="off", x_disable_stats=True, init_timeout=30)
    started = package.init(
        project=os.environ.get("WANDB_PROJECT", "vigneron"),
        name=run["name"],
        id=run["id"],
        resume="allow",
        config=run["config"],
        dir=run["folder"],
        settings=settings,
    )
    return lambda step, metrics: started.log(metrics, step=step), started.finish


def trackio(run: dict[str, Any]) -> tuple[Log, Callable[[], None]]:
    """In trackio's own folder (TRACKIO_DIR), or on a server that its variables name; it keeps what that one refuses."""
    package: Any = import_module("trackio")
    name = f"{run['name']}-{run['id']}"
    package.init(project=os.environ.get("TRACKIO_PROJECT", "vigneron"), name=name, config=run["config"], resume="allow")
    return lambda step, metrics: package.log(metrics, step=step), package.finish


TRACKERS = {"tensorboard": tensorboard, "trackio": trackio, "wandb": wandb}


def main(name: str) -> None:
    run = json.loads(sys.stdin.readline())
    log, finish = TRACKERS[name](run)
    for line in sys.stdin:
        step = json.loads(line)
        log(step["step"], step["metrics"])
    signal.alarm(FINISH_WITHIN)  # its default is to end the process
    finish()


def said(error: BaseException) -> str:
    """One line, with no key of the environment in it."""
    return redacted(" ".join(str(error).split()) or type(error).__name__)[:300]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        main(sys.argv[1])
    except BaseException as error:  # whatever it was: said in one line
        sys.stderr.write(f"\nfailed: {said(error)}\n")
        sys.stderr.flush()
        os._exit(1)  # its threads may hang
    os._exit(0)
