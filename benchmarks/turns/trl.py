"""TRL's GRPOTrainer on conversations with the same tool (`tools=[lookup]`), sampled with `generate`.

Tuned and set as in `peer_trl`. A turn has at most as many tokens as ours: TRL's own limit is one for all turns
together, with which one sample that does not end would cost all others hundreds of tokens. TRL 1.16 awaits the async
calls of one sample before it starts those of the next.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer
from trl import GRPOConfig

from benchmarks.measure import Recorder, machine
from benchmarks.peer_trl import CountSteps, TimedTrainer, rows_as_dataset, settings
from benchmarks.turns.arguments import turns_arguments
from benchmarks.turns.result import Counts, Result, by_wait
from benchmarks.turns.tool import WAIT_S, Calls, lookup
from benchmarks.turns.work import CALLS, TURNS, Pace, TurnsWork, alternating, prompt_rows
from vigneron.data.prompts import row_prompts_token_ids
from vigneron.environments.tool_schema import tool_schema
from vigneron.policy.reply_tokens import reply_ids


class ToolTrainer(TimedTrainer):
    """Counts the turns of each step, and switches the tool's wait on."""

    pace: Pace
    counts: list[Counts]
    calls_before: int

    def begin(self, recorder: Recorder, pace: Pace) -> None:
        self.recorder, self.pace, self.counts, self.calls_before = recorder, pace, [], Calls.made
        Calls.wait_s = WAIT_S if pace.waits(0) else 0.0

    def check(self, made: Any) -> None:
        prompt_ids, completion_ids, masks, completions = made[:4]
        turns = [sum(message["role"] == "assistant" for message in messages) for messages in completions]
        sampled = sum(map(sum, masks))
        self.counts.append(
            Counts(
                samples=len(completion_ids),
                turns=sum(turns),
                calls=Calls.made - self.calls_before,
                full=turns.count(TURNS),
                prompts=sum(map(len, prompt_ids)),
                sampled=sampled,
                replies=sum(map(len, completion_ids)) - sampled,
            )
        )
        self.calls_before = Calls.made
        Calls.wait_s = WAIT_S if self.pace.waits(len(self.counts)) else 0.0


def tool_settings(work: TurnsWork) -> dict[str, Any]:
    """Everything that differs from TRL's defaults."""
    return {
        **settings(work.at(work.trl), "trl-tuned"),
        "max_completion_length": work.completion_tokens,
        "max_tool_calling_iterations": CALLS,
        "generation_kwargs": {"max_new_tokens": work.step.new_tokens},
    }


def make_trainer(work: TurnsWork, model: Path, folder: str) -> ToolTrainer:
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    quiet: dict[str, Any] = {"logging_strategy": "no", "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    trainer = ToolTrainer(
        model=str(model),
        reward_funcs=alternating,
        args=GRPOConfig(output_dir=folder, **tool_settings(work), **quiet),
        train_dataset=rows_as_dataset(prompt_rows(work)),
        processing_class=tokenizer,
        tools=[lookup],
    )
    trained: Any = trainer.model
    weights = {parameter.dtype for parameter in trained.parameters()}
    if weights != {torch.float32}:
        raise SystemExit(f"TRL loaded the trained weights as {weights}; the comparison needs float32 on both sides")
    return trainer


def check_same_tokens(trainer: ToolTrainer, work: TurnsWork, model: Path) -> None:
    """Prompts, and what stands between two turns, must be the same tokens on both sides."""
    rows = prompt_rows(work)[: work.step.prompts]
    tokenizer = AutoTokenizer.from_pretrained(model)
    tools = [tool_schema(lookup)]
    ours = row_prompts_token_ids(tokenizer, [{**row, "tools": tools} for row in rows])
    theirs, _, _ = trainer._tokenize_prompts([row["prompt"] for row in rows])
    if [tuple(ids) for ids in ours] != [tuple(ids) for ids in theirs]:
        raise SystemExit("TRL and ours tokenize the prompts differently")
    call = {"type": "function", "id": "call00001", "function": {"name": "lookup", "arguments": {"n": 123}}}
    said = [*rows[0]["prompt"], {"role": "assistant", "content": "", "tool_calls": [call]}]
    answer = {"role": "tool", "name": "lookup", "content": "37"}
    between = reply_ids(tokenizer, said, [answer], tokenizer.eos_token_id, tools)
    if list(between) != list(trainer._get_tool_suffix_ids([answer])):
        raise SystemExit("TRL and ours write a tool's answer in different tokens")


def measure(work: TurnsWork, model: Path) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(work, model, folder)
        check_same_tokens(trainer, work, model)
        recorder = Recorder(work.at(work.trl))
        trainer.begin(recorder, work.trl)
        trainer.add_callback(CountSteps(recorder))
        trainer.train()
        measurement = recorder.finish("trl-tuned", tool_settings(work))
        return by_wait(measurement, trainer.counts, work.trl, machine(work.step.device))


if __name__ == "__main__":
    given = turns_arguments(__doc__)
    given.save(measure(given.work, given.model))
