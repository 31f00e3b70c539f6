"""What the commands that call a judge share: opening it, reading prompts, and the line about what it cost."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from vigneron.commands.rubric_try import parse_judge
from vigneron.config.judges import LocalJudgeConfig
from vigneron.data.dataset import check_rows
from vigneron.data.formats import with_prompts_and_answers
from vigneron.data.prompts import Row
from vigneron.data.sources import is_data_file, read_rows
from vigneron.files import check_out as check_out
from vigneron.files import write_rows as write_rows
from vigneron.policy.bundled import cache_folder
from vigneron.recipe import load_config
from vigneron.report.terminal import say
from vigneron.run_data.load import load_data
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import Judge, build_judge
from vigneron.training.setup.resolve import newest_weights


@contextmanager
def open_judge(console: Console, option: str, flag: str = "--judge") -> Iterator[Judge]:
    """Checked before anything is requested. Replies are cached: a command that was stopped pays for nothing twice. A
    local model may be a run's folder."""
    config = parse_judge(option, flag)
    if isinstance(config, LocalJudgeConfig):
        config = config.model_copy(update={"model": newest_weights(config.model, f"{flag}.model")})
    judge = build_judge(config, cache=AnswerCache(cache_folder() / "judges.sqlite"), device="auto", where=flag)
    judge.preflight()
    if judge.notice is not None:
        say(console, f"note: {judge.notice}")
    try:
        yield judge
        tokens_in, tokens_out = judge.tokens
        say(
            console,
            f"{judge.name}: {judge.calls} calls, {tokens_in} tokens in, {tokens_out} out; "
            f"{judge.cached} replies from the cache",
        )
    finally:
        judge.stop()


def prompt_rows(source: str, limit: int | None) -> tuple[Sequence[Row], Sequence[Row]]:
    """The rows of a file, or the training and the held-out rows of a recipe's data."""
    if is_data_file(source):
        rows = with_prompts_and_answers(read_rows(source), f"'{source}'")
        check_rows(rows, ["prompt"], f"'{source}'")
        return rows[:limit], []
    data = load_data(load_config(source))
    return data.train[:limit], data.held_out


def reads_hint(judge: Judge, why: str | None) -> str | None:
    """With the way out for a model that does not write JSON; a Python judge has none."""
    if why is None or "not one JSON object" not in why or judge.name.startswith("python:"):
        return why
    return f"{why}; `reads: digits` or `reads: yes_no` in --judge needs no JSON"


def note_missing(tell: Callable[[str], None], count: int, what: str, why: str | None) -> None:
    if count:
        tell(f"note: {count} {what}; the first: {why}")
