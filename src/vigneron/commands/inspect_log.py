"""Results of `vigneron eval` as a log of Inspect (inspect_ai), in its JSON format, version 2.

`inspect view --log-dir DIR` and `inspect_ai.log.read_eval_log` read it. It contains no path of this machine.
"""

import hashlib
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vigneron import __version__
from vigneron.api import Trained
from vigneron.errors import UserError
from vigneron.files import write_for_user
from vigneron.run_data.readers import checker_name
from vigneron.run_store.sample_turns import EXTRAS, Turn, turns_of_sample
from vigneron.run_store.samples import Sample

ROLES = ("system", "user", "assistant", "tool")
RIGHT, WRONG = "C", "I"
"""Inspect's values of a right and a wrong answer."""
Log = dict[str, Any]


def write_inspect_log(folder: Path, trained: Trained, metrics: Mapping[str, float], samples: Sequence[Sample]) -> Path:
    """A new file in the folder, under a name that Inspect lists."""
    log = inspect_log(trained, metrics, samples, datetime.now(UTC))
    about = log["eval"]
    name = "_".join([about["created"].replace(":", "-"), re.sub(r"[^\w.-]|_", "-", about["task"]), about["task_id"]])
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder '{folder}': {error.strerror}") from error
    # Unpaired surrogates, which UTF-8 cannot hold, become question marks.
    text = json.dumps(log, ensure_ascii=False, allow_nan=False, indent=1, default=str)
    write_for_user(folder / f"{name}.json", text.encode("utf-8", "replace").decode("utf-8"))
    return folder / f"{name}.json"


def inspect_log(trained: Trained, metrics: Mapping[str, float], samples: Sequence[Sample], created: datetime) -> Log:
    config, run = trained.config, trained.folder.resolve().name
    when, model = created.isoformat(timespec="seconds"), f"vigneron/{run}-step-{trained.step}"
    task = config.data.task or config.recipe
    ids = [sample.sample + 1 for sample in samples]
    length = {"max_tokens": config.max_new_tokens, "temperature": 0.0}
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": _id("eval", run, trained.step, when),
            "run_id": _id("run", run, trained.step, when),
            "task_id": _id("task", task),
            "created": when,
            "task": task,
            "dataset": {"name": task, "samples": len(ids), "sample_ids": ids, "shuffled": False},
            "model": model,
            "model_generate_config": length,
            "config": {"epochs": 1},
            "packages": {"vigneron": __version__},
            "metadata": {"recipe": config.recipe, "method": config.method.name, "step": trained.step},
        },
        "plan": {"name": "plan", "steps": [{"solver": "generate", "params": {}}], "config": length},
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": _results(checker_name(config), config.reward.kind, metrics, samples),
        },
        "stats": {"started_at": when, "completed_at": when, "model_usage": {}},
        "samples": [_sample(sample, model) for sample in samples],
    }


def _id(*of: object) -> str:
    return hashlib.sha256(repr(of).encode()).hexdigest()[:22]


def _results(checker: str, reward: str, metrics: Mapping[str, float], samples: Sequence[Sample]) -> list[Log]:
    """Inspect's own metrics of what each sample has, and all metrics of our evaluation."""
    correct = [float(sample.correct) for sample in samples if sample.correct is not None]
    rewards = [sample.reward for sample in samples if _known(sample.reward) and sample.reward is not None]
    found = []
    for name, scorer, mean, values in (("correct", checker, "accuracy", correct), ("reward", reward, "mean", rewards)):
        if values:
            spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
            numbers = {mean: statistics.fmean(values), "stderr": spread}
            counts = {"scored_samples": len(values), "unscored_samples": len(samples) - len(values)}
            found.append({"name": name, "scorer": scorer, **counts, "metrics": _metrics(numbers)})
    known = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return [*found, {"name": "vigneron", "scorer": "vigneron eval", "metrics": _metrics(known)}]


def _metrics(values: Mapping[str, float]) -> Log:
    return {name: {"name": name, "value": value} for name, value in values.items()}


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _sample(sample: Sample, model: str) -> Log:
    talk = turns_of_sample(sample)
    said = _messages(talk.turns) if talk is not None else []
    answers = [message for message in said if message["role"] == "assistant"]
    answer = answers[-1] if answers else {"role": "assistant", "content": sample.completion}
    stop = "max_tokens" if sample.truncated else "stop"
    scores: Log = {}
    if sample.correct is not None:
        scores["correct"] = {"value": RIGHT if sample.correct else WRONG, "answer": answer["content"]}
    if _known(sample.reward):
        scores["reward"] = {"value": sample.reward}
    return {
        "id": sample.sample + 1,
        "epoch": 1,
        "input": sample.prompt,
        "target": sample.answer or "",
        "messages": [{"role": "user", "content": sample.prompt}, *(said or [answer])],
        "output": {
            "model": model,
            "choices": [{"message": answer, "stop_reason": stop}],
            "completion": answer["content"],
        },
        "scores": scores,
        "metadata": {name: _finite(value) for name, value in sample.extras.items() if name not in EXTRAS},
    }


def _finite(value: Any) -> Any:
    """JSON has neither NaN nor infinity: what a reward did not give is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def _messages(turns: Sequence[Turn]) -> list[Log]:
    """A tool's results belong to the calls before them, in their order."""
    messages: list[Log] = []
    open_calls: list[str] = []
    for place, turn in enumerate(turns):
        message: Log = {"role": turn.role if turn.role in ROLES else "user", "content": turn.text}
        if message["role"] == "tool":
            message |= {"function": turn.name, "tool_call_id": open_calls.pop(0) if open_calls else None}
        elif turn.calls:
            open_calls = [f"{place}-{number}" for number in range(len(turn.calls))]
            message["tool_calls"] = [
                {"id": name, "function": call.name, "arguments": _arguments(call.arguments)}
                for name, call in zip(open_calls, turn.calls, strict=True)
            ]
        messages.append(message)
    return messages


def _arguments(text: str) -> Log:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    return value if isinstance(value, dict) else {"arguments": value}
