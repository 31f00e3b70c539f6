"""Sampling by vLLM, on a server or in this process, which is verified to have the policy's weights before it samples.

Two checks verify them: vLLM's log-probs of a fixed text agree with the policy's within a limit, and they change when
the policy's do. The first detects another model, the second an engine that ignores small updates.
"""

from collections.abc import Sequence

import torch

from vigneron.core.draws import draw_keys
from vigneron.errors import UserError
from vigneron.policy.model import Policy
from vigneron.policy.weight_versions import PinnedWeights, Version
from vigneron.remote.vllm.completion import WHERE, Completion, Ends, VllmEngine, mean_gap
from vigneron.rollout.engine.request import Completions, Request, blank_completions
from vigneron.rollout.engine.stop_strings import stop_strings
from vigneron.timing import phase

PROBE = "Vines were tied to the trellis in spring, and the grapes were picked by hand before the first frost came."
PROBE_TOKENS = 32
CHANGED = 0.01
"""Nats: a larger change of the policy's log-probs must be visible in bfloat16; a smaller one may round away."""
PROBE_LIMITS = {torch.bfloat16: 0.15}
"""Nats, by compute dtype. bfloat16 rounds a logit between 8 and 16 to a multiple of 0.06, and two implementations
differ by 0.05 to 0.06 on average."""
PROBE_LIMIT = 0.01
"""Nats, in float32, where they differ by less than 0.001."""


class VllmSampler:
    """Samples from the policy's weights as last loaded by vLLM; by default it loads them at every call."""

    exact = False

    def __init__(self, policy: Policy, engine: VllmEngine, probe_limit: float | None = None) -> None:
        self._policy, self._engine = policy, engine
        self.probe_limit = probe_limit or PROBE_LIMITS.get(policy.compute_dtype, PROBE_LIMIT)
        self.version: int | None = None
        """Version of the weights that vLLM has."""
        self._pinned = PinnedWeights()
        self._probe = self._probe_ids()
        self._engine_logprobs: list[float] = []
        self._policy_logprobs: list[float] = []
        """The policy's log-probs when vLLM's last changed."""
        self._gap = 0.0

    @property
    def notice(self) -> str:
        return f"{self._engine.name} samples; its log-probs differ slightly from the policy's"

    def _probe_ids(self) -> list[int]:
        ids = list(self._policy.tokenizer(PROBE)["input_ids"])
        return ids[: min(PROBE_TOKENS, (self._policy.context_length or PROBE_TOKENS + 1) - 1)]

    # ---------------------------------------------------------------------------------------------------- weights

    def update_weights(self) -> None:
        """Load the policy's weights into vLLM, unless it has them."""
        if self.version == self._policy.version and self._engine.awake:
            return
        own = self._own_logprobs()
        if self.version is None:
            self._engine.check(self._probe, own)
        self._engine.load()
        theirs = self._engine.logprobs_of(self._probe)
        self._gap = mean_gap(theirs, own)
        self._check_update(theirs, own)
        if theirs != self._engine_logprobs:
            self._engine_logprobs, self._policy_logprobs = theirs, own
        self.version = self._policy.version

    def publish(self) -> Version:
        """Load the policy's current weights for asynchronous sampling."""
        self.update_weights()
        return Version(self._policy.version)

    def use(self, weights: Version | None) -> None:
        """Pin the weights that this thread samples from; None samples from the current ones."""
        self._pinned.weights = weights

    def _check_update(self, theirs: list[float], own: list[float]) -> None:
        what = f"{WHERE}: {self._engine.name} does not have the weights of version {self._policy.version}"
        if not self._gap <= self.probe_limit:
            raise UserError(
                f"{what}: its log-probs of a fixed text differ from the policy's by {self._gap:.2g} nats, more than "
                f"{WHERE}.probe_limit ({self.probe_limit:g})"
            )
        if theirs == self._engine_logprobs and (change := mean_gap(own, self._policy_logprobs)) > CHANGED:
            raise UserError(
                f"{what}: it reported that it loaded them, but its log-probs of a fixed text did not change, while "
                f"the policy's changed by {change:.2g} nats"
            )

    @torch.no_grad()
    def _own_logprobs(self) -> list[float]:
        policy = self._policy
        ids = torch.tensor([self._probe], device=policy.device)
        positions = torch.arange(len(self._probe), device=policy.device)[None]
        logprobs_SV = policy.logits(policy.hidden(ids, positions))[0, :-1].log_softmax(-1)
        logprobs: list[float] = logprobs_SV.gather(1, ids[0, 1:, None])[:, 0].tolist()
        return logprobs

    # --------------------------------------------------------------------------------------------------- sampling

    def sample(self, request: Request) -> Completions:
        self._check_lengths(request)
        try:
            if self._pinned.weights is None:
                with phase("weights"):
                    self.update_weights()
            elif self._pinned.weights.version != self.version:
                raise AssertionError("vLLM has loaded other weights than those pinned for sampling")
            with phase("decode"):
                completions = self._sampled(request)
        finally:
            self._engine.sleep()
        return self._to_tensors(request, completions)

    def _check_lengths(self, request: Request) -> None:
        needed, longest = max(len(ids) for ids in request.prompt_ids) + request.max_new_tokens, self._engine.longest
        if longest is not None and needed > longest:
            raise UserError(
                f"{WHERE}: {self._engine.name} allows {longest} tokens, but a prompt with max_new_tokens="
                f"{request.max_new_tokens} needs {needed}: {self._engine.too_short.format(needed=needed)}"
            )

    def _sampled(self, request: Request) -> list[Completion]:
        """Completions in the order of the prompts."""
        ends = Ends(sorted(self._policy.eos_ids), request.stop, stop_strings(self._policy.tokenizer, request.stop))
        seeds = request_seeds(request.seed, request.step, request.sample_ids, request.turn)
        completions = self._engine.complete(request.prompt_ids, request.max_new_tokens, request.sampling, seeds, ends)
        size = self._policy.causal.get_input_embeddings().num_embeddings
        largest = max(max(one.ids) for one in completions)
        if largest >= size:
            raise UserError(f"{WHERE}: {self._engine.name} sampled token {largest}, but the policy has {size}")
        return completions

    def _to_tensors(self, request: Request, completions: Sequence[Completion]) -> Completions:
        blank = blank_completions(request, self._policy)
        device = blank.ids_BT.device
        ids_BT, behaviour_BT = blank.ids_BT.cpu(), blank.behaviour_BT.cpu()  # filled on the host, then copied once
        for row, one in enumerate(completions):
            ids_BT[row, : len(one.ids)] = torch.tensor(one.ids)
            behaviour_BT[row, : len(one.ids)] = torch.tensor(one.logprobs, dtype=behaviour_BT.dtype)
        lengths = torch.tensor([len(one.ids) for one in completions], device=device)
        truncated = torch.tensor([not one.ended for one in completions], device=device)
        metrics = {"vllm/probe_gap": self._gap}
        return Completions(ids_BT.to(device), lengths, behaviour_BT.to(device), truncated, metrics=metrics)

    def close(self) -> None:
        self._engine.close()


def request_seeds(seed: int, step: int, sample_ids: Sequence[int], turn: int = 0) -> list[int]:
    """A 63-bit seed for each sample, which depends only on (seed, step, sample, turn)."""
    keys: list[int] = draw_keys(seed, step, torch.tensor(list(sample_ids)), turn).tolist()
    return [key & (2**63 - 1) for key in keys]
