"""The study of docs/results/dense-study.md: when does a dense reward pay?

python -m benchmarks.dense_study all RUNS --figure FILE.svg           workers, archive, tables and figure: everything
python -m benchmarks.dense_study plan RUNS [--done FILE.tar.xz]       the jobs and the minutes that are left
python -m benchmarks.dense_study work RUNS [--resume] [--budget S]    train what is left, in pieces; several at once
python -m benchmarks.dense_study pack RUNS FILE.tar.xz                the logs' archive; `--done FILE.tar.xz` reads it
python -m benchmarks.dense_study show RUNS --figure FILE.svg          tables and figure; RUNS: a folder or an archive

**Opposites.** k opposites at once, k = 1, 2, 4, at 16 (4 × 4) and 100 (10 × 10) samples a step: six cells. p₀ is the
share of 20,000 samples of the untrained model on training prompts that the checker accepts. Arms differ in the reward
only: binary; cosine (MiniLM, α = 4, the paper's); contrastive (MiniLM); token F1. Annealed and tie-breaker (the check,
with contrastive) are run at the crossing only: the cell whose p₀ × samples is nearest to 1 (p₀ = 0 counts as half a
hit).
**Open-ended.** `instructions`: binary, cosine, contrastive, SFT. Scored by what no arm trained on: whether the own
parent's answer is the nearest of 50 texts, the own prompt (so that an echo is no hit) and 48 others' answers beside it,
under WordLlama (arms train with MiniLM); and the probability that a preference
model, trained on the pairs of `train`, prefers the answer to the untrained model's.

Learning rates: every arm's is chosen on tuning data with seed 100, at k = 2 for each number of samples, from RATES by
the mean accuracy of all evaluations (ties: the middle rate); in the open task from RATES (SFT: SFT_RATES) together with
the stopping point, by retrieval. Where a rate at the edge is best, the next one is tried too.

Decision rule, written before the runs. Intervals are of the paired difference to the binary arm, by a bootstrap over
seeds and held-out rows, 95 %. A run's score is `area`, the mean held-out accuracy of all its evaluations after step 0.
1. In a cell, an arm PAYS if the mean difference is at least 0.05 and its lower bound above 0, COSTS if it is at most
   −0.05 and its upper bound below 0, else makes NO DIFFERENCE. Where no arm has 0.05 in the mean of its last three
   evaluations, nothing is learned, and the cell says nothing.
2. The law "a dense reward pays while p₀ × samples < 1" HOLDS for an arm if it pays in every cell below 0.5 that says
   something, and in none above 2. Otherwise it FAILS. With no such cell on one of the sides, it is NOT TESTED.
3. The crossing is where the difference, linear between neighbouring cells in log₁₀(p₀ × samples), falls to 0.
4. Embeddings MATTER if contrastive or cosine pays, by rule 1, against token F1 in more cells than it costs.
5. Open-ended: an arm is BETTER than another if the lower bound of the difference is above 0 in both scores, WORSE if
   the upper bound is below 0 in both. A dense reward is worth it if it is better than binary and not worse than SFT.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.dense_results import draw, show_open, show_open_tuning, show_opposites, show_p0, show_tuning
from benchmarks.dense_scores import (
    LEVELS,
    OPEN_SHAPE,
    SHAPES,
    chosen_stop,
    finish_open,
    finish_preference,
    hits,
    measure_p0,
    retrieval,
)
from benchmarks.pieces import Study, parse, run_study
from benchmarks.study_jobs import Job, Plan, available, is_done, result_of
from benchmarks.study_settings import (
    TUNING_SEED,
    StudySetting,
    chosen_label,
    current,
    middle,
    rate_of,
    smallest,
    tuning,
)
from benchmarks.study_store import Result

TUNED_LEVEL = 2
CONTRASTIVE = "{kind: semantic, embedder: minilm, form: contrastive}"
REWARDS = {
    "binary": "{kind: binary}",
    "cosine": "{kind: semantic, embedder: minilm, alpha: 4}",
    "contrastive": CONTRASTIVE,
    "token-f1": "{kind: token_f1}",
}
CROSSING = {
    "annealed": f"{{kind: combined, combine: annealed, rewards: [{{kind: binary}}, {CONTRASTIVE}]}}",
    "tie-breaker": f"{{kind: combined, combine: tie_break, rewards: [{{kind: binary}}, {CONTRASTIVE}]}}",
}
OPEN = {"binary": REWARDS["binary"], "cosine": REWARDS["cosine"], "contrastive": CONTRASTIVE, "sft": None}
RATES, SFT_RATES = (1e-5, 2e-5, 5e-5), (5e-6, 1e-5, 2e-5, 5e-5)


@dataclass(frozen=True, kw_only=True)
class Setting(StudySetting):
    steps: int = 150
    tuning_steps: int = 90
    open_steps: int = 120
    eval_every: int = 15
    rates: tuple[float, ...] = RATES
    sft_rates: tuple[float, ...] = SFT_RATES
    p0_samples: int = 20_000
    preference_steps: int = 100
    open_prompts: int = OPEN_SHAPE[0]
    open_size: int = OPEN_SHAPE[1]
    open_tokens: int = 24

    @property
    def middle(self) -> float:
        return middle(self.rates)


def smoke(model: str) -> Setting:
    few = {"rates": (2e-5,), "sft_rates": (2e-5,), "p0_samples": 300, "preference_steps": 2, "open_steps": 2}
    short = {"open_prompts": 2, "open_size": 2, "open_tokens": 6}
    return Setting(**smallest(model), **few, **short)  # type: ignore[arg-type]


# What an evaluation and a step of each kind are planned to take on an H200 with a second process beside, in seconds:
# guesses, no archived result has its time.
EVALUATION_S = 0.25
STEP_S = {16: 0.06, 100: 0.1, "open": 0.15, "sft": 0.06}


# ---------------------------------------------------------------------------------------------- jobs


def opposites_job(setting: Setting, arm: str, level: int, samples: int, rate: float, seed: int, *, tuned: bool) -> Job:
    """One run. `tuned`: on held-out data, with a rate that was chosen."""
    prompts, size = SHAPES[samples]
    steps = setting.steps if tuned else setting.tuning_steps
    name = f"{arm}-k{level}-n{samples}-seed-{seed}" if tuned else f"tune-{arm}-n{samples}-rate-{rate:g}"
    held_out = "held_out" if tuned else "tuning"
    changes = (
        f"recipe={arm}-k{level}-n{samples}",
        f"data={{task: opposites-{level}, held_out: {held_out}}}",
        f"reward={(REWARDS | CROSSING)[arm]}",
        'sampling={stop: ["\\n"]}',
        f"prompts_per_step={prompts}",
        f"group_size={size}",
        f"max_new_tokens={3 * level + 2}",
        *setting.run_changes(steps, seed, rate),
    )
    labels = {"part": "opposites", "tuned": tuned, "arm": arm, "level": level, "samples": samples, "rate": rate}
    planned = setting.planned_seconds(steps, STEP_S[samples], EVALUATION_S)
    return Job(name, "binary-antonyms", changes, {**labels, "seed": seed}, planned)


def open_job(setting: Setting, arm: str, rate: float, steps: int, seed: int, *, tuned: bool) -> Job:
    name = f"open-{arm}-seed-{seed}" if tuned else f"tune-open-{arm}-rate-{rate:g}"
    held_out = "held_out" if tuned else "tuning"
    reward = OPEN[arm]
    shape = (f"prompts_per_step={setting.open_prompts}", f"group_size={setting.open_size}")
    changes = (
        f"recipe=open-{arm}",
        f"data={{task: instructions, held_out: {held_out}}}",
        'sampling={stop: ["\\n"]}',
        *((f"reward={reward}", *shape) if reward is not None else ()),
        f"max_new_tokens={setting.open_tokens}",
        *setting.run_changes(steps, seed, rate),
    )
    labels = {"part": "open", "tuned": tuned, "arm": arm, "rate": rate, "steps": steps, "seed": seed}
    planned = setting.planned_seconds(steps, STEP_S["open" if reward is not None else "sft"], EVALUATION_S)
    recipe = "binary-antonyms" if reward is not None else "sft-instructions"
    others = {"retrieval": retrieval}
    return Job(name, recipe, changes, labels, planned, row_score="retrieval", others=others, finish=finish_open)


def p0_job(setting: Setting, task: str) -> Job:
    """Samples of the untrained model for the training prompts of a task."""
    tokens = 3 * int(task[-1]) + 2 if task.startswith("opposites") else setting.open_tokens
    changes = (
        f"recipe=p0-{task}",
        f"model.name={setting.model}",
        f"data={{task: {task}}}",
        "reward={kind: binary}",
        'sampling={stop: ["\\n"]}',
        f"max_new_tokens={tokens}",
    )
    labels = {"part": "p0", "task": task, "samples": setting.p0_samples}
    return Job(f"p0-{task}", "binary-antonyms", changes, labels, 30.0, instead=measure_p0)


def preference_job(setting: Setting, stops: Mapping[str, tuple[float, int]]) -> Job:
    """The preference model; when it is trained, it scores the answers of all runs of the open task. `stops`: the rate
    and the number of steps of each arm; if one is chosen anew, all answers are scored again."""
    changes = (
        "recipe=preference",
        "method={name: preference_model}",
        *setting.run_changes(setting.preference_steps, 0),
    )
    labels = {"part": "preference", "stops": {arm: list(stop) for arm, stop in stops.items()}}
    job = Job("preference", "reward-instructions", changes, labels, 45.0, row_score=None, finish=finish_preference)
    return replace(job, keeps_weights=True)


def tuning_job(setting: Setting, arm: str, samples: int, rate: float) -> Job:
    return opposites_job(setting, arm, TUNED_LEVEL, samples, rate, TUNING_SEED, tuned=False)


def open_tuning_job(setting: Setting, arm: str, rate: float) -> Job:
    return open_job(setting, arm, rate, setting.open_steps, TUNING_SEED, tuned=False)


def plan(setting: Setting, arms: Sequence[str], crossing: Sequence[str], opened: Sequence[str], runs: Path) -> Plan:
    """Measure p₀ and tune; then what each arm's tuning allows."""
    tasks = [*(f"opposites-{level}" for level in LEVELS), "instructions"]
    jobs = [p0_job(setting, task) for task in tasks]
    more = False
    cell = crossing_cell(setting, runs)
    cells = {arm: [(level, samples) for level in LEVELS for samples in SHAPES] for arm in arms}
    cells |= {arm: [cell] for arm in crossing if cell is not None}
    more |= bool(crossing) and cell is None
    for arm, own in cells.items():
        for samples in {samples: None for _, samples in own}:
            tried = tuning(partial(tuning_job, setting, arm, samples), setting.rates, runs)
            jobs += tried
            rate = rate_of(tried, runs)
            more |= rate is None
            if rate is not None:
                jobs += [
                    opposites_job(setting, arm, level, samples, rate, seed, tuned=True)
                    for seed in setting.seeds
                    for level, number in own
                    if number == samples
                ]
    stops: dict[str, tuple[float, int]] = {}
    for arm in opened:
        rates = setting.sft_rates if arm == "sft" else setting.rates
        tried = tuning(partial(open_tuning_job, setting, arm), rates, runs)
        jobs += tried
        stop = chosen_stop([result_of(job, runs) for job in tried])
        stops |= {} if stop is None else {arm: stop}
    main = [open_job(setting, arm, *stop, seed, tuned=True) for arm, stop in stops.items() for seed in setting.seeds]
    jobs += main
    trained = len(stops) == len(opened) and all(is_done(job, runs) for job in main)
    if opened and trained:
        jobs.append(preference_job(setting, stops))
    return Plan(jobs, more or bool(opened and not trained))


