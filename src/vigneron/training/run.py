"""A run: everything a step needs, what a checkpoint keeps of it, and its end. `setup/` makes one."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.data.curriculum import Curriculum
from vigneron.distributed import ranks
from vigneron.distributed.launch import resume_command
from vigneron.errors import DamagedWeights, NonFinite, UserError, did_you_mean
from vigneron.policy.model import Policy
from vigneron.policy.reference import Reference
from vigneron.remote.setup import RemoteWorkers
from vigneron.rewards.apply import ApplyReward
from vigneron.rewards.checkers import Check
from vigneron.rewards.rank0_reward import Rank0Reward
from vigneron.rollout.engine.engine import Engine
from vigneron.run_data.load import Data
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.metrics_file import records_of
from vigneron.run_store.notices import Notice
from vigneron.training.alerts import explain_reward_reads
from vigneron.training.async_rollout import AsyncRollout
from vigneron.training.callbacks import View
from vigneron.training.checkpoint.manifest import explain_damage
from vigneron.training.checkpoint.read import State, checkpoint_step, checkpoints, load_checkpoint, load_weights
from vigneron.training.checkpoint.shards import shard_like
from vigneron.training.checkpoint.snapshot import restore_rng, rng_state, rng_unchanged, take_snapshot
from vigneron.training.method import Method, Metrics
from vigneron.training.metrics import batch_metrics, evaluate, evaluate_levels
from vigneron.training.model_card import Rows, model_card
from vigneron.training.output import RunOutput, dump_batch
from vigneron.training.rubric_audit import RubricAudit, explain_canaries


@dataclass(frozen=True)
class Origin:
    """What a checkpoint records of where the run began."""

    base: dict[str, str]
    """The base model: its name and the hash of its weights."""
    data: dict[str, str]
    """Hashes of the dataset's parts."""


