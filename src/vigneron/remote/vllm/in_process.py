"""vLLM in the training process, on the GPU that trains. Weights are handed over as tensors, with no copy on disk or in
host memory. It sleeps except while it samples: its weights and cache then take no GPU memory.

`LLM` is vLLM's offline engine; `VLLM_ENABLE_V1_MULTIPROCESSING=0` keeps it in this process. Seen with vLLM 0.22.1.
"""

import contextlib
import gc
import importlib.metadata
import importlib.util
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vigneron.config import OptimizerConfig
from vigneron.config.scale import VllmSamplingConfig
from vigneron.core.draws import Sampling
from vigneron.core.moments import device_state_bytes
from vigneron.distributed import ranks
from vigneron.errors import UserError, first_line
from vigneron.policy.bundled import quiet_transformers
from vigneron.policy.model import Policy
from vigneron.remote.vllm.completion import (
    OLDEST,
    PROBE_OPTIONS,
    WHERE,
    Completion,
    Ends,
    checked_completion,
    parsed_version,
    sampling_options,
)
from vigneron.remote.vllm.weights import checkpoint_weights
from vigneron.timing import phase
from vigneron.values import GB, memory_text

ENVIRONMENT = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it takes minutes to build, and has no seeds per request
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Defaults: what the user has set stays."""
COMPILATION = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
"""CUDA graphs for decoding, and no torch.compile, which would take a minute and change settings of this process."""
FREE_SHARE = 0.5
"""Share of the free memory for vLLM, unless `memory_share` or its weights need another."""
WORKING_BYTES = 2 * GB
"""vLLM's activations and CUDA graphs, and a small cache."""
INSTALL = "pip install 'vllm>=0.22,<0.24'"


def check_in_process(config: VllmSamplingConfig, device: str) -> None:
    """Check before anything is loaded that vLLM can run here. The device is resolved."""
    if ranks.expected_world_size() > 1:
        raise UserError(
            f"{WHERE}: vLLM in the training process needs a single rank: start one process, or a vLLM server, and set "
            f"{WHERE}.url"
        )
    if device not in ("cuda", "cuda:0"):
        why = (
            "CUDA_VISIBLE_DEVICES chooses another GPU" if device.startswith("cuda") else f"set {WHERE}.url to a server"
        )
        raise UserError(f"{WHERE}: vLLM in the training process runs on 'cuda', but model.device is '{device}': {why}")
    if importlib.util.find_spec("vllm") is None:
        raise UserError(f"{WHERE}: vLLM is not installed: run `{INSTALL}`, or set {WHERE}.url to a vLLM server")
    version = importlib.metadata.version("vllm")
    if parsed_version(version) < OLDEST:
        oldest = ".".join(str(part) for part in OLDEST)
        raise UserError(f"{WHERE}: vLLM {version} is installed: {oldest} or newer is required (`{INSTALL}`)")


class InProcessEngine:
    too_short = f"set {WHERE}.memory_share higher, or max_new_tokens lower"

    def __init__(
        self,
        policy: Policy,
        config: VllmSamplingConfig,
        folder: Path,
        optimizer: OptimizerConfig,
        *,
        graphs: bool = True,
    ) -> None:
        self._policy, self._folder = policy, folder / "vllm"
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(policy.device)
        share = memory_share(policy, config.memory_share, free, total, optimizer)
        self.name = f"vLLM {importlib.metadata.version('vllm')} in this process"
        with phase("start vLLM"):
            self._llm = self._start(share, graphs)
        self.longest: int | None = self._llm.llm_engine.model_config.max_model_len
        self.awake = True
        self.sleep()

    def _start(self, share: float, graphs: bool) -> Any:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        write_model_folder(self._policy, self._folder)
        try:
            with _unchanged_torch_state():
                from vllm import LLM

                return LLM(
                    str(self._folder),
                    dtype=str(self._policy.compute_dtype).removeprefix("torch."),
                    load_format="dummy",
                    enable_sleep_mode=True,
                    gpu_memory_utilization=share,
                    max_model_len=-1,  # the model's, or what fits
                    logprobs_mode="processed_logprobs",
                    generation_config="vllm",
                    enforce_eager=not graphs,
                    compilation_config=COMPILATION,
                )
        except Exception as error:  # anything from a library that checks the model and the machine as it starts
            why = _telling_line(error).removesuffix(".")
            raise UserError(f"{WHERE}: {self.name} cannot start: {why}{_hint(error)}") from error

    # ---------------------------------------------------------------------------------------------------- weights

    def check(self, probe: Sequence[int], own_logprobs: Sequence[float]) -> None:
        """Nothing: it has no weights yet."""

    def load(self) -> None:
        """The cache comes back after the weights, so that the copies made on the way have its room."""
        asleep = not self.awake
        try:
            if asleep:
                torch.cuda.empty_cache()
                self._llm.wake_up(["weights"])
            self.awake = True
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": checkpoint_weights(self._policy)})
            if asleep:
                torch.cuda.empty_cache()
                self._llm.wake_up(["kv_cache"])
        except RuntimeError as error:
            if "out of memory" not in str(error).lower():
                raise
            raise UserError(
                f"{WHERE}: the GPU has no room to wake {self.name}: set {WHERE}.memory_share lower"
            ) from error
        self._llm.reset_prefix_cache()

    def sleep(self) -> None:
        """Level 2: the weights are dropped, not copied to the host; the next `load` brings new ones."""
        if self.awake:
            self._llm.sleep(level=2)
            self.awake = False

    # --------------------------------------------------------------------------------------------------- sampling

    def logprobs_of(self, ids: Sequence[int]) -> list[float]:
        (output,) = self._generate([ids], [PROBE_OPTIONS])
        return [row[one].logprob for one, row in zip(ids[1:], output.prompt_logprobs[1:], strict=True)]

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        sampling: Sampling | None,
        seeds: Sequence[int],
        ends: Ends,
    ) -> list[Completion]:
        options = [
            {
                **sampling_options(max_new_tokens, sampling, seed, ends),
                "logprobs": 0,  # the sampled token's alone
                "detokenize": bool(ends.strings),
            }
            for seed in seeds
        ]
        outputs = [output.outputs[0] for output in self._generate(prompts, options)]
        try:
            return [
                checked_completion(
                    one.token_ids,
                    [row[token].logprob for token, row in zip(one.token_ids, one.logprobs, strict=True)],
                    one.finish_reason,
                    one.stop_reason,
                    max_new_tokens,
                    ends,
                )
                for one in outputs
            ]
        except ValueError as error:
            raise UserError(f"{WHERE}: {self.name} returned an unexpected completion ({error})") from None

    def _generate(self, prompts: Sequence[Sequence[int]], options: Sequence[Mapping[str, Any]]) -> list[Any]:
        from vllm import SamplingParams

        texts = [{"prompt_token_ids": list(ids)} for ids in prompts]
        outputs: list[Any] = self._llm.generate(texts, [SamplingParams(**one) for one in options], use_tqdm=False)
        return outputs

    def close(self) -> None:
        """Shut vLLM down, so that another can start in this process."""
        with contextlib.suppress(Exception):  # nothing of a run depends on it
            if not self.awake:  # memory that is not mapped cannot be freed
                torch.cuda.empty_cache()
                self._llm.wake_up()
            self._llm.llm_engine.engine_core.shutdown()
        del self._llm
        gc.collect()
        torch.cuda.empty_cache()
        shutil.rmtree(self._folder, ignore_errors=True)


