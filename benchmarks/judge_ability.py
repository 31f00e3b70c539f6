"""The ability of a small judge: the item `true reason` of the rubric `study`, on answers of known quality.

python -m benchmarks.judge_ability [--model smollm2-135m]

Every held-out question of the category `explanations`, with its written answer, with the written answer to another
question, with the question repeated, and with nothing. Prints the judge's mean score and confidence for each kind, and
how often it scores a written answer above a bad one of the same question (0.5 is chance).
"""

import argparse
from collections.abc import Sequence

from vigneron.commands.rubric_try import ScoredAnswer, score_answers
from vigneron.config import LocalJudgeConfig
from vigneron.data.tasks import load_task
from vigneron.rewards.rubric_build import Graders
from vigneron.rubric.live_rubric import FixedRubric
from vigneron.rubric.read import read_rubric

CATEGORY, ITEM = "explanations", "true reason"
KINDS = ("written", "of another question", "the question again", "nothing")


def answers() -> list[dict[str, str]]:
    rows = [row for row in load_task("rubric").rows("held_out") if row["category"] == CATEGORY]
    others = [row["answer"] for row in [*rows[1:], rows[0]]]
    made = []
    for row, other in zip(rows, others, strict=True):
        question = row["prompt"].split("why ")[-1].split("\n")[0]
        for kind, text in zip(KINDS, (row["answer"], other, f"{question[0].upper()}{question[1:]}", ""), strict=True):
            made.append({**row, "completion": text, "kind": kind})
    return made


def won(good: Sequence[float], bad: Sequence[float]) -> float:
    """How often the first is above the second, question by question; a tie counts half."""
    return sum((g > b) + (g == b) / 2 for g, b in zip(good, bad, strict=True)) / len(good)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judge_ability", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    judge = LocalJudgeConfig(kind="local", model=parser.parse_args().model, reads="yes_no", max_tokens=64)
    rubric = read_rubric("study")
    category = rubric.categories[CATEGORY]
    only = category.model_copy(update={"items": [item for item in category.items if item.name == ITEM]})
    fixed = FixedRubric(rubric.model_copy(update={"categories": {CATEGORY: only}}), {CATEGORY})
    graders = Graders(judge, where="judge")
    rows = answers()
    tried = score_answers(rows, fixed, graders)
    graders.stop()
    scores = {kind: of_kind(rows, tried, kind, "score") for kind in KINDS}
    print("| answer | score | smallest | largest | confidence | below the written answer |\n|---|---|---|---|---|---|")
    for kind, values in scores.items():
        sure = of_kind(rows, tried, kind, "confidence")
        beaten = "" if kind == "written" else f"{won(scores['written'], values):.2f}"
        print(
            f"| {kind} | {sum(values) / len(values):.3f} | {min(values):.2f} | {max(values):.2f} "
            f"| {sum(sure) / len(sure):.2f} | {beaten} |"
        )
    print(f"{len(rows) // len(KINDS)} questions")


def of_kind(rows: Sequence[dict[str, str]], tried: Sequence[ScoredAnswer], kind: str, figure: str) -> list[float]:
    return [one.items[ITEM][figure] for row, one in zip(rows, tried, strict=True) if row["kind"] == kind]


if __name__ == "__main__":
    main()
