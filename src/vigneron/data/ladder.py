"""The ladder: sums of 1 to 5 terms, a task whose difficulty is known. `python -m vigneron.data.ladder` writes its file.

`level` is the number of terms. `steps` has the running sums, one per line, so that a rule can label every step.
"""

import json
from itertools import accumulate
from math import comb
from pathlib import Path
from random import Random

from vigneron.data.prompts import Row

LEVELS = 5
LARGEST_TERM = 20
SPLITS = {"train": 120, "tuning": 20, "held_out": 40}
# A sum of one term is the term itself: two digits give enough of them.
LARGEST_ALONE = 99


def ladder_row(terms: list[int], split: str) -> Row:
    steps = list(accumulate(terms))
    return {
        "terms": " + ".join(map(str, terms)),
        "level": len(terms),
        "result": str(steps[-1]),
        "steps": "\n".join(map(str, steps)),
        "split": split,
    }


def generate(seed: int = 0, splits: dict[str, int] = SPLITS) -> list[Row]:
    """Rows of every level and split. No two have the same terms, in whichever order."""
    random, rows = Random(seed), []
    for level in range(1, LEVELS + 1):
        seen: set[tuple[int, ...]] = set()
        largest = LARGEST_TERM if level > 1 else LARGEST_ALONE
        wanted = {split: count if level > 1 else count // 2 for split, count in splits.items()}
        if sum(wanted.values()) > (possible := comb(largest + level - 1, level)):
            raise ValueError(f"there are only {possible} sums of {level} terms")
        for split, count in wanted.items():
            while count:
                terms = [random.randint(1, largest) for _ in range(level)]
                if (key := tuple(sorted(terms))) not in seen:
                    seen.add(key)
                    rows.append(ladder_row(terms, split))
                    count -= 1
    return rows


if __name__ == "__main__":
    file = Path(__file__).parent / "task_files" / "ladder.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in generate()), encoding="utf-8")