@dataclass
class Run:
    """Everything a step needs. `step` counts the steps that are done."""

    config: Config
    data: Data
    policy: Policy
    reference: Reference
    curriculum: Curriculum
    method: Method
    reward: ApplyReward | Rank0Reward
    check: Check
    output: RunOutput
    origin: Origin
    audit: RubricAudit | None = None
    """A rubric's canaries, and a second rubric that nothing is trained on."""
    remote: RemoteWorkers | None = None
    async_rollout: AsyncRollout | None = None
    step: int = 0
    skipped: int = field(default=0)
    """Steps that something not finite ended before all their updates were made."""

    @property
    def folder(self) -> RunFolder:
        return self.output.folder

    def evaluate(self) -> Metrics:
        """Metrics of the held-out part; completions are kept with the run's samples.

        Training does not depend on how often it is evaluated.
        """
        with rng_unchanged():
            return self._evaluate()

    def _evaluate(self) -> Metrics:
        rows = self.data.held_out
        if self.method.evaluate is not None:
            metrics = evaluate_levels(self.config, self.method.evaluate, rows)
        else:
            batch, metrics = evaluate(self.config, self.policy, self.reward, self.check, rows)
            self.output.keep_samples(batch, self.step, "eval")
            if (audit := self.audit) is not None:
                metrics |= ranks.run_on_rank0(lambda: audit(batch))
            metrics |= self.method.evaluate_beside(rows) if self.method.evaluate_beside is not None else {}
        named = {f"eval/{name}": value for name, value in metrics.items()}
        best = self.config.keep_best
        if best is not None and best not in named:
            raise UserError(f"keep_best: this run has no held-out metric named '{best}'{did_you_mean(best, named)}")
        return named

    def warnings(self, metrics: Metrics) -> list[str]:
        """What the method, the audit and remote workers have to say of a step."""
        remote = self.remote.take_warnings() if self.remote is not None else []
        samples = self.config.prompts_per_step * self.config.group_size
        reads = explain_reward_reads(self.config.reward, metrics, samples)
        return [*self.method.explain(metrics), *reads, *explain_canaries(metrics), *remote]

    @property
    def resume_command(self) -> str:
        """What resumes this run as it runs now: on its device, if `--device` chose another than the run's own."""
        command, device = resume_command(self.folder.path, self.config.scale.shard), self.config.model.device
        return command if self.folder.config().model.device == device else f"{command} --device {device}"

    def skip_step(self, error: NonFinite, view: View) -> tuple[Batch, Metrics]:
        """A step in which something was not finite: its batch is dumped, and the step skipped if that is allowed."""
        step = self.step + 1
        dumped = dump_batch(self.folder.path, step, error.batch, str(error))
        self.skipped += 1
        if self.skipped > self.config.skip_nonfinite or error.batch is None:
            how = f"`{self.resume_command} skip_nonfinite={self.skipped}` skips it"
            raise UserError(f"step {step}: {error}. Its batch {dumped}; {how}") from error
        text = f"step {step} is skipped: {error}. Its batch {dumped}"
        self.output.notify(Notice(step, text, "warning"), view)
        self.method.update.begin_at(step)
        self.curriculum.skipped(self.step)
        return error.batch, batch_metrics(error.batch)

    def save(self, metrics: Metrics | None = None) -> None:
        """Begin to write a checkpoint, with this step's held-out metrics; `saver.wait()` waits for its end."""
        if self.policy.sharding is None and not ranks.is_rank0():
            return
        saver, memory = self.output.saver, self.method.memory
        tensors = {f"update.{name}": tensor for name, tensor in self.method.update.tensors().items()}
        tensors |= self._critic()
        scalars: dict[str, Any] = {
            "base": self.origin.base,
            "update": self.method.update.scalars(),
            "reward": self.reward.scalars(),
            "data": self.origin.data,
            "config": self.config.model_dump(mode="json"),
            "skipped": self.skipped,
            "figures": {k: v for k, v in (metrics or {}).items() if k.startswith("eval/") and v == v},
        }
        if curriculum := self.curriculum.scalars():
            scalars["curriculum"] = curriculum
        saver.wait()  # its memory first
        entries = memory.entries() if memory is not None else None
        shards = {name: tensor for name, tensor in tensors.items() if ranks.is_sharded(tensor)}
        whole = {name: tensor for name, tensor in tensors.items() if name not in shards}
        snapshot = take_snapshot(self.policy, self.step, whole, scalars, entries, self.card())
        if self.policy.sharding is None:
            saver.save(snapshot)
        else:
            saver.save_sharded(snapshot, shards)

    @contextmanager
    def saved_if_it_fails(self) -> Iterator[None]:
        """Around what samples and scores, which changes nothing that a checkpoint holds but random generators and the
        reward's counts: with those set back, the steps since the last checkpoint are saved.

        Not with several ranks, of which one alone may have failed, nor with a curriculum that may have changed.
        """
        generators, counts = rng_state(), self.reward.scalars()
        try:
            yield
        except (DamagedWeights, NonFinite):  # not worth a checkpoint; perhaps to be skipped
            raise
        except Exception:
            if self._has_steps_to_save():
                with suppress(Exception):  # the first error is the one to report
                    if self.async_rollout is not None:
                        self.async_rollout.close(timeout_s=60.0)
                    restore_rng(*generators)
                    self.reward.load(counts)
                    self.save()
                    self.output.saver.wait()
            raise

    def _has_steps_to_save(self) -> bool:
        """Whether there are steps since the last checkpoint, and the state is still that after them."""
        saved = {0, *map(checkpoint_step, checkpoints(self.folder.path / "checkpoints"))}
        kind = type(self.curriculum)
        notes_dropped = self.method.resamples and kind.replaced is not Curriculum.replaced
        curriculum_is_same = kind.__module__.startswith("vigneron.") and not notes_dropped
        return self.step not in saved and ranks.world_size() == 1 and curriculum_is_same

    def card(self) -> str:
        rows = Rows(len(self.data.train), len(self.data.held_out))
        records = records_of(self.folder.path)
        return model_card(self.config, records, step=self.step, rows=rows, base_hash=self.origin.base["sha256"])

    def restore(self, saved: Path, *, weights_only: bool) -> None:
        """A checkpoint's state, or its weights alone."""
        if not weights_only:
            state = load_checkpoint(saved, self.policy, base=self.origin.base, places=self._places())
            with explain_damage(saved):
                self._load(state)
            self._load_curriculum(state)
            return
        with explain_damage(saved):
            load_weights(saved, self.policy)
        self.step = checkpoint_step(saved)
        self.method.update.begin_at(self.step)

    def _critic(self) -> dict[str, Any]:
        """The weights that are trained beside the policy's own, which have a file of theirs."""
        weights = self.method.update.weights()
        return {name: weight for name, weight in weights.items() if not name.startswith("actor.")}

    def _places(self) -> dict[str, Any]:
        """What a checkpoint's tensors are for, by their names or by what they begin with."""
        return {f"update.{name}": weight for name, weight in self.method.update.weights().items()} | self._critic()

    def _load(self, state: State) -> None:
        update = {k.removeprefix("update."): v for k, v in state.tensors.items() if k.startswith("update.")}
        self.method.update.load(update, state.scalars["update"])
        self.reward.load(state.scalars["reward"])
        if self.method.memory is not None:
            self.method.memory.load(state.memory())
        with torch.no_grad():
            for name, weight in self._critic().items():
                weight.copy_(shard_like(state.tensors[name], weight))
        self.skipped = state.scalars.get("skipped", 0)
        self.step = state.step

    def _load_curriculum(self, state: State) -> None:
        """Its state, unless the checkpoint is of another curriculum."""
        before = state.scalars["config"].get("curriculum") or {}
        now = {} if self.config.curriculum is None else self.config.curriculum.model_dump(mode="json")
        if any(before.get(key) != now.get(key) for key in ("name", "by")):
            return
        try:
            self.curriculum.load(state.scalars.get("curriculum", {}))
        except Exception as error:  # the edge to the user's own code
            raise UserError(f"curriculum: `load` raised {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Close everything, whatever one part raises."""
        with ExitStack() as stack:
            stack.callback(self._free_memory)
            stack.callback(self.output.close, self.step)
            if self.remote is not None:
                stack.callback(self.remote.close)
            if self.audit is not None and self.audit.other is not None:
                stack.callback(self.audit.other.close)
            stack.callback(self.reward.close)
            if self.async_rollout is not None:
                stack.callback(self.async_rollout.close)

    def _free_memory(self) -> None:
        """What only training needs of the model, which may be used on: gradients and CUDA graphs."""
        self.policy.model.zero_grad(set_to_none=True)
        for policy in (self.policy, *([self.reference.policy] if self.reference.is_loaded else [])):
            policy.drop_graphs()
            if isinstance(policy.sampler, Engine):  # which captures them again if it is used on
                policy.sampler.clear_graphs()
