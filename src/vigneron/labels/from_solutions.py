"""Solutions whose steps are to be labelled, from a run's samples or a file; with a model, the most convincing first."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vigneron.data.dataset import check_rows
from vigneron.data.prompts import completion_text
from vigneron.data.sources import read_rows
from vigneron.data.steps import step_spans
from vigneron.errors import UserError
from vigneron.labels.active import most_convincing_first
from vigneron.labels.from_run import check_step, open_samples, rows_of_run, samples_of_steps
from vigneron.labels.items import digest, reference_answer
from vigneron.labels.solution import Solution
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import Kind
from vigneron.values import yes_or_no

KINDS: tuple[Kind, ...] = ("train", "eval")
Collected = dict[str, tuple[Solution, bool | None]]
"""By id: the solution, and whether it is right, where that is known."""


def solutions_of(
    source: Path, *, separator: str, by: str | None, step: int | None, seed: int
) -> tuple[list[Solution], list[str]]:
    """Solutions in the order of labelling, and notices. `by` names a run or model that scores them."""
    folder = source.expanduser()
    collected = _of_run(folder, separator, step) if folder.is_dir() else _of_file(source, separator)
    if not collected:
        raise UserError(f"'{source}': no solution has a step")
    if all(len(solution.steps) == 1 for solution, _ in collected.values()):
        raise UserError(f"'{source}': the separator {separator!r} occurs in no completion: set --separator")
    solutions, right = zip(
        *(collected[each] for each in sorted(collected, key=lambda each: digest(seed, each))), strict=True
    )
    if by is None:
        return list(solutions), []
    unknown = f"'{source}': no solution is known to be wrong (`correct`): the highest scores come first"
    order = most_convincing_first(_scores(by, solutions), right)
    return [solutions[at] for at in order], [] if False in right else [unknown]


def _of_run(folder: Path, separator: str, step: int | None) -> Collected:
    run = RunFolder.open(folder).path
    rows, collected = rows_of_run(run), dict[str, tuple[Solution, bool | None]]()
    with open_samples(run) as store:
        check_step(store, step)
        for kind in KINDS:
            for sample in samples_of_steps(store, kind, step):
                if sample.extras.get("conversation") is not None:
                    raise UserError(
                        f"'{folder}': its samples are conversations with an environment, whose steps cannot be "
                        "labelled: leave out --solutions to compare them"
                    )
                prompt = rows[sample.prompt]["prompt"] if sample.prompt in rows else sample.prompt
                _add(collected, prompt, sample.completion, separator, sample.correct, sample.answer)
    return collected


def _of_file(path: Path, separator: str) -> Collected:
    rows, collected = read_rows(path), dict[str, tuple[Solution, bool | None]]()
    check_rows(rows, ["prompt", "completion"], f"'{path}'")
    for row in rows:
        text, answer = completion_text(row["completion"]), reference_answer(row.get("answer"))
        _add(collected, row["prompt"], text, separator, row.get("correct"), answer)
    return collected


def _add(collected: Collected, prompt: Any, completion: str, separator: str, correct: Any, answer: str | None) -> None:
    if step_spans(completion, separator) and prompt:
        solution = Solution(prompt, completion, separator, answer=answer or None)
        collected.setdefault(solution.id, (solution, yes_or_no(correct)))


def _scores(by: str, solutions: Sequence[Solution]) -> list[float]:
    from vigneron.policy.reward_model import load_reward_model
    from vigneron.rewards.process import ranking_reward
    from vigneron.training.setup.resolve import newest_weights

    scorer = load_reward_model(newest_weights(by, "--by"), start=False, dtype="float32", key="--by")
    reward = ranking_reward(scorer)
    return list(reward(prompts=[s.prompt for s in solutions], completions=[s.completion for s in solutions]))
