"""Build the grader of a rubric item, for every flow without a judge."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from vigneron.errors import UserError
from vigneron.rewards.graders.checks import LengthGrader, RegexGrader, Render, StringCheckGrader, TextSimilarityGrader
from vigneron.rewards.graders.json_schema import JsonSchemaGrader
from vigneron.rubric.model import (
    CodeItem,
    Item,
    JsonSchemaItem,
    LengthItem,
    PythonItem,
    RegexItem,
    RewardModelItem,
    SemanticItem,
    StringCheckItem,
    TextSimilarityItem,
)
from vigneron.sources.placement import IN_PROCESS, ModelPlacement
from vigneron.sources.verdict import Grader


def build_grader(
    item: Item,
    *,
    render: Render,
    cache: Path | None = None,
    device: str = "cpu",
    loaded: dict[tuple[str, str], Any] | None = None,
    placement: ModelPlacement = IN_PROCESS,
    notice: Callable[[str], None] = lambda text: None,
) -> Grader:
    """Raises a `UserError` for a broken item. `cache` is the file of cached embeddings, `device` where models run.
    `notice` gets notices about rows and models, perhaps from another thread.

    Items with the same `loaded` dict share models of the same name.
    """
    loaded = {} if loaded is None else loaded
    if isinstance(item, StringCheckItem):
        return StringCheckGrader(item, render)
    if isinstance(item, RegexItem):
        return RegexGrader(item)
    if isinstance(item, LengthItem):
        return LengthGrader(item)
    if isinstance(item, TextSimilarityItem):
        return TextSimilarityGrader(item, render)
    if isinstance(item, JsonSchemaItem):
        return JsonSchemaGrader(item)
    if isinstance(item, CodeItem):
        from vigneron.rewards.graders.code import CodeGrader

        return CodeGrader(item, notice=notice)
    if isinstance(item, PythonItem):
        from vigneron.rewards.graders.models import PythonGrader

        return PythonGrader(item)
    if isinstance(item, SemanticItem):
        from vigneron.rewards.graders.models import SemanticGrader
        from vigneron.sources.embedding_cache import cached_embedder

        name = item.embedder
        load_embedder = partial(cached_embedder, name, cache=cache, device=device, placement=placement)
        embedder = _load_once(loaded, item, "embedder", name, load_embedder)
        return SemanticGrader(item, render, embedder)
    if isinstance(item, RewardModelItem):
        from vigneron.rewards.graders.models import RewardModelGrader
        from vigneron.rewards.model import ModelReward, load_reward_scorer

        name = item.model
        load = placement.scorer or partial(
            load_reward_scorer,
            notice=lambda text: notice(text.replace("reward.model", f"item '{item.name}', model", 1)),
        )
        scorer = _load_once(loaded, item, "model", name, lambda: load(name, "reward", device))
        return RewardModelGrader(item, ModelReward(scorer))
    raise TypeError(f"'{item.name}' is scored by a judge")


def _load_once(loaded: dict[tuple[str, str], Any], item: Item, key: str, name: str, load: Callable[[], Any]) -> Any:
    """Loading errors name the config key `reward.embedder`; here they name the item's key."""
    if (key, name) not in loaded:
        try:
            loaded[key, name] = load()
        except UserError as error:
            raise UserError(f"item '{item.name}', {key}: {str(error).removeprefix(f'reward.{key}: ')}") from error
    return loaded[key, name]
