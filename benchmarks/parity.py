"""The parity check: on one frozen batch, in float32, both sides must agree before any speed is reported.

Compares the log-probs of every completion token (also with transformers' own pass), the loss, and the norm of its
gradient. If a tolerance is exceeded, nothing else is run.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.frozen import Frozen
from benchmarks.processes import LONGEST_S, Running, start
from benchmarks.work import Work

LOGPROB_TOLERANCE = 5e-4
"""Largest |Δ log p| of any token, in nats: float32 sums in another order differ by a tenth of it."""
LOSS_TOLERANCE = 1e-3
"""Relative to the loss."""
NORM_TOLERANCE = 5e-3
"""Relative to the gradient's norm."""

PEERS = {"grpo": ("peer_parity", "TRL"), "actor_critic": ("peer_pgsrm", "the released shape")}


@dataclass(frozen=True)
class Verdict:
    """The results of one side on the frozen batch."""

    logprobs_BT: np.ndarray
    loss: float
    grad_norm: float

    def save(self, path: Path) -> None:
        np.savez(path, logprobs_BT=self.logprobs_BT, loss=self.loss, grad_norm=self.grad_norm)

    @classmethod
    def load(cls, path: Path) -> "Verdict":
        with np.load(path) as kept:
            return cls(kept["logprobs_BT"], float(kept["loss"]), float(kept["grad_norm"]))


@dataclass(frozen=True)
class Parity:
    peer: str
    logprob_gap: float
    """Ours against the peer, over all completion tokens."""
    ours_to_plain: float
    peer_to_plain: float
    ours_loss: float
    peer_loss: float
    ours_grad_norm: float
    peer_grad_norm: float

    @property
    def failures(self) -> list[str]:
        """The quantities out of tolerance; NaN is out of tolerance."""
        checks = {
            "max |Δ log p|": self.logprob_gap <= LOGPROB_TOLERANCE,
            "loss": _relative(self.ours_loss, self.peer_loss) <= LOSS_TOLERANCE,
            "gradient norm": _relative(self.ours_grad_norm, self.peer_grad_norm) <= NORM_TOLERANCE,
        }
        return [name for name, holds in checks.items() if not holds]

    def lines(self) -> list[str]:
        return [
            f"parity with {self.peer}, one frozen batch in float32:",
            f"  max |Δ log p|   {self.logprob_gap:.2e}   (to transformers' own pass: ours {self.ours_to_plain:.2e}, "
            f"{self.peer} {self.peer_to_plain:.2e})",
            f"  loss            ours {self.ours_loss:.6f}   {self.peer} {self.peer_loss:.6f}",
            f"  gradient norm   ours {self.ours_grad_norm:.6f}   {self.peer} {self.peer_grad_norm:.6f}",
        ]


def _relative(a: float, b: float) -> float:
    return abs(a - b) / max(abs(a), abs(b), 1e-12)


def compare(peer_name: str, frozen: Frozen, ours: Verdict, peer: Verdict) -> Parity:
    mask_BT = frozen.mask_BT

    def gap(a_BT: np.ndarray, b_BT: np.ndarray) -> float:
        return float(np.abs(a_BT - b_BT)[mask_BT].max())

    return Parity(
        peer_name,
        gap(ours.logprobs_BT, peer.logprobs_BT),
        gap(ours.logprobs_BT, frozen.plain_BT),
        gap(peer.logprobs_BT, frozen.plain_BT),
        ours.loss,
        peer.loss,
        ours.grad_norm,
        peer.grad_norm,
    )


def check_parity(work: Work, place: Path, longest_s: float = LONGEST_S) -> Parity:
    """Freeze a batch, compute it on both sides (in parallel, nothing is timed), and compare."""
    peer, peer_name = PEERS[work.method]
    frozen = place / "frozen.npz"
    judge = {"work": work.name, "contestant": "parity"}
    _wait_for(start("frozen", place, **judge, out=frozen), longest_s=longest_s)
    paths = {"ours": place / "ours.npz", peer: place / "peer.npz"}
    both = [start(module, place, **judge, frozen=frozen, out=path) for module, path in paths.items()]
    _wait_for(*both, longest_s=longest_s)
    ours, theirs = (Verdict.load(path) for path in paths.values())
    return compare(peer_name, Frozen.load(frozen), ours, theirs)


def _wait_for(*running: Running, longest_s: float) -> None:
    failures = {one.module: why for one in running if (why := one.failure(longest_s)) is not None}
    if failures:
        raise SystemExit("; ".join(f"parity: {module} failed, {why}" for module, why in failures.items()))
