"""Counting of the bytes that tensors take, of fake ones too."""

from collections.abc import Sequence
from typing import Any
from weakref import finalize

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CAST = torch.ops.aten._to_copy.default


BLOCK = 512
"""torch's CUDA allocator rounds up to this number of bytes."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are made meanwhile and still in use, and their peak."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.casts = self.peak_casts = 0
        """Of these, bytes of the known tensors' casts to another dtype."""
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._sizes: dict[int, tuple[int, bool]] = {}
        self._kept = list(known)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        is_cast = func is CAST and args[0].untyped_storage()._cdata in self._known
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage(), is_cast)
        return out

    def _add(self, storage: Any, is_cast: bool) -> None:
        key = storage._cdata
        if key in self._known or key in self._sizes:
            return
        size = -(-storage.nbytes() // BLOCK) * BLOCK
        self._sizes[key] = size, is_cast
        self.now += size
        self.casts += size * is_cast
        if self.now > self.peak:
            self.peak, self.peak_casts = self.now, self.casts
        finalize(storage, self._remove, key)

    def _remove(self, key: int) -> None:
        size, is_cast = self._sizes.pop(key)
        self.now -= size
        self.casts -= size * is_cast
