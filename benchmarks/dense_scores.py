"""Scores of the runs of `dense_study`, row by row."""

import math
import random
from collections.abc import Sequence
from functools import cache

from benchmarks.study_jobs import Job
from benchmarks.study_store import Result, all_results, evaluations, mean
from vigneron.config import Config
from vigneron.core.intervals import wilson
from vigneron.data.tasks import load_task
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import Sample
from vigneron.sources.embedders import Embedder, load_embedder

LEVELS = (1, 2, 4)
SHAPES = {16: (4, 4), 100: (10, 10)}
"""Prompts and samples of each, by the number of samples in a step."""
OPEN_SHAPE = (8, 8)
OPEN_SAMPLES = OPEN_SHAPE[0] * OPEN_SHAPE[1]
"""Of the open task."""
AMONG, CHANCE = 50, 1 / 50
OTHER_EMBEDDER = "wordllama"


def hits(rows: Result, samples: int) -> float:
    """p₀ × samples, with half a hit for none."""
    return max(rows["hits"], 0.5) / rows["drawn"] * samples


def retrieval(samples: Sequence[Sample]) -> list[float]:
    """Of the rows of an evaluation."""
    texts, answers = [sample.completion for sample in samples], [sample.answer or "" for sample in samples]
    return retrieved(texts, answers, [sample.prompt for sample in samples])


def finish_open(job: Job, folder: RunFolder) -> Result:
    """The texts of the first and the last evaluation, which the preference model compares."""
    found = evaluations(folder.path)
    texts = {name: [s.completion.strip() for s in found[step]] for name, step in (("before", 0), ("last", max(found)))}
    return {"texts": texts}


@cache
def loaded(embedder: str) -> Embedder:
    return load_embedder(embedder)


def retrieved(
    texts: Sequence[str], answers: Sequence[str], prompts: Sequence[str], embedder: str = OTHER_EMBEDDER
) -> list[float]:
    """1 where the own answer is nearer to the text than the own prompt and 48 others' answers, by cosine; 0 for an
    empty text. Without the prompt, an echo of the instruction would find 0.74 of the held-out answers."""
    import torch

    embed = loaded(embedder).embed
    texts_ND, answers_ND, prompts_ND = (
        torch.nn.functional.normalize(embed([text or "." for text in some]), dim=1)
        for some in (texts, answers, prompts)
    )
    cosines_NN, to_prompt_N = (texts_ND @ answers_ND.T).tolist(), (texts_ND * prompts_ND).sum(1).tolist()
    found = []
    for row, text in enumerate(texts):
        others = [other for other in range(len(answers)) if other != row]
        drawn = random.Random(row).sample(others, min(AMONG - 2, len(others)))
        nearest = max(to_prompt_N[row], *(cosines_NN[row][other] for other in drawn))
        found.append(float(bool(text.strip()) and cosines_NN[row][row] > nearest))
    return found


def measure_p0(job: Job, folder: RunFolder, config: Config) -> Result:
    from vigneron.policy.from_config import policy_from_config
    from vigneron.training.pass_at_k import sampled_and_checked
    from vigneron.training.setup.resolve import resolved

    config = resolved(config)
    rows, wanted = load_task(job.labels["task"]).rows("train"), job.labels["samples"]
    each = math.ceil(wanted / len(rows))
    policy = policy_from_config(config)
    by_row: list[int] = []
    for part in range(0, len(rows), 16):
        batch = sampled_and_checked(config, policy, rows[part : part + 16], each, seed=1000 + part)
        verdicts = [bool(verdict) for verdict in batch.signals.correct or ()]
        by_row += [sum(verdicts[at : at + each]) for at in range(0, len(verdicts), each)]
    right, drawn = sum(by_row), each * len(rows)
    low, high = wilson(right, drawn)
    folder.append("metrics.jsonl", {"step": 0, "p0": right / drawn})
    never = sum(count == 0 for count in by_row) / len(by_row)
    return {"hits": right, "drawn": drawn, "p0": right / drawn, "low": low, "high": high, "never": never}


def finish_preference(job: Job, folder: RunFolder) -> Result:
    """The probability that the preference model likes each answer more than the untrained model's to the same."""
    from vigneron.policy.load import resolve_device
    from vigneron.rewards.model import PreferenceReward, load_reward_scorer
    from vigneron.training.checkpoint.read import checkpoint_to_load

    scorer = load_reward_scorer(str(checkpoint_to_load(folder.path)), "first_is_better", str(resolve_device("auto")))
    prompts = [row["prompt"] for row in load_task("instructions").rows("held_out")]
    pairs = load_task("instructions").rows("held_out")
    compare = PreferenceReward(scorer)

    def preferred(texts: Sequence[str], others: Sequence[str]) -> list[float]:
        both = [text for pair in zip(texts, others, strict=True) for text in pair]
        return [float(value or 0) for value in compare([p for p in prompts for _ in range(2)], both)[0::2]]

    found = {
        rows["job"]: [round(value, 4) for value in preferred(rows["texts"]["last"], rows["texts"]["before"])]
        for rows in all_results(folder.path.parent)
        if rows.get("part") == "open" and rows["tuned"]
    }
    pairs_right = preferred([row["chosen"] for row in pairs], [row["rejected"] for row in pairs])
    return {"preferred": found, "accuracy": mean([float(value > 0.5) for value in pairs_right])}


def chosen_stop(tried: Sequence[Result | None]) -> tuple[float, int] | None:
    """Learning rate and step with the best retrieval on tuning data; of equals the earliest, then the smaller rate."""
    if not tried or any(rows is None for rows in tried):
        return None
    points = [(-value, step, rows["rate"]) for rows in tried if rows is not None for value, step in [best_stop(rows)]]
    _, step, rate = min(points)
    return rate, step


def best_stop(run: Result) -> tuple[float, int]:
    """The best retrieval of a run, and the first step that has it."""
    value, step = max((value, -int(step)) for step, value in run["curve"].items() if int(step) > 0)
    return value, -step
