"""Linear layers with the same input as one matrix product, with their LoRA adapters.

The matrices lie one after another in one tensor, of which the layers' own weights become parts, so nothing is held
twice. The first matrices of adapters, A, are further rows of it: one product gives W x and A x, and one kernel adds
scale · B A x.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from vigneron.policy.fused_modules import is_plain_adapter
from vigneron.policy.layer_kernels import add_adapters

BLOCKS = (128, 64, 32, 16)
"""Columns that a program of the adapters' kernel handles; all of them belong to one layer."""
MOST_RANK = 128


class JoinedLinear(nn.Module):
    """`members` are linear layers or peft's wrappers of them, that `can_join`."""

    weight: Tensor
    bias: Tensor | None
    second: Tensor | None
    starts: Tensor
    scales: Tensor

    def __init__(self, members: Sequence[Any]) -> None:
        super().__init__()
        bases = [base_of(member) for member in members]
        sizes = [base.out_features for base in bases]
        adapters = [_adapter(member) for member in members]
        ranks = [adapter[0].out_features for adapter in adapters if adapter is not None]
        rank = -(-max(ranks, default=0) // 16) * 16  # kernels load 16 bytes at once if rows are multiples of 16 long
        like = bases[0].weight
        adapted = len(members) if rank else 0
        self.width = sum(sizes)
        self.ends = torch.tensor(sizes).cumsum(0).tolist()
        self.register_buffer("weight", like.new_zeros(self.width + adapted * rank, like.shape[1]), persistent=False)
        biased = any(base.bias is not None for base in bases)
        bias, second = like.new_zeros(len(self.weight)), like.new_zeros(self.width, rank)
        self.register_buffer("bias", bias if biased else None, persistent=False)
        self.register_buffer("second", second if rank else None, persistent=False)
        self.block = next(block for block in BLOCKS if all(size % block == 0 for size in sizes)) if rank else 0
        starts, scales = [], []
        for number, (base, adapter, end) in enumerate(zip(bases, adapters, self.ends, strict=True)):
            begin = end - base.out_features
            _move(base.weight, self.weight[begin:end])
            if base.bias is not None:
                _move(base.bias, bias[begin:end])
            if rank:
                start = self.width + number * rank
                starts += [start] * (base.out_features // self.block)
                scales += [0.0 if adapter is None else adapter[2]] * (base.out_features // self.block)
                if adapter is not None:
                    _move(adapter[0].weight, self.weight[start : start + adapter[0].out_features])
                    _move(adapter[1].weight, second[begin:end, : adapter[0].out_features])
        self.register_buffer("starts", torch.tensor(starts, dtype=torch.int32, device=like.device), persistent=False)
        self.register_buffer("scales", torch.tensor(scales, dtype=torch.float32, device=like.device), persistent=False)
        self._input: Tensor | None = None
        self._output: Tensor | None = None
        self._taken = 0

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of all members, one behind the other."""
        y = linear(x, self.weight, self.bias)
        if self.second is not None:
            add_adapters(y.view(-1, y.shape[-1]), self.second, self.starts, self.scales, self.block)
        return y[..., : self.width]

    def part(self, x: Tensor, number: int) -> Tensor:
        """The output of one member. Members are called in turn, with the same tensor."""
        if self._input is not x or self._output is None:
            self._input, self._output, self._taken = x, self.forward(x), 0
        end = self.ends[number]
        out = self._output[..., self.ends[number - 1] if number else 0 : end]
        self._taken += 1
        if self._taken == len(self.ends):
            self._input = self._output = None
        return out


class Member(nn.Module):
    """One layer of a `JoinedLinear`, in its place."""

    def __init__(self, joined: JoinedLinear, number: int) -> None:
        super().__init__()
        self._joined, self._number = [joined], number  # a list: not a child of several modules

    def forward(self, x: Tensor) -> Tensor:
        return self._joined[0].part(x, self._number)


def base_of(member: Any) -> Any:
    return member.get_base_layer() if hasattr(member, "get_base_layer") else member


def can_join(members: Sequence[Any]) -> bool:
    """Whether they are plain matrices in bfloat16 of one input size, each with at most one plain adapter."""
    bases = [base_of(member) for member in members]
    if not all(type(base) is nn.Linear and base.weight.dtype == torch.bfloat16 for base in bases):
        return False
    if len({base.in_features for base in bases}) > 1:
        return False
    wrappers = [member for member in members if member is not base_of(member)]
    if not wrappers:
        return True
    plain = all(is_plain_adapter(wrapper) and _is_ready(wrapper) for wrapper in wrappers)
    return plain and any(all(base.out_features % block == 0 for base in bases) for block in BLOCKS)


def _is_ready(wrapper: Any) -> bool:
    (first,), (second,) = wrapper.lora_A.values(), wrapper.lora_B.values()
    return bool(first.weight.dtype == second.weight.dtype == torch.bfloat16 and first.out_features <= MOST_RANK)


def _adapter(member: Any) -> tuple[nn.Linear, nn.Linear, float] | None:
    if member is base_of(member):
        return None
    (name,) = member.lora_A
    return member.lora_A[name], member.lora_B[name], float(member.scaling[name])


@torch.no_grad()
def _move(weight: Tensor, place: Tensor) -> None:
    """Let a parameter's numbers lie in `place`."""
    place.copy_(weight)
    weight.data = place
