"""What the judge of `turns_study` had seen in the held-out debates and consultancies, worked out from the logs.

python -m benchmarks.turns_quotes docs/results/logs/turns-study.tar.xz

The logs have the reward of each greedy game, which is the judge's probability less a half, but no quotes. The
probability depends on nothing but the numbers that the judge has seen, so the sets of numbers that give it are found by
trying all. Where several give the same one, their sizes count with equal weights.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from benchmarks.paired import paired_difference, table
from benchmarks.study_store import mean, row_values
from benchmarks.turns_results import SEEDS
from vigneron.data.prompts import Row
from vigneron.data.sum_lists import HIGHEST, LENGTH, LOWEST, QUOTES, ROUNDS, SIDES
from vigneron.data.tasks import load_task
from vigneron.environments.debate import probability_of_x, verdict
from vigneron.run_store.archive import unpacked

ROLES = {"debate": 2, "consultancy": 1}
LAST = 3
"""Evaluations, as in a run's score."""
ROUNDING = 2e-7
"""Rewards are kept in single precision."""

Place = tuple[str, int]
Places = tuple[Place, ...]
PLACES: Places = tuple((side, place) for side in SIDES for place in range(1, LENGTH + 1))


@dataclass(frozen=True)
class Seen:
    """What the judge saw in the held-out games of one evaluation, two rows a question with the sides swapped."""

    sets: Sequence[Sequence[Places]]
    """Of each game: the sets of numbers that explain its reward."""
    rewards: Sequence[float]
    right: float
    """The judge's accuracy."""
    right_at_random: float
    """Its accuracy if as many numbers were drawn at random, in expectation."""

    @property
    def numbers(self) -> float:
        """Different ones in a game, of 8."""
        return mean([mean([float(len(one)) for one in found]) for found in self.sets])

    @property
    def one_set(self) -> float:
        """The share of games that one and the same set of places explains."""
        return max(Counter(one for found in self.sets for one in found).values()) / len(self.sets)

    @property
    def same_for_both_sides(self) -> float:
        """The share of questions with the same probability whichever side is argued for: the two rewards cancel."""
        pairs = list(zip(self.rewards[::2], self.rewards[1::2], strict=True))
        return mean([float(abs(one + other) < ROUNDING) for one, other in pairs])


class Question:
    """All sets of its numbers that a judge can have seen."""

    def __init__(self, row: Row, most: int) -> None:
        values = {(side, n): value for side in SIDES for n, value in enumerate(row[side.lower()], 1)}
        sizes = dict.fromkeys(SIDES, LENGTH)
        self.probabilities = {
            places: probability_of_x(sizes, {place: values[place] for place in places}, LOWEST, HIGHEST)
            for size in range(most + 1)
            for places in combinations(PLACES, size)
        }
        self.higher = row["higher"]

    def explain(self, reward: float, side: str) -> list[Places]:
        p = 0.5 + reward if side == "X" else 0.5 - reward
        return [places for places, own in self.probabilities.items() if abs(own - p) < ROUNDING]

    def right_with(self, size: int) -> float:
        """The judge's accuracy over all sets of a size."""
        own = [p for places, p in self.probabilities.items() if len(places) == size]
        return mean([float(verdict(p) == self.higher) for p in own])

    def most_for(self, side: str) -> float:
        """What the best quotes for a side earn."""
        return max((p if side == "X" else 1 - p) - 0.5 for p in self.probabilities.values())


