"""Weights on their way: packed and unpacked they are the same, and a checksum notices one bit."""

from pathlib import Path

import pytest
import torch

from support.tiny_models import tiny_policy
from vigneron.policy.load import load_policy
from vigneron.policy.lora import Lora
from vigneron.policy.model import Policy
from vigneron.remote.ray import weight_packer as weights
from vigneron.remote.ray.weight_packer import WeightPacker, fingerprint


def travel(one: Policy, other: Policy) -> tuple[str, str]:
    sender, receiver = WeightPacker(one), WeightPacker(other)
    assert len(sender.parts) == len(receiver.parts)
    for part in range(len(sender.parts)):
        receiver.unpack(part, sender.packed(part))
    return sender.checksum_now(), receiver.checksum_now()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("part_bytes", [1, 4000, 2**25])
def test_what_arrives_is_what_was_sent(kind: str, part_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PART_BYTES", part_bytes)
    one, other = tiny_policy(kind, seed=1), tiny_policy(kind, seed=2)
    assert WeightPacker(one).checksum_now() != WeightPacker(other).checksum_now()
    sent, arrived = travel(one, other)
    assert sent == arrived
    for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_in_bfloat16_matrices_travel_so_and_everything_else_as_it_is() -> None:
    """GPT-2's head is its embedding, which is used in float32; Llama's is a matrix of its own."""
    for kind, head in (("gpt2", "transformer.wte.weight"), ("llama", "lm_head.weight")):
        one, other = tiny_policy(kind, seed=1), tiny_policy(kind, seed=2)
        one.compute_dtype = other.compute_dtype = torch.bfloat16
        assert len(set(travel(one, other))) == 1
        narrow = {entry.name for part in WeightPacker(one).parts for entry in part if entry.dtype == torch.bfloat16}
        assert (head in narrow) is (kind == "llama")
        assert not any("norm" in name or "embed_tokens" in name or ".ln_" in name for name in narrow)
        theirs = dict(other.model.named_parameters())
        for name, weight in one.model.named_parameters():
            expected = weight.bfloat16().float() if name in narrow else weight
            assert torch.equal(theirs[name], expected)


def test_one_bit_anywhere_changes_the_print() -> None:
    flat = torch.randint(0, 256, (4096,), dtype=torch.uint8)
    before = fingerprint(flat)
    for place in (0, 7, 8, 2048, 4095):
        for bit in (1, 16, 128):
            changed = flat.clone()
            changed[place] ^= bit
            assert fingerprint(changed) != before
    swapped = torch.cat([flat[8:16], flat[:8], flat[16:]])
    assert fingerprint(swapped) != before


def test_under_4_bits_only_the_adapter_travels_and_the_base_is_compared(tiny_folder: Path) -> None:
    def policy(seed: int) -> Policy:
        torch.manual_seed(seed)
        return load_policy(str(tiny_folder), device="cpu", weights="4bit", lora=Lora(2))

    one, other = policy(1), policy(2)
    assert len(set(travel(one, other))) == 1
    assert all("lora_" in entry.name for entry in WeightPacker(one).entries)
    base = WeightPacker(one, frozen=True)
    assert base.checksum_now() == WeightPacker(other, frozen=True).checksum_now()
    packed = next(entry.tensor for entry in base.entries if entry.dtype == torch.uint8)
    packed[0] ^= 1
    assert base.checksum_now() != WeightPacker(other, frozen=True).checksum_now()
