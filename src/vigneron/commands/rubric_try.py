"""`vigneron rubric try`: score the answers of a file and show the scores and critiques of each item."""

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
from vigneron.data.dataset import check_rows
from vigneron.data.formats import is_conversation
from vigneron.data.prompts import Row, completion_text
from vigneron.data.sources import read_rows
from vigneron.errors import UserError, did_you_mean, visible
from vigneron.files import user_path
from vigneron.recipe import config_text, load_config, parse_yaml, recipe_names, recipe_text
from vigneron.report.terminal import say
from vigneron.rubric.fences import one_line
from vigneron.rubric.live_rubric import FixedRubric
from vigneron.rubric.model import AnyItem, JudgeItem, Rubric, VerifyItem
from vigneron.rubric.read import read_rubric
from vigneron.rubric.rows import category_of, check_rubric_rows
from vigneron.sources.judges import Judge
from vigneron.sources.verdict import Grader
from vigneron.validation import field_errors

FILES = (".yaml", ".yml", ".json")
EXAMPLE = "--judge '{kind: endpoint, model: gpt-4o-mini}'"


class _JudgeOption(Strict):
    judge: JudgeConfig


def parse_judge(option: str, flag: str = "--judge") -> JudgeConfig:
    """The option is YAML or JSON, or the name of a recipe or a file: a recipe, a run's config, or a judge's mapping."""
    name = parse_yaml(option, flag)
    if isinstance(name, Mapping):
        return _validated(name, flag)
    if not isinstance(name, str):
        example = EXAMPLE.replace("--judge", flag)
        raise UserError(f"{flag}: expected a mapping, a recipe or a file, not {option!r}: e.g. {example}")
    if name not in recipe_names() and Path(name).suffix not in FILES and not user_path(name).exists():
        given = EXAMPLE.replace("--judge", flag).replace("gpt-4o-mini", name)
        raise UserError(f"{flag}: '{name}' is no recipe and no file: for a model of that name, {given}, or kind: local")
    content = parse_yaml(_text(name), name)
    if isinstance(content, Mapping) and "kind" in content and "reward" not in content:
        return _validated(content, name)
    reward = load_config(name).reward
    judge = getattr(reward, "judge", None)
    if judge is None:
        raise UserError(f"{flag}: '{name}' has no `reward.judge`")
    return judge


def _text(name: str) -> str:
    if Path(name).suffix != ".json":
        return recipe_text(name)
    return config_text(user_path(name), f"'{name}'", "--judge: ")


def _validated(judge: Mapping[str, Any], where: str) -> JudgeConfig:
    whole = {"judge": dict(judge)}
    try:
        return _JudgeOption.model_validate(whole).judge
    except ValidationError as errors:
        lines = [fault.line for fault in field_errors(errors.errors(), whole, _JudgeOption, "the judge")]
        raise UserError("\n".join(f"{where}: {visible(line)}" for line in lines)) from errors


LONGEST_SHOWN = 600
"""Characters of a prompt or a completion."""


@dataclass(frozen=True)
class ScoredAnswer:
    """One answer. `advantage` is None without a reward, or without another answer to the same prompt."""

    category: str
    group: int
    group_size: int
    prompt: str
    completion: str
    items: Mapping[str, Mapping[str, Any]]
    """Each item's verdict, in the form stored with a sample."""
    dropped: tuple[str, ...]
    """Items that failed for an answer of the group and are dropped for the whole group."""
    reward: float | None
    advantage: float | None


def try_rubric(
    console: Console, file: str, answers: Path, judge: JudgeConfig | None, *, normalise: bool = False
) -> None:
    """The column `completion` is scored; `answer` is the reference answer."""
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
    scored = score_answers(rows, fixed, graders, normalise=normalise)
    weights = {name: {i.name: i.weight for i in category.items} for name, category in fixed.rubric.categories.items()}
    for number, answer in enumerate(scored, start=1):
        show_answer(console, answer, number, len(scored), weights[answer.category])
    show_totals(console, scored, fixed.version, graders.judge)


def read_answers(path: Path, rubric: Rubric) -> list[Row]:
    rows = read_rows(path)
    where = f"'{path}'"
    check_rows(rows, ["prompt"], where)
    for number, row in enumerate(rows, start=1):
        completion = row.get("completion")
        if completion is None:
            hint = did_you_mean("completion", row) if row else ""
            raise UserError(f"data: {where}, row {number} has no 'completion'{hint}: the answer to score")
        if not isinstance(completion, str) and not is_conversation(completion):
            raise UserError(f"data: {where}, row {number}: completion is neither a string nor a list of messages")
    check_rubric_rows(rubric, rows, where)
    return rows


def refuse_without_judge(rubric: Rubric, judge: JudgeConfig | None) -> None:
    for name, category in rubric.categories.items():
        for item in category.items:
            if judge is None and isinstance(item, JudgeItem | VerifyItem):
                what = f"'{name}.{item.name}' is scored by a judge (flow: {item.flow})"
                raise UserError(f"{what}: add one, e.g. {EXAMPLE}, or --judge RECIPE")


