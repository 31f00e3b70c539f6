"""AdamW for weights in bfloat16, moments in 8 bits, or moments in host memory.

Weights in bfloat16 are rounded stochastically, by bits that depend on (seed, the parameter's name, its number of steps,
position) alone. A parameter and its state are worked on as flat parts of at most `CHUNK` values where temporaries are
needed: moments that come from host memory, or all of it without Triton.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from vigneron.core.adamw import AdamWStep, adamw_step, adamw_update
from vigneron.core.moments import BLOCK, IN_FLIGHT, Kind, dequantize, is_8bit, quantize
from vigneron.core.rounding import CHUNK, round_stochastically, rounding_bits, rounding_key
from vigneron.policy.compiling import can_run_kernels

State = dict[str, Tensor]
MOMENTS = {"exp_avg": True, "exp_avg_sq": False}
"""Whether they have a sign. In 8 bits there is also a NAME_scale."""


class Part(NamedTuple):
    """Flat views of a parameter, its gradient and its moments, from `start` on."""

    weight_N: Tensor
    grad_N: Tensor
    state: State
    step: AdamWStep
    key: int
    start: int
    group: Mapping[str, Any]
    number: int
    """Of the step: 1, 2, …"""


class CompactAdamW(torch.optim.Optimizer):
    """AdamW over named parameters. What is in float32 altogether is updated by torch's fused AdamW."""

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        *,
        lr: float,
        weight_decay: float,
        kind: Kind = "adamw",
        offload: bool = False,
        seed: int = 0,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "betas": (0.9, 0.999), "eps": 1e-8, "fused": False}
        super().__init__([{"params": list(named)}], defaults)
        self.kind: Kind = kind
        self.offload = offload
        self.seed = seed
        self._streams: tuple[Any, Any] | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parts = self._parts()
        if not self.offload:
            for part in parts:
                update_part(part)
        elif next(iter(self.param_groups[0]["params"])).is_cuda:
            self._stream(parts)
        else:
            for part in parts:
                moved = {name: tensor.clone() for name, tensor in part.state.items()}
                update_part(part._replace(state=moved))
                for name, tensor in moved.items():
                    part.state[name].copy_(tensor)

    def place(self, parameter: nn.Parameter, state: State) -> State:
        """A loaded state as this optimizer keeps it: in its kind, on its device."""
        state = convert_state(state, self.kind, parameter.numel())
        return {
            name: tensor.to("cpu", copy=True) if name == "step" else self._zeros(parameter, tensor).copy_(tensor)
            for name, tensor in state.items()
        }

    def _parts(self) -> Iterator[Part]:
        for group in self.param_groups:
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                if parameter.grad is None:
                    continue
                if not self.state[parameter]:
                    self.state[parameter] = self._new_state(parameter)
                state = self.state[parameter]
                state["step"] += 1
                yield from self._cut(name, parameter, state, group)

    def _cut(self, name: str, parameter: nn.Parameter, state: State, group: Mapping[str, Any]) -> Iterator[Part]:
        number = int(state["step"])
        step = adamw_step(number, group["lr"], group["weight_decay"], group["betas"], group["eps"])
        key = rounding_key(self.seed, name, number)
        weight_N, grad_N = parameter.detach().view(-1), parameter.grad.reshape(-1)  # type: ignore[union-attr]
        whole = not self.offload and can_run_kernels(parameter.device)
        for start in range(0, weight_N.numel(), weight_N.numel() if whole else CHUNK):
            at = slice(start, None if whole else start + CHUNK)
            blocks = slice(start // BLOCK, None if whole else (start + CHUNK) // BLOCK)
            views = {
                moment: tensor[blocks] if moment.endswith("_scale") else tensor.view(-1)[at]
                for moment, tensor in state.items()
                if moment != "step"
            }
            yield Part(weight_N[at], grad_N[at], views, step, key, start, group, number)

    def _new_state(self, parameter: nn.Parameter) -> State:
        eight_bit, numel = is_8bit(self.kind, parameter.numel()), parameter.numel()
        like = torch.empty(parameter.shape, dtype=torch.uint8 if eight_bit else torch.float32, device="meta")
        scale = torch.empty(-(-numel // BLOCK), device="meta")
        state = {"step": torch.zeros(())} | {moment: self._zeros(parameter, like) for moment in MOMENTS}
        scales = {f"{moment}_scale": self._zeros(parameter, scale) for moment in MOMENTS}
        return state | scales if eight_bit else state

    def _zeros(self, parameter: nn.Parameter, like: Tensor) -> Tensor:
        """Where the moments are kept."""
        device, pinned = ("cpu", parameter.is_cuda) if self.offload else (parameter.device, False)
        return torch.zeros(like.shape, dtype=like.dtype, device=device, pin_memory=pinned)

    def _stream(self, parts: Iterator[Part]) -> None:
        """Copy the next part's moments to the GPU and the last part's to the host while this one is updated.

        The host waits for the oldest part before it allocates another one.
        """
        device = self.param_groups[0]["params"][0].device
        main = torch.cuda.current_stream(device)
        if self._streams is None:
            self._streams = torch.cuda.Stream(device), torch.cuda.Stream(device)
        arriving, leaving = self._streams
        waiting: deque[tuple[Any, State]] = deque()
        for part in parts:
            if len(waiting) == IN_FLIGHT:
                waiting.popleft()[0].synchronize()
            with torch.cuda.stream(arriving):
                moved = {name: t.to(part.weight_N.device, non_blocking=True) for name, t in part.state.items()}
            main.wait_stream(arriving)
            update_part(part._replace(state=moved))
            leaving.wait_stream(main)
            with torch.cuda.stream(leaving):
                for name, tensor in moved.items():
                    part.state[name].copy_(tensor, non_blocking=True)
                waiting.append((leaving.record_event(), moved))
        leaving.synchronize()


def update_part(part: Part) -> None:
    """One step in place: by torch's fused kernel, by ours, or by the equations."""
    weight_N, state = part.weight_N, part.state
    if weight_N.dtype != torch.bfloat16 and "exp_avg_scale" not in state:
        _update_float32(part)
    elif can_run_kernels(weight_N.device):
        from vigneron.training.adamw_kernel import update_

        update_(weight_N, part.grad_N, state, part.step, key=part.key, start=part.start)
    else:
        m_N, v_N = (_moment(state, name) for name in MOMENTS)
        new_N, m_N, v_N = adamw_update(weight_N.float(), part.grad_N.float(), m_N, v_N, part.step)
        if weight_N.dtype == torch.bfloat16:
            new_N = round_stochastically(new_N, rounding_bits(part.key, part.start, len(new_N), new_N.device))
        weight_N.copy_(new_N)
        for name, moment_N in zip(MOMENTS, (m_N, v_N), strict=True):
            for key, tensor in _stored(name, moment_N, eight_bit="exp_avg_scale" in state).items():
                state[key].copy_(tensor)


def _update_float32(part: Part) -> None:
    group, device = part.group, part.weight_N.device
    adamw(
        [part.weight_N],
        [part.grad_N],
        [part.state["exp_avg"]],
        [part.state["exp_avg_sq"]],
        [],
        [torch.full((), part.number - 1.0, device=device)],  # torch counts this step itself
        fused=True,
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )


def convert_state(state: State, kind: Kind, numel: int) -> State:
    """A parameter's state with its moments in the given kind; as it is if they are already."""
    eight_bit = is_8bit(kind, numel)
    if not state or ("exp_avg_scale" in state) == eight_bit:
        return state
    converted = {"step": state["step"]}
    for name in MOMENTS:
        shape = state[name].shape
        stored = _stored(name, _moment({k: t.view(-1) for k, t in state.items()}, name), eight_bit=eight_bit)
        converted |= {key: t.view(shape) if key == name else t for key, t in stored.items()}
    return converted


def _moment(state: State, name: str) -> Tensor:
    scale = state.get(f"{name}_scale")
    return state[name] if scale is None else dequantize(state[name], scale, signed=MOMENTS[name])


def _stored(name: str, moment_N: Tensor, *, eight_bit: bool) -> State:
    if not eight_bit:
        return {name: moment_N}
    codes_N, scale_K = quantize(moment_N, signed=MOMENTS[name])
    return {name: codes_N, f"{name}_scale": scale_K}
