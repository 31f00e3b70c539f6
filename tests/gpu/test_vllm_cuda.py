"""vLLM itself: in the training process, and as a server. Each in processes of their own, for one vLLM each."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.vllm_server import vllm_server
from transformers import LlamaConfig, LlamaForCausalLM

from support.tiny_models import VOCABULARY, byte_tokenizer
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.config import OptimizerConfig, VllmSamplingConfig
from vigneron.policy.load import load_policy
from vigneron.remote.vllm.in_process import InProcessEngine
from vigneron.remote.vllm.sampler import PROBE_LIMITS, VllmSampler
from vigneron.rollout.engine.sample import sample
from vigneron.run_store.folder import RunFolder

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

STEPS = 3
SHARE = 0.1
LIMIT = PROBE_LIMITS[torch.bfloat16]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's kind at a small size: grouped heads of 64, tied embeddings. They are large enough that other weights
    are several nats away on the probe."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    folder = tmp_path_factory.mktemp("models") / "small"
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def letters_by_seven(completions: list[str], **_: Any) -> list[float]:
    """Differs within nearly every group, so that each step changes the weights."""
    return [sum(map(ord, text)) % 7 / 6 for text in completions]


def train(folder: str, runs: str, url: str | None = None, lora: bool = False, stop: int = STEPS) -> None:
    """Train to step `stop`, then resume to the last one."""
    sampling = {"kind": "vllm", "url": url} if url else {"kind": "vllm", "memory_share": SHARE}
    config = tiny_config(
        Path(folder),
        write_data(Path(runs)),
        model={"name": folder, "device": "cuda", "dtype": "bfloat16", **({"lora": {"rank": 4}} if lora else {})},
        method={"name": "grpo"},
        reward={"kind": "python", "function": f"{__name__}:letters_by_seven"},
        optimizer={"actor_lr": 1e-2 if lora else 1e-3},
        sampling={"temperature": 2.0},
        group_size=8,
        max_new_tokens=16,
        steps=stop,
        eval_every=0,
        save_every=stop if stop < STEPS else 0,
        scale={"sampling": sampling},
    )
    api.train(config, name="run", runs=runs)


def resume(runs: str) -> None:
    api.resume(Path(runs) / "run", f"steps={STEPS}")


def sleep_and_wake(folder: str, out: str) -> None:
    """Free memory asleep, awake and asleep again; greedy completions of the engine and of vLLM."""
    policy = load_policy(folder, device="cuda", dtype="bfloat16")
    prompts = [list(range(10, 30)), [40, 50, 60]]
    ours = sample(policy, prompts, max_new_tokens=8)
    options = VllmSamplingConfig(kind="vllm", memory_share=SHARE)
    engine = InProcessEngine(policy, options, Path(out).parent, OptimizerConfig())
    policy.sampler = VllmSampler(policy, engine)
    free = [_free()]
    theirs = sample(policy, prompts, max_new_tokens=8)
    free.append(_free())
    engine.load()
    free.append(_free())
    engine.sleep()
    free.append(_free())
    total = torch.cuda.mem_get_info()[1]
    gap = (ours.behaviour_BT - theirs.behaviour_BT).abs().mean().item()
    same = (ours.ids_BT == theirs.ids_BT).float().mean().item()
    Path(out).write_text(json.dumps({"free": [one / total for one in free], "gap": gap, "same": same}))
    policy.sampler.close()


def _free() -> int:
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def in_a_process(function: str, *arguments: Any) -> None:
    code = f"import {Path(__file__).stem} as here; here.{function}(*{arguments!r})"
    environment = {key: value for key, value in os.environ.items() if key != "CC"}  # Triton takes it for the compiler
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *(path for path in sys.path if path)])
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


def check_run(runs: Path) -> None:
    records = [record for record in RunFolder(runs / "run").metrics() if record["step"]]
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    gaps = [record["vllm/probe_gap"] for record in records]
    assert all(0 <= gap < LIMIT for gap in gaps), gaps
    assert len(set(gaps)) == STEPS, "the weights did not change"


@pytest.mark.parametrize("lora", [False, True])
def test_a_run_in_the_training_process(folder: Path, tmp_path: Path, lora: bool) -> None:
    in_a_process("train", str(folder), str(tmp_path), None, lora)
    check_run(tmp_path)


def test_a_run_in_the_training_process_resumes(folder: Path, tmp_path: Path) -> None:
    in_a_process("train", str(folder), str(tmp_path), None, False, STEPS - 1)
    before = RunFolder(tmp_path / "run").metrics()
    in_a_process("resume", str(tmp_path))
    check_run(tmp_path)
    after = RunFolder(tmp_path / "run").metrics()
    assert after[: len(before)] == before


def test_it_gives_its_memory_back_while_it_sleeps(folder: Path, tmp_path: Path) -> None:
    in_a_process("sleep_and_wake", str(folder), str(tmp_path / "out.json"))
    out = json.loads((tmp_path / "out.json").read_text())
    started, after_sampling, awake, asleep = out["free"]
    assert started - awake > 0.8 * SHARE
    assert abs(started - after_sampling) < 0.1 * SHARE
    assert abs(started - asleep) < 0.1 * SHARE
    assert out["gap"] < LIMIT
    assert out["same"] > 0.8


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with vllm_server(folder, tmp_path_factory.mktemp("server") / "log", SHARE) as url:
        yield url


def test_a_run_with_a_server(folder: Path, tmp_path: Path, server: str) -> None:
    in_a_process("train", str(folder), str(tmp_path), server)
    check_run(tmp_path)
