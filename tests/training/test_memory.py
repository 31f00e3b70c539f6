"""Out of memory: the setting to change is named, and earlier checkpoints are intact."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from support.tiny_models import GROUPED_HEADS, byte_tokenizer, tiny_policy
from support.tiny_runs import tiny_config, write_data
from vigneron.batch import Batch
from vigneron.config import Config, ConstraintConfig, OptimizerConfig
from vigneron.core.draws import Sampling
from vigneron.core.rounding import CHUNK
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.policy.fisher import fisher_product
from vigneron.policy.fused_head import HEAD_CHUNK
from vigneron.policy.live_bytes import LiveBytes
from vigneron.policy.load import make_policy
from vigneron.policy.logprobs import ExactKl, Scores
from vigneron.policy.model import Policy
from vigneron.policy.reference import Reference
from vigneron.rollout.engine import cuda_memory
from vigneron.training.callbacks import Silent
from vigneron.training.checkpoint.read import checkpoints, load_checkpoint
from vigneron.training.held_parts import CONTEXT_BYTES
from vigneron.training.loop import train
from vigneron.training.memory import (
    GAPS,
    allowed_bytes,
    fitting_tokens,
    free_bytes,
    probe_batch,
    probe_loss,
    probe_rows,
    with_gradients,
)
from vigneron.training.method_copies import (
    TRUST_REGION_VECTORS,
    Copies,
    later_bytes,
    later_update_bytes,
    moment_bytes,
)
from vigneron.training.out_of_memory import explained_memory
from vigneron.training.setup.sizes import FIND_ANEW, crowded_notice
from vigneron.training.setup.start import start_run
from vigneron.training.trust_region import TrustRegionUpdate
from vigneron.training.update import Term
from vigneron.values import GB


@pytest.mark.slow
def test_running_out_of_memory_names_the_settings_and_leaves_the_checkpoint(tmp_path: Path) -> None:
    """Row 26 of the faults. A model with room for 10¹⁴ tokens, asked for all of them: no machine has such addresses."""
    model = tmp_path / "model"
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**(GROUPED_HEADS | {"max_position_embeddings": 10**15}))).save_pretrained(model)
    byte_tokenizer().save_pretrained(model)
    config = tiny_config(model, write_data(tmp_path), steps=2, eval_every=0)
    run = start_run(config, tmp_path / "runs", build_method, view=Silent())
    train(run, Silent())
    run.config = run.config.model_copy(update={"steps": 3, "max_new_tokens": 10**14})
    run.method = replace(run.method, rollout=replace(run.method.rollout, max_new_tokens=10**14))
    with pytest.raises(
        UserError, match=r"out of memory; earlier checkpoints are intact. Lower microbatch_tokens"
    ) as raised:
        train(run, Silent())
    assert "max_new_tokens (100000000000000)" in str(raised.value)
    assert "model.activation_checkpointing=true" in str(raised.value)
    saved = checkpoints(run.folder.checkpoints)[-1]
    assert load_checkpoint(saved, run.policy, base=run.origin.base, places={}).step == 2
    run.close()


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of a GPU of 140 GB 10 are free: 20 are this process's, 0.8 its context, and others have the rest."""
    free = [10 * GB]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free[0], 140 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 15 * GB)
    monkeypatch.setattr(cuda_memory, "held_bytes", lambda: 5 * GB)
    return free


def test_memory_that_other_processes_hold_is_named(tmp_path: Path, tiny_folder: Path, free: list[int]) -> None:
    def told(**changes: Any) -> str:
        config = tiny_config(tiny_folder, write_data(tmp_path), **changes)
        with pytest.raises(UserError) as raised, explained_memory(config):
            raise torch.OutOfMemoryError("out of memory")
        return str(raised.value)

    on_gpu = {"name": str(tiny_folder), "device": "cuda"}
    assert "intact. Other processes hold 109.2 GB of this GPU; model.memory_gb is a run's share of it. Lower " in told(
        model=on_gpu
    )
    assert "Other processes" not in told(model={"name": str(tiny_folder), "device": "cpu"})
    with (
        pytest.raises(UserError) as raised,
        explained_memory(tiny_config(tiny_folder, tmp_path / "data.jsonl", model=on_gpu)),
    ):
        raise MemoryError
    assert "Other processes" not in str(raised.value), "it is the host's memory"
    in_process = {"sampling": {"kind": "vllm", "memory_share": 0.5}}
    assert "Other processes" not in told(model=on_gpu, scale=in_process), "vLLM's own memory is this process's"
    free[0] = 118 * GB
    assert "Other processes" not in told(model=on_gpu), "1.2 GB: the context may be larger than it was taken for"


