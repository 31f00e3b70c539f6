"""Sampling by a vLLM server, which loads the policy's weights and is verified to have them before it samples.

The weights go through a folder that the server reads with `reload_weights`. Two checks verify them: the server's
log-probs of a fixed text agree with the policy's within a limit, and they change when the policy's do. The first
detects another model, the second a server that ignores small updates.
"""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from vigneron.config.scale import VllmSamplingConfig
from vigneron.core.draws import draw_keys
from vigneron.errors import UserError, reason
from vigneron.policy.bundled import quiet_transformers
from vigneron.policy.model import Policy
from vigneron.policy.weight_versions import PinnedWeights, Version
from vigneron.remote.vllm.server_api import WHERE, Completion, Ends, VllmServer
from vigneron.rollout.engine.inference_model import adapted_parameter, merged_weight, wrappers_of
from vigneron.rollout.engine.request import Completions, Request, blank_completions
from vigneron.rollout.engine.stop_strings import stop_strings
from vigneron.threads import DaemonPool
from vigneron.timing import phase

MAX_SHARD_SIZE = "5GB"


@torch.no_grad()
def merged_weights(policy: Policy) -> dict[str, Tensor]:
    """The weights by their names in a model without adapters, in host memory and in the compute dtype.

    Tied weights stay one tensor.
    """
    causal = policy.causal
    merged = {
        f"{name}.{adapted_parameter(wrapper)}": wrapper
        for name, module in causal.named_modules()
        if hasattr(module, "get_delta_weight")
        for wrapper in wrappers_of(module)
    }
    adapted = {name.rpartition(".")[0] for name in merged}
    dtype = policy.compute_dtype if policy.compute_dtype == torch.bfloat16 else None
    copies: dict[Any, Tensor] = {}
    weights: dict[str, Tensor] = {}
    for name, tensor in causal.state_dict().items():
        plain = name.replace(".base_layer", "")
        if plain != name and plain.rpartition(".")[0] in adapted and ".lora_" not in name:
            weights[plain] = _on_host(merged_weight(merged[plain]) if plain in merged else tensor, dtype)
        elif not any(name.startswith(f"{one}.") for one in adapted):
            key = (tensor.data_ptr(), tensor.shape, tensor.stride())
            if key not in copies or not tensor.numel():
                copies[key] = _on_host(tensor, dtype)
            weights[name] = copies[key]
    return weights


