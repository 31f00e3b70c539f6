"""A run: its parts put together, and its start, its going on and its end."""

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from vigneron.batch import Batch
from vigneron.compiling import can_compile
from vigneron.config import Config, is_api_embedder
from vigneron.errors import UserError
from vigneron.files import user_path
from vigneron.folder.run_folder import RunFolder, default_runs_folder
from vigneron.folder.samples import SampleStore
from vigneron.policy.load import Lora, load_policy, resolve_compute_dtype, resolve_device, speed_up
from vigneron.policy.model import Policy, Reference
from vigneron.policy.scorer import load_scorer
from vigneron.recipe import recipe_names
from vigneron.rewards.apply import ApplyReward
from vigneron.rewards.build import build_reward
from vigneron.rewards.checkers import Check, build_check, load_checker
from vigneron.rollout.demonstrations import demonstrations
from vigneron.rollout.pairs import sequences_of
from vigneron.rollout.prompts import PromptOrder, Row, prompts_token_ids
from vigneron.rollout.sample import check_lengths, sampler_of
from vigneron.rubric.prompts import generation_prompt
from vigneron.rubric.read import read_rubric
from vigneron.rubric.rows import category_of
from vigneron.sources.client import base_url
from vigneron.tasks.answers import answered
from vigneron.tasks.source import Data, check_rubric_data, checker_name, load_data
from vigneron.training.checkpoint import (
    State,
    check_manifest,
    checkpoint_step,
    checkpoints,
    load_checkpoint,
    save_checkpoint,
    weights_identity,
)
from vigneron.training.held_out import evaluate
from vigneron.training.manifest import damage_explained
from vigneron.training.memory import explained_memory, find_microbatch_tokens
from vigneron.training.samples import samples_of
from vigneron.training.second_look import SecondLook, explain_canaries, second_look
from vigneron.training.slots import Method, Metrics, Parts

# Compiling takes half a minute: shorter runs are over sooner without.
COMPILE_FROM_STEPS = 200

Build = Callable[[Parts], Method]


class View(Protocol):
    """Someone who watches: the terminal, or nobody."""

    def notice(self, text: str) -> None: ...
    def step(self, run: "Run", metrics: Metrics, batch: Batch, seconds: float) -> None: ...


