"""What a rubric's reward logs, found again among a run's figures. A name of a category or an item holds no slash."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

TRAINING, HELD_OUT, SECOND = "reward/", "eval/reward/", "eval/held_out_rubric/"
CANARY, LARGEST_CANARY = "eval/canary/", "eval/canary/largest"
ITEM_FIGURES = ("score", "spread", "confidence", "failed", "share")
OF_ORIGIN = ("origin/revised", "origin/demonstrated", "origin/too_long", "drawn/gap")


class ItemKey(NamedTuple):
    category: str
    item: str

    def under(self, prefix: str, figure: str) -> str:
        return f"{prefix}{self.category}/{self.item}/{figure}"


def all_keys(records: Iterable[Mapping[str, object]]) -> dict[str, None]:
    """Each once, as they first came."""
    return dict.fromkeys(key for record in records for key in record)


def items_of(keys: Iterable[str], prefix: str = TRAINING) -> list[ItemKey]:
    parts = [key.removeprefix(prefix).split("/") for key in keys if key.startswith(prefix)]
    return list(dict.fromkeys(ItemKey(p[0], p[1]) for p in parts if len(p) == 3 and p[2] in ITEM_FIGURES))


def category_rewards(keys: Iterable[str], prefix: str = TRAINING) -> dict[str, str]:
    """Each category with the key of its mean reward."""
    parts = {key: key.removeprefix(prefix).split("/") for key in keys if key.startswith(prefix)}
    return {p[0]: key for key, p in parts.items() if len(p) == 2 and p[1] == "reward"}


def canaries(keys: Iterable[str]) -> dict[str, str]:
    """Each category with the key of what its canaries earn."""
    return {key.removeprefix(CANARY): key for key in keys if key.startswith(CANARY) and key != LARGEST_CANARY}
