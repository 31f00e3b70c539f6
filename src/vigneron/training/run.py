"""A run: its parts put together, and its start, its going on and its end."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from vigneron import ranks
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
from vigneron.rewards.on_first_rank import OnFirstRank
from vigneron.rollout.prompts import PromptOrder
from vigneron.rollout.sample import sampler_of
from vigneron.rubric.read import read_rubric
from vigneron.scale.fits import check_ranks
from vigneron.scale.sharding import shard_policies
from vigneron.scale.vllm import VllmSampler
from vigneron.scale.vllm_server import reach
from vigneron.tasks.answers import answered
from vigneron.tasks.source import Data, check_rubric_data, checker_name, load_data
from vigneron.timing import phase
from vigneron.trackers.installed import check_trackers, missing_trackers
from vigneron.trackers.tracking import Tracking
from vigneron.training.ahead import Ahead, check_staleness
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
from vigneron.training.correction import Correction
from vigneron.training.dumps import dump_batch
from vigneron.training.followers import Files, files_of, scratch_folder
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
from vigneron.training.shards import placed
from vigneron.training.slots import Method, Metrics, Parts
from vigneron.training.snapshot import take_snapshot
from vigneron.training.view import Silent, View, tell
from vigneron.training.warnings import History

__all__ = ["Run", "Silent", "View"]


Build = Callable[[Parts], Method]


@dataclass(frozen=True)
class GoingOn:
    """What a run that goes on begins with."""

    config: Config
    data: Data
    saved: Path | None
    """The checkpoint; None where there is none yet."""
    notices: tuple[str, ...]


@dataclass
class Run:
    """Everything a step needs. `step` counts the steps that are done."""

    folder: RunFolder
    config: Config
    data: Data
    policy: Policy
    reference: Reference
    reward: ApplyReward | OnFirstRank
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
        check_ranks(config, ranks.asked_for())
        check_staleness(config, ranks.asked_for())
        ranks.join(resolve_device(config.model.device))
        folder: RunFolder | None = None

        def begin() -> tuple[Config, Data, Files]:
            nonlocal folder
            chosen, data = cls._looked_at(config, runs, name, view)
            folder = RunFolder.create(runs, name or chosen.recipe, exact_name=name is not None)
            folder.lock()
            folder.write_config(chosen)
            folder.write_data(data)
            if chosen.reward.kind == "rubric":
                folder.write_rubrics(chosen.reward.file, chosen.reward.held_out_file)
            return chosen, data, files_of(folder) if ranks.count() > 1 else {}

        try:
            chosen, data, files = ranks.from_first(begin)
            folder = folder or scratch_folder(files)
            return cls._build(chosen, folder, data, build, view)
        except BaseException:  # Ctrl-C too: a run that never began leaves its name free; raised on
            if folder is not None:
                folder.remove()
            raise

    @staticmethod
    def _looked_at(config: Config, runs: Path, name: str | None, view: View) -> tuple[Config, Data]:
        """What a run begins with, its parent's answers among it."""
        if config.model.compile is True and not can_compile(resolve_device(config.model.device)):
            raise UserError("model.compile: true has an effect on a CUDA device only: leave it out here")
        check_trackers(config.trackers)
        config = resolved(config)
        data = load_data(config)
        check_held_out(config, data)
        RunFolder.check_can_be_created(runs)  # before a parent is asked for minutes
        if name is not None:
            RunFolder.refuse_taken(runs, name)
        with phase("ask the parent"):
            return config, answered(config, data, view.notice)

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
        asked = config or folder.config()
        check_ranks(asked, ranks.asked_for())
        check_staleness(asked, ranks.asked_for())
        ranks.join(resolve_device(device or asked.model.device))

        def begin() -> GoingOn:
            folder.lock()
            return cls._look_back(
                folder,
                config,
                device=device,
                rubric=rubric,
                weights_only=weights_only,
                allow_changes=allow_changes,
                view=view,
            )

        try:
            going = ranks.from_first(begin)
            with folder.rubric_replaced(rubric if ranks.is_first() else None):
                run = cls._built_again(going, folder, build, weights_only=weights_only, view=view)
            if ranks.is_first():
                run._go_on(going, new_config=config is not None, view=view)
            return run
        except BaseException:  # whatever it was: raised on
            folder.unlock()
            raise

    @staticmethod
    def _look_back(
        folder: RunFolder,
        new: Config | None,
        *,
        device: str | None,
        rubric: str | None,
        weights_only: bool,
        allow_changes: bool,
        view: View,
    ) -> GoingOn:
        """What a run goes on with, and what is to be said of it."""
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
        return GoingOn(config, data, saved, tuple(notices))

    @classmethod
    def _built_again(cls, going: GoingOn, folder: RunFolder, build: Build, *, weights_only: bool, view: View) -> "Run":
        files = ranks.from_first(lambda: files_of(folder)) if ranks.count() > 1 else {}
        run = cls._build(going.config, folder if ranks.is_first() else scratch_folder(files), going.data, build, view)
        if (saved := going.saved) is not None:
            ranks.agreed(lambda: run._take_over(saved, weights_only=weights_only))
            run.policy.version = run.step
        return run

    def _go_on(self, going: GoingOn, *, new_config: bool, view: View) -> None:
        """The run's folder as it was at the checkpoint, with what was done to the run since."""
        folder, saved = self.folder, going.saved
        if new_config:
            folder.write_config(self.config)
        if saved is not None:
            set_aside(saved)
        folder.forget_after(self.step if saved else -1)
        self.samples.forget_after(self.step if saved else -1)
        for text in going.notices:
            keep_notice(folder, Notice(self.step, text))
        self.said = {notice.key for notice in kept_notices(folder.path)}
        self.history = History(folder.records("metrics.jsonl"))
        if self.step == self.config.steps:
            view.notice(f"finished already, at step {self.step}")
        else:
            view.notice(f"going on after step {self.step} of {self.config.steps}")

    @classmethod
    def _build(cls, config: Config, folder: RunFolder, data: Data, build: Build, view: View) -> "Run":
        with explained_memory(config):
            return cls._put_together(config, folder, data, build, view)

    @classmethod
    def _put_together(cls, config: Config, folder: RunFolder, data: Data, build: Build, view: View) -> "Run":
        def load() -> tuple[Any, SecondLook | None, Policy]:
            built = build_reward(
                config.reward,
                load_checker(checker_name(config)),
                cache=folder.path / "embeddings.sqlite",
                device=config.model.device,
                rubric=folder.rubric,
                notice=view.notice,
                weights=partial(newest_weights, key="reward.file"),
                check=partial(check_rubric_data, data=data),
            )
            look = second_look(config, built, data, folder, notice=view.notice)
            seed_everything(config.seed)
            sampling = config.scale.sampling
            vllm = reach(sampling) if sampling.kind == "vllm" else None
            with phase("load the model"):
                policy = load_child(config)
            if sampling.kind == "vllm" and vllm is not None:
                policy.sampler = VllmSampler(policy, vllm, sampling, folder.path)
            return built, look, policy

        built, look, policy = ranks.agreed(load)
        asked = ApplyReward(built, missing_limit=config.reward.missing_limit)
        reward = asked if ranks.count() == 1 else OnFirstRank(asked)
        base = weights_identity(config.model.name, policy)
        reference = Reference.of(policy)
        shard = config.scale.shard
        shard_policies(policy, reference, shard)
        # Shared weights come and go during a pass, at addresses that no graph knows.
        one = shard == 1
        speed_up(policy, reference, graphs=config.model.graphs and one, compiled=config.model.compile is True and one)
        longest, cut = lengths(config, policy, data, built)
        if config.microbatch_tokens == "auto":
            with phase("see what fits into memory"):
                found = -int(ranks.largest(-find_microbatch_tokens(policy, longest)))
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
        )

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
            if self.second_look is not None:
                look = self.second_look
                metrics |= ranks.from_first(lambda: look(batch))
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
            names = [n for n in self.config.trackers if ranks.is_first() and not missing_trackers([n])]
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
            parts.callback(self.folder.unlock if ranks.is_first() else self.folder.remove)
            parts.callback(self.samples.close)
            if self.second_look is not None and self.second_look.other is not None:
                parts.callback(self.second_look.other.close)
            parts.callback(self.reward.close)
            parts.callback(getattr(self.policy.sampler, "close", lambda: None))
            parts.callback(self._close_trackers)
            parts.callback(self.saver.settle)
            if self.ahead is not None:
                parts.callback(self.ahead.close)

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
