"""Games of the tiny model that converses: a rollout of two rows, and a run."""

from pathlib import Path
from typing import Any

import torch

from support.labelling import write_rows
from support.talking import LETTERS, conversing, talking_model
from support.tiny_runs import held_out_of, tiny_config
from vigneron.batch import Batch
from vigneron.config import GameConfig
from vigneron.core.draws import Sampling
from vigneron.policy.load import make_policy
from vigneron.policy.model import Policy
from vigneron.rollout.build import RolloutParts
from vigneron.rollout.on_policy import OnPolicy
from vigneron.selfplay.rollout import Games, build

ROWS = [{"prompt": "x", "topic": "one"}, {"prompt": "y", "topic": "two words"}]


def game_options(**given: Any) -> GameConfig:
    return GameConfig.model_validate({"kind": "game", "class": "support.talking:Letters", "max_turns": 3} | given)


def policy_of() -> Policy:
    model, tokenizer = talking_model()
    return make_policy(model, tokenizer, device=torch.device("cpu"))


def game_rollout(policy: Policy | None = None, **given: Any) -> Games:
    policy = policy or policy_of()
    default = OnPolicy(policy, Sampling(), 8, group_size=3, seed=5, stop=tuple(LETTERS))
    return build(RolloutParts(None, policy, default), game_options(**given))  # type: ignore[arg-type]


def played(policy: Policy | None = None, **given: Any) -> Batch:
    return game_rollout(policy, **given)(ROWS, step=2)


def game_config(folder: Path, place: Path, **changes: Any) -> Any:
    data = write_rows(place / "rows.jsonl", [{"prompt": word, "topic": word} for word in "abcdef"])
    write_rows(held_out_of(data), [{"prompt": word, "topic": word} for word in "xyz"])
    environment = changes.pop("environment", {"kind": "game", "class": "support.talking:Letters", "max_turns": 3})
    sections = conversing(folder, method={"name": "grpo"}, **changes)
    sections["environment"] = environment
    return tiny_config(folder, data, **sections)
