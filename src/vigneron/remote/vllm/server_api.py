"""The HTTP API of a vLLM server: version, completions by token ids, log-probs of a text, weight updates.

For vLLM 0.20 to 0.32, started by `vllm serve` with VLLM_SERVER_DEV_MODE=1 (which enables the endpoints that change
weights) and `--logprobs-mode processed_logprobs`. See docs/guides/vllm.md.
"""

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
from vigneron.remote.vllm.json_server import HttpError, JsonServer
from vigneron.rollout.engine.stop_strings import StopStrings
from vigneron.values import is_number

WHERE = "scale.sampling"
OLDEST = (0, 20)
LARGEST_TOKEN = 2**31
GUIDE = "docs/guides/vllm.md has the command that starts it"


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


@dataclass(frozen=True)
class VllmServer:
    http: JsonServer
    version: str
    model: str
    """Name of the served model."""
    longest: int | None
    """Maximum tokens of a prompt with its completion, if the server reports it."""

    @property
    def url(self) -> str:
        return self.http.url

    def complete(
        self, prompt: Sequence[int], max_new_tokens: int, sampling: Sampling | None, seed: int, ends: Ends
    ) -> Completion:
        """Sample one completion. Sets every option: vLLM takes defaults from the model's generation config."""
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
            # Only our end tokens and stop strings stop a completion, and they stay in it.
            "ignore_eos": True,
            "stop_token_ids": list(ends.tokens),
            **({"stop": list(ends.strings)} if ends.strings else {}),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "logprobs": 1,
            "return_token_ids": True,
        }
        return self._parse(lambda: _completion(self._first_choice(body), max_new_tokens, ends))

    def logprobs_of(self, ids: Sequence[int]) -> list[float]:
        """The log-prob of each token of a text but the first, given the tokens before it."""
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

        return self._parse(read)

    def check_processed(self, ids: Sequence[int]) -> None:
        """Check that log-probs are those after top-k and top-p: with top_k=1 the only token has log-prob 0."""
        completion = self.complete(ids, 1, Sampling(1.0, top_k=1), 0, Ends())
        if completion.logprobs[0] < -1e-3:
            raise UserError(
                f"{WHERE}: '{self.url}' returns log-probs from before temperature, top-k and top-p: "
                "start it with --logprobs-mode processed_logprobs"
            )

    def load(self, folder: Path) -> None:
        """Load new weights from a folder that the server can read, and reset its prefix cache."""
        path = str(folder.resolve())
        self._control("/pause", mode="wait")
        self._control(
            "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": path}}, f"from '{path}'"
        )
        reset = self._control("/reset_prefix_cache")
        if isinstance(reset, dict) and reset.get("success") is False:
            raise UserError(f"{WHERE}: '{self.url}' did not reset its prefix cache after new weights")
        self._control("/resume")

    def _control(self, path: str, body: dict[str, Any] | None = None, what: str = "", **query: str) -> Any:
        try:
            return self.http.request(path + (f"?{urlencode(query)}" if query else ""), body or {}, tries=3)
        except HttpError as error:
            if error.status is None:
                raise self._request_error(error) from None
            hint = f" ({what}: if the server cannot read that folder, set {WHERE}.weights)" if what else ""
            raise UserError(f"{WHERE}: vLLM at '{self.url}' did not load new weights: {path} {error}{hint}") from None

    def _first_choice(self, body: dict[str, Any]) -> Any:
        try:
            answer = self.http.request("/v1/completions", body)
        except HttpError as error:
            raise self._request_error(error) from None
        return self._parse(lambda: answer["choices"][0])

    def _request_error(self, error: HttpError) -> UserError:
        if error.status is not None and error.status < 500:
            return UserError(f"{WHERE}: vLLM at '{self.url}' refuses a prompt: {error}")
        return UserError(
            f"{WHERE}: vLLM at '{self.url}' {error}. Restart it and run `vigneron resume` to continue from the last "
            "checkpoint"
        )

    def _parse(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            why = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise UserError(
                f"{WHERE}: vLLM {self.version} at '{self.url}' returned an unexpected response ({why})"
            ) from None


def _completion(choice: Any, max_new_tokens: int, ends: Ends) -> Completion:
    ids = tuple(choice["token_ids"])
    logprobs = tuple(_number(value) for value in choice["logprobs"]["token_logprobs"])
    reason = choice["finish_reason"]
    if not all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < LARGEST_TOKEN for one in ids):
        raise ValueError("token ids that are not integers of a vocabulary")
    if len(ids) != len(logprobs):
        raise ValueError(f"{len(ids)} tokens and {len(logprobs)} log-probs")
    stop = ends.stops.end(ids) if ends.stops is not None else None
    if stop is not None:  # the server may have sampled several tokens before it looked
        ids, logprobs, reason = ids[:stop], logprobs[:stop], "stop"
    by_string = stop is not None or choice.get("stop_reason") in ends.strings  # its detokenizer may see other spaces
    if reason == "stop" and not by_string and (not ids or ids[-1] not in ends.tokens):
        raise ValueError("a completion without the end token or stop string that ended it")
    if reason == "length" and len(ids) != max_new_tokens:
        raise ValueError(f"{len(ids)} tokens cut by the length limit of {max_new_tokens}")
    if reason not in ("stop", "length") or not 0 < len(ids) <= max_new_tokens:
        raise ValueError(f"a completion of {len(ids)} tokens that ended by '{reason}'")
    if any(one in ends.tokens for one in ids[:-1]):
        raise ValueError("a completion that continues after its end token")
    return Completion(ids, logprobs, reason == "stop")


