"""Loading a child: what is accepted, what is refused, and what is switched off."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from support.tiny_models import byte_tokenizer, tiny_model, tiny_policy
from support.zoo import zoo_model
from vigneron.core.draws import Sampling
from vigneron.distributed import ranks
from vigneron.errors import UserError
from vigneron.policy.device import resolve_compute_dtype, resolve_device
from vigneron.policy.load import load_policy, make_policy
from vigneron.policy.lora import Lora
from vigneron.policy.model import Policy
from vigneron.policy.model_checks import check_head
from vigneron.policy.model_names import check_model_name, check_tokenizer_files
from vigneron.policy.reference import Reference
from vigneron.rollout.engine.sample import sample


def test_a_folder_loads_with_its_end_ids_and_without_dropout(tiny_folder: Path) -> None:
    policy = load_policy(str(tiny_folder), device="cpu")
    assert policy.eos_ids == {0}
    assert policy.compute_dtype == torch.float32
    assert not policy.model.training


def test_pickle_weights_are_refused_unless_allowed(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.config.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="cannot load"):
        load_policy(str(tmp_path), device="cpu")
    assert load_policy(str(tmp_path), device="cpu", allow_pickle=True).hidden_size == 16


def test_remote_code_is_refused_unless_allowed(tiny_folder: Path, tmp_path: Path) -> None:
    import json
    import shutil

    folder = tmp_path / "remote"
    shutil.copytree(tiny_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "never-heard-of"
    config["auto_map"] = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text("raise SystemExit('remote code ran')\n")
    with pytest.raises(UserError, match="cannot load"):
        load_policy(str(folder), device="cpu")
    with pytest.raises(SystemExit, match="remote code ran"):
        load_policy(str(folder), device="cpu", trust_remote_code=True)


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no config"):
        load_policy(str(tmp_path))


def test_every_end_id_counts() -> None:
    model = tiny_model("llama")
    model.config.eos_token_id = [3, 4]
    model.generation_config.eos_token_id = [5]
    policy = make_policy(model, byte_tokenizer(), device=torch.device("cpu"))
    assert policy.eos_ids == {0, 3, 4, 5}


def test_a_device_that_is_not_there_is_named() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no CUDA device"):
            resolve_device("cuda")
    assert resolve_compute_dtype("auto", torch.device("cpu")) == torch.float32
    assert resolve_compute_dtype("bfloat16", torch.device("cpu")) == torch.bfloat16


def test_the_reference_stays_where_the_policy_started() -> None:
    policy = tiny_policy("gpt2")
    check_reference(policy)


def test_under_lora_the_reference_is_the_policy_with_its_adapter_off(tiny_folder: Path) -> None:
    torch.manual_seed(0)
    policy = load_policy(str(tiny_folder), device="cpu", lora=Lora(rank=4))
    assert Reference.of(policy).shares_weights
    names = [name for name, _ in policy.trainable()]
    assert names
    assert all("lora_" in name for name in names)
    check_reference(policy)


def check_reference(policy: Policy) -> None:
    ids, positions = torch.tensor([[5, 6, 7]]), torch.arange(3)[None]
    reference = Reference.of(policy)
    before = policy.logits(policy.hidden(ids, positions)).detach()
    with torch.no_grad():
        for _, parameter in policy.trainable():
            parameter += 0.1 * torch.randn_like(parameter)
    with reference.active() as start:
        kept = start.logits(start.hidden(ids, positions))
        assert not kept.requires_grad
    torch.testing.assert_close(kept, before)
    assert not torch.allclose(policy.logits(policy.hidden(ids, positions)), before, atol=1e-3)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_activation_checkpointing_changes_neither_gradients_nor_sampling(kind: str, tmp_path: Path) -> None:
    tiny_model(kind).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    results = []
    for checkpointing in (False, True):
        policy = load_policy(str(tmp_path), device="cpu", activation_checkpointing=checkpointing)
        done = sample(policy, [[5, 6], [7]], max_new_tokens=6, sampling=Sampling())
        positions = torch.arange(4)[None]
        policy.logits(policy.hidden(torch.tensor([[5, 6, 7, 8]]), positions)).logsumexp(-1).sum().backward()
        results.append([done.ids_BT, done.behaviour_BT, *(p.grad for _, p in policy.trainable())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_a_cap_on_attention_scores_is_not_left_to_sdpa() -> None:
    model = zoo_model("Gemma 2")
    model.config._attn_implementation = "sdpa"  # as transformers 5.17 chooses, and SDPA takes no cap
    policy = make_policy(model, byte_tokenizer(), device=torch.device("cpu"))
    assert model.config._attn_implementation == "eager"
    check_head(policy)
    assert policy.own_attention


def test_a_bundled_name_mistyped_is_not_looked_for_on_the_hub() -> None:
    with pytest.raises(UserError, match=r"unknown model 'smollm-135m' \(did you mean 'smollm2-135m'\?\)"):
        check_model_name("smollm-135m")
    check_model_name("gpt2")


def test_weights_without_a_tokenizer_are_refused_by_name(tiny_folder: Path, tmp_path: Path) -> None:
    """transformers would make a tokenizer of no tokens, and every prompt would be empty."""
    shutil.copy(tiny_folder / "config.json", tmp_path)
    check_tokenizer_files(str(tmp_path))  # a config alone is enough to plan memory
    shutil.copy(tiny_folder / "model.safetensors", tmp_path)
    with pytest.raises(UserError, match=r"has weights and no tokenizer \(tokenizer.json\): save the base model's"):
        check_tokenizer_files(str(tmp_path))
    shutil.copy(tiny_folder / "tokenizer.json", tmp_path)
    check_tokenizer_files(str(tmp_path))


@pytest.mark.parametrize(
    "options", [{}, {"lora": Lora(rank=2)}, {"chat": "minted"}, {"activation_checkpointing": True}]
)
def test_ranks_that_share_weights_but_the_first_read_none(
    tiny_folder: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    first = load_policy(str(tiny_folder), device="cpu", shared=True, **options)
    monkeypatch.setattr(ranks, "is_rank0", lambda: False)
    other = load_policy(str(tiny_folder), device="cpu", shared=True, **options)
    assert {tensor.device.type for tensor in first.model.state_dict().values()} == {"cpu"}
    assert {tensor.device.type for tensor in (*other.model.parameters(), *other.model.buffers())} == {"meta"}
    shapes = [[(name, w.shape, w.requires_grad) for name, w in p.model.named_parameters()] for p in (first, other)]
    assert shapes[0] == shapes[1]
    assert [name for name, _ in first.model.named_buffers()] == [name for name, _ in other.model.named_buffers()]
    for name in ("eos_ids", "pad_id", "device", "compute_dtype", "activation_checkpointing"):
        assert getattr(first, name) == getattr(other, name)


def test_a_mistyped_path_is_not_looked_up_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "final-1").mkdir(parents=True)
    line = "^model: 'models/final-2' is not a folder, though 'models' is one here"
    with pytest.raises(UserError, match=line + ": check the path$"):
        check_model_name("models/final-2")
    (tmp_path / "models" / "final-1" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=line + r" \(did you mean 'models/final-1'\?\)"):
        check_model_name("models/final-2")
    check_model_name("models/quite-another-one")  # a folder of models may be named as their owner on the hub is
    check_model_name("other/final-1")
