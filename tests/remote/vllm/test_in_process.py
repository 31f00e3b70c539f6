"""vLLM in the training process: what does not need vLLM itself. tests/gpu/test_vllm_cuda.py has the rest."""

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from support.tiny_runs import tiny_config, write_data
from support.vllm_package import LLM, STARTED, install
from support.zoo import zoo_folder
from vigneron.config import OptimizerConfig, ScaleConfig, VllmSamplingConfig
from vigneron.core.draws import Sampling, chosen_logprobs, sampled_logprobs
from vigneron.core.rounding import CHUNK
from vigneron.errors import UserError
from vigneron.policy.load import Lora, load_policy
from vigneron.policy.model import Policy
from vigneron.remote.setup import check_scale
from vigneron.remote.vllm.in_process import InProcessEngine, bytes_to_come, check_in_process, memory_share
from vigneron.remote.vllm.sampler import VllmSampler
from vigneron.remote.vllm.weights import checkpoint_weights, write_weights
from vigneron.rollout.engine.request import Request
from vigneron.rollout.engine.sample import sample
from vigneron.values import GB

PROMPTS = [[20, 30, 40], [50], [60, 70], [20, 30, 40]]
LOCAL = VllmSamplingConfig(kind="vllm")
ADAMW = OptimizerConfig()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * GB, 80 * GB))
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL", "VLLM_NO_USAGE_STATS"):
        monkeypatch.setenv(name, "1")  # so that it is restored
    install(tmp_path / "site", monkeypatch)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)


def started(policy: Policy, folder: Path, options: VllmSamplingConfig = LOCAL) -> tuple[VllmSampler, LLM]:
    sampler = VllmSampler(policy, InProcessEngine(policy, options, folder, ADAMW))
    policy.sampler = sampler
    return sampler, STARTED[-1]


def request(sampling: Sampling | None, **changes: Any) -> Request:
    return replace(Request(PROMPTS, 8, sampling, 11, 3, list(range(len(PROMPTS))), 4096), **changes)


