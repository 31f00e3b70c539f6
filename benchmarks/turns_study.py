"""The study of docs/results/turns.md: what games of several turns, self-play and debate teach a model of 135M.

python -m benchmarks.turns_study plan RUNS                            what can be begun, and the time of all
python -m benchmarks.turns_study work RUNS [--resume] [--budget S]    train what is left, in pieces; start it two or
                                                                      three times for one GPU
python -m benchmarks.turns_study show RUNS --figure FILE.svg          tables and figure; RUNS: a folder or an archive
python -m benchmarks.turns_study pack RUNS FILE.tar.xz                the logs' archive; `work --done FILE` reads it

Each arm has two recipes: a warm-up by SFT, trained once, which teaches the form of a turn and no good play, and GRPO
from there, with each seed. The evaluation before GRPO's first step is that of the warm-up. Greedy, on held-out rows.

    guess          games of 16 numbers; a find earns more the fewer guesses it took        reward
    maze           mazes of 4 x 4 cells; the goal earns more the shorter the way           reward
    sums-tool      large sums with a calculator                                            accuracy
    sums           the same sums without one, for as many steps                            accuracy
    nim            self-play; first moves that keep the value of the game, in 140 positions accuracy
    debate         two debaters quote to a judge: which list sums higher?                  the judge's accuracy
    consultancy    one consultant quotes to the same judge, right half of the time         the judge's accuracy

Learning rates: every arm's is chosen from RATES on tuning data with seed 100, by the mean score of all evaluations of a
shorter run; ties go to the middle rate. Nim is tuned on the 75 other positions (`turns_rows.py`). Consultancy is the
control of debate: its consultant is tuned to win the judge's probability, by reward, and not for the judge's accuracy.

Decision rule, written before the runs. Intervals are of paired differences, by a bootstrap over seeds and held-out
rows, 95 %. A run's score of a row is the mean of its last three evaluations.
1. A game (guess, maze, sums-tool, nim) is LEARNED if the interval of the score minus that before training lies above 0.
2. The calculator PAYS if that of sums-tool minus sums does.
3. Debate HELPS the judge if debate is learned by rule 1, and the interval of its gain (the score minus that before
training) minus consultancy's gain lies above 0 too: quotes at random help the judge more in debate than in consultancy.
"""

import fcntl
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pieces import Job, Plan, Study, parse, run_study
from benchmarks.study_settings import TUNING_SEED, StudySetting, chosen_rate, smallest
from benchmarks.study_store import Result, read_result
from benchmarks.turns_results import draw, show_scores, show_verdicts
from benchmarks.turns_rows import nim_data, write_nim_rows

RATES = (3e-6, 1e-5, 3e-5)
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Arm:
    warm_up: str
    recipe: str
    score: str
    """Of a held-out row: `reward` or `correct`."""
    steps: int
    step_s: float
    """What a step and a share of the evaluations is planned to take on an H200."""
    changes: tuple[str, ...] = ()
    """To the recipes of both steps."""
    role: str | None = None
    """Of a game: the role whose samples are its held-out rows."""
    tuned_by: str | None = None
    """The score by which its rate is chosen, if it is another one."""
    own_rows: bool = False
    """Whether its rows are those of `turns_rows`."""


WITHOUT_TOOL = ("environment=null", "reward={kind: binary}", "max_new_tokens=8", "data.task=sums")
ARMS = {
    "guess": Arm("sft-guess", "env-guess", "reward", 100, 0.8),
    "maze": Arm("sft-maze", "env-maze", "reward", 100, 1.5),
    "sums-tool": Arm("sft-sums-tool", "env-sums-tool", "correct", 60, 1.2),
    "sums": Arm("sft-sums-tool", "env-sums-tool", "correct", 60, 0.35, WITHOUT_TOOL),
    "nim": Arm("sft-nim", "self-play-nim", "correct", 100, 0.8, role="first", own_rows=True),
    "debate": Arm("sft-debate", "debate-sums", "correct", 100, 0.7, role="a"),
    "consultancy": Arm("sft-debate", "consultancy-sums", "correct", 100, 0.5, role="consultant", tuned_by="reward"),
}


