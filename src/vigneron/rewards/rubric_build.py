"""The rubric reward that a config asks for: its file, its judge, and a grader for each of its items."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vigneron.config import JudgeConfig, RubricRewardConfig
from vigneron.errors import UserError
from vigneron.policy.bundled import cache_folder
from vigneron.rewards.graders.build import build_grader
from vigneron.rewards.graders.models import Judged
from vigneron.rewards.rubric_reward import RubricReward
from vigneron.rubric.live_rubric import Book
from vigneron.rubric.model import AnyItem, JudgeItem, RewardModelItem, Rubric, VerifyItem
from vigneron.rubric.templates import render_plain
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import Judge, build_judge
from vigneron.sources.placement import HERE, Places
from vigneron.sources.verdict import Grader

Notice = Callable[[str], None]


def build_rubric_reward(
    config: RubricRewardConfig,
    *,
    file: Path | None = None,
    judge: JudgeConfig | None = None,
    cache: Path | None = None,
    device: str = "cpu",
    preflight: bool = True,
    notice: Notice = lambda text: None,
    weights: Callable[[str], str] = str,
    check: Callable[[Rubric], None] = lambda rubric: None,
    missing_limit: float | None = None,
    where: str = "reward.judge",
    places: Places = HERE,
) -> RubricReward:
    """`file` and `judge` stand for the config's where they are given. What is wrong with an item, or with the judge, is
    said before anything is sampled. `weights` finds the model that a name stands for, a run's newest among them;
    `check` refuses a changed file that does not fit the data."""
    book = Book(file if file is not None else Path(config.file))
    for text in book.notices:
        notice(text)
    graders = Graders(judge or config.judge, cache, device, preflight, notice, weights, where, places)
    return RubricReward(
        book,
        graders,
        normalise=config.normalise,
        weigh_by_confidence=config.weigh_by_confidence,
        missing_limit=config.missing_limit if missing_limit is None else missing_limit,
        notice=notice,
        stop=graders.stop,
        check=check,
    )


@dataclass
class Graders:
    """A grader for an item. The judge is made for the first item that needs one; items share the models they name."""

    config: JudgeConfig | None
    cache: Path | None = None
    device: str = "cpu"
    preflight: bool = True
    notice: Notice = lambda text: None
    weights: Callable[[str], str] = str
    where: str = "reward.judge"
    """What errors call the judge's config."""
    places: Places = HERE
    judge: Judge | None = field(default=None, init=False)
    _loaded: dict[tuple[str, str], Any] = field(default_factory=dict, init=False)

    def __call__(self, item: AnyItem) -> Grader:
        if isinstance(item, JudgeItem | VerifyItem):
            return Judged(item, self._judge_for(item))
        if isinstance(item, RewardModelItem):
            item = item.model_copy(update={"model": self.weights(item.model)})
        return build_grader(
            item,
            render=lambda template, sample: render_plain(template, sample, item),
            cache=self.cache,
            device=self.device,
            loaded=self._loaded,
            places=self.places,
        )

    def _judge_for(self, item: AnyItem) -> Judge:
        if self.config is None:
            raise UserError(
                f"{self.where}: the rubric's item '{item.name}' is scored by a judge (flow: {item.flow}): "
                "name one, as in `judge: {kind: endpoint, model: gpt-4o-mini}`"
            )
        if self.judge is None:
            kept = AnswerCache(cache_folder() / "judges.sqlite")
            judge = build_judge(self.config, cache=kept, device=self.device, where=self.where, voice=self.places.voice)
            if self.preflight:
                judge.preflight()
            if judge.notice is not None:
                self.notice(judge.notice)
            self.judge = judge
        return self.judge

    def stop(self) -> None:
        if self.judge is not None:
            self.judge.stop()