def score_answers(
    rows: Sequence[Row], fixed: FixedRubric, grader_of: Callable[[AnyItem], Grader], *, normalise: bool = False
) -> list[ScoredAnswer]:
    """The reward (eq. 15) over all answers of a category, and the advantage over the answers to one prompt. A failed
    item is missing; any number may fail without an error."""
    import torch

    from vigneron.core.advantages import group_relative
    from vigneron.rewards.rubric_reward import RubricReward, question_text

    reward = RubricReward(fixed, grader_of, normalise=normalise, missing_limit=1.0)
    names = dict.fromkeys(name for row in rows for name in row if name not in ("prompt", "completion"))
    arguments: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
    arguments |= {"prompts": [row["prompt"] for row in rows], "completions": [row["completion"] for row in rows]}
    questions = [question_text(row["prompt"]) for row in rows]
    extras: dict[str, Sequence[Any]] = {}
    begun = reward.begin(**arguments)()
    categories = [category_of(fixed.rubric, row, n, "the answers") for n, row in enumerate(rows, start=1)]
    numbers: dict[tuple[str, str], int] = {}
    groups = [numbers.setdefault(key, len(numbers)) for key in zip(categories, questions, strict=True)]
    rewards = reward.finish(begun, groups, **arguments, log_extra=lambda name, values: extras.update({name: values}))
    known = torch.tensor([torch.nan if value is None else value for value in rewards], dtype=torch.float64)
    advantages = group_relative(known, torch.tensor(groups)).tolist()
    sizes, have = Counter(groups), Counter(g for g, value in zip(groups, rewards, strict=True) if value is not None)
    dropped: defaultdict[int, dict[str, None]] = defaultdict(dict)
    for group, entry in zip(groups, extras["rubric"], strict=True):
        dropped[group] |= {name: None for name, verdict in entry["items"].items() if verdict["score"] is None}
    return [
        ScoredAnswer(
            category=categories[i],
            group=groups[i],
            group_size=sizes[groups[i]],
            prompt=questions[i],
            completion=completion_text(row["completion"]),
            items=extras["rubric"][i]["items"],
            dropped=tuple(dropped[groups[i]]),
            reward=rewards[i],
            advantage=advantages[i] if rewards[i] is not None and have[groups[i]] > 1 else None,
        )
        for i, row in enumerate(rows)
    ]


def show_answer(console: Console, answer: ScoredAnswer, number: int, of: int, weights: Mapping[str, float]) -> None:
    position = f", one of {answer.group_size} answers to question {answer.group + 1}" if answer.group_size > 1 else ""
    say(console, f"\nanswer {number} of {of}: {one_line(answer.category)}{position}")
    for name, text in (("question", answer.prompt), ("response", answer.completion)):
        shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]} … ({len(text)} characters)"
        console.print(Text(f"{name}  ", style="dim") + Text(plain(shown) or "(empty)"))
    console.print(items_table(answer, weights))
    if answer.dropped:
        names = ", ".join(answer.dropped)
        say(console, f"dropped for all answers to this question because they failed: {one_line(names)}")
    reward = "missing: every item failed in this group" if answer.reward is None else f"{answer.reward:.4f}"
    say(console, f"reward {reward}" + ("" if answer.advantage is None else f"   advantage {answer.advantage:+.4f}"))


def items_table(answer: ScoredAnswer, weights: Mapping[str, float]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("item", overflow="fold", max_width=24)
    for heading in ("weight", "score", "conf."):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("critique", overflow="fold", ratio=1)
    for name, verdict in answer.items.items():
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
    """Control characters as escapes; line breaks are kept."""
    return "\n".join(visible(line) for line in text.splitlines())


def show_totals(console: Console, answers: Sequence[ScoredAnswer], version: str, judge: Judge | None) -> None:
    scores = [verdict["score"] for answer in answers for verdict in answer.items.values()]
    missing = sum(score is None for score in scores)
    failed = f", {missing} missing (ignored, not counted as 0)" if missing else ""
    say(console, f"\nrubric {one_line(version)}: {len(answers)} answers, {len(scores)} scores{failed}")
    if judge is not None:
        tokens_in, tokens_out = judge.tokens
        say(
            console,
            f"judge {judge.name}: {judge.calls} calls, {tokens_in} tokens in, {tokens_out} out; "
            f"{judge.cached} replies from the cache",
        )


def rubric_table(rubric: Rubric) -> Table:
    """One row per item; the category is shown in the first row of its items."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for heading in ("category", "item", "flow"):
        table.add_column(heading, overflow="fold")
    table.add_column("weight", justify="right")
    for name, category in rubric.categories.items():
        for place, item in enumerate(category.items):
            cells = ("" if place else name, item.name, item.flow, f"{item.weight:.3g}")
            table.add_row(*map(Text, cells))
    return table
