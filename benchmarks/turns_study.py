"""The study of docs/results/turns.md: what games of several turns, self-play and debate teach a model of 135M.

python -m benchmarks.turns_study plan RUNS                            what can be begun, and the time of all
python -m benchmarks.turns_study work RUNS [--resume] [--budget S]    train what is left, in pieces; start it two or
                                                                      three times for one GPU
python -m benchmarks.turns_study show RUNS --figure FILE.svg          tables and figure; RUNS: a folder or an archive
python -m benchmarks.turns_study pack RUNS FILE.tar.xz                the logs' archive; `work --done FILE` reads it

Each arm has two recipes: a warm-up by SFT with each seed, which teaches the form of a turn and no good play, and GRPO
from there. The evaluation before GRPO's first step is that of the warm-up. Greedy, on held-out rows. The minutes of the
plan were written before any run; docs/results/turns.md has the measured ones. `python -m benchmarks.turns_quotes` works
out what the judge of the debates had seen.

    guess          games of 16 numbers; a find earns more the fewer guesses it took        reward
    maze           mazes of 4 x 4 cells; the goal earns more the shorter the way           reward
    sums-tool      large sums with a calculator                                            accuracy
    sums           the same sums without one, for as many steps                            accuracy
    nim            self-play; first moves that keep the value of the game                  accuracy
    debate         two debaters quote to a judge: which list sums higher?                  the judge's accuracy
    consultancy    one consultant quotes to the same judge, right half of the time         the judge's accuracy

Learning rates: every arm's is chosen from RATES on tuning data with seed 100, by the mean score of all evaluations of a
shorter run; ties go to the middle rate. Where one at the edge is best, the next is tried too. Nim is tuned on other
positions than it is scored in (`turns_rows.py`). Consultancy is the control of debate: its consultant is tuned to win
the judge's probability, by reward, and not for the judge's accuracy.

Decision rule, written before the runs. A unit counts once, with the mean of its rows: the 17 ranges of `guess`, 100
mazes, 160 sums, 100 questions of `debate` and `consultancy`, each asked for both sides, and at Nim a set of piles.
Intervals are of paired differences, by a bootstrap over seeds and units, 95 %. A run's score of a row is the mean of
its last three evaluations. A verdict needs all three seeds of its arms.
1. A game (guess, maze, sums-tool, nim) is LEARNED if the interval of the score minus that before training lies above 0.
Nim is scored in the held-out positions that can be won and where no game of training starts, 55 of 13 sets of piles.
An illegal move before training counts there as a legal one at random would, so that moves which are legal and no better
than chance are not learned.
2. The calculator PAYS if that of sums-tool minus sums does.
3. Debate HELPS the judge if debate is learned by rule 1, and the interval of its gain (the score minus that before
training) minus consultancy's gain lies above 0 too: quotes at random help the judge more in debate than in consultancy.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path

from benchmarks.pieces import Job, Plan, Study, parse, run_study
from benchmarks.study_settings import TUNING_SEED, StudySetting, chosen_label, current, rate_of, smallest, tuning
from benchmarks.study_store import Result, evaluations, mean, row_values, scores_of
from benchmarks.turns_results import PART, SEEDS, draw, show_all
from benchmarks.turns_rows import facts_of, first_moves_are_legal, nim_data, unit_means, write_nim_rows
from benchmarks.turns_warm_ups import record_of, warm_up
from vigneron.errors import UserError
from vigneron.run_store.folder import RunFolder

RATES = (3e-6, 1e-5, 3e-5)
WARM_UP_S = 12.0
"""What a warm-up is planned to take on an H200 with two processes beside, as `step_s`: with nine, 11 to 38 s were
measured."""


@dataclass(frozen=True)
class Arm:
    warm_up: str
    recipe: str
    score: str
    """Of a held-out row: `reward` or `correct`."""
    unit: tuple[str, ...]
    """Columns: rows that agree in them are of one unit (`turns_rows`)."""
    steps: int
    step_s: float
    """What a step and a share of the evaluations is planned to take on an H200 with two processes beside."""
    eval_every: int = 20
    changes: tuple[str, ...] = ()
    """To the recipes of both steps."""
    role: str | None = None
    """Of a game: the role whose samples are its held-out rows."""
    tuned_by: str | None = None
    """The score by which its rate is chosen, if it is another one."""
    own_rows: bool = False
    """Whether its rows are those of `turns_rows`."""


WITHOUT_TOOL = ("environment=null", "reward={kind: binary}", "max_new_tokens=8", "data.task=sums")
QUESTION = ("shown",)
ARMS = {
    "guess": Arm("sft-guess", "env-guess", "reward", ("lowest", "highest"), 100, 0.8),
    "maze": Arm("sft-maze", "env-maze", "reward", ("maze",), 100, 1.5),
    "sums-tool": Arm("sft-sums-tool", "env-sums-tool", "correct", ("terms",), 60, 1.2, 10),
    "sums": Arm("sft-sums-tool", "env-sums-tool", "correct", ("terms",), 60, 0.35, 10, WITHOUT_TOOL),
    "nim": Arm("sft-nim", "self-play-nim", "correct", ("pile_set",), 100, 0.8, role="first", own_rows=True),
    "debate": Arm("sft-debate", "debate-sums", "correct", QUESTION, 100, 0.7, role="a"),
    "consultancy": Arm(
        "sft-debate", "consultancy-sums", "correct", QUESTION, 100, 0.5, role="consultant", tuned_by="reward"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Setting(StudySetting):
    """An arm has its own number of steps; `steps` are those of the longest."""

    steps: int = 100
    tuning_steps: int = 30
    eval_every: int = 20
    tuning_eval_every: int = 10
    rates: tuple[float, ...] = RATES
    seeds: tuple[int, ...] = SEEDS
    smoke: bool = False

    def changes_of(self, arm: Arm) -> tuple[str, ...]:
        small = ("prompts_per_step=2", "max_new_tokens=4", "model.device=cpu") if self.smoke else ()
        return (*arm.changes, "model.compile=false", *small)


def smoke(model: str) -> Setting:
    return Setting(**smallest(model), rates=(1e-5,), smoke=True)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- jobs


def warm_up_name(arm: Arm) -> str:
    """Arms may share one."""
    return f"{arm.warm_up}{'-changed' if arm.changes else ''}"


def warmed_up(runs: Path, arm: Arm, seed: int) -> Path:
    """Where the model is after the arm's warm-up."""
    return (runs / ".warm-ups" / f"{warm_up_name(arm)}-seed-{seed}").resolve()