# -------------------------------------------------------------------------------------------------------- config


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"url": "http://127.0.0.1:1", "memory_share": 0.3}, "`memory_share` has no effect with `url`"),
        ({"concurrency": 7}, "`concurrency` has no effect without `url`"),
        ({"weights": "somewhere"}, "`weights` has no effect without `url`"),
        ({"model": "child"}, "`model` has no effect without `url`"),
        ({"timeout_s": 5.0}, "`timeout_s` has no effect without `url`"),
        ({"memory_share": 1.0}, "less than 1"),
        ({"probe_limit": 0.0}, "greater than 0"),
    ],
)
def test_a_key_without_effect_is_refused(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(ValidationError, match=line):
        VllmSamplingConfig(kind="vllm", **keys)


def test_staleness_needs_a_server() -> None:
    with pytest.raises(ValidationError, match=r"set `scale.sampling.url` to a vLLM server"):
        ScaleConfig(sampling=LOCAL, staleness=1)
    assert ScaleConfig(sampling=VllmSamplingConfig(kind="vllm", url="http://127.0.0.1:1"), staleness=1).staleness == 1


def test_what_it_cannot_run_on_is_said_first(
    tmp_path: Path, tiny_folder: Path, package: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_in_process(LOCAL, "cuda")
    with pytest.raises(UserError, match=r"model.device is 'cpu': set scale.sampling.url to a server"):
        check_scale(tiny_config(tiny_folder, write_data(tmp_path), scale={"sampling": {"kind": "vllm"}}))
    with pytest.raises(UserError, match=r"model.device is 'cuda:1': CUDA_VISIBLE_DEVICES"):
        check_in_process(LOCAL, "cuda:1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="needs a single rank"):
        check_in_process(LOCAL, "cuda")


def test_it_must_be_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"vLLM is not installed: run `pip install 'vllm"):
        check_in_process(LOCAL, "cuda")
    install(tmp_path, monkeypatch, version="0.11.2")
    with pytest.raises(UserError, match=r"vLLM 0.11.2 is installed: 0.20 or newer"):
        check_in_process(LOCAL, "cuda")


# -------------------------------------------------------------------------------------------------------- memory


def test_its_share_of_the_memory(tiny_folder: Path) -> None:
    policy = load_policy(str(tiny_folder), device="cpu")
    count = sum(one.numel() for one in policy.causal.parameters())
    # Half of what is left after a gradient and two moments: (60 GB - 12 bytes a weight) / 2 of 80 GB.
    assert (
        memory_share(policy, None, 60 * GB, 80 * GB, ADAMW) == int((60 * GB - 12 * count) / 2 / (80 * GB) * 1000) / 1000
    )
    # At least its weights and a quarter more, and 2 GB: above half of 3 GB.
    assert memory_share(policy, None, 3 * GB, 80 * GB, ADAMW) == int((5 * count + 2 * GB) / (80 * GB) * 1000) / 1000
    assert memory_share(policy, 0.7, 60 * GB, 80 * GB, ADAMW) == 0.7
    with pytest.raises(UserError, match=r"memory_share: 0.8 is 64.0 GB of 80.0 GB, but only 60.0 GB are free"):
        memory_share(policy, 0.8, 60 * GB, 80 * GB, ADAMW)
    with pytest.raises(UserError, match=r"it needs 2.0 GB .*, and training leaves 2.0 GB free"):
        memory_share(policy, None, 2 * GB, 80 * GB, ADAMW)
    with pytest.raises(UserError, match=r"memory_share: 1e-09 is .*, but the weights alone take"):
        memory_share(policy, 1e-9, 60 * GB, 80 * GB, ADAMW)


def test_what_training_has_yet_to_allocate_depends_on_weights_and_optimizer(tiny_folder: Path) -> None:
    full, narrow = (
        load_policy(str(tiny_folder), device="cpu", dtype="bfloat16", weights=w) for w in ("float32", "bfloat16")
    )
    sizes = [weight.numel() for weight in full.causal.parameters()]
    matrices = sum(weight.numel() for weight in full.causal.parameters() if weight.dim() > 1)
    # In 8 bits, tensors of 4,096 values or more have 2 bytes a value and 8 a block of 256.
    eight_bit = sum(2 * size + 8 * -(-size // 256) if size >= 4096 else 8 * size for size in sizes)
    assert bytes_to_come(full, ADAMW) == 12 * sum(sizes)
    assert bytes_to_come(full, OptimizerConfig(kind="adamw_8bit")) == 4 * sum(sizes) + eight_bit < 12 * sum(sizes)
    assert bytes_to_come(narrow, ADAMW) == 12 * sum(sizes) - 2 * matrices
    # Offloaded moments are on the GPU three parts of 2²⁴ values at a time, here all of them.
    assert bytes_to_come(full, OptimizerConfig(offload=True)) == 4 * sum(sizes) + min(8 * sum(sizes), 3 * 8 * CHUNK)


# ------------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("name", ["Qwen3-MoE", "Gemma 3"])
def test_weights_in_memory_are_those_of_a_checkpoint(tmp_path: Path, name: str) -> None:
    """A mixture's experts, which transformers fuses, come apart again; tied weights come once."""
    policy = load_policy(str(zoo_folder(name, tmp_path)), device="cpu", lora=Lora(rank=2, alpha=4))
    with torch.no_grad():
        for _, weight in policy.trainable():
            weight.add_(0.1)
    write_weights(policy, tmp_path / "written")
    written: dict[str, torch.Tensor] = {}
    for path in (tmp_path / "written").glob("*.safetensors"):
        written |= load_file(path)
    handed = dict(checkpoint_weights(policy))
    assert handed.keys() == written.keys()
    for key, weight in written.items():
        assert torch.equal(handed[key], weight), key


# ------------------------------------------------------------------------------------------------------ sampling


def test_it_sleeps_except_while_it_samples(tiny_folder: Path, tmp_path: Path, package: None) -> None:
    policy = load_policy(str(tiny_folder), device="cpu")
    ours = sample(policy, PROMPTS, max_new_tokens=8)
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    _, llm = started(policy, tmp_path, VllmSamplingConfig(kind="vllm", memory_share=0.374))
    assert torch.equal(generators[0], torch.get_rng_state())
    assert generators[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    theirs = sample(policy, PROMPTS, max_new_tokens=8)
    assert llm.options["gpu_memory_utilization"] == 0.374
    wake = ["wake ['weights']", "load", "wake ['kv_cache']", "generate 1", "generate 4", "sleep"]
    assert llm.log == ["sleep", *wake]
    assert torch.equal(ours.ids_BT, theirs.ids_BT)
    assert torch.equal(ours.lengths_B, theirs.lengths_B)
    assert torch.equal(ours.truncated_B, theirs.truncated_B)
    torch.testing.assert_close(ours.behaviour_BT, theirs.behaviour_BT, atol=1e-4, rtol=0)
    assert theirs.metrics["vllm/probe_gap"] < 1e-4
    sample(policy, PROMPTS, max_new_tokens=8)  # the same version: its weights were dropped all the same
    assert llm.log == ["sleep", *wake, *wake]


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, Lora(rank=2, alpha=4)])
def test_it_takes_the_weights_as_they_become(
    tiny_folder: Path, tmp_path: Path, package: None, lora: Lora | None
) -> None:
    policy = load_policy(str(tiny_folder), device="cpu", lora=lora)
    sampler, _ = started(policy, tmp_path)
    narrow = Sampling(0.7, top_k=20, top_p=0.8)
    first = sampler.sample(request(narrow))
    assert torch.equal(first.ids_BT, sampler.sample(request(narrow)).ids_BT)
    assert not torch.equal(first.ids_BT, sampler.sample(request(narrow, step=4)).ids_BT)
    with torch.no_grad():
        for _, weight in policy.trainable():
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(5)))
    policy.version = 1
    done = sampler.sample(request(narrow))
    assert sampler.version == 1
    assert done.metrics["vllm/probe_gap"] < 1e-4
    for row, prompt in enumerate(PROMPTS):
        completion = done.ids_BT[row, : int(done.lengths_B[row])]
        ids = torch.tensor([[*prompt, *completion.tolist()]])
        with torch.no_grad():
            logits = policy.logits(policy.hidden(ids, torch.arange(ids.shape[1])[None]))[0, len(prompt) - 1 : -1]
        expected = chosen_logprobs(sampled_logprobs(logits, narrow, completion), completion)
        torch.testing.assert_close(done.behaviour_BT[row, : len(completion)], expected, atol=1e-4, rtol=0)


def test_stop_strings_and_end_tokens_end_a_completion(tiny_folder: Path, tmp_path: Path, package: None) -> None:
    policy = load_policy(str(tiny_folder), device="cpu")
    policy.eos_ids = frozenset(range(200, 210))
    sampler, _ = started(policy, tmp_path)
    stops = tuple("abc")
    done = sampler.sample(request(Sampling(), stop=stops, prompt_ids=PROMPTS * 4, sample_ids=list(range(16))))
    ended = 0
    for row, length in enumerate(done.lengths_B.tolist()):
        ids = done.ids_BT[row, :length].tolist()
        at_end = ids[-1] in policy.eos_ids or any(stop in policy.tokenizer.decode(ids) for stop in stops)
        assert bool(done.truncated_B[row]) == (not at_end)
        assert length == 8 or at_end
        ended += at_end
    assert 0 < ended < 16


def test_one_that_ignores_an_update_is_refused_and_sleeps(tiny_folder: Path, tmp_path: Path, package: None) -> None:
    policy = load_policy(str(tiny_folder), device="cpu")
    sampler, llm = started(policy, tmp_path)
    assert sampler.probe_limit == 0.01
    llm.ignores = True
    with torch.no_grad():
        policy.causal.lm_head.weight.mul_(20)
    with pytest.raises(UserError, match=r"vLLM 0.22.1 in this process does not have the weights of version 0"):
        sampler.sample(request(None))
    assert llm.asleep == {"weights", "kv_cache"}
    policy.compute_dtype = torch.bfloat16
    assert VllmSampler(policy, sampler._engine).probe_limit == 0.15
    assert VllmSampler(policy, sampler._engine, 0.3).probe_limit == 0.3


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            ValueError(
                "1 validation error for ModelConfig\n  Value error, Model X is not supported [type=value_error]\nFor"
            ),
            r"vLLM 0.22.1 in this process cannot start: Model X is not supported$",
        ),
        (
            ValueError("No available memory for the cache blocks."),
            r"cannot start: No available memory for the cache blocks\. Set scale.sampling.memory_share$",
        ),
        (
            AssertionError(
                "Error in memory profiling. Initial free memory 124 GiB, current free memory 133 GiB. This happens "
                "when other processes sharing the same container release GPU memory while vLLM is profiling."
            ),
            r"while vLLM is profiling\. Another process gave memory of this GPU back meanwhile: start the run again$",
        ),
    ],
)
def test_one_that_cannot_start_is_a_line(
    tiny_folder: Path, tmp_path: Path, package: None, monkeypatch: pytest.MonkeyPatch, error: Exception, line: str
) -> None:
    monkeypatch.setattr(LLM, "fails", error)
    with pytest.raises(UserError, match=line) as caught:
        started(load_policy(str(tiny_folder), device="cpu"), tmp_path)
    assert "\n" not in str(caught.value)


def test_what_is_too_long_is_said_before_it_is_asked(tiny_folder: Path, tmp_path: Path, package: None) -> None:
    sampler, llm = started(load_policy(str(tiny_folder), device="cpu"), tmp_path)
    with pytest.raises(UserError, match=r"allows 64 tokens.* needs 103: set scale.sampling.memory_share higher"):
        sampler.sample(request(None, max_new_tokens=100))
    assert llm.log == ["sleep"]
    sampler.close()
    assert not (tmp_path / "vllm").exists()