def test_small_passes_beside_other_processes_are_named(tmp_path: Path, tiny_folder: Path, free: list[int]) -> None:
    asked = tiny_config(
        tiny_folder,
        write_data(tmp_path),
        model={"name": str(tiny_folder), "device": "cuda"},
        microbatch_tokens="auto",
    )

    def notice(tokens: int, asked: Config = asked) -> str | None:
        return crowded_notice(asked, asked.model_copy(update={"microbatch_tokens": tokens}))

    assert notice(512) == (
        "a pass has 512 tokens at most, because other processes hold 109.2 GB of this GPU: steps are slow, also after "
        f"a resume, unless it finds the sizes anew: `{FIND_ANEW}`"
    )
    assert notice(4096) is None
    assert notice(512, asked.model_copy(update={"microbatch_tokens": 512})) is None, "it was asked for"
    own = asked.model_copy(update={"model": asked.model.model_copy(update={"memory_gb": 8.0})})
    assert notice(512, own) is None, "its own limit leaves no more"
    free[0] = 118 * GB
    assert notice(512) is None, "the model is large"


def test_the_advice_names_what_would_save_memory_and_is_not_set(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def advice(error: str = "out of memory", **changes: Any) -> str:
        config = tiny_config(tiny_folder, write_data(tmp_path), **changes)
        with pytest.raises(UserError) as raised, explained_memory(config):
            raise torch.OutOfMemoryError(error)
        return str(raised.value)

    name = str(tiny_folder)
    plain = advice(model={"name": name, "device": "cuda:0"})
    assert plain.endswith(
        "or set model.activation_checkpointing=true or model.offload_reference=true or optimizer.offload=true or "
        "method.kl.estimator=k3 or optimizer.kind=adamw_8bit or model.weights=bfloat16 or model.lora={}"
    )
    assert "cache_gb" not in plain
    monkeypatch.setattr("vigneron.training.out_of_memory.free_host_memory", lambda: 1000)
    assert "offload" not in advice(model={"name": name, "device": "cuda:0"})  # this machine cannot hold it
    monkeypatch.undo()
    small = {"kind": "adamw_8bit", "offload": True}
    narrow = {"name": name, "device": "cuda:0", "weights": "bfloat16", "offload_reference": True}
    estimated = advice(model=narrow, optimizer=small, method={"name": "grpo", "kl": {"estimator": "k3"}})
    assert estimated.endswith("or set model.activation_checkpointing=true or model.lora={}")
    adapted = {"name": name, "device": "cpu", "lora": {}, "activation_checkpointing": True}
    assert advice(model=adapted).endswith(", or set method.kl.estimator=k3")  # its moments are small
    on_gpu = {**adapted, "device": "cuda:0"}
    assert advice(model=on_gpu).endswith(", or set method.kl.estimator=k3 or model.weights=4bit")
    assert advice(model={**on_gpu, "weights": "4bit"}).endswith(", or set method.kl.estimator=k3")
    assert "optimizer.offload" not in advice(model={"name": name, "device": "cpu"})
    constraint = {"name": "trpo", "form": "constraint"}
    bound = advice(model={"name": name, "device": "cuda:0"}, method=constraint, optimizer={})
    assert bound.endswith(
        "or set model.activation_checkpointing=true or model.offload_reference=true or method.form=penalty (the "
        "constraint has 9 more vectors of the size of the trained weights) or model.lora={}"
    )
    cache = "CUDA out of memory: 4.0 GB for the sampler's cache"
    assert "Lower model.cache_gb (now 4), microbatch_tokens" in advice(cache, model={"name": name, "cache_gb": 4})


def test_moments_are_counted_as_the_optimizer_keeps_them() -> None:
    policy = tiny_policy()
    policy.causal.lm_head.weight = nn.Parameter(torch.empty(2**26, 2, device="meta"))
    policy.model.requires_grad_(False)
    policy.causal.lm_head.requires_grad_(True)
    assert moment_bytes(policy, OptimizerConfig()) == 8 * 2**27
    assert moment_bytes(policy, OptimizerConfig(kind="adamw_8bit")) == 2 * 2**27 + 8 * 2**19
    assert moment_bytes(policy, OptimizerConfig(offload=True)) == 3 * 8 * CHUNK  # three parts at a time, in an update


def test_copies_that_a_method_makes_later_are_counted() -> None:
    """A tied head stays float32 in a frozen copy, as the embedding."""
    policy, keys = tiny_policy(), OptimizerConfig()
    weights = list(policy.model.parameters())
    count = sum(weight.numel() for weight in weights)
    assert later_bytes(policy, keys, Copies()) == 8 * count  # the policy's own moments
    assert later_bytes(policy, keys, Copies(own_critic=True)) == (8 + 12) * count
    assert later_bytes(policy, keys, Copies(keeps_previous=True)) == (8 + 4) * count
    assert later_bytes(policy, keys, Copies(discriminator=4)) == (8 + 12) * count
    assert later_bytes(policy, keys, Copies(discriminator=2)) == (8 + 10) * count
    constraint = Copies(keeps_previous=True, trust_region=True)
    assert later_bytes(policy, keys, constraint) == 4 * count  # no moments
    assert later_update_bytes(policy, 4 * count, constraint) == 9 * 4 * count
    assert later_update_bytes(policy, 4 * count, Copies(own_critic=True, discriminator=4)) == 8 * count
    policy.compute_dtype = torch.bfloat16
    copied = sum(weight.nbytes for weight in policy.frozen_copy().model.parameters())
    assert copied < 4 * count
    assert later_bytes(policy, keys, constraint) == copied


def test_vectors_of_the_trust_region() -> None:
    """Counted in a step of a model whose weights are far larger than its pass, beside weights and the frozen copy."""
    shape = {"hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 2, "num_key_value_heads": 2}
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**shape, num_hidden_layers=2, vocab_size=16)).eval()
    policy = make_policy(llama, None, device=torch.device("cpu"))
    weights = sum(weight.nbytes for weight in policy.model.parameters())
    batch = probe_batch(policy, 4, 1)

    def product(batch: Batch, vector_P: Tensor) -> Tensor:
        return fisher_product(policy, batch, vector_P, sampling=Sampling(), microbatch_tokens=64)

    def surrogate(batch: Batch, now: Scores) -> Term:
        return Term("loss/policy", now.logprobs_BT)

    update = TrustRegionUpdate(
        policy, ConstraintConfig(iterations=2), None, surrogate, lambda batch, now: [], product, None
    )
    gradient_P = torch.cat([torch.randn_like(weight).flatten() for weight in policy.model.parameters()])
    with LiveBytes([*policy.model.parameters(), gradient_P]) as live:
        update._longest_step(batch, gradient_P)
    assert live.peak / weights == pytest.approx(TRUST_REGION_VECTORS, abs=0.2)