def crossing_cell(setting: Setting, runs: Path) -> tuple[int, int] | None:
    """The level and number of samples whose p₀ × samples is nearest to 1. None: p₀ is not measured yet."""
    p0 = {level: result_of(p0_job(setting, f"opposites-{level}"), runs) for level in LEVELS}
    if any(rows is None for rows in p0.values()):
        return None
    cells = [(level, samples) for level in LEVELS for samples in SHAPES]
    return min(cells, key=lambda cell: abs(math.log10(hits(p0[cell[0]] or {}, cell[1]))))


def chosen_labels(tried: Sequence[Result]) -> Mapping[str, float | None]:
    if tried[0]["part"] != "open":
        return chosen_label(tried)
    rate, steps = chosen_stop(tried) or (None, None)
    return {"rate": rate, "steps": steps}


def show(every: Sequence[Result], figure: Path | None) -> None:
    results = current(every, lambda one: (one["part"], one["arm"], one.get("samples")), chosen_labels)
    tables = (show_p0, show_tuning, show_opposites, show_open_tuning, show_open)
    print(*(show_part(results) for show_part in tables), sep="\n\n")
    if figure is not None:
        draw(results, figure)


def study(setting: Setting) -> Study:
    opposites = {
        arm: opposites_job(setting, arm, TUNED_LEVEL, 16, setting.middle, 0, tuned=True) for arm in REWARDS | CROSSING
    }
    opened = {f"open {arm}": open_job(setting, arm, setting.middle, 10, 0, tuned=True) for arm in OPEN}
    can, refused = available(opposites | opened)
    arms, crossing = ([arm for arm in some if arm in can] for some in (REWARDS, CROSSING))
    open_arms = [arm for arm in OPEN if f"open {arm}" in can]

    def total() -> float:
        crossed = (TUNED_LEVEL, max(SHAPES))
        tried = [tuning_job(setting, arm, n, r) for arm in arms for n in SHAPES for r in setting.rates]
        tried += [tuning_job(setting, arm, crossed[1], r) for arm in crossing for r in setting.rates]
        cells = [(arm, level, n) for arm in arms for level in LEVELS for n in SHAPES]
        cells += [(arm, *crossed) for arm in crossing]
        main_jobs = [opposites_job(setting, *cell, setting.middle, 0, tuned=True) for cell in cells]
        rates = {"sft": len(setting.sft_rates)}
        opening = [open_job(setting, arm, setting.middle, setting.open_steps, 0, tuned=True) for arm in open_arms]
        return (
            sum(job.seconds for job in tried)
            + len(setting.seeds) * sum(job.seconds for job in [*main_jobs, *opening])
            + sum(rates.get(arm, len(setting.rates)) * job.seconds for arm, job in zip(open_arms, opening, strict=True))
            + 4 * 30.0
            + preference_job(setting, {}).seconds
        )

    return Study(lambda runs: plan(setting, arms, crossing, open_arms, runs), refused, total)


def main(given: Sequence[str] | None = None) -> int:
    asked = parse("dense_study", __doc__, given)
    return run_study(asked, show, lambda: study(smoke(asked.model) if asked.smoke else Setting(model=asked.model)))


if __name__ == "__main__":
    sys.exit(main())
