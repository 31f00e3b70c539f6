"""A plan of a GPU's memory: its parts, and sums over the phases of a step."""

from collections.abc import Iterable
from dataclasses import dataclass

from vigneron.config.phases import SamplingPhase

CONTEXT = "CUDA context and kernels"
CACHE = "key/value cache"


@dataclass(frozen=True)
class Part:
    """A part of the memory, and the phases in which it is in use."""

    name: str
    bytes: int
    sampling: bool = True
    scoring: bool = True
    """While the reference scores the samples. Less than in the update, unless its weights are there only then."""
    update: bool = True
    fixed: bool = True
    """Whether no number of samples or tokens makes it smaller."""
    by_torch: bool = True
    """Whether `torch.cuda.memory_allocated` counts it."""


def pinned_bytes(sizes: Iterable[int]) -> int:
    """Host memory of pinned tensors: torch's allocator rounds each up to a power of two."""
    return sum(1 << (size - 1).bit_length() for size in sizes if size)


@dataclass(frozen=True)
class Plan:
    parts: tuple[Part, ...]
    few_samples: int = 0
    """Bytes of the cache for a few samples: it takes what is left, and then fewer are drawn at a time."""
    microbatch_tokens: int = 0
    checkpointing: bool = False
    """Whether activations are computed again, as the config says or because few tokens fit otherwise."""
    sampling: SamplingPhase | None = "sampling"
    host_bytes: int = 0
    """Pinned host memory of what is offloaded."""

    @property
    def sampling_bytes(self) -> int:
        return sum(part.bytes for part in self.parts if part.sampling)

    @property
    def scoring_bytes(self) -> int:
        return sum(part.bytes for part in self.parts if part.scoring)

    @property
    def update_bytes(self) -> int:
        return sum(part.bytes for part in self.parts if part.update)

    @property
    def peak_bytes(self) -> int:
        """The most that the process takes of the GPU."""
        return max(self.sampling_bytes, self.scoring_bytes, self.update_bytes)

    @property
    def allocated_bytes(self) -> int:
        """The most that torch allocates: what `torch.cuda.max_memory_allocated` reports."""
        return Plan(tuple(part for part in self.parts if part.by_torch)).peak_bytes

    @property
    def least_bytes(self) -> int:
        """What the run cannot do without: with the cache of a few samples."""
        cache = sum(part.bytes for part in self.parts if part.name == CACHE)
        return max(self.scoring_bytes, self.update_bytes, self.sampling_bytes - cache + min(cache, self.few_samples))

    @property
    def fixed_bytes(self) -> int:
        """Of the larger phase, what does not depend on the number of samples or tokens."""
        return Plan(tuple(part for part in self.parts if part.fixed)).peak_bytes