def test_a_limit_includes_the_cuda_context() -> None:
    assert allowed_bytes(10, 24 * GB, "a GPU") == 10 * GB - CONTEXT_BYTES
    with pytest.raises(UserError, match=r"model.memory_gb: 25 GB, and a GPU has 24.0 GB"):
        allowed_bytes(25, 24 * GB, "a GPU")
    with pytest.raises(UserError, match=r"model.memory_gb: 0.5 GB, of which the CUDA context alone takes 0.8 GB"):
        allowed_bytes(0.5, 24 * GB, "a GPU")


def test_gaps_and_memory_that_torch_cannot_give_back_are_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 80 GB, 50 are free. With a limit of 30, of which torch has reserved 12, 18 are left."""
    device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (50 * GB, 80 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 12 * GB)
    assert free_bytes(device) == pytest.approx((50 - GAPS * 80) * GB)
    monkeypatch.setattr(cuda_memory, "_limit", 30 * GB)
    assert free_bytes(device) == pytest.approx((18 - GAPS * 30) * GB)


class TestProbes:
    """Bytes counted on a CPU, of the passes that `find_sizes` measures on a GPU."""

    def peak(
        self,
        policy: Policy,
        rows: int,
        width: int,
        *,
        exact: bool = False,
        own_critic: bool = False,
        gradients: bool = True,
    ) -> int:
        exact_kl = ExactKl(Reference.of(policy)) if exact else None
        batch = probe_batch(policy, width, rows, exact_kl)
        policy.model.zero_grad(set_to_none=True)
        if gradients:
            with_gradients(policy)
        weights = list(policy.model.parameters())
        with LiveBytes([*weights, *(weight.grad for weight in weights if weight.grad is not None)]) as live:
            probe_loss(policy, batch, exact_kl, own_critic=own_critic).backward()
        return live.peak

    @pytest.mark.slow
    def test_two_passes_give_the_bytes_of_a_larger_one_beside_all_gradients(self) -> None:
        """Of a model whose gradients are larger than the small passes. Measured without gradients at their start, these
        have their peak at the end, where activations are freed, and the larger pass would not fit."""
        shape = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4, "num_key_value_heads": 4}
        llama = LlamaForCausalLM(LlamaConfig(**shape, num_hidden_layers=3, vocab_size=64)).eval()
        policy = make_policy(llama, None, device=torch.device("cpu"))
        gradients = sum(weight.nbytes for weight in policy.model.parameters())
        fewer, more, many = (self.peak(policy, rows, 16) for rows in (2, 4, 64))
        assert more < gradients
        assert fewer + (more - fewer) * 31 == pytest.approx(many, rel=0.05)
        fewer, more = (self.peak(policy, rows, 16, gradients=False) for rows in (2, 4))
        assert fewer + (more - fewer) * 31 < 0.8 * (gradients + many)

    def test_the_exact_kl_is_measured(self) -> None:
        """Its logits of a chunk, in float32."""
        policy = tiny_policy()
        logits = 4 * HEAD_CHUNK * policy.text_config.vocab_size
        assert self.peak(policy, 32, 64, exact=True) >= self.peak(policy, 32, 64) + logits

    @pytest.mark.slow
    def test_a_critic_of_its_own_keeps_as_much_as_the_policy(self) -> None:
        llama = LlamaForCausalLM(LlamaConfig(hidden_size=32, num_hidden_layers=3, intermediate_size=64, vocab_size=16))
        policy = make_policy(llama.eval(), None, device=torch.device("cpu"))
        shared, own = ([self.peak(policy, rows, 64, own_critic=own) for rows in (32, 64)] for own in (False, True))
        assert 1.5 < (own[1] - own[0]) / (shared[1] - shared[0]) <= 2  # without temporaries twice as much

    def test_the_larger_pass_has_no_more_tokens_than_are_wanted(self) -> None:
        """2,048 and 4,096 tokens; of fewer that are wanted, half and all; at least one sample and two."""
        assert [probe_rows(256, wanted) for wanted in (16384, 4096, 1024, 256)] == [8, 8, 2, 1]
        assert probe_rows(3000, 16384) == 1

    def test_tokens_that_fit_by_hand(self) -> None:
        """300 bytes and 2 a token: 2,348 for 1,024 and 4,396 for 2,048; of 10,300 bytes four fifths of 10,000 are for
        tokens, rounded down to 256."""
        assert fitting_tokens(10_300, 2348, 4396, 1024) == 4000 // 256 * 256
        assert fitting_tokens(200, 2348, 4396, 1024) == 0
