"""A run: everything a step needs, what a checkpoint keeps of it, and its end. `starting.py` makes one."""

from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.data.prompts import PromptOrder
from vigneron.distributed import ranks
from vigneron.distributed.checks import resume_command
from vigneron.errors import NonFinite, UserError, did_you_mean
from vigneron.policy.model import Policy, Reference
from vigneron.remote.setup import Scale
from vigneron.rewards.apply import ApplyReward
from vigneron.rewards.checkers import Check
from vigneron.rewards.rank0_reward import Rank0Reward
from vigneron.run_data.load import Data
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.metrics_file import records_of
from vigneron.run_store.notices import Notice, keep_notice
from vigneron.run_store.samples import Kind, SampleStore
from vigneron.trackers.tracking import Tracking, missing_trackers
from vigneron.training.alerts import History
from vigneron.training.async_rollout import Ahead
from vigneron.training.callbacks import View, tell
from vigneron.training.checkpoint.manifest import damage_explained
from vigneron.training.checkpoint.read import State, checkpoint_step, load_checkpoint, load_weights
from vigneron.training.checkpoint.shards import placed
from vigneron.training.checkpoint.snapshot import take_snapshot
from vigneron.training.checkpoint.write import Saver
from vigneron.training.evaluate import evaluate
from vigneron.training.importance_weights import Correction
from vigneron.training.method import Method, Metrics
from vigneron.training.metrics import batch_metrics
from vigneron.training.model_card import Rows, model_card
from vigneron.training.nan_dump import dump_batch
from vigneron.training.rubric_audit import SecondLook, explain_canaries
from vigneron.training.sample_records import samples_of


