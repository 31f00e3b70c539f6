"""Command-line arguments of the contestants."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.device_memory import watch_device
from benchmarks.turns.result import Result
from benchmarks.turns.work import WORKS, TurnsWork


@dataclass(frozen=True)
class Arguments:
    work: TurnsWork
    contestant: str
    model: Path
    out: Path
    tokens: int

    def save(self, results: Sequence[Result]) -> None:
        self.out.write_text("".join(json.dumps(result.value()) + "\n" for result in results))


def turns_arguments(about: str | None) -> Arguments:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--work", required=True, choices=WORKS)
    parser.add_argument("--contestant", required=True)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--tokens", type=int, default=0, help="of a single turn")
    given = parser.parse_args()
    watch_device()
    return Arguments(WORKS[given.work], given.contestant, given.model, given.out, given.tokens)
