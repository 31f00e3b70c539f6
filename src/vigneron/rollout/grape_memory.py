"""What GRAPE remembers of the last iteration: each question's responses, how good they were, the feedback on them."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, field
from typing import Any

from vigneron.batch import Batch
from vigneron.data.prompts import Row, completion_text

# Characters of feedback kept for a response.
MAX_FEEDBACK_CHARS = 4_000


@dataclass(frozen=True)
class EarlierResponse:
    """A response of the last iteration, and the feedback on it. Checkpoints of older versions have no more."""

    response: str
    feedback: str
    reward: float | None = None
    """Of a fresh response."""
    correct: bool | None = None
    """The checker's verdict on a fresh response."""


def row_of(batch: Batch, i: int) -> Row:
    return {"prompt": batch.samples.prompts[i], **{name: values[i] for name, values in batch.samples.columns.items()}}


def _question_key(row: Row) -> str:
    """A hash of all columns: the same text in two categories is two questions. In a batch a missing column is None."""
    columns = {name: value for name, value in row.items() if value is not None}
    return hashlib.sha256(json.dumps(columns, sort_keys=True, default=str).encode()).hexdigest()


@dataclass
class Memory:
    """The last iteration's responses to each question. Part of a checkpoint."""

    earlier: dict[str, list[EarlierResponse]] = field(default_factory=dict)

    def of(self, row: Row) -> list[EarlierResponse]:
        return self.earlier.get(_question_key(row), [])

    def remember(self, batch: Batch, feedback_of: Callable[[Any], str]) -> None:
        """Replace the questions' earlier responses by this step's. Responses without a reward are left out."""
        latest: dict[str, list[EarlierResponse]] = {}
        missing = (None,) * len(batch)
        verdicts = batch.samples.extras.get("rubric", missing)
        origins = batch.samples.extras.get("origin", missing)
        correct = batch.signals.correct or missing
        for i, reward in enumerate(batch.signals.rewards_B.tolist()):
            if reward == reward:
                feedback = feedback_of(verdicts[i])[:MAX_FEEDBACK_CHARS]
                how_good = (reward, correct[i]) if origins[i] == "fresh" else ()
                response = EarlierResponse(completion_text(batch.samples.completions[i]), feedback, *how_good)
                latest.setdefault(_question_key(row_of(batch, i)), []).append(response)
        self.earlier.update(latest)

    def entries(self) -> Iterator[tuple[str, Any]]:
        """Responses by question. Lists are replaced, never changed in place, so a shallow copy is enough."""
        copy = dict(self.earlier)
        return ((key, [list(astuple(one)) for one in responses]) for key, responses in copy.items())

    def load(self, entries: Iterable[tuple[str, Any]]) -> None:
        self.earlier = {key: [EarlierResponse(*one) for one in responses] for key, responses in entries}
