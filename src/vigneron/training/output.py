"""What a run writes: metrics, samples, notices, checkpoints, and trackers' copies of the metrics."""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.core.masked import masked_sum
from vigneron.data.prompts import completion_text, conversation_text, prompt_text
from vigneron.distributed import ranks
from vigneron.errors import UserError, reason
from vigneron.files import write_atomically
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.notices import Notice, keep_notice
from vigneron.run_store.samples import Kind, Sample, SampleStore
from vigneron.run_store.token_values import is_due
from vigneron.trackers.tracking import Tracking, missing_trackers
from vigneron.training.alerts import History, falling_held_out
from vigneron.training.callbacks import View, tell
from vigneron.training.checkpoint.write import Saver
from vigneron.training.method import Metrics
from vigneron.training.mismatch import MismatchLimits, mismatch_warning
from vigneron.training.token_recorder import Decode, TokenRecorder

HELD_OUT_FALLS = "held out"
"""The subject of the warning that held-out rows get worse while the reward rises."""


def samples_of(batch: Batch, step: int, kind: Kind) -> list[Sample]:
    answers: Sequence[Any] = batch.samples.columns.get("answer", (None,) * len(batch))
    rewards = batch.signals.rewards_B.tolist() if batch.signals.rewards_B is not None else [None] * len(batch)
    advantages: list[Any] = [None] * len(batch)
    if batch.signals.advantages_BT is not None:
        trained_BT = batch.trained_BT.cpu()
        means_B = masked_sum(batch.signals.advantages_BT.cpu(), trained_BT) / trained_BT.sum(1)
        advantages = [mean if some else None for mean, some in zip(means_B.tolist(), trained_BT.any(1), strict=True)]
    # Which side of a pair a text is.
    sides: dict[str, Any] = {
        name: batch.samples.columns[name] for name in ("side", "first") if name in batch.samples.columns
    }
    extras = {**batch.samples.extras, **sides}
    names, truncated = batch.samples.sample_B.tolist(), batch.samples.truncated_B.tolist()
    return [
        Sample(
            step=step,
            kind=kind,
            sample=names[i],
            prompt=prompt_text(batch.samples.prompts[i]),
            completion=conversation_text(batch.samples.completions[i]),
            answer=None if answers[i] is None else completion_text(answers[i]),
            reward=None if rewards[i] != rewards[i] else rewards[i],
            advantage=advantages[i],
            correct=None if batch.signals.correct is None else batch.signals.correct[i],
            truncated=truncated[i],
            extras={name: column[i] for name, column in extras.items()},
        )
        for i in range(len(batch))
    ]


