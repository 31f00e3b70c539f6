"""A vLLM server as the engine of a run. The weights go through a folder that it reads with `reload_weights`."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from vigneron.config.scale import VllmSamplingConfig
from vigneron.core.draws import Sampling
from vigneron.errors import UserError
from vigneron.policy.model import Policy
from vigneron.remote.vllm.completion import WHERE, Completion, Ends, mean_gap
from vigneron.remote.vllm.server_api import VllmServer
from vigneron.remote.vllm.weights import write_weights
from vigneron.threads import DaemonPool

DIFFERENT_MODEL = 1.0
"""Nats: before the first update, a larger gap means another model, not rounding."""


class ServerEngine:
    awake = True

    def __init__(self, policy: Policy, server: VllmServer, config: VllmSamplingConfig, folder: Path) -> None:
        self._policy, self._server, self._concurrency = policy, server, config.concurrency
        self._folder = Path(config.weights).expanduser() / folder.name if config.weights else folder / "vllm"
        self.name = f"vLLM {server.version} at '{server.url}'"
        self.longest = server.longest
        self.too_short = "start it with --max-model-len {needed}"

    def check(self, probe: Sequence[int], own_logprobs: Sequence[float]) -> None:
        """On resume the server may have any weights."""
        self._server.check_processed(probe)
        gap = mean_gap(self._server.logprobs_of(probe), own_logprobs)
        if self._policy.version == 0 and not gap <= DIFFERENT_MODEL:
            raise UserError(
                f"{WHERE}.url: '{self._server.url}' serves '{self._server.model}', which is not the recipe's model: "
                f"its log-probs of a fixed text differ by {gap:.2g} nats"
            )

    def load(self) -> None:
        target = self._folder / f"step-{self._policy.version}"
        write_weights(self._policy, target)
        self._server.load(target)
        for old in self._folder.glob("step-*"):
            if old != target:
                shutil.rmtree(old, ignore_errors=True)

    def logprobs_of(self, ids: Sequence[int]) -> list[float]:
        return self._server.logprobs_of(ids)

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        sampling: Sampling | None,
        seeds: Sequence[int],
        ends: Ends,
    ) -> list[Completion]:
        """A lost request is retried with the same seed."""
        pool = DaemonPool(min(self._concurrency, len(seeds)), "vllm")
        try:
            futures = [
                pool.submit(self._server.complete, ids, max_new_tokens, sampling, seed, ends)
                for ids, seed in zip(prompts, seeds, strict=True)
            ]
            return [future.result() for future in futures]
        finally:
            pool.stop()

    def sleep(self) -> None:
        """The server has its own memory."""

    def close(self) -> None:
        """Delete the folder of weights. The server keeps what it has loaded."""
        shutil.rmtree(self._folder, ignore_errors=True)