class Silent:
    def notice(self, text: str) -> None: ...
    def step(self, run: "Run", metrics: Metrics, batch: Batch, seconds: float) -> None: ...


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
    data_hash: str
    second_look: SecondLook | None = None
    step: int = 0
    said: set[str] = field(default_factory=set)

    @classmethod
    def start(cls, config: Config, runs: Path, build: Build, *, name: str | None = None, view: View) -> "Run":
        """A new run, from the base model. What can fail fails before a model is loaded, and leaves no folder."""
        if config.model.compile is True and not can_compile(resolve_device(config.model.device)):
            raise UserError("model.compile: true has an effect on a CUDA device only: leave it out here")
        config = resolved(config)
        data = load_data(config)
        if name is not None:
            RunFolder.refuse_taken(runs, name)  # before a parent is asked for minutes
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
        cls, folder: RunFolder, build: Build, *, device: str | None = None, rubric: str | None = None, view: View
    ) -> "Run":
        """Go on from the newest checkpoint, or from the start where there is none yet; by another rubric if one is
        given."""
        config = folder.config()
        if rubric is not None and config.reward.kind != "rubric":
            raise UserError("--rubric: this run's reward is no rubric")
        if device is not None:
            config = resolved(config.model_copy(update={"model": config.model.model_copy(update={"device": device})}))
        folder.lock()
        data = folder.data()
        if rubric is not None:
            done = checkpoints(folder.checkpoints)
            if done and checkpoint_step(done[-1]) == config.steps:
                raise UserError(f"--rubric: the run is finished, at step {config.steps}: nothing would go by it")
            check_rubric_data(read_rubric(rubric), data)
            view.notice(f"goes on by the rubric '{rubric}'")
        with folder.rubric_replaced(rubric):
            run = cls._build(config, folder, data, build, view)
        saved = checkpoints(folder.checkpoints)
        if saved:
            state = load_checkpoint(saved[-1], run.policy, base=run.base)
            with damage_explained(saved[-1]):
                run._load(state)
        folder.forget_after(run.step if saved else -1)
        run.samples.forget_after(run.step if saved else -1)
        if run.step == run.config.steps:
            view.notice(f"finished already, at step {run.step}")
        else:
            view.notice(f"going on after step {run.step} of {run.config.steps}")
        return run

    @classmethod
    def _build(cls, config: Config, folder: RunFolder, data: Data, build: Build, view: View) -> "Run":
        with explained_memory(config):
            return cls._put_together(config, folder, data, build, view)

    @classmethod
    def _put_together(cls, config: Config, folder: RunFolder, data: Data, build: Build, view: View) -> "Run":
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
        )
        reward = ApplyReward(built, missing_limit=config.reward.missing_limit)
        look = second_look(config, built, data, folder, notice=view.notice)
        seed_everything(config.seed)
        policy = load_child(config)
        base = weights_identity(config.model.name, policy)
        reference = Reference.of(policy)
        speed_up(policy, reference, graphs=config.model.graphs, compiled=config.model.compile is True)
        longest, cut = lengths(config, policy, data, built)
        if config.microbatch_tokens == "auto":
            found = find_microbatch_tokens(policy, longest)
            config = config.model_copy(update={"microbatch_tokens": found})
            folder.write_config(config)
        method = build(Parts(config, policy, reference, reward))
        samples = config.method.trains == "policy" and method.evaluate is None
        for notice in (cut, *method.notices, sampler_of(policy).notice if samples else None):
            if notice is not None:
                view.notice(notice)
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
            hashlib.sha256(json.dumps([data.train, data.held_out], sort_keys=True).encode()).hexdigest(),
            look,
        )

    def save(self) -> Path:
        update, critic = self.method.update, self.method.critic
        tensors = {f"update.{name}": tensor for name, tensor in update.tensors().items()}
        if critic is not None:
            tensors |= {f"critic.{name}": tensor for name, tensor in critic.state_dict().items()}
        scalars = {"update": update.scalars(), "reward": self.reward.scalars(), "data": self.data_hash}
        if self.method.memory is not None:
            scalars["memory"] = self.method.memory.scalars()
        state = State(self.step, tensors, scalars)
        return save_checkpoint(
            self.folder.checkpoints, self.policy, state, base=self.base, keep_last=self.config.keep_last
        )

    def _load(self, state: State) -> None:
        if state.scalars["data"] != self.data_hash:
            raise UserError(f"the rows in '{self.folder.path / 'data'}' are not the ones this run was trained on")
        update = {k.removeprefix("update."): v for k, v in state.tensors.items() if k.startswith("update.")}
        self.method.update.load(update, state.scalars["update"])
        self.reward.load(state.scalars["reward"])
        if self.method.memory is not None:
            self.method.memory.load(state.scalars["memory"])
        if self.method.critic is not None:
            critic = {k.removeprefix("critic."): v for k, v in state.tensors.items() if k.startswith("critic.")}
            self.method.critic.load_state_dict(critic)
        self.step = state.step

    def evaluate_and_keep(self) -> Metrics:
        """Figures of the held-out part; completions go to the run's samples, where there are any."""
        rows = self.data.held_out
        if self.method.evaluate is not None:
            metrics = self.method.evaluate(rows)
        else:
            batch, metrics = evaluate(self.config, self.policy, self.reward, self.check, rows)
            self.samples.add(samples_of(batch, self.step, "eval"))
            metrics |= self.second_look(batch) if self.second_look is not None else {}
        return {f"eval/{name}": value for name, value in metrics.items()}

    def explain(self, metrics: Metrics, view: View) -> None:
        """What the method has to say about a step's figures, each line once."""
        for text in (*self.method.explain(metrics), *explain_canaries(metrics)):
            if text not in self.said:
                self.said.add(text)
                view.notice(text)

    def close(self) -> None:
        self.reward.close()
        if self.second_look is not None and self.second_look.other is not None:
            self.second_look.other.close()
        self.samples.close()
        self.folder.unlock()


def load_child(config: Config) -> Policy:
    model = config.model
    if config.method.trains == "scorer":
        return load_scorer(
            model.name,
            start=True,
            seed=config.seed,
            device=model.device,
            dtype=model.dtype,
            activation_checkpointing=model.activation_checkpointing,
            allow_pickle=model.allow_pickle,
            trust_remote_code=model.trust_remote_code,
        )
    lora: Any = model.lora
    if lora is not None:
        targets = lora.targets if isinstance(lora.targets, str) else tuple(lora.targets)
        lora = Lora(lora.rank, lora.alpha, targets)
    return load_policy(
        model.name,
        device=model.device,
        dtype=model.dtype,
        chat=model.chat,
        lora=lora,
        activation_checkpointing=model.activation_checkpointing,
        allow_pickle=model.allow_pickle,
        trust_remote_code=model.trust_remote_code,
    )


