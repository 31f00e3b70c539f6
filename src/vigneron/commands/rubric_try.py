"""`vigneron rubric try`: given answers, scored and shown with what the judge said of them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vigneron.config import JudgeConfig
from vigneron.config.values import Strict
from vigneron.data.dataset import check_rows, read_rows
from vigneron.data.formats import is_conversation
from vigneron.data.prompts import Row, completion_text
from vigneron.errors import UserError, did_you_mean, visible
from vigneron.files import user_path
from vigneron.recipe import config_text, load_config, parse_yaml, recipe_text
from vigneron.report.terminal import say
from vigneron.rubric.fences import one_line
from vigneron.rubric.live_rubric import FixedRubric
from vigneron.rubric.model import AnyItem, JudgeItem, Rubric, VerifyItem
from vigneron.rubric.read import read_rubric
from vigneron.rubric.rows import category_of, check_rubric_rows
from vigneron.sources.judges import Judge
from vigneron.sources.verdict import Grader
from vigneron.validation import field_errors

EXAMPLE = "--judge '{kind: endpoint, model: gpt-4o-mini}'"


class _Given(Strict):
    judge: JudgeConfig


def judge_of(given: str) -> JudgeConfig:
    """YAML or JSON as it stands, or else the name of a recipe or a file: a recipe, a run's config, or a judge alone."""
    said = parse_yaml(given, "--judge")
    if isinstance(said, Mapping):
        return _checked(said, "--judge")
    if not isinstance(said, str):
        raise UserError(f"--judge: a mapping, or the name of a recipe or a file, not {given!r}: as in {EXAMPLE}")
    held = parse_yaml(_text(said), said)
    if isinstance(held, Mapping) and "kind" in held and "reward" not in held:
        return _checked(held, said)
    reward = load_config(said).reward
    judge = getattr(reward, "judge", None)
    if judge is None:
        raise UserError(f"--judge: '{said}' names no judge under `reward.judge`")
    return judge


def _text(name: str) -> str:
    if Path(name).suffix != ".json":
        return recipe_text(name)
    return config_text(user_path(name), f"'{name}'", "--judge: ")


def _checked(given: Mapping[str, Any], where: str) -> JudgeConfig:
    whole = {"judge": dict(given)}
    try:
        return _Given.model_validate(whole).judge
    except ValidationError as errors:
        found = field_errors(errors.errors(), whole, _Given, "the judge")
        raise UserError("\n".join(f"{where}: {visible(fault.line)}" for fault in found)) from errors


LONGEST_SHOWN = 600
"""Characters of a question, or of an answer, that are shown."""


@dataclass(frozen=True)
class Tried:
    """One answer. `advantage` is None where it has no other answer beside it, or no reward."""

    category: str
    group: int
    of_group: int
    prompt: str
    completion: str
    items: Mapping[str, Mapping[str, Any]]
    """What each item gave, as it is kept with a sample."""
    dropped: tuple[str, ...]
    """Items that failed for an answer of the group, and so count for none of it."""
    reward: float | None
    advantage: float | None


def try_rubric(
    console: Console, file: str, answers: Path, judge: JudgeConfig | None, *, normalise: bool = False
) -> None:
    """An answer is a row's `completion`; `answer` is the truth, as everywhere."""
    rubric = read_rubric(file)
    rows = read_answers(answers, rubric)
    where = f"'{answers}'"
    fixed = FixedRubric(rubric, {category_of(rubric, row, n, where) for n, row in enumerate(rows, start=1)})
    refuse_without_judge(fixed.rubric, judge)
    for notice in fixed.notices:
        say(console, f"note: {notice}")
    from vigneron.rewards.rubric_build import Graders
    from vigneron.training.setup.resolve import newest_weights

    graders = Graders(judge, notice=lambda text: say(console, f"note: {text}"), weights=newest_weights, where="--judge")
    tried = tried_answers(rows, fixed, graders, normalise=normalise)
    weights = {name: {i.name: i.weight for i in category.items} for name, category in fixed.rubric.categories.items()}
    for number, one in enumerate(tried, start=1):
        show_answer(console, one, number, len(tried), weights[one.category])
    show_end(console, tried, fixed.version, graders.judge)


def read_answers(path: Path, rubric: Rubric) -> list[Row]:
    rows = read_rows(path)
    where = f"'{path}'"
    check_rows(rows, ["prompt"], where)
    for number, row in enumerate(rows, start=1):
        completion = row.get("completion")
        if completion is None:
            hint = did_you_mean("completion", row) if row else ""
            raise UserError(f"data: {where}, row {number} has no 'completion'{hint}: the answer that is to be scored")
        if not isinstance(completion, str) and not is_conversation(completion):
            raise UserError(f"data: {where}, row {number}: completion is neither a text nor messages")
    check_rubric_rows(rubric, rows, where)
    return rows


def refuse_without_judge(rubric: Rubric, judge: JudgeConfig | None) -> None:
    for name, category in rubric.categories.items():
        for item in category.items:
            if judge is None and isinstance(item, JudgeItem | VerifyItem):
                what = f"'{name}.{item.name}' is scored by a judge (flow: {item.flow})"
                raise UserError(f"{what}: name one, as in {EXAMPLE}, or a recipe that does")


