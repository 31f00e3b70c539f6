"""What a run writes: metrics, samples, notices, checkpoints, and trackers' copies of the metrics."""

from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.distributed import ranks
from vigneron.errors import UserError
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.notices import Notice, keep_notice
from vigneron.run_store.samples import Kind, SampleStore
from vigneron.trackers.tracking import Tracking, missing_trackers
from vigneron.training.alerts import History
from vigneron.training.callbacks import View, tell
from vigneron.training.checkpoint.write import Saver
from vigneron.training.method import Metrics
from vigneron.training.sample_records import samples_of


@dataclass
class RunOutput:
    folder: RunFolder
    config: Config
    samples: SampleStore
    saver: Saver
    history: History = field(default_factory=History)
    """The metrics so far, which alerts are raised from."""
    notified: set[str] = field(default_factory=set)
    """Keys of notices that were shown: each is shown once, also after a resume."""
    trackers: Tracking | None = None
    stop_immediately: bool = False
    """Trackers are then not waited for."""

    def keep_samples(self, batch: Batch, step: int, kind: Kind) -> None:
        """Record samples for people to look at, on the rank that writes."""
        if ranks.is_rank0():
            self.samples.add(samples_of(batch, step, kind))

    def log(self, step: int, metrics: Metrics) -> None:
        """The metrics of a finished step, or (step 0) of the model before the first."""
        self.folder.append("metrics.jsonl", {"step": step, **metrics})
        if self.trackers is None:
            names = [n for n in self.config.trackers if ranks.is_rank0() and not missing_trackers([n])]
            self.trackers = Tracking(names, self.folder.path, self.config.model_dump(mode="json"))
        self.trackers.log(step, metrics)

    def alert(self, step: int, metrics: Metrics, warnings: list[str], view: View) -> None:
        """Show and keep the warnings of a step, and those that its metrics and the ones before call for, each once."""
        self.history.add({"step": step, **metrics})
        notices = [Notice(step, text, "warning") for text in warnings]
        notices += [Notice(step, text, "warning", about) for about, text in self.history.warnings().items()]
        notices += [Notice(step, text, "warning") for text in self.trackers.take_warnings()] if self.trackers else []
        for notice in notices:
            if notice.key not in self.notified:
                self.notified.add(notice.key)
                self.notify(notice, view)

    def notify(self, notice: Notice, view: View) -> None:
        keep_notice(self.folder, notice)
        tell(view, notice)

    def close(self, step: int) -> None:
        with ExitStack() as stack:
            stack.callback(self.folder.unlock if ranks.is_rank0() else self.folder.remove)
            stack.callback(self.samples.close)
            stack.callback(self._close_trackers, step)
            stack.callback(self.saver.settle)

    def _close_trackers(self, step: int) -> None:
        warnings = self.trackers.close(at_once=self.stop_immediately) if self.trackers is not None else []
        with suppress(UserError):  # a full disk, which was reported
            for text in warnings:
                keep_notice(self.folder, Notice(step, text, "warning"))
