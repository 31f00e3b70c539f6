"""Opposites of k words at once: a task whose first successes get rarer with k.

A row of level k has k rows of one part of the antonyms, no word of which occurs twice, asked or answered: a prompt
never contains one of its answers. So no word of a held-out row occurs in `train` or `tuning`.
"""

from random import Random

from vigneron.data.prompts import Row
from vigneron.text import words

LEVELS = (1, 2, 4)
ASKED = "The opposite of each word:"
EXAMPLES = {
    1: "hot -> cold\nrich -> poor",
    2: "hot, big -> cold, small\nrich, wet -> poor, dry",
    4: "hot, big, fast, old -> cold, small, slow, young\nrich, wet, first, win -> poor, dry, last, lose",
}
"""Two examples of each level, which stand in its prompts. Antonyms with one of their words are left out of the rows."""


def generate(antonyms: list[Row], seed: int = 0) -> list[Row]:
    """Level 1 has the antonyms as they are. Every other level has as many rows, and each antonym about k times."""
    shown = set(words(EXAMPLES[4]))
    random, rows = Random(seed), []
    for level in LEVELS:
        for split in ("train", "tuning", "held_out"):
            part = [row for row in antonyms if row["split"] == split and not shown & words_of(row)]
            drawn = [[row] for row in part] if level == 1 else groups(part, level, random)
            rows += [opposites_row(group, split) for group in drawn]
    return rows


def groups(part: list[Row], level: int, random: Random) -> list[list[Row]]:
    """As many groups as there are rows, dealt from a shuffled pack: each takes the next cards that share no word."""
    found: set[tuple[str, ...]] = set()
    dealt: list[list[Row]] = []
    pack: list[Row] = []
    while len(dealt) < len(part):
        group: list[Row] = []
        while len(group) < level:
            taken = set().union(*map(words_of, group))
            at = next((at for at, row in enumerate(pack) if not taken & words_of(row)), None)
            if at is None:
                pack += random.sample(part, len(part))
            else:
                group.append(pack.pop(at))
        if (key := tuple(sorted(row["word"] for row in group))) not in found:
            found.add(key)
            dealt.append(group)
    return dealt


def words_of(row: Row) -> set[str]:
    return {row["word"], row["answer"]}


def prompt_of(level: int) -> str:
    """The template of a level's prompts."""
    return f"{ASKED}\n{EXAMPLES[level]}\n{{words}} ->"


def opposites_row(group: list[Row], split: str) -> Row:
    asked, answers = (", ".join(row[column] for row in group) for column in ("word", "answer"))
    return {"words": asked, "level": len(group), "answer": answers, "split": split}
