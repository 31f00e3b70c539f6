"""What a recipe takes of a GPU's memory, and what to change to fit a smaller one: for `vigneron validate`."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from vigneron.config import Config
from vigneron.data.prompts import Row, conversation_text, prompts_token_ids
from vigneron.data.rows import longest_of
from vigneron.environments.build import Environments
from vigneron.policy.model_names import local_tokenizer
from vigneron.run_data.load import Data
from vigneron.run_data.readers import measured_columns
from vigneron.training.memory_fit import GPU_SIZES, USABLE, Fitting
from vigneron.training.memory_parts import Part, Plan
from vigneron.training.memory_plan import RunMemory, gpu_gigabytes
from vigneron.values import GB

CHARACTERS_PER_TOKEN = 3
SMALLEST_SHOWN = 0.002
"""Parts below this share of the whole are left out of the table."""


def memory_lines(
    config: Config, data: Data, tokenizer: Any = None, environments: Environments | None = None
) -> Iterator[str]:
    """Nothing for a run on a CPU. `tokenizer`: as it writes conversations, where one has been read."""
    if config.model.device in ("cpu", "mps"):
        return
    tokens = longest_text(config, data, tokenizer, environments)
    memory = RunMemory.of(config, tokens, held_out=len(data.held_out))
    if memory is None:
        yield (
            f"memory: not estimated, because the config of '{config.model.name}' is not on this machine: download the "
            "model's config.json, or give its folder"
        )
        return
    size = gpu_gigabytes(config)
    plan = memory.plan(config, size)
    what = "prompts" if config.method.reads == "prompts" else "texts"
    yield f"memory on a GPU of {size:.4g} GB, in GB, with {what} of up to {tokens} tokens and {_passes(plan)}:"
    shown = [part for part in plan.parts if part.bytes >= SMALLEST_SHOWN * plan.peak_bytes]
    for part in shown:
        yield f"  {part.name:<32} {part.bytes / GB:8.2f}  {_phases(part, plan)}"
    if rest := sum(part.bytes for part in plan.parts if part not in shown):
        yield f"  {'smaller parts, together':<32} {rest / GB:8.2f}"
    yield f"  {'in all':<32} {plan.peak_bytes / GB:8.2f}  {_totals(plan)}"
    if plan.least_bytes > size * GB:
        yield f"  does not fit: {plan.least_bytes / GB:.2f} GB are needed, {size:.4g} are there: see below"
    if plan.host_bytes:
        yield f"host memory, pinned, of what is offloaded: {plan.host_bytes / GB:.2f} GB"
    yield from fitting_lines(memory, config)


def fitting_lines(memory: RunMemory, config: Config) -> Iterator[str]:
    search = Fitting(memory, config)
    own = config.model.memory_gb
    sizes = sorted({*GPU_SIZES, *([] if own is None else [own])})
    sampling = config.scale.sampling
    beside = "sample without vLLM (scale.sampling.kind=here), " if sampling.kind == "vllm" and not sampling.url else ""
    yield f"what to change for a GPU of another size, of which at most {USABLE:.0%} are taken:"
    for size in sizes:
        fitted = search.fit(size)
        if fitted is None:
            yield f"to fit {size:.4g} GB: no settings are enough: {beside}choose a smaller model, or shorter texts"
            continue
        changes = " ".join(map(str, fitted.changes))
        as_it_is = f"fits {size:.4g} GB as it is" + (", and more" if size > sizes[0] else "")
        yield f"{f'to fit {size:.4g} GB: {changes}' if changes else as_it_is} ({_takes(fitted.plan)})"
        if not search.has_room(fitted.plan) and (roomier := search.roomier(size, fitted)):
            yield f"  or, with larger passes: {' '.join(map(str, roomier.changes))} ({_takes(roomier.plan)})"
        if not changes:
            return


def _takes(plan: Plan) -> str:
    host = f", and {plan.host_bytes / GB:.1f} GB of pinned host memory" if plan.host_bytes else ""
    return f"{plan.least_bytes / GB:.1f} GB with {_passes(plan)}{host}"


def _passes(plan: Plan) -> str:
    recomputed = " and activation checkpointing" if plan.checkpointing else ""
    return f"{plan.microbatch_tokens} tokens in a pass{recomputed}"


def _phases(part: Part, plan: Plan) -> str:
    if _is_offloaded(part):
        return "reference's pass"
    return ", ".join(str(name) for name, used in ((plan.sampling, part.sampling), ("update", part.update)) if used)


def _is_offloaded(part: Part) -> bool:
    return part.scoring and not part.update


def _totals(plan: Plan) -> str:
    scoring = f"reference's pass {plan.scoring_bytes / GB:.2f}, " if any(map(_is_offloaded, plan.parts)) else ""
    sampling = "" if plan.sampling is None else f"{plan.sampling} {plan.sampling_bytes / GB:.2f}, "
    return f"{sampling}{scoring}update {plan.update_bytes / GB:.2f}"


def longest_text(config: Config, data: Data, tokenizer: Any = None, environments: Environments | None = None) -> int:
    """Tokens of the longest prompt, or of the longest text where texts are given; guessed from the number of characters
    if the tokenizer is not on this machine."""
    rows: Sequence[Row] = data.train
    columns = measured_columns(config, "train")
    some = [rows[int(index)] for index in longest_of(rows, columns)] if rows else []
    if environments is not None and config.method.reads == "prompts":
        some = [environments.prepared(row) for row in some]
    model = config.model
    if tokenizer is None:
        tokenizer = local_tokenizer(model.name, trust_remote_code=model.trust_remote_code, convert=False)
    longest = 1
    for row in some:
        answers = (row[name] for name in columns if name != "prompt" and row.get(name))
        prompt = _tokens(tokenizer, row["prompt"], row.get("tools"))
        longest = max(longest, prompt + sum(_tokens(tokenizer, text) for text in answers))
    return longest


def _tokens(tokenizer: Any, text: Any, tools: Any = None) -> int:
    if tokenizer is not None:
        with suppress(Exception):  # a template can fail in any way on an answer by itself
            return len(prompts_token_ids(tokenizer, [text], rows=[{"tools": tools}])[0])
    written = conversation_text(text) + ("" if tools is None else json.dumps(tools, default=str))
    return -(-len(written) // CHARACTERS_PER_TOKEN)
