"""The grader of a rubric's item, for every flow that needs no judge."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from vigneron.errors import UserError
from vigneron.rewards.graders.checks import Length, RegexCheck, Render, StringCheck, TextSimilarity
from vigneron.rewards.graders.json_schema import JsonSchema
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
from vigneron.sources.placement import HERE, Places
from vigneron.sources.verdict import Grader


def build_grader(
    item: Item,
    *,
    render: Render,
    cache: Path | None = None,
    device: str = "cpu",
    loaded: dict[tuple[str, str], Any] | None = None,
    places: Places = HERE,
) -> Grader:
    """What is wrong with an item is refused here. `cache` is where embeddings are kept, `device` where models run.

    Items that are given the same `loaded` share the models that they name alike.
    """
    loaded = {} if loaded is None else loaded
    if isinstance(item, StringCheckItem):
        return StringCheck(item, render)
    if isinstance(item, RegexItem):
        return RegexCheck(item)
    if isinstance(item, LengthItem):
        return Length(item)
    if isinstance(item, TextSimilarityItem):
        return TextSimilarity(item, render)
    if isinstance(item, JsonSchemaItem):
        return JsonSchema(item)
    if isinstance(item, CodeItem):
        from vigneron.rewards.graders.code import Code

        return Code(item)
    if isinstance(item, PythonItem):
        from vigneron.rewards.graders.models import Python

        return Python(item)
    if isinstance(item, SemanticItem):
        from vigneron.rewards.graders.models import Semantic
        from vigneron.sources.embedding_cache import cached_embedder

        name = item.embedder
        kept = partial(cached_embedder, name, cache=cache, device=device, places=places)
        embedder = _once(loaded, item, "embedder", name, kept)
        return Semantic(item, render, embedder)
    if isinstance(item, RewardModelItem):
        from vigneron.rewards.graders.models import RewardModel
        from vigneron.rewards.model import ModelReward, load_reward_scorer

        name = item.model
        load = places.scorer or load_reward_scorer
        scorer = _once(loaded, item, "model", name, lambda: load(name, "reward", device))
        return RewardModel(item, ModelReward(scorer))
    raise TypeError(f"'{item.name}' is scored by a judge")


def _once(loaded: dict[tuple[str, str], Any], item: Item, key: str, name: str, load: Callable[[], Any]) -> Any:
    """What the errors of loading call `reward.embedder` is the item's own key here."""
    if (key, name) not in loaded:
        try:
            loaded[key, name] = load()
        except UserError as error:
            raise UserError(f"item '{item.name}', {key}: {str(error).removeprefix(f'reward.{key}: ')}") from error
    return loaded[key, name]
