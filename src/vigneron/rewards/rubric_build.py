"""Build the rubric reward of a config: the rubric file, the judge, and a grader for each item."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vigneron.config import JudgeConfig, RubricRewardConfig
from vigneron.errors import UserError
from vigneron.policy.bundled import cache_folder
from vigneron.rewards.rubric_reward import RubricReward
from vigneron.rubric.live_rubric import LiveRubric
from vigneron.rubric.model import AnyItem, CodeItem, JudgeItem, RewardModelItem, Rubric, VerifyItem
from vigneron.rubric.templates import render_plain
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import Judge, build_judge
from vigneron.sources.placement import IN_PROCESS, ModelPlacement
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
    placement: ModelPlacement = IN_PROCESS,
) -> RubricReward:
    """Raises a `UserError` for a broken item or judge, before anything is sampled.

    `file` and `judge` override the config's. `weights` resolves a model name, such as a run's folder. `check` refuses
    an edited rubric that does not fit the data.
    """
    live = LiveRubric(file if file is not None else Path(config.file))
    for text in live.notices:
        notice(text)
    graders = Graders(judge or config.judge, cache, device, preflight, notice, weights, where, placement)
    return RubricReward(
        live,
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
    """Makes the grader of an item. Items share one judge, built when first needed, and models of the same name."""

    config: JudgeConfig | None
    cache: Path | None = None
    device: str = "cpu"
    preflight: bool = True
    notice: Notice = lambda text: None
    weights: Callable[[str], str] = str
    where: str = "reward.judge"
    """The judge's config key, for errors."""
    placement: ModelPlacement = IN_PROCESS
    judge: Judge | None = field(default=None, init=False)
    _loaded: dict[tuple[str, str], Any] = field(default_factory=dict, init=False)
    _runs_code: bool = field(default=False, init=False)

    def __call__(self, item: AnyItem) -> Grader:
        from vigneron.rewards.graders.build import build_grader
        from vigneron.rewards.graders.models import JudgeGrader

        if isinstance(item, JudgeItem | VerifyItem):
            return JudgeGrader(item, self._judge_for(item))
        self._runs_code |= isinstance(item, CodeItem)
        if isinstance(item, RewardModelItem):
            item = item.model_copy(update={"model": self.weights(item.model)})
        return build_grader(
            item,
            render=lambda template, sample: render_plain(template, sample, item),
            cache=self.cache,
            device=self.device,
            loaded=self._loaded,
            placement=self.placement,
            notice=self.notice,
        )

    def _judge_for(self, item: AnyItem) -> Judge:
        if self.config is None:
            raise UserError(
                f"{self.where}: the rubric's item '{item.name}' is scored by a judge (flow: {item.flow}): "
                "set one, for example `judge: {kind: endpoint, model: gpt-4o-mini}`"
            )
        if self.judge is None:
            judge = build_judge(
                self.config,
                cache=AnswerCache(cache_folder() / "judges.sqlite"),
                device=self.device,
                where=self.where,
                local_backend=self.placement.judge_backend,
            )
            if self.preflight:
                judge.preflight()
            if judge.notice is not None:
                self.notice(judge.notice)
            self.judge = judge
        return self.judge

    def stop(self) -> None:
        if self.judge is not None:
            self.judge.stop()
        if self._runs_code:
            from vigneron.sandbox.testers import end_idle

            end_idle()
