"""Vigneron on conversations with a tool, and on a single turn of as many tokens.

ours          GRPO with `environment.kind: tools`; as many calls at a time as there are samples
single-turn   GRPO on the same prompts, as texts, with one turn of as many tokens as a whole conversation had, on
              average; all of them are sampled. Samples of equal length take the fewest steps for so many tokens
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from benchmarks.measure import machine
from benchmarks.ours import Enough, StepTimes, started
from benchmarks.ours import measure as measure_steps
from benchmarks.turns.arguments import turns_arguments
from benchmarks.turns.result import Counts, Result, by_wait
from benchmarks.turns.tool import WAIT_S, Calls, lookup
from benchmarks.turns.work import DISTINCT_STEPS, REPLY_TOKENS, TURNS, Pace, TurnsWork, prompt_rows
from vigneron.batch import Batch
from vigneron.data.prompts import row_prompts_token_ids
from vigneron.environments.tool_schema import tool_schema
from vigneron.timing import Stopwatch, recording_timings
from vigneron.training import loop


def changes(work: TurnsWork) -> dict[str, Any]:
    """The recipe's keys that are not those of a single turn."""
    return {
        "environment": {
            "kind": "tools",
            "tools": ["benchmarks.turns.tool:lookup"],
            "max_turns": TURNS,
            "max_reply_tokens": REPLY_TOKENS,
            "concurrency": work.step.samples,
        },
        "reward": {"kind": "python", "function": "benchmarks.turns.work:alternating"},
    }


class CountedSteps(StepTimes):
    """Counts the turns of each step, and switches the tool's wait on."""

    def __init__(self, work: TurnsWork, pace: Pace, watch: Stopwatch) -> None:
        super().__init__(work.at(pace), watch)
        self._pace, self._calls = pace, Calls.made
        self.counts: list[Counts] = []
        Calls.wait_s = WAIT_S if pace.waits(0) else 0.0

    def check(self, batch: Batch) -> None:
        samples = batch.samples
        spans = samples.spans
        sampled = sum(stop - start for turns in spans for start, stop in turns)
        whole = sum(turns[-1][1] - turns[0][0] for turns in spans)
        self.counts.append(
            Counts(
                samples=len(batch),
                turns=sum(map(len, spans)),
                calls=Calls.made - self._calls,
                full=sum(len(turns) == TURNS for turns in spans),
                prompts=sum(map(len, samples.prompt_ids)),
                sampled=sampled,
                replies=whole - sampled,
            )
        )
        self._calls = Calls.made
        Calls.wait_s = WAIT_S if self._pace.waits(len(self.counts)) else 0.0


def measure(work: TurnsWork, model: Path) -> list[Result]:
    with (
        started(work.at(work.ours), model, changes(work), prompt_rows(work)) as run,
        recording_timings() as watch,
    ):
        view = CountedSteps(work, work.ours, watch)
        with suppress(Enough):
            loop.train(run, view)
        memory = view.recorder.memory.taken(view.held)
        settings = {"microbatch_tokens": run.config.microbatch_tokens, **changes(work)["environment"]}
        measured = view.with_details(view.recorder.finish("ours", settings, memory))
        return by_wait(measured, view.counts, work.ours, machine(work.step.device))


def measure_single(work: TurnsWork, model: Path, tokens: int) -> Result:
    """One turn of `tokens` tokens. A prompt that is a text has no end of a turn: lengths are forced."""
    same = replace(work.at(work.single), new_tokens=tokens)
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = [{"prompt": _as_text(tokenizer, row["prompt"])} for row in prompt_rows(work)]
    measurement = replace(measure_steps(same, model, rows), contestant="single-turn")
    prompts = work.step.group * sum(map(len, row_prompts_token_ids(tokenizer, rows))) // DISTINCT_STEPS
    step = Counts(same.samples, same.samples, 0, 0, prompts, same.tokens, 0)
    return Result(measurement, (step,) * len(measurement.step_seconds), machine(same.device))


def _as_text(tokenizer: Any, messages: list[dict[str, Any]]) -> str:
    return str(
        tokenizer.apply_chat_template(messages, [tool_schema(lookup)], add_generation_prompt=True, tokenize=False)
    )


if __name__ == "__main__":
    given = turns_arguments(__doc__)
    if given.contestant == "single-turn":
        given.save([measure_single(given.work, given.model, given.tokens)])
    else:
        given.save(measure(given.work, given.model))