def memory_share(policy: Policy, given: float | None, free: int, total: int, optimizer: OptimizerConfig) -> float:
    """vLLM's share of the GPU's memory while it samples. By default half of what the training leaves free, more where
    its weights need it."""
    weights = sum(one.numel() for one in policy.causal.parameters()) * policy.compute_dtype.itemsize
    needed = min_bytes(weights)
    if given is not None:
        if given * total > free or given * total < weights:
            amount = f"{memory_text(int(given * total))} of {memory_text(total)}"
            why = (
                f"only {memory_text(free)} are free"
                if given * total > free
                else f"the weights alone take {memory_text(weights)}"
            )
            raise UserError(f"{WHERE}.memory_share: {given:g} is {amount}, but {why}")
        return given
    left = free - bytes_to_come(policy, optimizer)
    if needed > 0.95 * left:
        raise UserError(
            f"{WHERE}: no room for vLLM on this GPU: it needs {memory_text(needed)} for its copy of the weights and a "
            f"small cache, and training leaves {memory_text(max(left, 0))} free: train with `model.lora`, or sample "
            "with `scale.sampling.kind: here`"
        )
    return int(max(FREE_SHARE * left, needed) / total * 1000) / 1000


def min_bytes(weights: int) -> int:
    """What vLLM cannot do without, if its weights take so many bytes."""
    return weights * 5 // 4 + WORKING_BYTES


def bytes_to_come(policy: Policy, optimizer: OptimizerConfig) -> int:
    """Gradients, in the weights' dtype, and moments, which may not be allocated yet."""
    trained = [weight for _, weight in policy.trainable()]
    moments = device_state_bytes(optimizer.kind, (weight.numel() for weight in trained), offload=optimizer.offload)
    return sum(weight.nbytes for weight in trained) + moments


def write_model_folder(policy: Policy, folder: Path) -> None:
    """What vLLM needs of the model beside its weights: config and tokenizer."""
    config = deepcopy(policy.causal.config)
    config.architectures = [type(policy.causal).__name__]
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with quiet_transformers():
        config.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)


@contextlib.contextmanager
def _unchanged_torch_state() -> Iterator[None]:
    """vLLM seeds all generators and sets the precision of float32 products when it starts."""
    python, numpy, precision = random.getstate(), np.random.get_state(), torch.get_float32_matmul_precision()
    with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else []):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            torch.set_float32_matmul_precision(precision)


def _telling_line(error: BaseException) -> str:
    """The first line, or that of the first error that pydantic lists."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and "validation error" in lines[0]:
        return lines[1].partition(" [type=")[0].removeprefix("Value error, ")
    return first_line(error)


def _hint(error: BaseException) -> str:
    text = str(error).lower()
    if "release gpu memory" in text:  # vLLM measures how much it takes by what is free before and after
        return ". Another process gave memory of this GPU back meanwhile: start the run again"
    return f". Set {WHERE}.memory_share" if "memory" in text else ""
