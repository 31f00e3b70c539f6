"""Sampling by a vLLM server: it is brought to the policy's weights, and must prove that it has them, before it samples.

A step's weights go through a folder that the server reads (its own `reload_weights`). It has them when two things hold:
its log-probs of a fixed text are the policy's, within a limit; and they have moved, if the policy's have. The first
finds another model, the second a server that ignores small updates.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from vigneron.config.scale import VllmSamplingConfig
from vigneron.core.draws import draw_keys
from vigneron.errors import UserError
from vigneron.policy.model import Policy
from vigneron.policy.weight_versions import Pinned, Version
from vigneron.remote.vllm.server_api import WHERE, Completion, VllmServer
from vigneron.remote.vllm.weights_folder import write_weights
from vigneron.rollout.engine.request import Completions, Request, blank_completions
from vigneron.threads import DaemonPool
from vigneron.timing import phase

PROBE = "Vines were tied to the trellis in spring, and the grapes were picked by hand before the first frost came."
PROBE_TOKENS = 32
ANOTHER_MODEL = 1.0
"""Nats: before a run's first update, a gap above it is no rounding."""
MOVED = 0.01
"""Nats: a policy that has gone so far is not what it was in bfloat16 either; what is less may round away."""


class VllmSampler:
    """Samples for a policy as it was when its weights were last taken; by itself that is at every call."""

    exact = False

    def __init__(self, policy: Policy, server: VllmServer, config: VllmSamplingConfig, folder: Path) -> None:
        self._policy, self._server, self._config = policy, server, config
        self._folder = Path(config.weights).expanduser() / folder.name if config.weights else folder / "vllm"
        self.version: int | None = None
        """Of the weights that the server has."""
        self._pinned = Pinned()
        self._probe = self._probe_ids()
        self._identity = ""
        self._seen: list[float] = []
        self._own_then: list[float] = []
        """What the policy said when the server's answer was last another one than before."""
        self._gap = 0.0

    @property
    def notice(self) -> str:
        server = self._server
        return f"vLLM {server.version} at {server.url} samples; its log-probs are not quite the policy's own"

    def _probe_ids(self) -> list[int]:
        ids = list(self._policy.tokenizer(PROBE)["input_ids"])
        return ids[: min(PROBE_TOKENS, (self._policy.context_length or PROBE_TOKENS + 1) - 1)]

    # ---------------------------------------------------------------------------------------------------- weights

    def take_weights(self) -> None:
        """Bring the server to the policy's version, if it is behind."""
        if self.version == self._policy.version:
            return
        if self.version is None:
            self._meet()
        target = self._folder / f"step-{self._policy.version}"
        identity = write_weights(self._policy, target)
        if identity != self._identity:
            self._server.load(target)
        seen, own = self._server.logprobs_of(self._probe), self._own_logprobs()
        self._gap = _mean_gap(seen, own)
        self._check_update(seen, own)
        if seen != self._seen:
            self._seen, self._own_then = seen, own
        self.version, self._identity = self._policy.version, identity
        for old in self._folder.glob("step-*"):
            if old != target:
                shutil.rmtree(old, ignore_errors=True)

    def publish(self) -> Version:
        """For a thread that samples ahead: the policy's weights as they are now."""
        self.take_weights()
        return Version(self._policy.version)

    def use(self, weights: Version | None) -> None:
        """What this thread samples from; None: the policy as it is at each call."""
        self._pinned.weights = weights

    def _meet(self) -> None:
        """Before anything of the server is changed. A run that goes on may find it with any weights."""
        self._server.check_processed(self._probe)
        gap = _mean_gap(self._server.logprobs_of(self._probe), self._own_logprobs())
        if self._policy.version == 0 and not gap <= ANOTHER_MODEL:
            raise UserError(
                f"{WHERE}.url: '{self._server.url}' serves another model than the recipe's ('{self._server.model}'): "
                f"its log-probs of a fixed text are {gap:.2g} nats away"
            )

    def _check_update(self, seen: list[float], own: list[float]) -> None:
        what = f"{WHERE}: vLLM at '{self._server.url}' does not have the weights of version {self._policy.version}"
        if not self._gap <= self._config.probe_limit:
            raise UserError(
                f"{what}: its log-probs of a fixed text are {self._gap:.2g} nats from the policy's, more than "
                f"{WHERE}.probe_limit ({self._config.probe_limit:g})"
            )
        if seen == self._seen and (moved := _mean_gap(own, self._own_then)) > MOVED:
            raise UserError(
                f"{what}: it said it had loaded them, and answers to the last digit as when the policy's log-probs "
                f"of a fixed text were {moved:.2g} nats away"
            )

    @torch.no_grad()
    def _own_logprobs(self) -> list[float]:
        policy = self._policy
        ids = torch.tensor([self._probe], device=policy.device)
        positions = torch.arange(len(self._probe), device=policy.device)[None]
        logprobs_SV = policy.logits(policy.hidden(ids, positions))[0, :-1].log_softmax(-1)
        found: list[float] = logprobs_SV.gather(1, ids[0, 1:, None])[:, 0].tolist()
        return found

    # --------------------------------------------------------------------------------------------------- sampling

    def sample(self, request: Request) -> Completions:
        if self._pinned.weights is None:
            with phase("weights"):
                self.take_weights()
        elif self._pinned.weights.version != self.version:
            raise AssertionError("the server was given other weights while it samples from these")
        self._check_lengths(request)
        with phase("decode"):
            return self._filled(request, self._sampled(request))

    def _check_lengths(self, request: Request) -> None:
        needed, longest = max(len(ids) for ids in request.prompt_ids) + request.max_new_tokens, self._server.longest
        if longest is not None and needed > longest:
            raise UserError(
                f"{WHERE}.url: '{self._server.url}' takes {longest} tokens, and a prompt with max_new_tokens="
                f"{request.max_new_tokens} has {needed}: start it with --max-model-len {needed}"
            )

    def _sampled(self, request: Request) -> list[Completion]:
        """In the order of the prompts. One that was lost on the way is asked for again, with the same seed."""
        ends = sorted(self._policy.eos_ids)
        seeds = request_seeds(request.seed, request.step, request.sample_ids)
        pool = DaemonPool(min(self._config.concurrency, len(seeds)), "vllm")
        try:
            futures = [
                pool.submit(self._server.complete, ids, request.max_new_tokens, request.sampling, seed, ends)
                for ids, seed in zip(request.prompt_ids, seeds, strict=True)
            ]
            return [future.result() for future in futures]
        finally:
            pool.stop()

    def _filled(self, request: Request, found: Sequence[Completion]) -> Completions:
        done = blank_completions(request, self._policy)
        device, dtype = done.ids_BT.device, done.behaviour_BT.dtype
        for row, one in enumerate(found):
            done.ids_BT[row, : len(one.ids)] = torch.tensor(one.ids, device=device)
            done.behaviour_BT[row, : len(one.ids)] = torch.tensor(one.logprobs, device=device, dtype=dtype)
        lengths = torch.tensor([len(one.ids) for one in found], device=device)
        truncated = torch.tensor([not one.ended for one in found], device=device)
        figures = {"vllm/probe_gap": self._gap}
        return Completions(done.ids_BT, lengths, done.behaviour_BT, truncated, figures=figures)

    def close(self) -> None:
        """The server keeps the weights; their folder goes."""
        shutil.rmtree(self._folder, ignore_errors=True)


def request_seeds(seed: int, step: int, sample_ids: Sequence[int]) -> list[int]:
    """63 bits for each sample, by (seed, step, sample) alone."""
    keys: list[int] = draw_keys(seed, step, torch.tensor(list(sample_ids))).tolist()
    return [key & (2**63 - 1) for key in keys]


def _mean_gap(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(first, second, strict=True)) / len(first)