def _on_host(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous()


def write_weights(policy: Policy, folder: Path) -> str:
    """Write the folder atomically and return a hash of the weights."""
    draft = folder.with_name(f".{folder.name}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        with quiet_transformers():
            policy.causal.save_pretrained(draft, state_dict=merged_weights(policy), max_shard_size=MAX_SHARD_SIZE)
        identity = _hash(draft)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise UserError(f"scale.sampling.weights: cannot write '{folder}': {reason(error)}") from error
    return identity


def _hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


PROBE = "Vines were tied to the trellis in spring, and the grapes were picked by hand before the first frost came."
PROBE_TOKENS = 32
DIFFERENT_MODEL = 1.0
"""Nats: before the first update, a larger gap means another model, not rounding."""
CHANGED = 0.01
"""Nats: a larger change of the policy's log-probs must be visible in bfloat16; a smaller one may round away."""


class VllmSampler:
    """Samples from the policy's weights as last loaded by the server; by default it loads them at every call."""

    exact = False

    def __init__(self, policy: Policy, server: VllmServer, config: VllmSamplingConfig, folder: Path) -> None:
        self._policy, self._server, self._config = policy, server, config
        self._folder = Path(config.weights).expanduser() / folder.name if config.weights else folder / "vllm"
        self.version: int | None = None
        """Version of the weights that the server has."""
        self._pinned = PinnedWeights()
        self._probe = self._probe_ids()
        self._identity = ""
        self._server_logprobs: list[float] = []
        self._policy_logprobs: list[float] = []
        """The policy's log-probs when the server's last changed."""
        self._gap = 0.0

    @property
    def notice(self) -> str:
        server = self._server
        return f"vLLM {server.version} at {server.url} samples; its log-probs differ slightly from the policy's"

    def _probe_ids(self) -> list[int]:
        ids = list(self._policy.tokenizer(PROBE)["input_ids"])
        return ids[: min(PROBE_TOKENS, (self._policy.context_length or PROBE_TOKENS + 1) - 1)]

    # ---------------------------------------------------------------------------------------------------- weights

    def update_weights(self) -> None:
        """Load the policy's weights into the server, unless it has them."""
        if self.version == self._policy.version:
            return
        if self.version is None:
            self._check_server()
        target = self._folder / f"step-{self._policy.version}"
        identity = write_weights(self._policy, target)
        if identity != self._identity:
            self._server.load(target)
        server, own = self._server.logprobs_of(self._probe), self._own_logprobs()
        self._gap = _mean_gap(server, own)
        self._check_update(server, own)
        if server != self._server_logprobs:
            self._server_logprobs, self._policy_logprobs = server, own
        self.version, self._identity = self._policy.version, identity
        for old in self._folder.glob("step-*"):
            if old != target:
                shutil.rmtree(old, ignore_errors=True)

    def publish(self) -> Version:
        """Load the policy's current weights for asynchronous sampling."""
        self.update_weights()
        return Version(self._policy.version)

    def use(self, weights: Version | None) -> None:
        """Pin the weights that this thread samples from; None samples from the current ones."""
        self._pinned.weights = weights

    def _check_server(self) -> None:
        """Check the server before its weights are changed. On resume it may have any weights."""
        self._server.check_processed(self._probe)
        gap = _mean_gap(self._server.logprobs_of(self._probe), self._own_logprobs())
        if self._policy.version == 0 and not gap <= DIFFERENT_MODEL:
            raise UserError(
                f"{WHERE}.url: '{self._server.url}' serves '{self._server.model}', which is not the recipe's model: "
                f"its log-probs of a fixed text differ by {gap:.2g} nats"
            )

    def _check_update(self, server: list[float], own: list[float]) -> None:
        what = f"{WHERE}: vLLM at '{self._server.url}' does not have the weights of version {self._policy.version}"
        if not self._gap <= self._config.probe_limit:
            raise UserError(
                f"{what}: its log-probs of a fixed text differ from the policy's by {self._gap:.2g} nats, more than "
                f"{WHERE}.probe_limit ({self._config.probe_limit:g})"
            )
        if server == self._server_logprobs and (change := _mean_gap(own, self._policy_logprobs)) > CHANGED:
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
        if self._pinned.weights is None:
            with phase("weights"):
                self.update_weights()
        elif self._pinned.weights.version != self.version:
            raise AssertionError("the server has loaded other weights than those pinned for sampling")
        self._check_lengths(request)
        with phase("decode"):
            return self._to_tensors(request, self._sampled(request))

    def _check_lengths(self, request: Request) -> None:
        needed, longest = max(len(ids) for ids in request.prompt_ids) + request.max_new_tokens, self._server.longest
        if longest is not None and needed > longest:
            raise UserError(
                f"{WHERE}.url: '{self._server.url}' allows {longest} tokens, but a prompt with max_new_tokens="
                f"{request.max_new_tokens} needs {needed}: start it with --max-model-len {needed}"
            )

    def _sampled(self, request: Request) -> list[Completion]:
        """Completions in the order of the prompts. A lost request is retried with the same seed."""
        ends = Ends(sorted(self._policy.eos_ids), request.stop, stop_strings(self._policy.tokenizer, request.stop))
        seeds = request_seeds(request.seed, request.step, request.sample_ids)
        pool = DaemonPool(min(self._config.concurrency, len(seeds)), "vllm")
        try:
            futures = [
                pool.submit(self._server.complete, ids, request.max_new_tokens, request.sampling, seed, ends)
                for ids, seed in zip(request.prompt_ids, seeds, strict=True)
            ]
            return [self._in_vocabulary(future.result()) for future in futures]
        finally:
            pool.stop()

    def _in_vocabulary(self, completion: Completion) -> Completion:
        size = self._policy.causal.get_input_embeddings().num_embeddings
        if max(completion.ids) >= size:
            raise UserError(
                f"{WHERE}: vLLM at '{self._server.url}' sampled token {max(completion.ids)}, but the policy has {size}"
            )
        return completion

    def _to_tensors(self, request: Request, completions: Sequence[Completion]) -> Completions:
        done = blank_completions(request, self._policy)
        device, dtype = done.ids_BT.device, done.behaviour_BT.dtype
        for row, one in enumerate(completions):
            done.ids_BT[row, : len(one.ids)] = torch.tensor(one.ids, device=device)
            done.behaviour_BT[row, : len(one.ids)] = torch.tensor(one.logprobs, device=device, dtype=dtype)
        lengths = torch.tensor([len(one.ids) for one in completions], device=device)
        truncated = torch.tensor([not one.ended for one in completions], device=device)
        metrics = {"vllm/probe_gap": self._gap}
        return Completions(done.ids_BT, lengths, done.behaviour_BT, truncated, metrics=metrics)

    def close(self) -> None:
        """Delete the folder of weights. The server keeps what it has loaded."""
        shutil.rmtree(self._folder, ignore_errors=True)


def request_seeds(seed: int, step: int, sample_ids: Sequence[int]) -> list[int]:
    """A 63-bit seed for each sample, which depends only on (seed, step, sample)."""
    keys: list[int] = draw_keys(seed, step, torch.tensor(list(sample_ids))).tolist()
    return [key & (2**63 - 1) for key in keys]


def _mean_gap(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(first, second, strict=True)) / len(first)
