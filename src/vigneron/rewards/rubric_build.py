"""The rubric reward that a config asks for: its file, its judge, and a grader for each of its items."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vigneron.config import JudgeConfig, RubricRewardConfig
from vigneron.errors import UserError
from vigneron.policy.bundled import cache_folder
from vigneron.rewards.graders.build import build_grader
from vigneron.rewards.graders.judged import Judged
from vigneron.rewards.rubric_reward import RubricReward
from vigneron.rubric.book import Book
from vigneron.rubric.model import AnyItem, JudgeItem, VerifyItem
from vigneron.rubric.templates import render_plain
from vigneron.rubric.verdict import Grader
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import Judge, build_judge


def build_rubric_reward(
    config: RubricRewardConfig,
    *,
    file: Path | None = None,
    judge: JudgeConfig | None = None,
    cache: Path | None = None,
    device: str = "cpu",
    preflight: bool = True,
    notice: Callable[[str], None] = lambda text: None,
) -> RubricReward:
    """`file` and `judge` stand for the config's where they are given. What is wrong with an item, or with the judge, is
    said before anything is sampled."""
    book = Book(file if file is not None else Path(config.file))
    for text in book.notices:
        notice(text)
    grader_of = graders(judge or config.judge, cache=cache, device=device, preflight=preflight, notice=notice)
    return RubricReward(book, grader_of, normalise=config.normalise, missing_limit=config.missing_limit, notice=notice)


def graders(
    config: JudgeConfig | None,
    *,
    cache: Path | None = None,
    device: str = "cpu",
    preflight: bool = True,
    notice: Callable[[str], None] = lambda text: None,
    where: str = "reward.judge",
) -> Callable[[AnyItem], Grader]:
    """A grader for an item. The judge is made for the first item that needs one; models are shared by items. `where` is
    what errors call the judge's config."""
    loaded: dict[tuple[str, str], Any] = {}
    judges: list[Judge] = []

    def judge(item: AnyItem) -> Judge:
        if config is None:
            raise UserError(
                f"{where}: the rubric's item '{item.name}' is scored by a judge (flow: {item.flow}): "
                "name one, as in `judge: {kind: endpoint, model: gpt-4o-mini}`"
            )
        if not judges:
            made = build_judge(config, cache=AnswerCache(cache_folder() / "judges.sqlite"), device=device, where=where)
            if preflight:
                made.preflight()
            if made.notice is not None:
                notice(made.notice)
            judges.append(made)
        return judges[0]

    def grader_of(item: AnyItem) -> Grader:
        if isinstance(item, JudgeItem | VerifyItem):
            return Judged(item, judge(item))
        return build_grader(
            item,
            render=lambda template, sample: render_plain(template, sample, item),
            cache=cache,
            device=device,
            loaded=loaded,
        )

    return grader_of
