"""A parent on a vLLM server: its log-probs of the child's samples, as those of a prompt.

They are at temperature 1, and rounded as vLLM rounds them: two runs of one recipe may differ in the last digits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import DistillConfig
from vigneron.core.draws import Sampling
from vigneron.errors import UserError, visible
from vigneron.policy.model import Policy
from vigneron.policy.parent import vocabulary
from vigneron.remote.vllm.sampler import PROBE, PROBE_TOKENS
from vigneron.remote.vllm.server_api import VllmServer, reach
from vigneron.threads import DaemonPool

TIMEOUT_S = 600.0
CONCURRENCY = 64
"""Texts in flight."""


@dataclass(frozen=True)
class ServedParent:
    server: VllmServer
    size: int
    """Rows of the child's vocabulary."""

    def logprobs(self, batch: Batch, sampling: Sampling) -> dict[str, Tensor]:
        return {"parent_BT": self.top(batch, sampling, 1)["parent_BT"]}

    def top(self, batch: Batch, sampling: Sampling, count: int) -> dict[str, Tensor]:
        completions, prompts = batch.samples.completion_lists(), batch.samples.prompt_ids
        shape = batch.samples.completion_BT.shape
        chosen_BT, top_BTK = torch.zeros(shape), torch.zeros(*shape, count)
        ids_BTK = torch.zeros(*shape, count, dtype=torch.long)
        texts = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
        for row, seen in enumerate(self._seen(texts, count)):
            length = len(completions[row])
            for at, (token, logprobs) in enumerate(zip(completions[row], seen[len(seen) - length :], strict=True)):
                best = sorted(logprobs.items(), key=lambda one: (-one[1], one[0]))[:count]
                self._check(best, count)
                chosen_BT[row, at] = logprobs[token]
                ids_BTK[row, at] = torch.tensor([one for one, _ in best])
                top_BTK[row, at] = torch.tensor([value for _, value in best])
        found = {"parent_BT": chosen_BT, "parent_top_BTK": top_BTK, "parent_ids_BTK": ids_BTK}
        return {name: values.to(batch.samples.completion_BT.device) for name, values in found.items()}

    def _seen(self, texts: list[list[int]], count: int) -> list[list[dict[int, float]]]:
        longest = max(map(len, texts)) + 1  # vLLM samples one token behind a text
        if self.server.longest is not None and longest > self.server.longest:
            raise UserError(
                f"method.url: the parent at '{self.server.url}' reads {self.server.longest} tokens, but a sample with "
                f"its prompt needs {longest}: start it with --max-model-len {longest}, or lower max_new_tokens"
            )
        pool = DaemonPool(min(CONCURRENCY, len(texts)), "parent")
        try:
            futures = [pool.submit(self.server.top_logprobs_of, text, count) for text in texts]
            return [future.result() for future in futures]
        finally:
            pool.stop()

    def _check(self, best: list[tuple[int, float]], count: int) -> None:
        if len(best) < count:
            raise UserError(
                f"method.top_k: the parent at '{self.server.url}' gives {len(best)} tokens where {count} are wanted: "
                f"start it with --max-logprobs {count}"
            )
        if max(one for one, _ in best) >= self.size:
            raise UserError(f"method.url: the parent at '{self.server.url}' has tokens that the child does not have")


def connect_parent(config: DistillConfig, policy: Policy) -> ServedParent:
    """Connect, and check that the server reads the child's tokens as the child writes them."""
    assert config.url is not None
    server = reach(config.url, config.parent, TIMEOUT_S, where="method", key="parent")
    ids = list(policy.tokenizer(PROBE)["input_ids"])[: min(PROBE_TOKENS, (server.longest or PROBE_TOKENS + 1) - 1)]
    own = [policy.tokenizer.decode([one]) for one in ids[1:]]
    for here, there in zip(own, server.decoded(ids), strict=True):
        # Of a piece of a character nothing can be said, and tokenizers differ in a space at the beginning.
        if "\ufffd" not in here + there and here.strip() != there.strip():
            raise UserError(
                f"method.url: the parent '{server.model}' at '{server.url}' has another tokenizer than the model: it "
                f"reads '{visible(there)}' where the model writes '{visible(here)}'"
            )
    return ServedParent(server, vocabulary(policy))
