"""Sampling where most answers are shorter than they may be, in a small cache: pages against room for the longest.

python -m benchmarks.answer_lengths [--cache GB] [--mean TOKENS] [--longest TOKENS] [--prompts N] [--resume FILE]

A work's model, by default Llama-3.1-8B's shape with LoRA, with random weights, and groups of 8. Tokens are nearly
equally likely, so answers end by chance after so many tokens on average if that share of the vocabulary ends them. The
random numbers are the same; tokens may differ by rounding:

pages     a sample takes pages as it grows; where there are too few, those that began last are preempted
longest   a sample has the pages of the longest answer from the start, as a cache of slots gives it
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.measure import GB, commit, machine
from benchmarks.models import model_folder
from benchmarks.ours import model_keys, started
from benchmarks.prompts import prompt_token_ids
from benchmarks.records import Records
from benchmarks.work import WORKS, Work
from vigneron.core.draws import Sampling
from vigneron.policy.model import Policy
from vigneron.rollout.engine import key_value_cache, schedule
from vigneron.rollout.engine.pages import Pages
from vigneron.rollout.engine.sample import sample
from vigneron.rollout.engine.schedule import Schedule

KINDS = ("pages", "longest")


@contextmanager
def room_of(kind: str) -> Iterator[list[int]]:
    """Sampling as `kind` says; gives the samples that are preempted."""
    preempted: list[int] = []
    preempt, paged_room = Schedule._preempt, key_value_cache.paged_room

    def noted(self: Schedule, samples: list[int], row_of: dict[int, int]) -> None:
        preempted.extend(samples)
        preempt(self, samples, row_of)

    def whole_room(groups: Any, new_tokens: int, most: int, *, whole: bool) -> Any:
        return paged_room(groups, new_tokens, most, whole=True)

    with ExitStack() as patches:
        patches.enter_context(patch.object(Schedule, "_preempt", noted))
        if kind == "longest":
            patches.enter_context(patch.object(key_value_cache, "paged_room", whole_room))
            patches.enter_context(
                patch.object(
                    schedule, "Pages", lambda count, new_tokens, *, whole: Pages(count, new_tokens, whole=True)
                )
            )
        yield preempted


def measure(work: Work, policy: Policy) -> Iterator[tuple[str, dict[str, Any]]]:
    """A call of each kind, after one that captures the graphs."""
    prompts = [ids for ids in prompt_token_ids(work, policy.tokenizer)[: work.prompts] for _ in range(work.group)]
    for kind in KINDS:
        for _ in range(2):
            with room_of(kind) as preempted:
                began = time.perf_counter()
                done = sample(policy, prompts, max_new_tokens=work.new_tokens, sampling=Sampling(), step=1)
                tokens, longest = int(done.lengths_B.sum()), int(done.lengths_B.max())  # waits for the device
                seconds = time.perf_counter() - began
        yield kind, {"seconds": seconds, "tokens": tokens, "longest": longest, "preempted": len(preempted)}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=float, default=4.0, help="GB of the cache")
    parser.add_argument("--mean", type=int, default=256)
    parser.add_argument("--longest", type=int, default=2048)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--work", choices=WORKS, default="gpu-8b-lora-16x8x256", help="whose model is sampled")
    parser.add_argument("--resume", type=Path, help="file of results: append to it")
    given = parser.parse_args(words)
    work = replace(WORKS[given.work], prompts=given.prompts, new_tokens=given.longest)
    name = f"answers-{work.samples}-mean-{given.mean}-of-{given.longest}-in-{given.cache:g}gb"
    keys = {**model_keys(work, model_folder(work.model)), "compile": False, "cache_gb": given.cache * GB / 2**30}
    records, rates = Records(given.resume), {}
    with started(work, changes={"model": keys, "microbatch_tokens": 4096}) as run:
        size = run.policy.text_config.vocab_size
        ends = torch.randperm(size, generator=torch.Generator().manual_seed(0))[: max(1, size // given.mean)]
        run.policy.eos_ids = frozenset(ends.tolist())
        for kind, result in measure(work, run.policy):
            records.add("answers", name, kind, {**result, "machine": machine(work.device), "commit": commit()})
            rates[kind] = result["tokens"] / result["seconds"]
            print(f"{name}, {kind}: {rates[kind]:.0f} tokens/s {json.dumps(result)}", flush=True)
    print(f"ratio {name} {rates['pages'] / rates['longest']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
