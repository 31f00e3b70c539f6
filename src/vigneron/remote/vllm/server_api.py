"""A vLLM server as its HTTP API has it: who it is, completions by token ids, log-probs of a text, new weights.

Written from vLLM's documentation of 0.20 to 0.32, for `vllm serve` with VLLM_SERVER_DEV_MODE=1 (which opens the
endpoints that change weights) and `--logprobs-mode processed_logprobs`. See docs/guides/vllm.md.
"""

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from vigneron.config.scale import VllmSamplingConfig
from vigneron.core.draws import Sampling
from vigneron.errors import UserError, did_you_mean
from vigneron.remote.vllm.json_server import JsonServer, Trouble

WHERE = "scale.sampling"
OLDEST = (0, 20)
GUIDE = "docs/guides/vllm.md has the command that starts it"


@dataclass(frozen=True)
class Completion:
    """What was sampled for one prompt. `ended`: by an end token, which is its last."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended: bool


@dataclass(frozen=True)
class VllmServer:
    http: JsonServer
    version: str
    model: str
    """The name of what it serves."""
    longest: int | None
    """Tokens of a prompt with its completion, where it says."""

    @property
    def url(self) -> str:
        return self.http.url

    def complete(
        self, prompt: Sequence[int], max_new_tokens: int, sampling: Sampling | None, seed: int, ends: Sequence[int]
    ) -> Completion:
        """One completion. Nothing of it is left to defaults, which vLLM takes from the model's own files."""
        drawn = sampling or Sampling(temperature=0.0)
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": max_new_tokens,
            "n": 1,
            "temperature": drawn.temperature,
            "top_k": drawn.top_k or -1,
            "top_p": drawn.top_p,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": seed,
            # Our ends are the only ones, and stay in the text.
            "ignore_eos": True,
            "stop_token_ids": list(ends),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "logprobs": 1,
            "return_token_ids": True,
        }
        return self._understood(lambda: _completion(self._first_choice(body), max_new_tokens, ends))

    def logprobs_of(self, ids: Sequence[int]) -> list[float]:
        """Of each token of a text but the first, after those before it."""
        choice = self._first_choice(
            {
                "model": self.model,
                "prompt": list(ids),
                "max_tokens": 1,
                "temperature": 1.0,
                "top_k": -1,
                "top_p": 1.0,
                "repetition_penalty": 1.0,
                "prompt_logprobs": 1,
            }
        )

        def read() -> list[float]:
            rows = choice["prompt_logprobs"]
            if len(rows) != len(ids):
                raise ValueError(f"log-probs of {len(rows)} tokens for a text of {len(ids)}")
            return [_number(row[str(one)]["logprob"]) for one, row in zip(ids[1:], rows[1:], strict=True)]

        return self._understood(read)

    def check_processed(self, ids: Sequence[int]) -> None:
        """Where one token is left to choose from, its log-prob is 0, or it is not of what was sampled from."""
        found = self.complete(ids, 1, Sampling(1.0, top_k=1), 0, ())
        if found.logprobs[0] < -1e-3:
            raise UserError(
                f"{WHERE}: '{self.url}' gives log-probs from before temperature, top-k and top-p: "
                "start it with --logprobs-mode processed_logprobs"
            )

    def load(self, folder: Path) -> None:
        """New weights from a folder that it can read, between samples; none of the old ones' cache is left."""
        path = str(folder.resolve())
        self._control("/pause", mode="wait")
        self._control(
            "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": path}}, f"from '{path}'"
        )
        reset = self._control("/reset_prefix_cache")
        if isinstance(reset, dict) and reset.get("success") is False:
            raise UserError(f"{WHERE}: '{self.url}' did not forget what it had cached of the weights before")
        self._control("/resume")

    def _control(self, path: str, body: dict[str, Any] | None = None, what: str = "", **query: str) -> Any:
        try:
            return self.http.ask(path + (f"?{urlencode(query)}" if query else ""), body or {}, tries=3)
        except Trouble as trouble:
            if trouble.status is None:
                raise self.lost(trouble) from None
            reads = f" ({what}: can it read that? else set {WHERE}.weights)" if what else ""
            raise UserError(
                f"{WHERE}: vLLM at '{self.url}' has not taken new weights: {path} {trouble}{reads}"
            ) from None

    def _first_choice(self, body: dict[str, Any]) -> Any:
        try:
            answer = self.http.ask("/v1/completions", body)
        except Trouble as trouble:
            raise self.lost(trouble) from None
        return self._understood(lambda: answer["choices"][0])

    def lost(self, trouble: Trouble) -> UserError:
        if trouble.status is not None and trouble.status < 500:
            return UserError(f"{WHERE}: vLLM at '{self.url}' refuses a prompt: {trouble}")
        return UserError(
            f"{WHERE}: vLLM at '{self.url}' {trouble}. Start it again, then `vigneron resume` goes on from the last "
            "checkpoint"
        )

    def _understood(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            why = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise UserError(
                f"{WHERE}: vLLM {self.version} at '{self.url}' answers with something else than was asked for ({why})"
            ) from None


def _completion(choice: Any, max_new_tokens: int, ends: Sequence[int]) -> Completion:
    ids = tuple(choice["token_ids"])
    logprobs = tuple(_number(value) for value in choice["logprobs"]["token_logprobs"])
    reason = choice["finish_reason"]
    if not all(isinstance(one, int) for one in ids):
        raise ValueError("token ids that are no numbers")
    if len(ids) != len(logprobs):
        raise ValueError(f"{len(ids)} tokens and {len(logprobs)} log-probs")
    if reason == "stop" and (not ids or ids[-1] not in ends):
        raise ValueError("a completion without the end token that ended it")
    if reason == "length" and len(ids) != max_new_tokens:
        raise ValueError(f"{len(ids)} tokens where {max_new_tokens} were to be the limit")
    if reason not in ("stop", "length") or not 0 < len(ids) <= max_new_tokens:
        raise ValueError(f"a completion of {len(ids)} tokens that ended by '{reason}'")
    if any(one in ends for one in ids[:-1]):
        raise ValueError("a completion that goes on behind its end token")
    return Completion(ids, logprobs, reason == "stop")


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"the log-prob {value!r}")
    return float(value)


