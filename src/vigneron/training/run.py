"""A run: its parts put together, and its start, its going on and its end."""

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.errors import UserError
from vigneron.methods import METHODS
from vigneron.policy.load import Lora, load_policy
from vigneron.policy.model import Policy, Reference
from vigneron.rewards.apply import ApplyReward
from vigneron.rewards.build import build_reward
from vigneron.rollout.on_policy import OnPolicy
from vigneron.rollout.prompts import PromptOrder, Row
from vigneron.tasks.source import Data, load_data
from vigneron.training.checkpoint import State, checkpoints, load_checkpoint, save_checkpoint, weights_identity
from vigneron.training.folder import RunFolder
from vigneron.training.metrics import batch_metrics
from vigneron.training.samples import SampleStore, samples_of
from vigneron.training.slots import Method, Metrics, Parts


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
    method: Method
    prompts: PromptOrder
    samples: SampleStore
    base: dict[str, str]
    data_hash: str
    step: int = 0

    @classmethod
    def start(cls, config: Config, folder: RunFolder, view: View | None = None) -> "Run":
        """A new run, from the base model. What can fail fails before a model is loaded, and leaves no folder."""
        try:
            folder.lock()
            folder.write_config(config)
            data = load_data(config)
            folder.write_data(data)
            return cls._build(config, folder, data, view or Silent())
        except BaseException:
            folder.remove()
            raise

    @classmethod
    def resume(cls, folder: RunFolder, view: View | None = None) -> "Run":
        """Go on from the newest checkpoint, or from the start where there is none yet."""
        view = view or Silent()
        folder.lock()
        run = cls._build(folder.config(), folder, folder.data(), view)
        saved = checkpoints(folder.checkpoints)
        if saved:
            run._load(load_checkpoint(saved[-1], run.policy, base=run.base))
        folder.forget_after(run.step if saved else -1)
        run.samples.forget_after(run.step if saved else -1)
        view.notice(f"going on after step {run.step} of {run.config.steps}")
        return run

    @classmethod
    def _build(cls, config: Config, folder: RunFolder, data: Data, view: View) -> "Run":
        reward = ApplyReward(
            build_reward(config.reward, cache=folder.path / "embeddings.sqlite"),
            missing_limit=config.reward.missing_limit,
        )
        seed_everything(config.seed)
        policy = load_child(config)
        base = weights_identity(config.model.name, policy)
        reference = Reference.of(policy)
        method = METHODS[config.method.name](Parts(config, policy, reference, reward))
        for notice in method.notices:
            view.notice(notice)
        return cls(
            folder,
            config,
            data,
            policy,
            reference,
            method,
            PromptOrder(data.train, config.prompts_per_step, config.seed),
            SampleStore(folder.path),
            base,
            hashlib.sha256(json.dumps([data.train, data.held_out], sort_keys=True).encode()).hexdigest(),
        )

    def save(self) -> Path:
        update, critic = self.method.update, self.method.critic
        tensors = {f"update.{name}": tensor for name, tensor in update.tensors().items()}
        if critic is not None:
            tensors |= {f"critic.{name}": tensor for name, tensor in critic.head.state_dict().items()}
        state = State(self.step, tensors, {"update": update.scalars(), "data": self.data_hash})
        return save_checkpoint(
            self.folder.checkpoints, self.policy, state, base=self.base, keep_last=self.config.keep_last
        )

    def _load(self, state: State) -> None:
        if state.scalars["data"] != self.data_hash:
            raise UserError(f"the rows in '{self.folder.path / 'data'}' are not the ones this run was trained on")
        update = {k.removeprefix("update."): v for k, v in state.tensors.items() if k.startswith("update.")}
        self.method.update.load(update, state.scalars["update"])
        if self.method.critic is not None:
            head = {k.removeprefix("critic."): v for k, v in state.tensors.items() if k.startswith("critic.")}
            self.method.critic.head.load_state_dict(head)
        self.step = state.step

    def evaluate(self, rows: Sequence[Row] | None = None) -> tuple[Batch, Metrics]:
        """Greedy completions of the held-out rows, rewarded."""
        rows = self.data.held_out if rows is None else rows
        greedy = OnPolicy(self.policy, None, self.config.max_new_tokens, tokens_at_once=self.config.microbatch_tokens)
        batch = self.method.reward(greedy(rows))
        return batch, {f"eval/{name}": value for name, value in batch_metrics(batch).items()}

    def evaluate_and_keep(self) -> Metrics:
        batch, metrics = self.evaluate()
        self.samples.add(samples_of(batch, self.step, "eval"))
        return metrics

    def close(self) -> None:
        self.samples.close()
        self.folder.unlock()


def load_child(config: Config) -> Policy:
    model = config.model
    lora: Any = model.lora
    if lora is not None:
        targets = lora.targets if isinstance(lora.targets, str) else tuple(lora.targets)
        lora = Lora(lora.rank, lora.alpha, targets)
    return load_policy(
        model.name,
        device=model.device,
        dtype=model.dtype,
        lora=lora,
        activation_checkpointing=model.activation_checkpointing,
        allow_pickle=model.allow_pickle,
        trust_remote_code=model.trust_remote_code,
    )


def seed_everything(seed: int) -> None:
    """Our own draws are keyed; this is for an adapter's first weights, and for a user's reward."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
