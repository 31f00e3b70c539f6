"""`vigneron validate RECIPE --probe`: what samples of the untrained model show, and what that suggests.

The rules are those of docs/guides/reference-answers.md. They are rules of thumb: each names the number it goes by.
"""

import json
import math
from collections.abc import Iterator

from vigneron.config import Config
from vigneron.config.rewards import ProbabilityRewardConfig, SemanticRewardConfig
from vigneron.errors import visible
from vigneron.training.game_probe import GameProbe
from vigneron.training.probe import Probe, Sampled

ENOUGH_HITS = 1.0
"""Hits in a step, below which most steps teach a check nothing. A dense reward need not learn faster then: in
docs/results/dense-study.md it did where the check was never hit; at 0.18 hits a step no difference was shown."""
MIXED = 0.5
"""This share of groups should hold both hits and misses."""
FLAT = 0.5
"""Above this share of groups without a difference, a reward hardly teaches."""
DENSE = {"semantic", "token_f1", "probability"}
"""Rewards that tell wrong answers apart."""
SENTENCE = 4
"""Answers of more tokens than this are sentences, which an embedder of words cannot read."""
FEW_WORDS = 6
"""Answers of more words than this are sentences to the study of dense rewards, whose others have up to four."""
GROUP_SIZES = (2, 4, 8, 16, 32, 64)
CUT = 0.1
"""Above this share of cut completions, length or stop text should change."""
UNDESERVED = 0.5
"""An empty or echoed text should earn less than this share of what the reference answer earns."""
TEMPTING = 2.0
"""An echo that earns more than this many times the samples' mean is what the model finds first."""
WORTH_IT = 0.1
"""Below this, what an echo earns is not worth a warning."""
REVISES = 0.5
"""Revisions of wrong answers, to harder questions, should be right this share of how often first answers are."""
ONE_SIDED = 0.5
"""Above this share of prompts that are always or never hit, a curriculum saves samples."""


