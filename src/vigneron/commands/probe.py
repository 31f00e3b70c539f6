"""`vigneron validate RECIPE --probe`: what samples of the untrained model show, and what that suggests.

The rules are those of docs/guides/reference-answers.md. They are rules of thumb: each names the number it goes by.
"""

import math
from collections.abc import Iterator

from vigneron.config import Config
from vigneron.training.probe import Probe

ENOUGH_HITS = 1.0
"""Hits in a step, below which most steps teach a check nothing. That a dense reward then learns faster is a conjecture:
docs/results/dense-study.md."""
MIXED = 0.5
"""This share of groups should hold both hits and misses."""
DENSE = ("semantic", "token_f1", "probability")
"""Rewards that tell wrong answers apart."""
GROUP_SIZES = (2, 4, 8, 16, 32, 64)
CUT = 0.1
"""Above this share of cut completions, length or stop text should change."""
UNDESERVED = 0.5
"""An empty or echoed text should earn less than this share of what the reference answer earns."""
ONE_SIDED = 0.5
"""Above this share of prompts that are always or never hit, a curriculum saves samples."""


def probe_lines(found: Probe, config: Config) -> Iterator[str]:
    """A table of what was found, and one line per suggestion."""
    per_step = config.prompts_per_step * config.group_size
    low, high = found.interval
    yield f"probe: {found.samples} samples of the untrained model ({found.prompts} prompts × {found.group_size})"
    rows = {
        "p0, share of hits": f"{_number(found.p0)}   95 %: {low:.3f} to {high:.3f}" if found.checked else "no check",
        f"hits in a step of {per_step}": _number(found.p0 * per_step),
        "mean reward": _number(found.reward),
        "spread of rewards in a group": _number(found.spread)
        + ("" if math.isnan(found.flat) else f"   all equal in {found.flat:.0%} of groups"),
        "cut by max_new_tokens": _percent(found.cut),
        "echoes of the input": _percent(found.echoed),
        "reward of an empty answer": _number(found.pays_empty),
        "reward of the echoed input": _number(found.pays_echo),
        "reward of the reference answer": _number(found.pays_answer),
    }
    width = max(map(len, rows))
    yield from (f"  {name:<{width}}  {value}" for name, value in rows.items())
    suggested = [*suggestions(found, config)]
    yield from (f"  suggests: {line}" for line in suggested or ["nothing to change"])


def suggestions(found: Probe, config: Config) -> Iterator[str]:
    """Which reward, group size, length, stop text and curriculum; nothing about a reward that is not trained on."""
    if config.method.learns_from_reward:
        yield from _reward(found, config)
        yield from _undeserved(found, config)
        yield from _group_size(found, config)
    yield from _length(found, config)
    yield from _curriculum(found, config)


def _reward(found: Probe, config: Config) -> Iterator[str]:
    """A check learns from hits alone. Of a rubric, a model or a user's function it is not known how dense it is."""
    per_step = config.prompts_per_step * config.group_size
    low, high = (bound * per_step for bound in found.interval)
    kinds = {part.kind for part in config.reward.parts}
    if not found.checked or config.environment is not None or not kinds <= {*DENSE, "binary"}:
        return
    dense, checks = bool(kinds & {*DENSE}), "binary" in kinds
    if high < ENOUGH_HITS and not dense:
        yield (
            f"a dense reward: even the upper bound of p0 gives {high:.2g} hits in a step and {high * config.steps:.2g} "
            f"in {config.steps} steps of the untrained model, and a check learns from hits alone: `reward: {{kind: "
            "semantic, form: contrastive}`, or more samples a step"
        )
    elif low >= ENOUGH_HITS and dense and not checks:
        yield (
            f"the check: even the lower bound of p0 gives {low:.1f} hits in a step, so `reward: binary` learns, and "
            "cannot be misled by similar wrong answers"
        )
    elif low < ENOUGH_HITS <= high and not (dense and checks):
        yield (
            f"an annealed reward: between {low:.2f} and {high:.1f} hits in a step, and with fewer than 1 most steps "
            "teach a check nothing: `reward: {kind: combined, combine: annealed, rewards: [{kind: binary}, {kind: "
            "semantic, form: contrastive}]}`"
        )


