"""`vigneron roleplay`: one model plays all roles of scenes and interviews, written as rows for SFT."""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from vigneron.commands.judging import check_out, note_missing, open_judge, write_rows
from vigneron.errors import UserError
from vigneron.report.terminal import say
from vigneron.selfplay.roleplay import Played, games_of, play_all
from vigneron.selfplay.scenes import read_scenes


@dataclass(frozen=True)
class RoleplayOptions:
    scenes: str
    model: str
    out: Path
    rounds: int = 1
    turns: int = 3
    samples: int = 1
    temperature: float | None = None

    def check(self) -> None:
        check_out(self.out)
        if self.samples > 1 and self.temperature is None:
            raise UserError("--samples needs --temperature: without one, all samples of a scene are the same")


def write_roleplay(console: Console, options: RoleplayOptions) -> None:
    """All files and the model are checked before the first request."""
    options.check()
    scenes = read_scenes(options.scenes)
    if options.rounds > 1 and not scenes.scenes:
        raise UserError(f"--rounds has no effect: '{options.scenes}' has no scenes")
    with open_judge(console, options.model, "--model") as model:
        played: list[Played] = []
        for sample in range(options.samples):
            games = games_of(scenes, options.rounds, options.turns)
            say(console, f"playing {len(games)} scenes and dialogues{f', sample {sample + 1}' * (options.samples > 1)}")
            played += play_all(model, games, options.temperature or 0.0, sample)
        failed = [one.failure for one in played if one.failure is not None]
        rows = [one.game.row(one.talks) for one in played if one.failure is None]
        if not rows:
            raise UserError(f"no row was written: the model gave no reply ({failed[0].why})")
        write_rows(options.out, rows)
    why = failed[0].why if failed else None
    note_missing(partial(say, console), len(failed), "scenes or dialogues are left out", why)
    kinds = Counter("scenes" if "scene" in row else "dialogues" for row in rows)
    counts = ", ".join(f"{kinds[kind]} {kind}" for kind in ("scenes", "dialogues") if kinds[kind])
    changed = sum(row["messages"][-1]["content"] != row["first_answer"] for row in rows if "scene" in row)
    revised = f"; {changed} answers were changed by what followed" if kinds["scenes"] else ""
    say(console, f"wrote {options.out}: {len(rows)} rows ({counts}){revised}")
    say(console, f"method: {{name: sft}}\ndata: {{train: {options.out}}}")
