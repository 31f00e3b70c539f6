"""A frozen player that is an adapter plays as its run sampled."""

from pathlib import Path
from typing import Any

import pytest
import torch

from support.games import game_config, played
from support.talking import talking_folder
from vigneron.errors import UserError
from vigneron.policy.load import load_policy
from vigneron.policy.lora import Lora
from vigneron.recipe import check_config
from vigneron.training.setup.resolve import with_values


@pytest.fixture(name="folders")
def _folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A model, an adapter of it, and both merged."""
    base, adapter, merged = (tmp_path / name for name in ("base", "adapter", "merged"))
    policy = load_policy(str(talking_folder(base)), device="cpu", lora=Lora(rank=2))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.3)
    policy.model.save_pretrained(adapter)
    policy.model.merge_and_unload().save_pretrained(merged)
    for folder in (adapter, merged):
        policy.tokenizer.save_pretrained(folder)
    return base, adapter, merged


def bob(**keys: Any) -> Any:
    return played(players={"bob": {"kind": "local", **keys}}).samples.completions


def test_an_adapter_plays_as_the_merged_model(folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    base, adapter, merged = folders
    config = game_config(base, tmp_path)
    players = {"bob": {"kind": "local", "model": str(adapter)}}
    config = config.model_copy(update={"environment": type(config.environment)(**_given(config, players))})
    (player,) = with_values(config).environment.players.values()
    assert (player.model, player.adapter) == (str(base), str(adapter))
    assert bob(**player.model_dump()) == bob(kind="local", model=str(merged))
    assert bob(**player.model_dump()) != bob(kind="local", model=str(base))
    again = config.environment.model_copy(update={"players": {"bob": player}})
    assert with_values(config.model_copy(update={"environment": again})).environment.players == {"bob": player}


def test_the_reference_is_the_model_that_training_begins_with(tmp_path: Path) -> None:
    base = talking_folder(tmp_path / "base")
    config = game_config(base, tmp_path)
    config = check_config(
        {**config.model_dump(), "environment": _given(config, {"bob": {"kind": "reference"}})}, "here"
    )
    assert with_values(config).environment.players["bob"].model_dump() == {
        "kind": "local",
        "model": str(base),
        "adapter": None,
    }
    with pytest.raises(UserError, match="`kind: reference` needs a model that knows conversations"):
        check_config({**config.model_dump(), "model": {**config.model.model_dump(), "chat": "minted"}}, "here")


def _given(config: Any, players: dict[str, Any]) -> dict[str, Any]:
    return {**config.environment.model_dump(), "players": players}


def test_what_is_no_adapter_is_named(folders: tuple[Path, Path, Path]) -> None:
    base, adapter, _ = folders
    with pytest.raises(UserError, match=r"environment\.players: '.*base' is no adapter"):
        bob(model=str(base), adapter=str(base))
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"environment\.players: the adapter '.*adapter' cannot be loaded on '.*base'"):
        bob(model=str(base), adapter=str(adapter))
