"""Metrics of a batch, under TRL's names where they mean the same. `run_store/metric_table.py` describes them."""

from collections.abc import Callable, Sequence

from vigneron.batch import Batch
from vigneron.config import Config, LevelCurriculumConfig
from vigneron.core.advantages import share_without_variance
from vigneron.data.levels import as_level, level_name, split_by_level
from vigneron.data.prompts import Row, completion_text, prompt_text
from vigneron.policy.model import Policy
from vigneron.rewards.apply import SEEN
from vigneron.rewards.checkers import Check, includes, is_exact
from vigneron.rollout.build import evaluation_rollout
from vigneron.text import length_ratio, repetition, share_in
from vigneron.training.method import Metrics


def text_metrics(batch: Batch) -> dict[str, float]:
    """Means over the batch that show degenerate policies: echoes, repetition, one completion for every prompt.

    `distinct`: distinct completions per distinct answer (or input); 1 for a policy that is always right.
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


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def batch_metrics(batch: Batch) -> Metrics:
    """Each metric over the samples that have its inputs; missing rewards count only in `reward_missing`.

    Demonstrations among the policy's samples are left out.
    """
    origins = batch.samples.extras.get("origin", ())
    if "demonstrated" in origins:
        written = [i for i, origin in enumerate(origins) if origin != "demonstrated"]
        if not written:
            return dict(batch.signals.metrics)
        own = batch.rows(written)
        extras = {name: values for name, values in own.samples.extras.items() if name != "origin"}
        return batch_metrics(own.with_samples(extras=extras))
    return {
        **(_reward_metrics(batch) if batch.signals.rewards_B is not None else {}),
        "completions/mean_length": _mean(batch.samples.written),
        "completions/clipped_ratio": float(batch.samples.truncated_B.cpu().double().mean()),
        **batch.signals.metrics,
    }


def _reward_metrics(batch: Batch) -> Metrics:
    """Metrics of completions with rewards; demonstrations have none."""
    present_B = ~batch.signals.rewards_B.isnan()
    rewards = batch.signals.rewards_B[present_B].cpu().double()  # float64 does not exist on MPS
    metrics: Metrics = {"reward_missing": int((~present_B).sum())} if batch.signals.reward_trains else {}
    if len(rewards):
        spread = float(rewards.std()) if len(rewards) > 1 else 0.0
        metrics |= {"reward": float(rewards.mean()), "reward_std": spread, **_group_metrics(batch)}
    verdicts = [verdict for verdict in batch.signals.correct or () if verdict is not None]
    if verdicts:
        metrics["accuracy"] = sum(verdicts) / len(verdicts)
    pairs = [
        (completion, answer)
        for completion, answer in zip(
            batch.samples.extras.get(SEEN, batch.samples.completions),
            batch.samples.columns.get("answer", ()),
            strict=False,
        )
        if answer is not None
    ]
    if pairs:
        metrics["exact_match"] = sum(is_exact(c, a) for c, a in pairs) / len(pairs)
        metrics["answer_included"] = sum(includes(c, a) for c, a in pairs) / len(pairs)
    return metrics | text_metrics(batch)


def _group_metrics(batch: Batch) -> Metrics:
    """The share of groups whose rewards are equal; empty where every group is one sample."""
    if len(batch.samples.group_B.unique()) == len(batch):
        return {}
    return {"frac_reward_zero_std": float(share_without_variance(batch.signals.rewards_B, batch.samples.group_B))}


def evaluate(
    config: Config, policy: Policy, reward: Callable[[Batch], Batch], check: Check, rows: Sequence[Row]
) -> tuple[Batch, Metrics]:
    batch = check(getattr(reward, "evaluate", reward)(evaluation_rollout(config, policy)(rows)))
    return batch, batch_metrics(batch) | accuracy_by_level(config, batch)


def accuracy_by_level(config: Config, batch: Batch) -> Metrics:
    """The share of samples that the checker accepts in each level of the curriculum's column; empty without one."""
    if not isinstance(config.curriculum, LevelCurriculumConfig):
        return {}
    levels = map(as_level, batch.samples.columns.get(config.curriculum.column, ()))
    verdicts: dict[float, list[bool]] = {}
    for level, verdict in zip(levels, batch.signals.correct or (), strict=False):
        if verdict is not None and level == level:
            verdicts.setdefault(level, []).append(verdict)
    return {f"accuracy/level/{level_name(one)}": sum(of) / len(of) for one, of in sorted(verdicts.items())}


def evaluate_levels(config: Config, evaluate: Callable[[Sequence[Row]], Metrics], rows: Sequence[Row]) -> Metrics:
    """The metrics of a method that measures held-out rows by itself, and its accuracy in each level of the curriculum's
    column."""
    metrics = evaluate(rows)
    if not isinstance(config.curriculum, LevelCurriculumConfig):
        return metrics
    of_levels: Metrics = {}
    for level, indices in split_by_level(rows, config.curriculum.column).items():
        of_level = evaluate([rows[i] for i in indices])
        names = [name for name in ("accuracy", "rewards/accuracies") if name in of_level]
        of_levels |= {f"{name}/level/{level_name(level)}": of_level[name] for name in names}
    return metrics | of_levels