def resolved(config: Config) -> Config:
    """What `auto` means here, and paths that do not depend on where a command is started."""
    device = resolve_device(config.model.device)
    dtype = "bfloat16" if resolve_compute_dtype(config.model.dtype, device) == torch.bfloat16 else "float32"
    wanted = config.steps >= COMPILE_FROM_STEPS if config.model.compile == "auto" else config.model.compile
    model = {
        "name": newest_weights(config.model.name, "model"),
        "device": str(device),
        "dtype": dtype,
        "compile": wanted and can_compile(device),
    }
    changes: dict[str, Any] = {"model": config.model.model_copy(update=model)}
    if config.reward.kind == "semantic":
        second = config.reward.guards.second_embedder
        guards = config.reward.guards.model_copy(update={"second_embedder": second and absolute(second)})
        reward: dict[str, Any] = {"embedder": absolute(config.reward.embedder), "guards": guards}
        if any(name and is_api_embedder(name) for name in (config.reward.embedder, second)):
            reward["url"] = base_url(config.reward.url, "reward.url")
        changes["reward"] = config.reward.model_copy(update=reward)
    if config.reward.kind == "model" or config.reward.kind == "preference":
        changes["reward"] = config.reward.model_copy(
            update={"model": newest_weights(config.reward.model, "reward.model")}
        )
    if config.reward.kind == "rubric":
        files = {key: getattr(config.reward, key) for key in ("file", "held_out_file")}
        changes["reward"] = config.reward.model_copy(update={k: f and absolute(f) for k, f in files.items()})
    if config.parent is not None:
        parent = (
            {"url": base_url(config.parent.url, "parent.url")}
            if config.parent.kind == "endpoint"
            else {"model": absolute(config.parent.model)}
        )
        changes["parent"] = config.parent.model_copy(update=parent)
    return config.model_copy(update=changes)


def lengths(config: Config, policy: Policy, data: Data, reward: Any = None) -> tuple[int, str | None]:
    """Tokens of the longest sequence; and what is to be said of demonstrations that were cut.

    A prompt that does not fit into the model is found here, not after hours.
    """
    longest, cut = 1, None
    for rows, of in ((data.train, "the training data"), (data.held_out, "the held-out part")):
        if not rows:
            continue
        if config.method.reads == "pairs":
            ids = sequences_of(policy, rows, of, joined=config.method.joins_pairs)
        elif config.method.reads == "demonstrations" and rows is data.train:
            shown = demonstrations(policy, rows, of=of)
            ids = [each.ids for each in shown]
            numbers = [number for number, each in enumerate(shown, start=1) if each.cut]
            if numbers:
                cut = (
                    f"{len(numbers)} of {len(rows)} demonstrations are longer than the model's context of "
                    f"{policy.context_length} tokens and are cut there, the first in row {numbers[0]} of {of}"
                )
        else:
            for prompts, what in asked_of(config, rows, reward):
                ids = prompts_token_ids(policy.tokenizer, prompts, of + what)
                check_lengths(policy, ids, config.max_new_tokens, of + what)
                longest = max(longest, config.max_new_tokens + max(map(len, ids)))
            if config.method.shows_answers and rows is data.train:
                shown = demonstrations(policy, [row for row in rows if row.get("answer")], of=of)
                longest = max(longest, *(len(each.ids) for each in shown))
        longest = max(longest, *map(len, ids))
    return longest, cut


def asked_of(config: Config, rows: Sequence[Row], reward: Any) -> Iterator[tuple[list[Any], str]]:
    """The prompts that completions are drawn under: bare, and as a rubric's categories say."""
    yield [row["prompt"] for row in rows], ""
    if config.method.needs_rubric:
        rubric = reward.book.rubric
        of = [rubric.categories[category_of(rubric, row, n, "the data")] for n, row in enumerate(rows, start=1)]
        made = [generation_prompt(category, row["prompt"]) for category, row in zip(of, rows, strict=True)]
        yield made, ", with its category's `generate` prompt"


def newest_weights(name: str, key: str = "model") -> str:
    """For the folder of a run, its newest checkpoint; else the name of a model, a path made absolute.

    `runs/NAME` is also found where runs are kept, wherever that is.
    """
    path = user_path(name)
    if path.parts[:1] == ("runs",) and not path.exists():
        path = default_runs_folder().joinpath(*path.parts[1:])
        if not path.exists():
            recipe = path.name if path.name in recipe_names() else "RECIPE"
            raise UserError(f"{key}: there is no run '{name}' yet: `vigneron train {recipe} --name {path.name}` first")
    if not (path / "config.yaml").is_file():
        return absolute(name)
    saved = checkpoints(RunFolder.open(path).checkpoints)
    if not saved:
        raise UserError(f"{key}: the run '{name}' has no checkpoint yet")
    check_manifest(saved[-1], weights_only=True)
    return absolute(str(saved[-1]))


def absolute(name: str) -> str:
    """A path that exists, made absolute; a name of something else as it is."""
    path = user_path(name)
    return str(path.resolve()) if path.exists() else name


def seed_everything(seed: int) -> None:
    """Our own draws are keyed; this is for an adapter's first weights, and for a user's reward."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