@dataclass
class Run:
    """Everything a step needs. `step` counts the steps that are done."""

    folder: RunFolder
    config: Config
    data: Data
    policy: Policy
    reference: Reference
    reward: ApplyReward | Rank0Reward
    check: Check
    method: Method
    prompts: PromptOrder
    samples: SampleStore
    base: dict[str, str]
    rows: dict[str, str]
    """What a checkpoint keeps of the data."""
    saver: Saver
    second_look: SecondLook | None = None
    correction: Correction | None = None
    """Where what samples is not the policy itself."""
    ahead: Ahead | None = None
    """Where the next steps are sampled while weights are updated."""
    scale: Scale | None = None
    """What it has beyond its own process."""
    step: int = 0
    skipped: int = 0
    """Steps that were passed over without an update, because something was not finite."""
    said: set[str] = field(default_factory=set)
    """What notices were about: of one thing it speaks once, also after a resume."""
    history: History = field(default_factory=History)
    tracking: Tracking | None = None
    hurried: bool = False
    """It was asked to end at once."""

    def save(self, metrics: Metrics | None = None) -> None:
        """Begin to write a checkpoint, with this step's held-out figures; `saver.wait()` is its end."""
        if self.policy.sharding is None and not ranks.is_first():
            return
        update, critic, memory = self.method.update, self.method.critic, self.method.memory
        tensors = {f"update.{name}": tensor for name, tensor in update.tensors().items()}
        if critic is not None:
            tensors |= {f"critic.{name}": tensor for name, tensor in critic.state_dict().items()}
        scalars = {
            "base": self.base,
            "update": update.scalars(),
            "reward": self.reward.scalars(),
            "data": self.rows,
            "config": self.config.model_dump(mode="json"),
            "skipped": self.skipped,
            "figures": {k: v for k, v in (metrics or {}).items() if k.startswith("eval/") and v == v},
        }
        self.saver.wait()  # its memory first
        entries = memory.entries() if memory is not None else None
        shards = {name: tensor for name, tensor in tensors.items() if ranks.is_sharded(tensor)}
        whole = {name: tensor for name, tensor in tensors.items() if name not in shards}
        snapshot = take_snapshot(self.policy, self.step, whole, scalars, entries, self.card())
        if self.policy.sharding is None:
            self.saver.save(snapshot)
        else:
            self.saver.save_together(snapshot, shards)

    def card(self) -> str:
        rows = Rows(len(self.data.train), len(self.data.held_out))
        records = records_of(self.folder.path)
        return model_card(self.config, records, step=self.step, rows=rows, base_hash=self.base["sha256"])

    def take_over(self, saved: Path, *, weights_only: bool) -> None:
        """A checkpoint's state, or its weights alone."""
        if not weights_only:
            state = load_checkpoint(saved, self.policy, base=self.base, places=self._places())
            with damage_explained(saved):
                self._load(state)
            return
        with damage_explained(saved):
            load_weights(saved, self.policy)
        self.step = checkpoint_step(saved)
        self.method.update.begin_at(self.step)

    def _places(self) -> dict[str, Any]:
        """What a checkpoint's tensors are for, by their names or by what they begin with."""
        update, critic = self.method.update.places(), self.method.critic
        found = {f"update.{name}": weight for name, weight in update.items()}
        return found | ({} if critic is None else {f"critic.{name}": t for name, t in critic.state_dict().items()})

    def _load(self, state: State) -> None:
        update = {k.removeprefix("update."): v for k, v in state.tensors.items() if k.startswith("update.")}
        self.method.update.load(update, state.scalars["update"])
        self.reward.load(state.scalars["reward"])
        if self.method.memory is not None:
            self.method.memory.load(state.memory())
        if self.method.critic is not None:
            now = self.method.critic.state_dict()
            self.method.critic.load_state_dict({k: placed(state.tensors[f"critic.{k}"], v) for k, v in now.items()})
        self.skipped = state.scalars.get("skipped", 0)
        self.step = state.step

    def pass_over(self, error: NonFinite, view: View) -> tuple[Batch, Metrics]:
        """A step in which something was not finite: kept for a person to look at, and skipped if that is allowed."""
        step = self.step + 1
        dumped = dump_batch(self.folder.path, step, error.batch, str(error))
        self.skipped += 1
        if self.skipped > self.config.skip_nonfinite or error.batch is None:
            resume = resume_command(self.folder.path, self.config.scale.shard)
            goes_on = f"`{resume} skip_nonfinite={self.skipped}` passes over it"
            raise UserError(f"step {step}: {error}. Its batch {dumped}; {goes_on}") from error
        notice = Notice(step, f"step {step} is passed over, without an update: {error}. Its batch {dumped}", "warning")
        keep_notice(self.folder, notice)
        tell(view, notice)
        self.method.update.begin_at(step)
        return error.batch, batch_metrics(error.batch)

    def evaluate_and_keep(self) -> Metrics:
        """Figures of the held-out part; completions go to the run's samples, where there are any."""
        rows = self.data.held_out
        if self.method.evaluate is not None:
            metrics = self.method.evaluate(rows)
        else:
            batch, metrics = evaluate(self.config, self.policy, self.reward, self.check, rows)
            self.keep(batch, "eval")
            if self.second_look is not None:
                look = self.second_look
                metrics |= ranks.from_first(lambda: look(batch))
            metrics |= self.method.evaluate_beside(rows) if self.method.evaluate_beside is not None else {}
        named = {f"eval/{name}": value for name, value in metrics.items()}
        if self.config.keep_best is not None and self.config.keep_best not in named:
            known = did_you_mean(self.config.keep_best, named)
            raise UserError(f"keep_best: no held-out figure of this run is named '{self.config.keep_best}'{known}")
        return named

    def keep(self, batch: Batch, kind: Kind) -> None:
        """What was sampled, for whoever looks: by the rank that writes."""
        if ranks.is_first():
            self.samples.add(samples_of(batch, self.step, kind))

    def log(self, metrics: Metrics) -> None:
        """Of the step that is done, or of the child before the first."""
        self.folder.append("metrics.jsonl", {"step": self.step, **metrics})
        if self.tracking is None:
            names = [n for n in self.config.trackers if ranks.is_first() and not missing_trackers([n])]
            self.tracking = Tracking(names, self.folder.path, self.config.model_dump(mode="json"))
        self.tracking.log(self.step, metrics)

    def explain(self, metrics: Metrics, view: View) -> None:
        """What a step's figures, and those before it, call for: of each thing once. The run's folder keeps it."""
        self.history.add({"step": self.step, **metrics})
        said = [Notice(self.step, t, "warning") for t in (*self.method.explain(metrics), *explain_canaries(metrics))]
        said += [Notice(self.step, text, "warning", about) for about, text in self.history.warnings().items()]
        said += [Notice(self.step, text, "warning") for text in self.tracking.complaints()] if self.tracking else []
        said += [Notice(self.step, text, "warning") for text in self.scale.complaints()] if self.scale else []
        for notice in said:
            if notice.key not in self.said:
                self.said.add(notice.key)
                keep_notice(self.folder, notice)
                tell(view, notice)

    def close(self) -> None:
        """All of it, whatever one part meets. Trackers are not waited for where the run was to end at once."""
        with ExitStack() as parts:
            parts.callback(self.folder.unlock if ranks.is_first() else self.folder.remove)
            parts.callback(self.samples.close)
            if self.scale is not None:
                parts.callback(self.scale.close)
            if self.second_look is not None and self.second_look.other is not None:
                parts.callback(self.second_look.other.close)
            parts.callback(self.reward.close)
            parts.callback(self._close_trackers)
            parts.callback(self.saver.settle)
            if self.ahead is not None:
                parts.callback(self.ahead.close)

    def _close_trackers(self) -> None:
        said = self.tracking.close(at_once=self.hurried) if self.tracking is not None else []
        with suppress(UserError):  # a full disk, which was said
            for text in said:
                keep_notice(self.folder, Notice(self.step, text, "warning"))