def probe_lines(found: Probe, config: Config) -> Iterator[str]:
    """A table of what was found, and one line per suggestion."""
    per_step = config.prompts_per_step * config.group_size
    of = f"{found.prompts} prompts × {found.samples / found.prompts:.3g}"
    helped, revised = found.prompted, found.revised
    more = "" if helped is None else ", and as many with the rubric's prompts"
    more += "" if revised is None else f"; {revised.checked} revisions of wrong ones"
    yield f"probe: {found.samples} samples of the untrained model ({of}){more}"
    dense = {"reward of samples without a hit": _number(found.missed)} if _may_be_dense(config) else {}
    rows = {
        "p0, share of hits": _hits(found),
        **({} if helped is None else {"p0 with the prompt": _hits(helped)}),
        **({} if revised is None else {"p0 of a revision": _hits(revised)}),
        f"hits in a step of {per_step}": _number(found.p0 * per_step),
        "mean reward": _number(found.reward),
        **({} if helped is None else {"mean reward with the prompt": _number(helped.reward)}),
        **dense,
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
    if any(line.startswith("`") for line in suggested):
        yield "  change the recipe, or try a key here first, as in: --probe 'sampling.stop=[\"\\n\"]' group_size=8"


def game_lines(found: GameProbe, config: Config) -> Iterator[str]:
    """The same for a game: a table by role, and one line per suggestion."""
    of = f"{found.rows} rows × {found.episodes / found.rows:g}"
    yield f"probe: {found.episodes} games of the untrained model ({of})"
    yield f"  failed {_percent(found.failed)}, ended by max_turns {_percent(found.endless)}"
    for name, role in found.roles.items():
        if role is None:
            yield f"  {visible(name)}: no samples, it never had a turn"
            continue
        equal = "" if math.isnan(role.flat) else f"   all equal in {role.flat:.0%} of groups"
        yield f"  {visible(name)}: {role.samples} samples"
        yield f"    mean reward                   {_number(role.reward)}"
        yield f"    spread of rewards in a group  {_number(role.spread)}{equal}"
        yield f"    cut                           {_percent(role.cut)}"
    suggested = [*_for_game(found, config)]
    yield from (f"  suggests: {line}" for line in suggested or ["nothing to change"])


def _for_game(found: GameProbe, config: Config) -> Iterator[str]:
    for name, role in found.roles.items():
        if role is not None and role.flat > FLAT:
            yield (
                "a higher `sampling.temperature`, a larger `group_size` or other rewards of the game: in "
                f"{role.flat:.0%} of the groups of {visible(name)!r} all rewards are equal, and train nothing"
            )
        if role is not None and role.cut > CUT:
            yield (
                f"a larger `max_new_tokens` than {config.max_new_tokens}, or `sampling.stop` with a text that ends a "
                f"turn: {role.cut:.0%} of the samples of {visible(name)!r} are cut"
            )
    if found.endless > CUT:
        yield f"a larger `environment.max_turns`: it ends {found.endless:.0%} of the samples before the game does"


def _hits(found: Sampled) -> str:
    low, high = found.interval
    return f"{_number(found.p0)}   95 %: {low:.3f} to {high:.3f}" if found.checked else "no check"


def _may_be_dense(config: Config) -> bool:
    return {part.kind for part in config.reward.parts} != {"binary"}


def suggestions(found: Probe, config: Config) -> Iterator[str]:
    """Which reward, group size, length, stop text and curriculum. A reward that only measures may be what it is."""
    if config.method.learns_from_reward:
        rewards = [*_reward(found, config)]
        yield from rewards
        yield from _prompts(found, config)
        yield from _revisions(found)
        yield from _flat(found, config)
        if not any("contrastive" in line for line in rewards):
            yield from _echo(found, config)
        yield from _empty(found)
        yield from _group_size(found, config)
    yield from _length(found, config)
    if config.method.learns_from_reward:
        yield from _curriculum(found, config)


def _reward(found: Probe, config: Config) -> Iterator[str]:
    """A check learns from hits alone. Another reward, as a user's function, may be dense: its samples show."""
    per_step = config.prompts_per_step * config.group_size
    low, high = (bound * per_step for bound in found.interval)
    kinds = {part.kind for part in config.reward.parts}
    if not found.checked or config.environment is not None or "rubric" in kinds:
        return
    if kinds & DENSE:
        if low >= ENOUGH_HITS and "binary" not in kinds:
            yield (
                f"`reward: binary`, the check: even the lower bound of p0 gives {low:.1f} hits in a step, so it "
                "learns, and cannot be misled by similar wrong answers"
            )
        elif found.hits and low < ENOUGH_HITS <= high and "binary" not in kinds:
            yield f"{_annealed(found, config)}: {_near(low, high)}"
    elif kinds != {"binary"} and not found.flat > FLAT:
        return  # a reward of another kind, which tells samples apart
    elif high < ENOUGH_HITS:
        it_learned = "; it did learn at 0.18 hits a step (docs/results/dense-study.md)" if found.hits else ""
        sft_did_best = "; where answers were sentences, SFT did best" if found.answer_words > FEW_WORDS else ""
        yield (
            f"`reward: {_dense(found, config)}`, a dense reward, more samples a step, or SFT on the answers: even the "
            f"upper bound of p0 gives {high:.2g} hits in a step and {_rounded(high * config.steps)} in {config.steps} "
            f"steps of the untrained model, and a check learns from hits alone{it_learned}{sft_did_best}"
        )
    elif low < ENOUGH_HITS:
        yield f"{_annealed(found, config)}: {_near(low, high)}"


def _rounded(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"


def _prompts(found: Probe, config: Config) -> Iterator[str]:
    """GRAPE trains on what the rubric's prompts lead to: they should lead to hits that the bare question does not."""
    helped, hits = found.prompted, found.interval[0] * config.prompts_per_step * config.group_size
    if helped is None or not helped.checked or not found.checked:
        return
    both = f"p0 is {found.p0:.3f} for the bare question and {helped.p0:.3f} with the rubric's prompts"
    better_without_hits = not helped.hits and not found.hits and helped.reward > found.reward
    if helped.p0 <= found.p0 and not better_without_hits:
        yield f"other `generate` prompts in the rubric: {both}, so sampling with them leads to no more hits"
    elif hits >= ENOUGH_HITS:
        yield (
            f"`method: {{name: grpo}}` as well: {both}, but even its lower bound gives {hits:.1f} hits in a step "
            "without them, and where the bare question has hits, GRPO did as well or better "
            "(docs/results/rubric-study.md)"
        )
    elif found.interval[1] < helped.interval[0]:
        yield (
            f"rejection sampling as well, with the rubric's prompt in `sampling.prompt`: {both}, and there it did as "
            "well as GRAPE with less (docs/results/rubric-study.md)"
        )


def _revisions(found: Probe) -> Iterator[str]:
    """GRAPE's revisions are sampled to be better: they should be right nearly as often as a first answer."""
    first, revised = found.prompted or found, found.revised
    if revised is not None and revised.checked and revised.interval[1] < REVISES * first.p0:
        yield (
            f"other `revise` prompts in the rubric, with worked examples: p0 is {revised.p0:.3f} for revisions of "
            f"wrong answers and {first.p0:.3f} for first ones"
        )


def _near(low: float, high: float) -> str:
    return (
        f"between {low:.2f} and {high:.1f} hits in a step, and with fewer than 1 most steps teach a check nothing; "
        "at 1.1 an annealed reward was ahead of the check (docs/results/dense-study.md)"
    )


def _annealed(found: Probe, config: Config) -> str:
    dense = _contrastive(found, config)
    return f"`reward: {{kind: combined, combine: annealed, rewards: [{{kind: binary}}, {dense}]}}`"


def _dense(found: Probe, config: Config) -> str:
    """Where answers were a few words, shared words taught as well as an embedder. A single one is shared or not, as for
    a check; token F1 of sentences was not studied."""
    return "{kind: token_f1}" if 1 < found.answer_words <= FEW_WORDS else _contrastive(found, config)


def _contrastive(found: Probe, config: Config) -> str:
    """With the recipe's own embedder, if it has one, else one that fits the answers."""
    own = next((part.embedder for part in config.reward.parts if isinstance(part, SemanticRewardConfig)), None)
    embedder = own or ("minilm" if found.answer_tokens > SENTENCE else "lexical")
    return f"{{kind: semantic, form: contrastive, embedder: {json.dumps(embedder)}}}"


def _flat(found: Probe, config: Config) -> Iterator[str]:
    """A dense reward that tells no samples apart."""
    if not found.flat > FLAT or not _may_be_dense(config):
        return
    equal = f"in {found.flat:.0%} of the groups all rewards are equal, and train nothing"
    if any(isinstance(part, ProbabilityRewardConfig) and part.debias for part in config.reward.parts):
        yield (
            f"a prompt that asks for reasoning on lines before the answer, or `debias: false` in the reward: {equal}; "
            "RLPR pays what a text adds to the answer's probability, and a text that is only an answer adds nothing"
        )
    else:
        yield f"a higher `sampling.temperature`, a larger `group_size` or another reward: {equal}"


def _echo(found: Probe, config: Config) -> Iterator[str]:
    """Comparisons with NaN are false: what was not measured suggests nothing."""
    pays = found.pays_echo
    tempts = pays > TEMPTING * found.reward and pays >= WORTH_IT
    if found.answers_echo >= ECHOES or not (pays > UNDESERVED * found.pays_answer or tempts):
        return
    how = "a reward that the input fails"
    if isinstance(config.reward, SemanticRewardConfig):
        again = config.reward.form == "contrastive"
        how = "a lower `reward.temperature`" if again else f"`reward: {_contrastive(found, config)}`"
    yield (
        f"{how}: the echoed input earns {pays:.2f}, samples {found.reward:.2f} on average and reference answers "
        f"{found.pays_answer:.2f}, so the model may learn to repeat its input"
    )


def _empty(found: Probe) -> Iterator[str]:
    if found.pays_empty > UNDESERVED * found.pays_answer:
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
    if now >= MIXED or {part.kind for part in config.reward.parts} != {"binary"}:
        return  # enough, or a dense reward tells the others apart
    if enough is None:
        yield (
            f"easier prompts or a dense reward: at p0 = {found.p0:.3f} fewer than half of the groups would hold both "
            f"hits and misses, even with {GROUP_SIZES[-1]} samples"
        )
    else:
        yield (
            f"`group_size: {enough}`, with the check: at p0 = {found.p0:.3f}, {now:.0%} of groups of {size} hold a hit "
            f"and a miss, of {enough} {mixed_share(found.p0, enough):.0%}"
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
