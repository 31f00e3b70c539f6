"""The process that logs to one tracker: `python -m vigneron.trackers.worker NAME`, with lines of JSON on stdin.

The first line describes the run; each following line has the metrics of a step. If it fails, it writes one line with
the reason to stderr. When stdin ends it has FINISH_WITHIN seconds to finish.
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
from vigneron.trackers.webhook import webhook

FINISH_WITHIN = 60
"""Seconds."""

Metrics = dict[str, float]
Log = Callable[[int, Metrics], None]


def tensorboard(run: dict[str, Any]) -> tuple[Log, Callable[[], None]]:
    """Event files in the run's folder, written without TensorFlow."""
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
    """Server, key and offline mode are set by wandb's environment variables (WANDB_MODE, …)."""
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
    """Logs to trackio's folder (TRACKIO_DIR), or to the server set by its environment variables."""
    package: Any = import_module("trackio")
    name = f"{run['name']}-{run['id']}"
    package.init(project=os.environ.get("TRACKIO_PROJECT", "vigneron"), name=name, config=run["config"], resume="allow")
    return lambda step, metrics: package.log(metrics, step=step), package.finish


TRACKERS = {"tensorboard": tensorboard, "trackio": trackio, "wandb": wandb, "webhook": webhook}


def main(name: str) -> None:
    run = json.loads(sys.stdin.readline())
    log, finish = TRACKERS[name](run)
    for line in sys.stdin:
        step = json.loads(line)
        log(step["step"], step["metrics"])
    signal.alarm(FINISH_WITHIN)  # by default SIGALRM ends the process
    finish()


def one_line(error: BaseException) -> str:
    """The error on one line, without secrets of the environment."""
    return redacted(" ".join(str(error).split()) or type(error).__name__)[:300]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        main(sys.argv[1])
    except BaseException as error:  # any failure is reported in one line
        sys.stderr.write(f"\nfailed: {one_line(error)}\n")
        sys.stderr.flush()
        os._exit(1)  # the tracker's threads may hang
    os._exit(0)