@dataclass
class RunOutput:
    folder: RunFolder
    config: Config
    samples: SampleStore
    saver: Saver
    history: History = field(default_factory=History)
    """The metrics so far, which alerts are raised from."""
    mismatch: MismatchLimits | None = None
    """Limits of `logprob_mismatch`; None if it is not watched."""
    notified: set[str] = field(default_factory=set)
    """Keys of notices that were shown: each is shown once, also after a resume."""
    tokens: TokenRecorder = field(default_factory=TokenRecorder)
    decode: Decode = lambda ids: ""
    """The text of token ids."""
    trackers: Tracking | None = None
    stop_immediately: bool = False
    """Trackers are then not waited for."""

    def begin_step(self, step: int) -> None:
        self.tokens.begin(active=ranks.is_rank0() and is_due(step, self.config.steps))

    def keep_samples(self, batch: Batch, step: int, kind: Kind) -> None:
        """Record samples for people to look at, on the rank that writes."""
        if ranks.is_rank0():
            # Tokens first: a page that shows the samples then knows which of them have token values.
            if kind == "train" and (tokens := self.tokens.take(batch, self.decode)):
                self.samples.add_tokens(step, kind, tokens)
            self.samples.add(samples_of(batch, step, kind))

    def log(self, step: int, metrics: Metrics) -> None:
        """The metrics of a finished step."""
        record = {"step": step, **metrics}
        self.folder.append("metrics.jsonl", record)
        self.history.add(record)
        self._track(step, metrics)

    def log_evaluation(self, step: int, metrics: Metrics) -> None:
        """Held-out metrics alone: of the model before the first step, or of a step that was logged without them."""
        self.folder.merge_into_last_line("metrics.jsonl", {"step": step, **metrics})
        self.history = History(self.folder.records("metrics.jsonl", skip_damaged=True))
        self._track(step, metrics)

    def is_evaluated(self, step: int) -> bool:
        """Whether the log has the step's held-out metrics."""
        return ranks.run_on_rank0(lambda: any(one["step"] == step for one in self.history.evaluations))

    def _track(self, step: int, metrics: Metrics) -> None:
        if self.trackers is None:
            names = [n for n in self.config.trackers if ranks.is_rank0() and not missing_trackers([n])]
            self.trackers = Tracking(names, self.folder.path, self.config.model_dump(mode="json"))
        self.trackers.log(step, metrics)

    def alert(
        self, step: int, metrics: Metrics, warnings: list[str], view: View, by_subject: Mapping[str, str]
    ) -> None:
        """Show and keep the warnings of a step, and those that its metrics and the ones before call for, each once, and
        of each subject one. Raises if the samples are not the policy's."""
        mismatch = mismatch_warning(metrics, self.mismatch)
        notices = [Notice(step, text, "warning") for text in warnings]
        notices += [
            Notice(step, text, "warning", about) for about, text in {**by_subject, **self.history.warnings()}.items()
        ]
        if any(name.startswith("eval/") for name in metrics) and HELD_OUT_FALLS not in self.notified:
            config, rewards = self.config.model_dump(mode="json"), self.history.risen_rewards()
            falling = falling_held_out(self.folder.path, config, self.history.evaluations, rewards)
            notices += [Notice(step, falling, "warning", HELD_OUT_FALLS)] if falling is not None else []
        notices += [Notice(step, mismatch, "warning", "log-prob mismatch")] if mismatch is not None else []
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
            stack.callback(self.saver.wait_ignoring_errors)

    def _close_trackers(self, step: int) -> None:
        warnings = self.trackers.close(at_once=self.stop_immediately) if self.trackers is not None else []
        with suppress(UserError):  # a full disk, which was reported
            for text in warnings:
                keep_notice(self.folder, Notice(step, text, "warning"))


# Hidden states are large, and follow from the rest.
LEFT_OUT = ("prompt_hidden_BH", "reference_hidden_BTH", "previous_hidden_BTH", "parent_hidden_BTH")


def dump_batch(folder: Path, step: int, batch: Batch | None, why: str) -> str:
    """`dumps/step-N/`: tensors, texts and what was logged of them. Returns where it is, or why it was not written."""
    where = folder / "dumps" / f"step-{step}"
    records = () if batch is None else (batch.samples, batch.signals, batch.packing)
    values = {f.name: getattr(record, f.name) for record in records for f in fields(record) if f.name not in LEFT_OUT}
    tensors = {k: v.detach().cpu().contiguous().clone() for k, v in values.items() if isinstance(v, torch.Tensor)}
    rest = {k: v for k, v in values.items() if k not in tensors and v is not None}
    try:
        where.mkdir(parents=True, exist_ok=True)
        save_file(tensors, where / "batch.safetensors")
        text = json.dumps({"step": step, "why": why, **_plain(rest)}, ensure_ascii=False, indent=1)
        write_atomically(where / "batch.json", text)
    except (OSError, SafetensorError) as error:  # the original error is reported anyway
        return f"could not be written: {reason(error)}"
    return f"is in '{where}'"


def _plain(value: Any) -> Any:
    """JSON has no NaN: as text, so that it can be seen."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
