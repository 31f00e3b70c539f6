"""What tests do once, and a user's command every time: importing this turns it on. None of it changes a result, but for
the dtype on some CPUs."""

import copy
import logging
import os
from collections.abc import Callable
from functools import lru_cache, wraps
from types import FunctionType
from typing import Any

import httpcore2
import torch
import typer.main

from vigneron import yaml_text
from vigneron.config import Config
from vigneron.policy import device
from vigneron.policy.model import Policy
from vigneron.rollout.engine import sample
from vigneron.rollout.engine.engine import Engine
from vigneron.sources.embedders import BUNDLED_EMBEDDERS
from vigneron.training import model_card

# The machine's certificates are read once, not for every client; so are the options of all verbs, and the bundled
# embedders.
httpcore2.default_ssl_context = lru_cache(httpcore2.default_ssl_context)
typer.main.get_command = lru_cache(typer.main.get_command)
BUNDLED_EMBEDDERS.update({name: lru_cache(load) for name, load in BUNDLED_EMBEDDERS.items()})

# Only a power cut loses what was written and not flushed to the disk; a kill does not.
os.fsync = lambda handle: None

# pytest's own handlers, which are added to a thousand loggers six times a test, are switched off (pyproject.toml).
logging.getLogger().addHandler(logging.NullHandler())

# Without a GPU a seed is not kept for one, with a stack trace each time.
if not torch.cuda.is_available():
    torch.manual_seed = torch.default_generator.manual_seed  # type: ignore[assignment]


# Tests compare numbers in float32, also on a CPU that has bfloat16 and would take it by default.
device.cpu_has_bfloat16 = wraps(device.cpu_has_bfloat16)(lambda: False)


_compile = torch.compile


def _compile_when_called(function: Any = None, **options: Any) -> Any:
    """bitsandbytes, and so peft, compiles functions on import: the compiler takes seconds to import."""
    if not isinstance(function, FunctionType):
        return _compile(function, **options) if function else lambda given: _compile_when_called(given, **options)
    compiled = lru_cache(lambda: _compile(function, **options))
    return wraps(function)(lambda *given, **keys: compiled()(*given, **keys))


if not torch.cuda.is_available():
    torch.compile = _compile_when_called

_agreed: set[Any] = set()
_agrees = sample.engine_agrees
_engine = dict(vars(Engine))


def _agrees_once(policy: Policy, engine: Engine) -> bool:
    """The engine is tried once on each kind of tiny model of transformers' own modules; always if a test changed it, or
    if it may stop using CUDA graphs when tried."""
    kinds = tuple(type(module) for module in policy.model.modules())
    changed = dict(vars(Engine)) != _engine or any("forward" in vars(module) for module in policy.model.modules())
    key = kinds, policy.causal.config.to_json_string(), policy.compute_dtype, policy.own_attention, engine.fused
    if changed or engine.graphed or key not in _agreed:
        if not _agrees(policy, engine):
            return False
        _agreed.add(key)
    return True


sample.engine_agrees = _agrees_once

_parsed = lru_cache(maxsize=500)(yaml_text._data)


def _data(text: str, loader_class: Any) -> Any:
    """The same recipes are read again and again; long texts are a test's own."""
    return copy.deepcopy(_parsed(text, loader_class)) if len(text) < 20_000 else _parsed.__wrapped__(text, loader_class)


yaml_text._data = _data


def _once_per_config(shown: Callable[[Config], str]) -> Callable[[Config], str]:
    """Every checkpoint's card shows the run's config, and writing YAML is slow."""
    texts: dict[str, str] = {}

    def text(config: Config) -> str:
        key = repr(config.model_dump())
        if key not in texts:
            texts[key] = shown(config)
        return texts[key]

    return text


model_card._config_shown = _once_per_config(model_card._config_shown)