def _undeserved(found: Probe, config: Config) -> Iterator[str]:
    """Comparisons with NaN are false: what was not measured suggests nothing."""
    most = UNDESERVED * found.pays_answer
    if found.pays_echo > most and found.answers_echo < ECHOES:
        semantic = any(part.kind == "semantic" for part in config.reward.parts)
        how = "`form: contrastive`, or `guards: {input_weight: 0.5}`" if semantic else "a reward that the input fails"
        yield (
            f"{how}: the echoed input earns {found.pays_echo:.2f}, more than half of the reference answer's "
            f"{found.pays_answer:.2f}"
        )
    if found.pays_empty > most:
        yield (
            f"another reward: an empty answer earns {found.pays_empty:.2f}, more than half of the reference answer's "
            f"{found.pays_answer:.2f}"
        )


ECHOES = 0.5
"""From this share of reference answers that are echoes on, echoing is the task."""


def mixed_share(p: float, group_size: int) -> float:
    """1 − pᴳ − (1 − p)ᴳ, the chance that a group of G samples holds a hit and a miss."""
    return 1.0 - p**group_size - (1.0 - p) ** group_size


def _group_size(found: Probe, config: Config) -> Iterator[str]:
    if config.method.smallest_group < 2 or not 0 < found.p0 < 1:
        return
    size, now = config.group_size, mixed_share(found.p0, config.group_size)
    enough = next((more for more in GROUP_SIZES if mixed_share(found.p0, more) >= MIXED), None)
    if now >= MIXED or all(part.kind != "binary" for part in config.reward.parts):
        return
    if enough is None:
        yield (
            f"easier prompts or a dense reward: at p0 = {found.p0:.3f} fewer than half of the groups would hold both "
            f"hits and misses, even with {GROUP_SIZES[-1]} samples"
        )
    else:
        yield (
            f"`group_size: {enough}`: at p0 = {found.p0:.3f}, {now:.0%} of groups of {size} hold a hit and a miss, of "
            f"{enough} {mixed_share(found.p0, enough):.0%}"
        )


def _length(found: Probe, config: Config) -> Iterator[str]:
    needed = found.answer_tokens + 1  # and an end
    if found.answer_tokens and needed > config.max_new_tokens:
        yield (
            f"`max_new_tokens: {needed}`: 5 % of the reference answers have {found.answer_tokens} tokens or more, and "
            f"`max_new_tokens` is {config.max_new_tokens}"
        )
    if not found.cut > CUT:
        return
    if found.lines >= 0.5 and not found.multiline and "\n" not in config.sampling.stop:
        yield (
            f'`sampling: {{stop: ["\\n"]}}`: {found.cut:.0%} of completions are cut, and {found.lines:.0%} of those '
            "went on after a line of text"
        )
    elif not found.answer_tokens or needed <= config.max_new_tokens:
        yield (
            f"a prompt that shows where an answer ends (examples, an instruction, or a stop text): {found.cut:.0%} of "
            f"completions are cut by `max_new_tokens: {config.max_new_tokens}`"
            + (f", and 95 % of the reference answers take {found.answer_tokens} at most" if found.answer_tokens else "")
        )


def _curriculum(found: Probe, config: Config) -> Iterator[str]:
    counts = found.hits_by_prompt
    if not counts or not 0 < found.p0 < 1 or config.curriculum is not None or found.group_size < 4:
        return
    one_sided = sum(hits in (0, found.group_size) for hits in counts) / len(counts)
    expected = 1 - mixed_share(found.p0, found.group_size)
    if one_sided > ONE_SIDED and one_sided > expected + 0.1:
        yield (
            f"`curriculum: {{by: success, measure: verdict}}`: {one_sided:.0%} of prompts are always or never hit; of "
            f"equally hard ones {expected:.0%} would be"
        )


def _number(value: float) -> str:
    return "not measured" if math.isnan(value) else f"{value:.3f}"


def _percent(value: float) -> str:
    return "not measured" if math.isnan(value) else f"{value:.0%}"