# ------------------------------------------------------------------------------------------------ before a run


def reach(config: VllmSamplingConfig) -> VllmServer:
    """The server that the recipe names, if it is one that can be trained with."""
    url = config.url.rstrip("/").removesuffix("/v1").rstrip("/")
    http = JsonServer(url, config.timeout_s, os.environ.get("VLLM_API_KEY", "").strip())
    try:
        http.ask("/health", tries=1)
    except Trouble as trouble:
        raise UserError(f"{WHERE}.url: no vLLM server at '{url}': it {trouble}; {GUIDE}") from None
    version = _version(http)
    if _parsed(version) < OLDEST:
        oldest = ".".join(str(part) for part in OLDEST)
        raise UserError(f"{WHERE}.url: '{url}' runs vLLM {version}: {oldest} or newer is needed")
    model, longest = _served(http, config.model)
    _wake(http)
    return VllmServer(http, version, model, longest)


def _version(http: JsonServer) -> str:
    try:
        found = http.ask("/version")
        return str(found["version"])
    except (Trouble, KeyError, TypeError):
        raise UserError(f"{WHERE}.url: '{http.url}' answers, but is no vLLM server; {GUIDE}") from None


def _parsed(version: str) -> tuple[int, int]:
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def _served(http: JsonServer, wanted: str | None) -> tuple[str, int | None]:
    try:
        found = http.ask("/v1/models")
        models = {str(one["id"]): one.get("max_model_len") for one in found["data"] if not one.get("parent")}
    except Trouble as trouble:
        key = " (a key goes into VLLM_API_KEY)" if trouble.status == 401 else ""
        raise UserError(f"{WHERE}.url: '{http.url}' does not say what it serves: it {trouble}{key}") from None
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{WHERE}.url: '{http.url}' answers, but is no vLLM server; {GUIDE}") from None
    if wanted is not None and wanted not in models:
        raise UserError(f"{WHERE}.model: '{http.url}' serves no '{wanted}'{did_you_mean(wanted, models)}")
    if wanted is None and len(models) != 1:
        raise UserError(f"{WHERE}.model: '{http.url}' serves {', '.join(models) or 'nothing'}: say which one")
    name = wanted if wanted is not None else next(iter(models))
    longest = models[name]
    return name, longest if isinstance(longest, int) else None


def _wake(http: JsonServer) -> None:
    """A run that was killed amid an update leaves the server paused."""
    try:
        if http.ask("/is_paused")["is_paused"]:
            http.ask("/resume", {})
    except Trouble as trouble:
        how = "start it with VLLM_SERVER_DEV_MODE=1" if trouble.status == 404 else f"/is_paused {trouble}"
        raise UserError(f"{WHERE}.url: the weights of '{http.url}' cannot be updated: {how}") from None
    except (KeyError, TypeError):
        raise UserError(f"{WHERE}.url: '{http.url}' does not say whether it is paused; {GUIDE}") from None