@dataclass(frozen=True, kw_only=True)
class Setting(StudySetting):
    """An arm has its own number of steps; `steps` are those of the longest."""

    steps: int = 100
    tuning_steps: int = 40
    eval_every: int = 20
    rates: tuple[float, ...] = RATES
    seeds: tuple[int, ...] = SEEDS
    smoke: bool = False

    def changes_of(self, arm: Arm) -> tuple[str, ...]:
        small = ("prompts_per_step=2", "max_new_tokens=4", "model.device=cpu") if self.smoke else ()
        return (*arm.changes, "model.compile=false", *small)


def smoke(model: str) -> Setting:
    return Setting(**smallest(model), rates=(1e-5,), smoke=True)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- jobs


def warmed_up(runs: Path, arm: Arm) -> Path:
    """Where the model is after the arm's warm-up, which arms may share. It is no job: a machine that takes over jobs of
    another trains it again."""
    return (runs / ".warm-ups" / f"{arm.warm_up}{'-changed' if arm.changes else ''}").resolve()


def warm_up(setting: Setting, runs: Path, arm: Arm) -> None:
    """Train an arm's warm-up if it is not there; a process that comes meanwhile waits."""
    from vigneron import api
    from vigneron.recipe import load_config

    folder = warmed_up(runs, arm)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return
        steps = ("steps=2", 'model.chat="minted"') if setting.smoke else ()
        changes = (f"model.name={setting.model}", *setting.changes_of(arm), *steps, "eval_every=0", "save_every=0")
        draft = folder.with_suffix(".training")
        shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
        trained = api.train(load_config(arm.warm_up, changes), runs=draft.parent, name=draft.name)
        (checkpoint,) = (trained.folder / "checkpoints").glob("step-*")
        checkpoint.rename(folder)
        shutil.rmtree(draft)


def job(setting: Setting, runs: Path, name: str, rate: float, seed: int, *, tuned: bool) -> Job:
    arm = ARMS[name]
    steps = min(arm.steps, setting.steps if tuned else setting.tuning_steps)
    part = "held_out" if tuned else "tuning"
    data = nim_data(runs, part) if arm.own_rows else f"data.held_out={part}"
    changes = (
        f"recipe={name}",
        *setting.changes_of(arm),
        *(("group_size=2",) if setting.smoke else ()),
        *setting.run_changes(steps, seed, rate),
        f"model.name={warmed_up(runs, arm)}",
        data,
    )
    return Job(
        f"{name}-seed-{seed}" if tuned else f"tune-{name}-rate-{rate:g}",
        arm.recipe,
        changes,
        {"tuned": tuned, "arm": name, "rate": rate, "seed": seed},
        setting.planned_seconds(steps, arm.step_s, 0.0),
        row_score=arm.score if tuned else arm.tuned_by or arm.score,
        role=arm.role,
        prepare=lambda: _prepare(setting, runs, arm),
    )


def _prepare(setting: Setting, runs: Path, arm: Arm) -> None:
    warm_up(setting, runs, arm)
    if arm.own_rows:
        write_nim_rows(runs)


def plan(setting: Setting, runs: Path) -> Plan:
    """The jobs of one rate or seed come together, so that several processes begin with different warm-ups."""
    tuning = [job(setting, runs, name, rate, TUNING_SEED, tuned=False) for rate in setting.rates for name in ARMS]
    tried = {name: [read_result(runs, one.name) for one in tuning if one.labels["arm"] == name] for name in ARMS}
    rates = {name: chosen_rate(tried[name], setting.rates) for name in ARMS}
    main = [
        job(setting, runs, name, rate, seed, tuned=True)
        for seed in setting.seeds
        for name, rate in rates.items()
        if rate is not None
    ]
    return Plan([*tuning, *main], None in rates.values())


# ---------------------------------------------------------------------------------------------- command line


def show(results: Sequence[Result], figure: Path | None) -> None:
    print(show_scores(results), show_verdicts(results), sep="\n\n")
    if figure is not None:
        draw(results, figure)


def study(setting: Setting) -> Study:
    def total() -> float:
        jobs = [
            len(setting.seeds if tuned else setting.rates) * job(setting, Path(), name, 1e-5, 0, tuned=tuned).seconds
            for name in ARMS
            for tuned in (False, True)
        ]
        return sum(jobs)

    return Study(lambda runs: plan(setting, runs), {}, total, processes=3)


def main(given: Sequence[str] | None = None) -> int:
    asked = parse("turns_study", __doc__, given)

    def planned() -> Study:
        return study(smoke(asked.model) if asked.smoke else Setting(model=asked.model))

    return run_study(asked, show, planned)


if __name__ == "__main__":
    sys.exit(main())