def job(setting: Setting, runs: Path, name: str, rate: float, seed: int, *, tuned: bool) -> Job:
    arm = ARMS[name]
    steps = min(arm.steps, setting.steps if tuned else setting.tuning_steps)
    every = min(steps, setting.eval_every, arm.eval_every if tuned else setting.tuning_eval_every)
    part = "held_out" if tuned else "tuning"
    data = nim_data(runs, part) if arm.own_rows else f"data.held_out={part}"
    changes = (
        f"recipe={name}",
        *setting.changes_of(arm),
        *(("group_size=2",) if setting.smoke else ()),
        *setting.run_changes(steps, seed, rate),
        f"eval_every={every}",
        f"model.name={warmed_up(runs, arm, seed)}",
        data,
    )
    sharing = sum(warm_up_name(other) == warm_up_name(arm) for other in ARMS.values())
    jobs_of_warm_up = sharing if tuned else sharing * len(setting.rates)
    return Job(
        f"{name}-seed-{seed}" if tuned else f"tune-{name}-rate-{rate:g}",
        arm.recipe,
        changes,
        {"part": PART, "tuned": tuned, "arm": name, "rate": rate, "seed": seed},
        setting.planned_seconds(steps, arm.step_s, 0.0) + WARM_UP_S / jobs_of_warm_up,
        row_score=arm.score if tuned else arm.tuned_by or arm.score,
        role=arm.role,
        finish=lambda job, folder: measure_units(arm, job, folder, warmed_up(runs, arm, seed)),
        prepare=lambda: _prepare(setting, runs, arm, seed),
    )


def _prepare(setting: Setting, runs: Path, arm: Arm, seed: int) -> None:
    small = ("steps=2", 'model.chat="minted"') if setting.smoke else ()
    changes = (f"model.name={setting.model}", *setting.changes_of(arm), *small)
    warm_up(arm.warm_up, changes, seed, warmed_up(runs, arm, seed))
    if arm.own_rows:
        write_nim_rows(runs)


def measure_units(arm: Arm, job: Job, folder: RunFolder, warmed: Path) -> Result:
    """What is known of the held-out rows, the curve and `area` of their units, and the record of the warm-up."""
    from vigneron.run_data.load import load_data

    held_out = load_data(folder.config()).held_out
    rows, values = [facts_of(row, arm.unit) for row in held_out], row_values(folder.path, str(job.row_score))
    if wrong := [step for step, scores in values.items() if len(scores) != len(rows)]:
        raise UserError(
            f"{job.name}: at step {wrong[0]} {len(values[wrong[0]])} of {len(rows)} held-out rows are there"
        )
    curve = {step: mean(unit_means(scores, rows)) for step, scores in values.items()}
    result = {"rows": rows, "curve": curve, "area": mean(unit_means(scores_of(values)["area"], rows))}
    if arm.own_rows:
        legal = {step: first_moves_are_legal(samples, held_out) for step, samples in evaluations(folder.path).items()}
        result["legal"] = scores_of(legal)
    return {**result, **record_of(warmed)}


def tuning_job(setting: Setting, runs: Path, name: str, rate: float) -> Job:
    return job(setting, runs, name, rate, TUNING_SEED, tuned=False)


def plan(setting: Setting, runs: Path) -> Plan:
    """The jobs of one rate or seed come together, so that several processes begin with different warm-ups."""
    tried = {name: tuning(partial(tuning_job, setting, runs, name), setting.rates, runs) for name in ARMS}
    rates = {name: rate_of(jobs, runs) for name, jobs in tried.items()}
    by_rate = [one for jobs in zip_longest(*tried.values()) for one in jobs if one is not None]
    main = [
        job(setting, runs, name, rate, seed, tuned=True)
        for seed in setting.seeds
        for name, rate in rates.items()
        if rate is not None
    ]
    return Plan([*by_rate, *main], None in rates.values())


# ---------------------------------------------------------------------------------------------- command line


def show(every: Sequence[Result], figure: Path | None) -> None:
    results = current(every, lambda one: one["arm"], chosen_label)
    print(show_all(results))
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
