"""Figures of a batch, under TRL's names where they mean the same."""

import math

from vigneron.batch import Batch
from vigneron.core.advantages import share_without_variance
from vigneron.data.prompts import completion_text, prompt_text
from vigneron.rewards.checkers import includes, is_exact
from vigneron.text import length_ratio, repetition, share_in
from vigneron.training.method import Metrics


def instruments(batch: Batch) -> dict[str, float]:
    """Means over the batch. A child that echoes, babbles or says one thing to everything is seen here first.

    `distinct`: how many distinct completions there are for each distinct answer (or input): 1 for a perfect child.
    """
    texts = [completion_text(completion) for completion in batch.samples.completions]
    inputs = batch.samples.columns.get("input") or tuple(prompt_text(prompt) for prompt in batch.samples.prompts)
    answers = batch.samples.columns.get("answer", ())
    ratios = [
        length_ratio(text, completion_text(answer))
        for text, answer in zip(texts, answers, strict=False)
        if answer is not None
    ]
    return {
        "completions/echo": _mean([share_in(text, str(source)) for text, source in zip(texts, inputs, strict=True)]),
        "completions/repetition": _mean([repetition(text) for text in texts]),
        "completions/distinct": len(set(texts)) / len({str(wanted) for wanted in answers or inputs}),
        **({"completions/length_ratio": _mean(ratios)} if ratios else {}),
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def batch_metrics(batch: Batch) -> Metrics:
    """Of samples that have what the figure needs; a missing reward counts nowhere but in `reward_missing`.

    What the dataset says beside the policy's own samples is not counted among them.
    """
    origins = batch.samples.extras.get("origin", ())
    if "demonstrated" in origins:
        shown, written = (
            [i for i, o in enumerate(origins) if (o == "demonstrated") == is_shown] for is_shown in (1, 0)
        )
        apart = {"reward/demonstrated": float(batch.rows(shown).signals.rewards_B.nanmean())}
        return {**batch_metrics(batch.rows(written).with_samples(extras={})), **apart} if written else apart
    return {
        **(_of_sampled(batch) if batch.signals.rewards_B is not None else {}),
        "completions/mean_length": float(batch.samples.lengths_B.cpu().double().mean()),
        "completions/clipped_ratio": float(batch.samples.truncated_B.cpu().double().mean()),
        **batch.signals.metrics,
    }


def _of_sampled(batch: Batch) -> Metrics:
    """What can be said of completions that the policy wrote itself; demonstrations have no rewards."""
    present_B = ~batch.signals.rewards_B.isnan()
    rewards = batch.signals.rewards_B[present_B].cpu().double()  # Apple's GPUs have no float64
    metrics = {
        "reward": float(rewards.mean()) if len(rewards) else math.nan,
        "reward_std": float(rewards.std()) if len(rewards) > 1 else 0.0,
        "reward_missing": int((~present_B).sum()),
        **_of_groups(batch),
    }
    verdicts = [verdict for verdict in batch.signals.correct or () if verdict is not None]
    if verdicts:
        metrics["accuracy"] = sum(verdicts) / len(verdicts)
    pairs = [
        (completion, answer)
        for completion, answer in zip(batch.samples.completions, batch.samples.columns.get("answer", ()), strict=False)
        if answer is not None
    ]
    if pairs:
        metrics["exact_match"] = sum(is_exact(c, a) for c, a in pairs) / len(pairs)
        metrics["answer_included"] = sum(includes(c, a) for c, a in pairs) / len(pairs)
    return metrics | instruments(batch)


def _of_groups(batch: Batch) -> Metrics:
    """The share of groups whose rewards do not differ; nothing where each sample is a group of its own."""
    if len(batch.samples.group_B.unique()) == len(batch):
        return {}
    return {"frac_reward_zero_std": float(share_without_variance(batch.signals.rewards_B, batch.samples.group_B))}
