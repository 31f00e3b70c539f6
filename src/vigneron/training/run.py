"""A run: its parts put together, and its start, its going on and its end."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from vigneron.batch import Batch
from vigneron.compiling import can_compile
from vigneron.config import Config
from vigneron.errors import NonFinite, UserError, did_you_mean
from vigneron.folder.metrics_file import records_of
from vigneron.folder.notices import Notice, keep_notice, kept_notices
from vigneron.folder.run_folder import RunFolder
from vigneron.folder.samples import SampleStore
from vigneron.policy.load import resolve_device, speed_up
from vigneron.policy.model import Policy, Reference
from vigneron.rewards.apply import ApplyReward
from vigneron.rewards.build import build_reward
from vigneron.rewards.checkers import Check, build_check, load_checker
from vigneron.rollout.prompts import PromptOrder
from vigneron.rollout.sample import sampler_of
from vigneron.rubric.read import read_rubric
from vigneron.scale.run_scale import Scale, check_scale
from vigneron.tasks.answers import answered
from vigneron.tasks.source import Data, check_rubric_data, checker_name, load_data
from vigneron.timing import phase
from vigneron.trackers.installed import check_trackers, missing_trackers
from vigneron.trackers.tracking import Tracking
from vigneron.training.card import Rows, model_card
from vigneron.training.changes import check_changes, data_record
from vigneron.training.checkpoint import (
    SCALARS,
    State,
    checkpoint_step,
    load_checkpoint,
    load_weights,
    read_scalars,
    weights_identity,
)
from vigneron.training.child import load_child, seed_everything
from vigneron.training.dumps import dump_batch
from vigneron.training.going_on import checkpoint_to_resume, set_aside
from vigneron.training.held_out import evaluate
from vigneron.training.keeping import Keep
from vigneron.training.lengths import lengths
from vigneron.training.manifest import damage_explained
from vigneron.training.memory import explained_memory, find_microbatch_tokens
from vigneron.training.metrics import batch_metrics
from vigneron.training.resolving import check_held_out, newest_weights, resolved
from vigneron.training.samples import samples_of
from vigneron.training.saving import Saver, sweep
from vigneron.training.second_look import SecondLook, explain_canaries, second_look
from vigneron.training.slots import Method, Metrics, Parts
from vigneron.training.snapshot import take_snapshot
from vigneron.training.view import Silent, View, tell
from vigneron.training.warnings import History

__all__ = ["Run", "Silent", "View"]


Build = Callable[[Parts], Method]


@dataclass
class Run:
    """Everything a step needs. `step` counts the steps that are done."""

    folder: RunFolder
    config: Config
    data: Data
    policy: Policy
    reference: Reference
    reward: ApplyReward
    check: Check
    method: Method
    prompts: PromptOrder
    samples: SampleStore
    base: dict[str, str]
    rows: dict[str, str]
    """What a checkpoint keeps of the data."""
    saver: Saver
    second_look: SecondLook | None = None
    scale: Scale | None = None
    step: int = 0
    skipped: int = 0
    """Steps that were passed over without an update, because something was not finite."""
    said: set[str] = field(default_factory=set)
    """What notices were about: of one thing it speaks once, also after a resume."""
    history: History = field(default_factory=History)
    tracking: Tracking | None = None
    hurried: bool = False
    """It was asked to end at once."""

    @classmethod
    def start(cls, config: Config, runs: Path, build: Build, *, name: str | None = None, view: View) -> "Run":
        """A new run, from the base model. What can fail fails before a model is loaded, and leaves no folder."""
        if config.model.compile is True and not can_compile(resolve_device(config.model.device)):
            raise UserError("model.compile: true has an effect on a CUDA device only: leave it out here")
        check_trackers(config.trackers)
        config = resolved(config)
        check_scale(config)
        data = load_data(config)
        check_held_out(config, data)
        RunFolder.check_can_be_created(runs)  # before a parent is asked for minutes
        if name is not None:
            RunFolder.refuse_taken(runs, name)
        with phase("ask the parent"):
            data = answered(config, data, view.notice)
        folder = RunFolder.create(runs, name or config.recipe, exact_name=name is not None)
        try:
            folder.lock()
            folder.write_config(config)
            folder.write_data(data)
            if config.reward.kind == "rubric":
                folder.write_rubrics(config.reward.file, config.reward.held_out_file)
            return cls._build(config, folder, data, build, view)
        except BaseException:  # Ctrl-C too: a run that never began leaves its name free; raised on
            folder.remove()
            raise

    @classmethod
    def resume(
        cls,
        folder: RunFolder,
        build: Build,
        *,
        config: Config | None = None,
        device: str | None = None,
        rubric: str | None = None,
        weights_only: bool = False,
        allow_changes: bool = False,
        view: View,
    ) -> "Run":
        """Go on from the newest whole checkpoint, or from the start where there is none yet; by another config or
        rubric if one is given. `weights_only`: with new optimizers, and whatever else a checkpoint's state holds."""
        folder.lock()
        try:
            return cls._resume(
                folder,
                build,
                config,
                device=device,
                rubric=rubric,
                weights_only=weights_only,
                allow_changes=allow_changes,
                view=view,
            )
        except BaseException:  # whatever it was: raised on
            folder.unlock()
            raise

    @classmethod
    def _resume(
        cls,
        folder: RunFolder,
        build: Build,
        new: Config | None,
        *,
        device: str | None,
        rubric: str | None,
        weights_only: bool,
        allow_changes: bool,
        view: View,
    ) -> "Run":
        sweep(folder.path)
        config = new or folder.config()
        if rubric is not None and config.reward.kind != "rubric":
            raise UserError("--rubric: this run's reward is no rubric")
        if device is not None:
            config = resolved(config.model_copy(update={"model": config.model.model_copy(update={"device": device})}))
        if missing := missing_trackers(config.trackers):
            view.notice(
                f"goes on without {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed"
            )
        data = folder.data()
        check_held_out(config, data)
        saved, notices = checkpoint_to_resume(folder.path, weights_only=weights_only)
        scalars = known_state(folder, saved, weights_only=weights_only)
        with damage_explained(saved or folder.path):
            notices += check_changes(folder.path, scalars, config, data, allow=allow_changes)
        done = 0 if saved is None else checkpoint_step(saved)
        if config.steps < done:
            raise UserError(f"steps: {done} are done already, which is more than {config.steps}")
        if rubric is not None:
            if saved is not None and done == config.steps:
                raise UserError(f"--rubric: the run is finished, at step {config.steps}: nothing would go by it")
            check_rubric_data(read_rubric(rubric), data)
            notices.append(f"goes on by the rubric '{rubric}'")
        if weights_only and saved is not None:
            notices.append("weights only: optimizers, and what else a checkpoint keeps beside weights, begin anew")
        for text in notices:
            view.notice(text)
        with folder.rubric_replaced(rubric):
            run = cls._build(config, folder, data, build, view)
            if saved is not None:
                run._take_over(saved, weights_only=weights_only)
                run.policy.version = run.step
        if new is not None:
            folder.write_config(run.config)
        if saved is not None:
            set_aside(saved)
        folder.forget_after(run.step if saved else -1)
        run.samples.forget_after(run.step if saved else -1)
        for text in notices:  # whoever has the folder sees what was done to the run
            keep_notice(folder, Notice(run.step, text))
        run.said = {notice.key for notice in kept_notices(folder.path)}
        run.history = History(folder.records("metrics.jsonl"))
        if run.step == run.config.steps:
            view.notice(f"finished already, at step {run.step}")
        else:
            view.notice(f"going on after step {run.step} of {run.config.steps}")
        return run

    @classmethod
    def _build(cls, config: Config, folder: RunFolder, data: Data, build: Build, view: View) -> "Run":
        with explained_memory(config):
            scale = Scale(config)
            try:
                return cls._put_together(config, folder, data, build, view, scale)
            except BaseException:  # whatever it was: raised on
                scale.close()
                raise

    @classmethod
    def _put_together(
        cls, config: Config, folder: RunFolder, data: Data, build: Build, view: View, scale: Scale
    ) -> "Run":
        checker = load_checker(checker_name(config))
        built = build_reward(
            config.reward,
            checker,
            cache=folder.path / "embeddings.sqlite",
            device=config.model.device,
            rubric=folder.rubric,
            notice=view.notice,
            weights=partial(newest_weights, key="reward.file"),
            check=partial(check_rubric_data, data=data),
            places=scale.places,
        )
        reward = ApplyReward(built, missing_limit=config.reward.missing_limit)
        look = second_look(config, built, data, folder, notice=view.notice, places=scale.places)
        scale.check_used()
        seed_everything(config.seed)
        with phase("load the model"):
            policy = load_child(config)
        base = weights_identity(config.model.name, policy)
        reference = Reference.of(policy)
        speed_up(policy, reference, graphs=config.model.graphs, compiled=config.model.compile is True)
        scale.give_sampler(policy, partial(folder.append, "sampling.jsonl"))
        longest, cut = lengths(config, policy, data, built)
        if config.microbatch_tokens == "auto":
            with phase("see what fits into memory"):
                found = find_microbatch_tokens(policy, longest)
            config = config.model_copy(update={"microbatch_tokens": found})
            folder.write_config(config)
        method = build(Parts(config, policy, reference, reward))
        samples = config.method.trains == "policy" and method.evaluate is None
        known = {notice.key for notice in kept_notices(folder.path)}
        for text in (cut, *method.notices, sampler_of(policy).notice if samples else None):
            if text is not None:
                view.notice(text)
                if text not in known:
                    keep_notice(folder, Notice(0, text))
        return cls(
            folder,
            config,
            data,
            policy,
            reference,
            reward,
            build_check(checker_name(config)),
            method,
            PromptOrder(data.train, config.prompts_per_step, config.seed),
            SampleStore(folder.path),
            base,
            data_record(data),
            Saver(folder.checkpoints, policy, Keep(config.keep_last, config.keep_best)),
            look,
            scale,
        )

    def save(self, metrics: Metrics | None = None) -> None:
        """Begin to write a checkpoint, with this step's held-out figures; `saver.wait()` is its end."""
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
        self.saver.save(take_snapshot(self.policy, self.step, tensors, scalars, entries, self.card()))

    def card(self) -> str:
        rows = Rows(len(self.data.train), len(self.data.held_out))
        records = records_of(self.folder.path)
        return model_card(self.config, records, step=self.step, rows=rows, base_hash=self.base["sha256"])

    def _take_over(self, saved: Path, *, weights_only: bool) -> None:
        """A checkpoint's state, or its weights alone."""
        if not weights_only:
            state = load_checkpoint(saved, self.policy, base=self.base)
            with damage_explained(saved):
                self._load(state)
            return
        with damage_explained(saved):
            load_weights(saved, self.policy)
        self.step = checkpoint_step(saved)
        self.method.update.begin_at(self.step)

    def _load(self, state: State) -> None:
        update = {k.removeprefix("update."): v for k, v in state.tensors.items() if k.startswith("update.")}
        self.method.update.load(update, state.scalars["update"])
        self.reward.load(state.scalars["reward"])
        if self.method.memory is not None:
            self.method.memory.load(state.memory())
        if self.method.critic is not None:
            critic = {k.removeprefix("critic."): v for k, v in state.tensors.items() if k.startswith("critic.")}
            self.method.critic.load_state_dict(critic)
        self.skipped = state.scalars.get("skipped", 0)
        self.step = state.step

    def pass_over(self, error: NonFinite, view: View) -> tuple[Batch, Metrics]:
        """A step in which something was not finite: kept for a person to look at, and skipped if that is allowed."""
        step = self.step + 1
        dumped = dump_batch(self.folder.path, step, error.batch, str(error))
        self.skipped += 1
        if self.skipped > self.config.skip_nonfinite or error.batch is None:
            goes_on = f"`vigneron resume {self.folder.path} skip_nonfinite={self.skipped}` passes over it"
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
            self.samples.add(samples_of(batch, self.step, "eval"))
            metrics |= self.second_look(batch) if self.second_look is not None else {}
            metrics |= self.method.evaluate_beside(rows) if self.method.evaluate_beside is not None else {}
        named = {f"eval/{name}": value for name, value in metrics.items()}
        if self.config.keep_best is not None and self.config.keep_best not in named:
            known = did_you_mean(self.config.keep_best, named)
            raise UserError(f"keep_best: no held-out figure of this run is named '{self.config.keep_best}'{known}")
        return named

    def log(self, metrics: Metrics) -> None:
        """Of the step that is done, or of the child before the first."""
        self.folder.append("metrics.jsonl", {"step": self.step, **metrics})
        if self.tracking is None:
            names = [name for name in self.config.trackers if not missing_trackers([name])]
            self.tracking = Tracking(names, self.folder.path, self.config.model_dump(mode="json"))
        self.tracking.log(self.step, metrics)

    def explain(self, metrics: Metrics, view: View) -> None:
        """What a step's figures, and those before it, call for: of each thing once. The run's folder keeps it."""
        self.history.add({"step": self.step, **metrics})
        said = [Notice(self.step, t, "warning") for t in (*self.method.explain(metrics), *explain_canaries(metrics))]
        said += [Notice(self.step, text, "warning", about) for about, text in self.history.warnings().items()]
        said += [Notice(self.step, text, "warning") for text in self.tracking.complaints()] if self.tracking else []
        for notice in said:
            if notice.key not in self.said:
                self.said.add(notice.key)
                keep_notice(self.folder, notice)
                tell(view, notice)

    def close(self) -> None:
        """All of it, whatever one part meets. Trackers are not waited for where the run was to end at once."""
        with ExitStack() as parts:
            parts.callback(self.folder.unlock)
            parts.callback(self.samples.close)
            if self.scale is not None:
                parts.callback(self.scale.close)
            if self.second_look is not None and self.second_look.other is not None:
                parts.callback(self.second_look.other.close)
            parts.callback(self.reward.close)
            parts.callback(self._close_trackers)
            parts.callback(self.saver.settle)

    def _close_trackers(self) -> None:
        said = self.tracking.close(at_once=self.hurried) if self.tracking is not None else []
        with suppress(UserError):  # a full disk, which was said
            for text in said:
                keep_notice(self.folder, Notice(self.step, text, "warning"))


def known_state(folder: RunFolder, saved: Path | None, *, weights_only: bool) -> dict[str, Any]:
    """What a run is compared with before it goes on: a checkpoint's scalars, or its config where there is none yet.

    With weights alone, state that cannot be read is none.
    """
    if saved is None:
        return {"config": folder.config().model_dump(mode="json")}
    try:
        return read_scalars(saved)
    except (OSError, ValueError) as error:
        if weights_only:
            return {}
        raise UserError(f"the checkpoint '{saved}' is damaged: {SCALARS} cannot be read") from error
