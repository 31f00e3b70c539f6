"""In which order, and under which headings, a run's figures are shown. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vigneron.report.rubric_keys import CANARY, HELD_OUT, SECOND, TRAINING, items_of

FIRST = (
    "eval/reward",
    "eval/accuracy",
    "reward",
    "accuracy",
    "eval/loss",
    "loss",
    "kl",
    "entropy",
    "completions/mean_length",
)
"""What one looks at first, as far as a run has it."""
TITLES = {
    "eval": "Held out",
    "": "Training",
    "completions": "Completions",
    "loss": "Losses",
    "clip_ratio": "Losses",
    "reward": "Reward, in parts",
    "grad_norm": "Optimizer",
    "learning_rate": "Optimizer",
}


@dataclass(frozen=True)
class Group:
    title: str
    names: tuple[str, ...]
    open: bool


def groups(names: Iterable[str]) -> list[Group]:
    """Each name once. A rubric's many figures are folded, a group for each category."""
    names = list(names)
    first = [name for name in FIRST if name in names]
    of_items = {key.category for prefix in (TRAINING, HELD_OUT, SECOND) for key in items_of(names, prefix)}
    by_title: dict[str, list[str]] = {}
    for name in names:
        if name not in first:
            by_title.setdefault(_title(name, of_items), []).append(name)
    rubric = [title for title in by_title if title.startswith("Rubric: ")]
    others = sorted((title for title in by_title if title not in rubric), key=_place)
    opened = [Group("Overview", tuple(first), True)] if first else []
    return [
        *opened,
        *(Group(title, tuple(by_title[title]), not opened) for title in others),
        *(Group(title, tuple(by_title[title]), False) for title in sorted(rubric)),
    ]


def _title(name: str, categories: set[str]) -> str:
    for prefix in (HELD_OUT, SECOND, TRAINING):
        if name.startswith(prefix) and name.removeprefix(prefix).split("/")[0] in categories:
            return f"Rubric: {name.removeprefix(prefix).split('/')[0]}"
    if name.startswith(CANARY):
        return "Canaries"
    head = name.split("/")[0]
    if "/" not in name and head not in TITLES:
        return TITLES[""]
    return TITLES.get(head, head)


def _place(title: str) -> tuple[int, str]:
    order: Sequence[str] = list(dict.fromkeys((TITLES["eval"], TITLES[""], *TITLES.values())))
    return (order.index(title) if title in order else len(order)), title