def tried_answers(
    rows: Sequence[Row], fixed: FixedRubric, grader_of: Callable[[AnyItem], Grader], *, normalise: bool = False
) -> list[Tried]:
    """Eq. 15 over all answers of a category, and the advantage over the answers to one prompt. A failed item is
    missing, however many fail: nothing is stopped here."""
    import torch

    from vigneron.core.advantages import group_relative
    from vigneron.rewards.rubric_reward import RubricReward, question_text

    reward = RubricReward(fixed, grader_of, normalise=normalise, missing_limit=1.0)
    names = dict.fromkeys(name for row in rows for name in row if name not in ("prompt", "completion"))
    arguments: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
    arguments |= {"prompts": [row["prompt"] for row in rows], "completions": [row["completion"] for row in rows]}
    questions = [question_text(row["prompt"]) for row in rows]
    said: dict[str, Sequence[Any]] = {}
    begun = reward.begin(**arguments)()
    categories = [category_of(fixed.rubric, row, n, "the answers") for n, row in enumerate(rows, start=1)]
    numbers: dict[tuple[str, str], int] = {}
    groups = [numbers.setdefault(key, len(numbers)) for key in zip(categories, questions, strict=True)]
    rewards = reward.finish(begun, groups, **arguments, log_extra=lambda name, values: said.update({name: values}))
    known = torch.tensor([torch.nan if value is None else value for value in rewards], dtype=torch.float64)
    advantages = group_relative(known, torch.tensor(groups)).tolist()
    sizes, have = Counter(groups), Counter(g for g, value in zip(groups, rewards, strict=True) if value is not None)
    dropped: defaultdict[int, dict[str, None]] = defaultdict(dict)
    for group, entry in zip(groups, said["rubric"], strict=True):
        dropped[group] |= {name: None for name, verdict in entry["items"].items() if verdict["score"] is None}
    return [
        Tried(
            category=categories[i],
            group=groups[i],
            of_group=sizes[groups[i]],
            prompt=questions[i],
            completion=completion_text(row["completion"]),
            items=said["rubric"][i]["items"],
            dropped=tuple(dropped[groups[i]]),
            reward=rewards[i],
            advantage=advantages[i] if rewards[i] is not None and have[groups[i]] > 1 else None,
        )
        for i, row in enumerate(rows)
    ]


def show_answer(console: Console, tried: Tried, number: int, of: int, weights: Mapping[str, float]) -> None:
    beside = f", one of {tried.of_group} answers to question {tried.group + 1}" if tried.of_group > 1 else ""
    say(console, f"\nanswer {number} of {of}: {one_line(tried.category)}{beside}")
    for name, text in (("question", tried.prompt), ("response", tried.completion)):
        shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]} … ({len(text)} characters)"
        console.print(Text(f"{name}  ", style="dim") + Text(plain(shown) or "(empty)"))
    console.print(items_table(tried, weights))
    if tried.dropped:
        names = ", ".join(tried.dropped)
        say(console, f"left out of this question's rubric, for it failed: {one_line(names)}")
    reward = "missing: no item is left" if tried.reward is None else f"{tried.reward:.4f}"
    say(console, f"reward {reward}" + ("" if tried.advantage is None else f"   advantage {tried.advantage:+.4f}"))


def items_table(tried: Tried, weights: Mapping[str, float]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("item", overflow="fold", max_width=24)
    for heading in ("weight", "score", "conf."):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("said", overflow="fold", ratio=1)
    for name, verdict in tried.items.items():
        cells = [Text(name), Text(f"{weights[name]:.3g}")]
        if verdict["score"] is None:
            words = "\n".join(part for part in (f"failed: {verdict.get('why')}", verdict.get("critique")) if part)
            table.add_row(*cells, Text("missing", style="red"), Text(""), Text(plain(words), style="red"))
            continue
        words = "\n".join(part for part in (verdict.get("critique"), verdict.get("reasoning")) if part)
        score, confidence = f"{verdict['score']:.2f}", f"{verdict.get('confidence', 0.0):.2f}"
        table.add_row(*cells, Text(score), Text(confidence), Text(plain(words)))
    return table


def plain(text: str) -> str:
    """Control characters as escapes; lines stay lines."""
    return "\n".join(visible(line) for line in text.splitlines())


def show_end(console: Console, tried: Sequence[Tried], version: str, judge: Judge | None) -> None:
    scores = [verdict["score"] for one in tried for verdict in one.items.values()]
    missing = sum(score is None for score in scores)
    failed = f", {missing} missing: they count as nothing, never as 0" if missing else ""
    say(console, f"\nrubric {one_line(version)}: {len(tried)} answers, {len(scores)} scores{failed}")
    if judge is not None:
        tokens_in, tokens_out = judge.tokens
        say(
            console,
            f"judge {judge.name}: {judge.calls} calls, {tokens_in} tokens in, {tokens_out} out; "
            f"{judge.cached} replies were in the cache",
        )


def rubric_table(rubric: Rubric) -> Table:
    """A line for each item; its category's name stands beside the first one."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for heading in ("category", "item", "flow"):
        table.add_column(heading, overflow="fold")
    table.add_column("weight", justify="right")
    for name, category in rubric.categories.items():
        for place, item in enumerate(category.items):
            cells = ("" if place else name, item.name, item.flow, f"{item.weight:.3g}")
            table.add_row(*map(Text, cells))
    return table
