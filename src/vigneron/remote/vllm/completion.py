"""The options of a request to vLLM for one completion, and the check of its result, for a server and in-process."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vigneron.core.draws import Sampling
from vigneron.rollout.engine.stop_strings import StopStrings
from vigneron.values import is_number

WHERE = "scale.sampling"
OLDEST = (0, 20)
LARGEST_TOKEN = 2**31


@dataclass(frozen=True)
class Ends:
    """What ends a completion: end tokens, and stop strings."""

    tokens: Sequence[int] = ()
    strings: Sequence[str] = ()
    stops: StopStrings | None = None


@dataclass(frozen=True)
class Completion:
    """The sample of one prompt. `ended`: its last token is an end token, or completes a stop string."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended: bool


class VllmEngine(Protocol):
    """A vLLM engine: a server, or one in this process."""

    @property
    def name(self) -> str:
        """How messages call it."""

    @property
    def longest(self) -> int | None:
        """Maximum tokens of a prompt with its completion, if known."""

    @property
    def too_short(self) -> str:
        """How to allow longer ones."""

    @property
    def awake(self) -> bool:
        """Whether it still has the weights of the last `load`."""

    def check(self, probe: Sequence[int], own_logprobs: Sequence[float]) -> None:
        """Check it before its weights are changed."""

    def load(self) -> None:
        """Give it the policy's current weights, and forget cached prefixes."""

    def logprobs_of(self, ids: Sequence[int]) -> list[float]:
        """The log-prob of each token of a text but the first, given the tokens before it."""

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        sampling: Sampling | None,
        seeds: Sequence[int],
        ends: Ends,
    ) -> list[Completion]:
        """One completion per prompt, in their order."""

    def sleep(self) -> None:
        """Called after sampling: release what the update can use."""

    def close(self) -> None: ...


def sampling_options(max_new_tokens: int, sampling: Sampling | None, seed: int, ends: Ends) -> dict[str, Any]:
    """Every option of a completion, by vLLM's names: its defaults come from the model's generation config."""
    drawn = sampling or Sampling(temperature=0.0)
    return {
        "n": 1,
        "max_tokens": max_new_tokens,
        "temperature": drawn.temperature,
        "top_k": drawn.top_k or -1,
        "top_p": drawn.top_p,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": seed,
        # Only our end tokens and stop strings stop a completion, and they stay in it.
        "ignore_eos": True,
        "stop_token_ids": list(ends.tokens),
        **({"stop": list(ends.strings)} if ends.strings else {}),
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }


PROBE_OPTIONS: dict[str, Any] = {
    "max_tokens": 1,
    "temperature": 1.0,
    "top_k": -1,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "prompt_logprobs": 1,
}
"""Options of a request for a text's own log-probs."""


def checked_completion(
    ids: Sequence[Any], logprobs: Sequence[Any], reason: Any, stop_reason: Any, max_new_tokens: int, ends: Ends
) -> Completion:
    """Raises ValueError for what cannot be a completion under these options."""
    ids, logprobs = tuple(ids), tuple(number(value) for value in logprobs)
    if not all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < LARGEST_TOKEN for one in ids):
        raise ValueError("token ids that are not integers of a vocabulary")
    if len(ids) != len(logprobs):
        raise ValueError(f"{len(ids)} tokens and {len(logprobs)} log-probs")
    stop = ends.stops.end(ids) if ends.stops is not None else None
    if stop is not None:  # vLLM may have sampled several tokens before it looked
        ids, logprobs, reason = ids[:stop], logprobs[:stop], "stop"
    by_string = stop is not None or stop_reason in ends.strings  # its detokenizer may see other spaces
    if reason == "stop" and not by_string and (not ids or ids[-1] not in ends.tokens):
        raise ValueError("a completion without the end token or stop string that ended it")
    if reason == "length" and len(ids) != max_new_tokens:
        raise ValueError(f"{len(ids)} tokens cut by the length limit of {max_new_tokens}")
    if reason not in ("stop", "length") or not 0 < len(ids) <= max_new_tokens:
        raise ValueError(f"a completion of {len(ids)} tokens that ended by '{reason}'")
    if any(one in ends.tokens for one in ids[:-1]):
        raise ValueError("a completion that continues after its end token")
    return Completion(ids, logprobs, reason == "stop")


def number(value: Any) -> float:
    if not is_number(value):
        raise ValueError(f"the log-prob {value!r}")
    return float(value)


def mean_gap(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(first, second, strict=True)) / len(first)


def parsed_version(version: str) -> tuple[int, int]:
    numbers = re.match(r"v?(\d{1,9})\.(\d{1,9})", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
