"""Records what the update computes of each token, for the pages. Nothing waits for the device before the step's end."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import Tensor

from vigneron.batch import Batch
from vigneron.core.masked import LOG_RATIO_CAP
from vigneron.policy.logprobs import Scores
from vigneron.run_store.token_values import SAMPLES, TOKENS, TokenValues

Decode = Callable[[Sequence[int]], str]
LONGEST_CHARACTER = 4
"""Tokens of a character: it has at most so many bytes."""


@dataclass
class TokenRecorder:
    """`active` in the steps whose values are kept. Of several updates, entropy is the first one's and the ratio the
    last one's, before its optimizer step."""

    active: bool = False
    _seen: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    """Of each microbatch: the samples' numbers, log-probs and entropy."""

    def begin(self, *, active: bool) -> None:
        self.active = active
        self._seen = []

    def observe(self, batch: Batch, scores: Any) -> None:
        """What the policy computed of a microbatch, in an update. Copies, because CUDA graphs reuse their memory."""
        if self.active and isinstance(scores, Scores) and scores.entropy_BT is not None:
            of_BT = (scores.logprobs_BT, scores.entropy_BT)
            logprobs_BT, entropy_BT = (values_BT.detach()[:, :TOKENS].clone() for values_BT in of_BT)
            self._seen.append((batch.samples.sample_B, logprobs_BT, entropy_BT))

    def take(self, batch: Batch, decode: Decode) -> dict[int, TokenValues]:
        """The values of the step's first samples that are trained on, by their numbers."""
        if not self.active:
            return {}
        trained_BT = batch.trained_BT[:, :TOKENS].cpu()
        numbers = batch.samples.sample_B.tolist()
        with_tokens = [i for i in range(len(batch)) if bool(trained_BT[i].any())]
        chosen = sorted(with_tokens, key=numbers.__getitem__)[:SAMPLES]
        updated, entropy = self._on_host({numbers[i] for i in chosen})
        self.begin(active=False)
        known: dict[str, Tensor | None] = {
            "behaviour": batch.samples.behaviour_BT,
            "advantage": batch.signals.advantages_BT,
            "reference": batch.signals.reference_BT,
        }
        rows = {name: None if tensor is None else _rows(tensor, chosen) for name, tensor in known.items()}
        ids = batch.samples.completion_lists()
        by_number = {}
        for place, i in enumerate(chosen):
            width, number = min(len(ids[i]), TOKENS), numbers[i]
            trained = trained_BT[i, :width].tolist()
            own = {name: None if of is None else of[place][:width] for name, of in rows.items()}
            own |= {"updated": updated.get(number), "entropy": entropy.get(number)}
            values = {
                name: [value if on else None for value, on in zip(of, trained, strict=False)]
                for name, of in values_of(own, width).items()
            }
            by_number[number] = TokenValues(pieces(ids[i][:width], decode), trained, values, len(ids[i]) - width)
        return by_number

    def _on_host(self, wanted: set[int]) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
        """Log-probs of the last update and entropy of the first one, by sample."""
        updated: dict[int, list[float]] = {}
        entropy: dict[int, list[float]] = {}
        for sample_B, logprobs_BT, entropy_BT in self._seen:
            places = [(i, number) for i, number in enumerate(sample_B.tolist()) if number in wanted]
            at = [i for i, _ in places]
            for (_, number), one, other in zip(places, _rows(logprobs_BT, at), _rows(entropy_BT, at), strict=True):
                updated[number] = one
                entropy.setdefault(number, other)
        return updated, entropy


def _rows(tensor_BT: Tensor, at: Sequence[int]) -> list[list[float]]:
    return tensor_BT[list(at), :TOKENS].float().tolist() if at else []


def values_of(own: dict[str, list[float] | None], width: int) -> dict[str, list[float]]:
    """What is shown of a sample's tokens, from log-probs and the rest.

    ratio = π(now) / π(at sampling), KL = log π − log π_ref. Texts that were given and not sampled have the log-probs of
    the update, and no ratio.
    """
    behaviour, updated, reference = own["behaviour"], own["updated"], own["reference"]
    sampled = behaviour is not None and any(math.isfinite(value) and value != 0.0 for value in behaviour)
    logprob = behaviour if sampled else updated
    values = {"logprob": logprob, "advantage": own["advantage"], "entropy": own["entropy"]}
    if sampled and behaviour is not None and updated is not None:
        values["ratio"] = [_exp(new - old) for new, old in zip(updated, behaviour, strict=False)]
    if logprob is not None and reference is not None:
        values["kl"] = [one - other for one, other in zip(logprob, reference, strict=False)]
    filled = {name: list(of[:width]) for name, of in values.items() if of is not None}
    return {name: of + [math.nan] * (width - len(of)) for name, of in filled.items()}


def _exp(value: float) -> float:
    return math.exp(min(max(value, -LOG_RATIO_CAP), LOG_RATIO_CAP))  # NaN stays NaN


def pieces(ids: Sequence[int], decode: Decode) -> list[str]:
    """The text of each token. Of a character that several tokens write together, the last one has it."""
    texts = [decode((one,)) for one in ids]
    free = 0  # behind the last character of several tokens
    for at, text in enumerate(texts):
        if "\ufffd" not in text:
            continue
        for first in range(at - 1, max(free, at + 1 - LONGEST_CHARACTER) - 1, -1):
            together = decode(ids[first : at + 1])
            if "\ufffd" not in together:
                texts[first : at + 1] = [*[""] * (at - first), together]
                free = at + 1
                break
    return texts


def decoder(tokenizer: Any) -> Decode:
    """Decodes single tokens once."""

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    single = cache(lambda one: decode((one,)))
    return lambda ids: single(ids[0]) if len(ids) == 1 else decode(ids)