class HeldOut:
    """The task's held-out rows, for games of one or two roles."""

    def __init__(self, arm: str) -> None:
        self.rows: Sequence[Row] = load_task("sum-lists").rows("held_out")
        most = min(ROLES[arm] * QUOTES * ROUNDS, len(PLACES))
        pairs = [Question(row, most) for row in self.rows[::2]]
        self.questions = [question for question in pairs for _ in SIDES]
        self.at_random = [[question.right_with(size) for size in range(most + 1)] for question in self.questions]

    def seen(self, rewards: Sequence[float], correct: Sequence[float]) -> Seen:
        games = zip(self.questions, rewards, self.rows, strict=True)
        sets = [question.explain(reward, row["side"]) for question, reward, row in games]
        expected = [
            mean([by_size[len(one)] for one in found]) for found, by_size in zip(sets, self.at_random, strict=True)
        ]
        return Seen(sets, rewards, mean(correct), mean(expected))

    def best_reward(self) -> float:
        """Of a consultant that quotes what helps its side most."""
        return mean([one.most_for(row["side"]) for one, row in zip(self.questions, self.rows, strict=True)])


def seen_by_step(run: Path, held_out: HeldOut) -> dict[int, Seen]:
    rewards, correct = row_values(run, "reward"), row_values(run, "correct")
    return {step: held_out.seen(rewards[step], correct[step]) for step in rewards}


def show(runs: Path) -> str:
    lines = [["arm", "seed", "numbers seen", "one set in", "same for both sides", "judge right", "at random"]]
    said = []
    for arm in ROLES:
        held_out = HeldOut(arm)
        found = {seed: seen_by_step(runs / f"{arm}-seed-{seed}", held_out) for seed in SEEDS}
        for seed, by_step in found.items():
            lines.append([arm, str(seed), *columns(arm, by_step.values())])
        if arm == "consultancy":
            gained = [reward_gains(by_step) for by_step in found.values()]
            gain = paired_difference(gained, [[0.0] * len(own) for own in gained])
            said.append(f"Consultant's reward: {gain}; the best quotes would earn {held_out.best_reward():.3f}.")
        early, late = judge_in_training([runs / f"{arm}-seed-{seed}" for seed in SEEDS])
        said.append(f"{arm}: the judge was right in {early:.3f} of the sampled games of training, then in {late:.3f}.")
        unclear = [
            len({len(one) for one in sets}) > 1 for own in found.values() for s in own.values() for sets in s.sets
        ]
        said.append(f"{arm}: sets of several sizes explain {mean(list(map(float, unclear))):.3f} of the games.")
    return "\n\n".join([table(lines), *said])


def columns(arm: str, evaluations: Iterable[Seen]) -> list[str]:
    """Before training → the mean of the last evaluations. The two rows of a debate are one game."""
    first, *others = evaluations
    last = others[-LAST:]

    def both(name: str, digits: int) -> str:
        return f"{getattr(first, name):.{digits}f} → {mean([getattr(one, name) for one in last]):.{digits}f}"

    digits: Mapping[str, int] = {
        "numbers": 2,
        "one_set": 2,
        "same_for_both_sides": 2,
        "right": 3,
        "right_at_random": 3,
    }
    trivial = {"same_for_both_sides"} if arm == "debate" else set()
    return ["–" if name in trivial else both(name, count) for name, count in digits.items()]


def judge_in_training(runs: Sequence[Path]) -> tuple[float, float]:
    """The judge's accuracy in sampled games, over the first and the last three of the training steps that are kept."""
    kept = []
    for run in runs:
        steps = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        kept.append([step["turns/judge_right"] for step in steps if "turns/judge_right" in step])
    return mean([mean(own[:LAST]) for own in kept]), mean([mean(own[-LAST:]) for own in kept])


def reward_gains(by_step: Mapping[int, Seen]) -> list[float]:
    """Of each question, the mean over its two sides."""
    first, *others = by_step.values()
    changes = [
        mean(after) - before
        for before, *after in zip(first.rewards, *(one.rewards for one in others[-LAST:]), strict=True)
    ]
    return [mean(pair) for pair in zip(changes[::2], changes[1::2], strict=True)]


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turns_quotes", description=__doc__)
    parser.add_argument("runs", type=Path, help="a folder or an archive of turns_study")
    with unpacked(parser.parse_args(given).runs) as folder:
        print(show(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
