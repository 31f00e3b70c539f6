"""`vigneron rubric atomize`: a judge proposes verifiable items for a vague one; the user accepts or rejects each."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from vigneron.commands.new_file import check_new_file
from vigneron.commands.rubric_try import plain
from vigneron.config import JudgeConfig
from vigneron.errors import UserError
from vigneron.files import write_for_user
from vigneron.policy.bundled import cache_folder
from vigneron.report.terminal import say
from vigneron.rewards.graders.build import build_grader
from vigneron.rubric.atomize import (
    Proposal,
    atomize_prompt,
    check_proposals,
    check_share,
    find_item,
    next_version,
    request_proposals,
    with_parts,
)
from vigneron.rubric.fences import one_line
from vigneron.rubric.formats.vigneron_write import rubric_file_text
from vigneron.rubric.model import AnyItem, Rubric, VerifyItem
from vigneron.rubric.read import SUFFIXES, read_rubric, rubric_version
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import build_judge


def atomize(
    console: Console,
    file: str,
    name: str,
    config: JudgeConfig,
    *,
    category: str | None = None,
    share: float = 0.5,
    accept: str | None = None,
    out: Path | None = None,
) -> None:
    """All arguments are checked before the judge is queried. Nothing is written unless the user accepts: with
    `accept`, the numbers of the proposals, or one by one at a terminal."""
    rubric = read_rubric(file)
    place, item = find_item(rubric, name, category)
    check_share(share)
    numbers = None if accept is None else _numbers(accept)
    if accept is not None and out is None:
        raise UserError("--accept needs --out: the file for the new rubric")
    at_terminal = accept is None and sys.stdin.isatty()
    target = out or Path(f"{Path(file).stem}-{next_version(rubric.version)}.yaml")
    if out is not None or at_terminal:
        check_new_file(target, SUFFIXES)
    judge = build_judge(config, cache=AnswerCache(cache_folder() / "judges.sqlite"), where="--judge")
    judge.preflight()
    given = request_proposals(judge, atomize_prompt(rubric, place, item))
    proposals = check_proposals(given, [other.name for other in rubric.categories[place].items], _check_grader)
    show_proposals(console, f"{place}.{name}", proposals)
    if numbers is not None:
        accepted = select_proposals(proposals, numbers)
    elif at_terminal:
        accepted = confirm_each(proposals, lambda question: _confirmed(console, question))
    else:
        accepted = []
        if any(proposal.item for proposal in proposals):
            say(console, "nothing is written: to accept proposals add e.g. --accept 1,2 --out NEW.yaml")
    if accepted:
        new_rubric = with_parts(rubric, place, name, accepted, share)
        _write(console, new_rubric, target, name, share, accepted)


def show_proposals(console: Console, of: str, proposals: Sequence[Proposal]) -> None:
    say(console, f"{len(proposals)} proposals for '{one_line(of)}'")
    for number, proposal in enumerate(proposals, start=1):
        good = proposal.item is not None
        held = proposal.item.model_dump(mode="json", exclude_defaults=True) if proposal.item else proposal.given
        console.print(Text(f"\n{number}  ", style="bold") + Text(plain(json.dumps(held, ensure_ascii=False, indent=2))))
        for line in proposal.errors:
            console.print(Text(f"   cannot be accepted: {plain(line)}", style="red"), soft_wrap=True)
        if good and isinstance(proposal.item, VerifyItem):
            say(console, f"   every row of the data needs the column '{one_line(proposal.item.truth)}'")


def select_proposals(proposals: Sequence[Proposal], numbers: Sequence[int]) -> list[AnyItem]:
    items: list[AnyItem] = []
    for number in numbers:
        if not 1 <= number <= len(proposals):
            raise UserError(f"--accept: no proposal {number}: the numbers are 1 to {len(proposals)}")
        item = proposals[number - 1].item
        if item is None:
            raise UserError(
                f"--accept: proposal {number} cannot be accepted: {'; '.join(proposals[number - 1].errors)}"
            )
        items.append(item)
    return items


def confirm_each(proposals: Sequence[Proposal], ask: Callable[[str], bool]) -> list[AnyItem]:
    return [
        proposal.item
        for number, proposal in enumerate(proposals, start=1)
        if proposal.item is not None and ask(f"accept {number}, '{proposal.item.name}'?")
    ]


def _confirmed(console: Console, question: str) -> bool:
    """Anything but y or yes is a no, the end of the input too."""
    say(console, f"{question} [y/n]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _numbers(accept: str) -> list[int]:
    parts = [part.strip() for part in accept.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts) or len(set(parts)) < len(parts):
        raise UserError(f"--accept: expected numbers of proposals such as 1,3, not {accept!r}")
    return [int(part) for part in parts]


def _check_grader(item: AnyItem) -> None:
    """Build the item's grader, which raises an error for an invalid schema or pattern."""
    if not isinstance(item, VerifyItem):
        build_grader(item, render=lambda template, sample: template)


def _write(console: Console, rubric: Rubric, out: Path, name: str, share: float, accepted: Sequence[AnyItem]) -> None:
    check_new_file(out, SUFFIXES)
    write_for_user(out, rubric_file_text(rubric, json_form=out.suffix == ".json", where=f"'{out}'"))
    names = ", ".join(f"'{item.name}'" for item in accepted)
    say(console, f"accepted {names}: {share:.0%} of the weight of '{name}'")
    say(console, f"wrote {out}: version {one_line(rubric_version(rubric))}")
