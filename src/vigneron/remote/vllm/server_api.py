"""The HTTP API of a vLLM server: version, completions by token ids, log-probs of a text, weight updates.

For vLLM 0.20 to 0.32, started by `vllm serve` with VLLM_SERVER_DEV_MODE=1 (which enables the endpoints that change
weights) and `--logprobs-mode processed_logprobs`. See docs/guides/vllm.md.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from vigneron.config.scale import VllmSamplingConfig
from vigneron.core.draws import Sampling
from vigneron.errors import UserError, did_you_mean
from vigneron.remote.vllm.completion import (
    OLDEST,
    PROBE_OPTIONS,
    WHERE,
    Completion,
    Ends,
    checked_completion,
    number,
    parsed_version,
    sampling_options,
)
from vigneron.remote.vllm.json_server import HttpError, JsonServer

GUIDE = "docs/guides/vllm.md has the command that starts it"


@dataclass(frozen=True)
class VllmServer:
    http: JsonServer
    version: str
    model: str
    """Name of the served model."""
    longest: int | None
    """Maximum tokens of a prompt with its completion, if the server reports it."""
    where: str = WHERE
    """The config section that messages name."""

    @property
    def url(self) -> str:
        return self.http.url

    def complete(
        self, prompt: Sequence[int], max_new_tokens: int, sampling: Sampling | None, seed: int, ends: Ends
    ) -> Completion:
        """Sample one completion."""
        body = {
            "model": self.model,
            "prompt": list(prompt),
            **sampling_options(max_new_tokens, sampling, seed, ends),
            "logprobs": 1,
            "return_token_ids": True,
        }
        return self._parse(lambda: _completion(self._first_choice(body), max_new_tokens, ends))

    def logprobs_of(self, ids: Sequence[int]) -> list[float]:
        """The log-prob of each token of a text but the first, given the tokens before it."""
        rows = self.top_logprobs_of(ids, 1)
        return [row[one] for one, row in zip(ids[1:], rows, strict=True)]

    def top_logprobs_of(self, ids: Sequence[int], count: int) -> list[dict[int, float]]:
        """For each token of a text but the first, log-probs of the `count` most likely ones there, and its own."""

        def read(row: Any, token: int) -> dict[int, float]:
            logprobs = {int(one): number(entry["logprob"]) for one, entry in row.items()}
            return {token: logprobs[token], **logprobs}

        rows = self._prompt_rows(ids, count)
        return self._parse(lambda: [read(row, one) for one, row in zip(ids[1:], rows, strict=True)])

    def decoded(self, ids: Sequence[int]) -> list[str]:
        """What the server's tokenizer makes of each token of a text but the first, by itself."""
        rows = self._prompt_rows(ids, 1)
        return self._parse(
            lambda: [row[str(one)].get("decoded_token") or "" for one, row in zip(ids[1:], rows, strict=True)]
        )

    def _prompt_rows(self, ids: Sequence[int], count: int) -> list[Any]:
        body = {"model": self.model, "prompt": list(ids), **PROBE_OPTIONS, "prompt_logprobs": count}
        choice = self._first_choice(body)

        def read() -> list[Any]:
            rows = choice["prompt_logprobs"]
            if len(rows) != len(ids):
                raise ValueError(f"log-probs of {len(rows)} tokens for a text of {len(ids)}")
            return list(rows[1:])

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
            return UserError(f"{self.where}: vLLM at '{self.url}' refuses a prompt: {error}")
        return UserError(
            f"{self.where}: vLLM at '{self.url}' {error}. Restart it and run `vigneron resume` to continue from the "
            "last checkpoint"
        )

    def _parse(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            why = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise UserError(
                f"{self.where}: vLLM {self.version} at '{self.url}' returned an unexpected response ({why})"
            ) from None


def _completion(choice: Any, max_new_tokens: int, ends: Ends) -> Completion:
    ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
    reason, stop_reason = choice["finish_reason"], choice.get("stop_reason")
    return checked_completion(ids, logprobs, reason, stop_reason, max_new_tokens, ends)


# ------------------------------------------------------------------------------------------------ before a run


def connect(config: VllmSamplingConfig) -> VllmServer:
    """Connect to the recipe's server and check that it can be trained with."""
    assert config.url is not None
    server = reach(config.url, config.model, config.timeout_s)
    _unpause(server.http)
    return server


def reach(url: str, model: str | None, timeout_s: float, where: str = WHERE, key: str = "model") -> VllmServer:
    """A vLLM server and one of its models. Messages name the config section `where`, and its key for the model."""
    url = url.rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        http = JsonServer(url, timeout_s, os.environ.get("VLLM_API_KEY", "").strip())
    except UserError as error:
        raise UserError(f"{where}.url: {error}") from None
    try:
        http.request("/health", tries=1)
    except HttpError as error:
        raise UserError(f"{where}.url: no vLLM server at '{url}': it {error}; {GUIDE}") from None
    version = _version(http, where)
    if parsed_version(version) < OLDEST:
        oldest = ".".join(str(part) for part in OLDEST)
        raise UserError(f"{where}.url: '{url}' runs vLLM {version}: {oldest} or newer is required")
    name, longest = _served(http, model, where, key)
    return VllmServer(http, version, name, longest, where)


def _version(http: JsonServer, where: str) -> str:
    try:
        return str(http.request("/version")["version"])
    except (HttpError, KeyError, TypeError):
        raise UserError(f"{where}.url: '{http.url}' answers, but is not a vLLM server; {GUIDE}") from None


def _served(http: JsonServer, wanted: str | None, where: str, key: str) -> tuple[str, int | None]:
    """The name and maximum length of the served model."""
    try:
        listed = http.request("/v1/models")["data"]
        models = {str(one["id"]): one.get("max_model_len") for one in listed if not one.get("parent")}
    except HttpError as error:
        how = " (set the key in VLLM_API_KEY)" if error.status == 401 else ""
        raise UserError(f"{where}.url: '{http.url}' does not list its models: it {error}{how}") from None
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{where}.url: '{http.url}' answers, but is not a vLLM server; {GUIDE}") from None
    if wanted is not None and wanted not in models:
        raise UserError(f"{where}.{key}: '{http.url}' does not serve '{wanted}'{did_you_mean(wanted, models)}")
    if wanted is None and len(models) != 1:
        raise UserError(
            f"{where}.{key}: '{http.url}' serves {', '.join(models) or 'no model'}: set `{key}` to one of them"
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
