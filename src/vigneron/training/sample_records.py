"""A batch as samples that a person looks at."""

from collections.abc import Sequence
from typing import Any

from vigneron.batch import Batch
from vigneron.core.masked import masked_sum
from vigneron.data.prompts import completion_text, prompt_text
from vigneron.run_store.samples import Kind, Sample


def samples_of(batch: Batch, step: int, kind: Kind) -> list[Sample]:
    answers: Sequence[Any] = batch.samples.columns.get("answer", (None,) * len(batch))
    rewards = batch.signals.rewards_B.tolist() if batch.signals.rewards_B is not None else [None] * len(batch)
    advantages: list[Any] = [None] * len(batch)
    if batch.signals.advantages_BT is not None:
        trained_BT = batch.trained_BT.cpu()
        means_B = masked_sum(batch.signals.advantages_BT.cpu(), trained_BT) / trained_BT.sum(1)
        advantages = [mean if some else None for mean, some in zip(means_B.tolist(), trained_BT.any(1), strict=True)]
    # Which side of a pair a text is.
    sides: dict[str, Any] = {
        name: batch.samples.columns[name] for name in ("side", "first") if name in batch.samples.columns
    }
    extras = {**batch.samples.extras, **sides}
    names, truncated = batch.samples.sample_B.tolist(), batch.samples.truncated_B.tolist()
    return [
        Sample(
            step=step,
            kind=kind,
            sample=names[i],
            prompt=prompt_text(batch.samples.prompts[i]),
            completion=completion_text(batch.samples.completions[i]),
            answer=None if answers[i] is None else str(answers[i]),
            reward=None if rewards[i] != rewards[i] else rewards[i],
            advantage=advantages[i],
            correct=None if batch.signals.correct is None else batch.signals.correct[i],
            truncated=truncated[i],
            extras={name: column[i] for name, column in extras.items()},
        )
        for i in range(len(batch))
    ]