def _number(value: Any) -> float:
    if not is_number(value):
        raise ValueError(f"the log-prob {value!r}")
    return float(value)


# ------------------------------------------------------------------------------------------------ before a run


def connect(config: VllmSamplingConfig) -> VllmServer:
    """Connect to the recipe's server and check that it can be trained with."""
    url = config.url.rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        http = JsonServer(url, config.timeout_s, os.environ.get("VLLM_API_KEY", "").strip())
    except UserError as error:
        raise UserError(f"{WHERE}.url: {error}") from None
    try:
        http.request("/health", tries=1)
    except HttpError as error:
        raise UserError(f"{WHERE}.url: no vLLM server at '{url}': it {error}; {GUIDE}") from None
    version = _version(http)
    if _parsed(version) < OLDEST:
        oldest = ".".join(str(part) for part in OLDEST)
        raise UserError(f"{WHERE}.url: '{url}' runs vLLM {version}: {oldest} or newer is required")
    model, longest = _served(http, config.model)
    _unpause(http)
    return VllmServer(http, version, model, longest)


def _version(http: JsonServer) -> str:
    try:
        return str(http.request("/version")["version"])
    except (HttpError, KeyError, TypeError):
        raise UserError(f"{WHERE}.url: '{http.url}' answers, but is not a vLLM server; {GUIDE}") from None


def _parsed(version: str) -> tuple[int, int]:
    numbers = re.match(r"v?(\d{1,9})\.(\d{1,9})", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def _served(http: JsonServer, wanted: str | None) -> tuple[str, int | None]:
    """The name and maximum length of the served model."""
    try:
        listed = http.request("/v1/models")["data"]
        models = {str(one["id"]): one.get("max_model_len") for one in listed if not one.get("parent")}
    except HttpError as error:
        key = " (set the key in VLLM_API_KEY)" if error.status == 401 else ""
        raise UserError(f"{WHERE}.url: '{http.url}' does not list its models: it {error}{key}") from None
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{WHERE}.url: '{http.url}' answers, but is not a vLLM server; {GUIDE}") from None
    if wanted is not None and wanted not in models:
        raise UserError(f"{WHERE}.model: '{http.url}' does not serve '{wanted}'{did_you_mean(wanted, models)}")
    if wanted is None and len(models) != 1:
        raise UserError(
            f"{WHERE}.model: '{http.url}' serves {', '.join(models) or 'no model'}: set `model` to one of them"
        )
    name = wanted if wanted is not None else next(iter(models))
    longest = models[name]
    return name, longest if isinstance(longest, int) else None


def _unpause(http: JsonServer) -> None:
    """Resume a server that was left paused by a run killed during a weight update."""
    try:
        if http.request("/is_paused")["is_paused"]:
            http.request("/resume", {})
    except HttpError as error:
        how = "start it with VLLM_SERVER_DEV_MODE=1" if error.status == 404 else f"/is_paused {error}"
        raise UserError(f"{WHERE}.url: the weights of '{http.url}' cannot be updated: {how}") from None
    except (KeyError, TypeError):
        raise UserError(f"{WHERE}.url: '{http.url}' does not report whether it is paused; {GUIDE}") from None
