"""Which figures of rubric runs are compared. All of them stand in the csv, those of single items nowhere else."""

from collections.abc import Collection, Iterable

from vigneron.report.curves import Records
from vigneron.report.rubric_keys import (
    HELD_OUT,
    ITEM_FIGURES,
    LARGEST_CANARY,
    OF_ORIGIN,
    SECOND,
    TRAINING,
    all_keys,
    canaries,
    category_rewards,
    items_of,
)

Titled = tuple[str, str]
"""A figure's key, and what it is called."""
WHEN = ("_before", "")


def training_keys(records: Records) -> list[str]:
    keys = all_keys(records)
    return [
        *category_rewards(keys).values(),
        *(key for key in OF_ORIGIN if key in keys),
        *_of_items(keys, TRAINING),
    ]


def held_out_keys(records: Records) -> list[str]:
    """Each before training, and at the last evaluation."""
    keys = all_keys(records)
    found = [
        *category_rewards(keys, HELD_OUT).values(),
        *(key for key in (f"{SECOND}reward", LARGEST_CANARY) if key in keys),
        *category_rewards(keys, SECOND).values(),
        *canaries(keys).values(),
        *_of_items(keys, HELD_OUT),
    ]
    return [f"{key}{when}" for key in found for when in WHEN]


def _of_items(keys: Collection[str], prefix: str) -> list[str]:
    wanted = [item.under(prefix, figure) for item in items_of(keys, prefix) for figure in ITEM_FIGURES]
    return [key for key in wanted if key in keys]


def held_out_titles(keys: Iterable[str]) -> list[Titled]:
    """Rewards by category, and what is looked at beside them."""
    measured = dict.fromkeys(key.removesuffix("_before") for key in keys)
    found = [
        *((key, f"reward, {name}") for name, key in category_rewards(measured, HELD_OUT).items()),
        (f"{SECOND}reward", "second rubric's reward"),
        (LARGEST_CANARY, "most that a canary earned"),
    ]
    return [(f"{key}{when}", f"{title}{', before' if when else ''}") for key, title in found for when in WHEN]


def training_titles(keys: Iterable[str]) -> list[Titled]:
    return [
        *((key, f"reward, {name}") for name, key in category_rewards(keys).items()),
        ("origin/revised", "share of revisions"),
        ("origin/demonstrated", "share of demonstrations"),
        ("drawn/gap", "gap between the texts"),
    ]
