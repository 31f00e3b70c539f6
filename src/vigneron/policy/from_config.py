"""Load the model that a run trains from its config."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from vigneron.config import Config
from vigneron.policy.chat import set_template_defaults
from vigneron.policy.chat_template import set_date
from vigneron.policy.load import load_policy
from vigneron.policy.lora import Lora
from vigneron.policy.model import Policy
from vigneron.policy.reward_model import load_reward_model


def policy_from_config(
    config: Config, *, shared: bool = False, notice: Callable[[str], None] = lambda text: None
) -> Policy:
    """The policy or reward model of `config.model`. `shared` as in `load_policy`."""
    policy = _load(config, shared, notice)
    set_template_defaults(policy.tokenizer, config.model.chat_template_kwargs)
    set_date(config.model.chat_date)
    return policy


def new_scorer(config: Config, **options: Any) -> Policy:
    """The config's model with a new head that gives a text one number."""
    model = config.model
    return load_reward_model(
        model.name,
        start=True,
        seed=config.seed,
        device=model.device,
        dtype=model.dtype,
        activation_checkpointing=model.activation_checkpointing is True,
        allow_pickle=model.allow_pickle,
        trust_remote_code=model.trust_remote_code,
        **options,
    )


def _load(config: Config, shared: bool, notice: Callable[[str], None]) -> Policy:
    model = config.model
    if config.method.trains == "scorer":
        return new_scorer(config, shared=shared, weights=model.weights, notice=notice)
    lora: Any = model.lora
    if lora is not None:
        targets = lora.targets if isinstance(lora.targets, str) else tuple(lora.targets)
        lora = Lora(lora.rank, lora.alpha, targets)
    policy = load_policy(
        model.name,
        device=model.device,
        dtype=model.dtype,
        chat=model.chat,
        lora=lora,
        activation_checkpointing=model.activation_checkpointing is True,
        allow_pickle=model.allow_pickle,
        trust_remote_code=model.trust_remote_code,
        shared=shared,
        weights=model.weights,
        notice=notice,
    )
    if policy.long_rope is not None and config.method.reads == "prompts":
        policy.long_rope = replace(policy.long_rope, margin=config.completion_tokens)
    return policy


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch: for the initial weights of adapters and for user rewards. Sampling is keyed."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
