"""What PGSRM's reward pays wrong, half-right and echoed answers, by exponent and embedder.

python -m benchmarks.graded_rewards [--samples 128] [--tasks] [--spread]

Prints the table of docs/guides/reference-answers.md: mean rewards on rows of the built-in tasks, each cell for α = 1, 2
and 4; with --tasks also a table with rows for each task, with --spread standard deviations in place of means.

A wrong answer is another row's. Half right is the first half of an answer's words, or an answer of one word with
another row's answer behind it. An echo is the row's input. Samples are those of the untrained bundled model that the
task's checker refuses: they take minutes, and --samples 0 leaves them out.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from vigneron.data.prompts import Row, completion_text
from vigneron.data.tasks import load_task
from vigneron.policy.device import resolve_device, use_device
from vigneron.policy.from_config import policy_from_config, seed_everything
from vigneron.recipe import load_config
from vigneron.rewards.checkers import build_run_check
from vigneron.rewards.semantic import Guards, SemanticReward
from vigneron.rollout.build import build_rollout
from vigneron.run_data.readers import checker_name
from vigneron.sources.embedders import Embedder, load_embedder
from vigneron.sources.embedding_cache import CachedEmbedder

TASKS = {
    "one word": ("antonyms", "categories", "colors"),
    "two or four words": ("opposites-2", "opposites-4"),
    "a sentence": ("copying", "sentiment", "instructions"),
}
EMBEDDERS = {"lexical": ("lexical", None), "minilm": ("minilm", None), "the lower of both": ("minilm", "lexical")}
ALPHAS = (1.0, 2.0, 4.0)
KINDS = ("wrong", "echo", "samples", "half right", "right")
ROWS = 60


@dataclass(frozen=True)
class Answer:
    """A text in place of a row's completion."""

    row: Row
    text: str
    cut: bool = False


def half_of(answer: str, other: str) -> str:
    words = answer.split()
    return " ".join(words[: len(words) // 2]) if len(words) > 1 else f"{answer} {other}"


def spread(rows: Sequence[Row], count: int) -> list[Row]:
    return [rows[number * len(rows) // count] for number in range(min(count, len(rows)))]


def made_up(rows: Sequence[Row], *, echoes: bool) -> dict[str, list[Answer]]:
    """Answers of every kind but samples. `echoes`: whether an echo is wrong."""
    made: dict[str, list[Answer]] = {kind: [] for kind in KINDS}
    for number, row in enumerate(rows):
        later = (*rows[number + 1 :], *rows[:number])
        other = next(one["answer"] for one in later if one["answer"] != row["answer"])
        made["wrong"].append(Answer(row, other))
        made["half right"].append(Answer(row, half_of(row["answer"], other)))
        made["right"].append(Answer(row, row["answer"]))
        if echoes:
            made["echo"].append(Answer(row, row["input"]))
    return made


def recipe_of(task: str) -> tuple[str, tuple[str, ...]]:
    """The task's recipe, or changes that make one of another's."""
    if task in ("opposites-2", "opposites-4"):
        return "pgsrm-copying", (f"data={{task: {task}}}", "max_new_tokens=16", 'sampling={stop: ["\\n"]}')
    if task == "instructions":
        return "pgsrm-copying", ("data={task: instructions}", "max_new_tokens=24", 'sampling={stop: ["\\n"]}')
    return f"pgsrm-{task}", ()


def misses(task: str, samples: int) -> list[Answer]:
    """The untrained model's samples that are no hits."""
    recipe, changes = recipe_of(task)
    config = load_config(recipe, [*changes, "group_size=2", "model.device=cpu"])
    use_device(resolve_device("cpu"))
    seed_everything(config.seed)
    data = load_task(config.data.task or task).rows("train", config.data.template)
    batch = build_rollout(config, policy_from_config(config))(rows := spread(data, samples // 2))
    batch = build_run_check(config, checker_name(config))(batch)
    texts = map(completion_text, batch.samples.completions)
    found = zip(texts, batch.samples.truncated_B.tolist(), batch.signals.correct or (), strict=True)
    return [Answer(rows[i // 2], text, cut) for i, (text, cut, right) in enumerate(found) if right is False]


def rewards_of(reward: Callable[..., list[float | None]], answers: Sequence[Answer]) -> list[float]:
    paid = reward(
        prompts=[one.row["prompt"] for one in answers],
        completions=[one.text for one in answers],
        answer=[one.row["answer"] for one in answers],
        completion_truncated=[one.cut for one in answers],
    )
    return [value for value in paid if value is not None]


def paid_for(
    answers: Sequence[Answer], embedders: Mapping[str, Embedder], name: str, of: Callable[[list[float]], float] = fmean
) -> list[float]:
    """The mean reward for each α, or another statistic, with the recipes' guard of cut completions."""
    first, second = EMBEDDERS[name]
    guards = Guards(max_cut_ratio=4.0, second=None if second is None else embedders[second])
    rewards = [SemanticReward(embedders[first], alpha=alpha, guards=guards) for alpha in ALPHAS]
    return [of(rewards_of(reward, answers)) for reward in rewards]


def cell(values: Sequence[float]) -> str:
    shown = [f"{value:.2f}" if value >= 0.01 else f"{value:.1g}" if value >= 1e-6 else "0" for value in values]
    return " / ".join(dict.fromkeys(shown) if len(set(shown)) == 1 else shown)


def lines(
    groups: Mapping[str, Mapping[str, Sequence[Answer]]],
    embedders: Mapping[str, Embedder],
    of: Callable[[list[float]], float] = fmean,
) -> Iterator[str]:
    kinds = [kind for kind in KINDS if any(group[kind] for group in groups.values())]
    yield f"| answers | embedder | {' | '.join(kinds)} |"
    yield "|---" * (2 + len(kinds)) + "|"
    for group, answers in groups.items():
        for name in EMBEDDERS:
            cells = [cell(paid_for(answers[kind], embedders, name, of)) if answers[kind] else "" for kind in kinds]
            yield f"| {group} | {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.graded_rewards", description=__doc__)
    parser.add_argument("--samples", type=int, default=128, help="of each task; 0: none")
    parser.add_argument("--tasks", action="store_true", help="a second table, with a row for each task")
    parser.add_argument("--spread", action="store_true", help="standard deviations in place of means")
    given = parser.parse_args()
    by_task: dict[str, dict[str, list[Answer]]] = {}
    for task in (task for tasks in TASKS.values() for task in tasks):
        answers = made_up(spread(load_task(task).rows("train"), ROWS), echoes=task != "copying")
        by_task[task] = {**answers, "samples": misses(task, given.samples) if given.samples else []}
    embedders = {name: CachedEmbedder(load_embedder(name)) for name in ("lexical", "minilm")}
    grouped = {
        name: {kind: [one for task in tasks for one in by_task[task][kind]] for kind in KINDS}
        for name, tasks in TASKS.items()
    }
    for table in (grouped, by_task) if given.tasks else (grouped,):
        print("\n".join(lines(table, embedders, pstdev if given.spread else fmean)))


if __name__ == "__main__":
    main()
