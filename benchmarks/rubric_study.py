"""The study of docs/results/rubric-study.md: when do a rubric's prompts and revisions pay, and when its confidences?

python -m benchmarks.rubric_study all RUNS --figure FILE.svg           workers, archive, tables and figure: everything
python -m benchmarks.rubric_study plan RUNS [--done FILE.tar.xz]       the jobs and the minutes that are left
python -m benchmarks.rubric_study work RUNS [--resume] [--budget S]    train what is left, in pieces; several at once
python -m benchmarks.rubric_study pack RUNS FILE.tar.xz                the logs' archive; `--done FILE.tar.xz` reads it
python -m benchmarks.rubric_study show RUNS --figure FILE.svg          tables and figure; RUNS: a folder or an archive

**Prompts and revisions.** The task `forms` with the rubric `study-forms`, whose items are all of truth and checked by
rules: four categories whose form only the rubric's prompts name (codeword, order, units, note), and four whose form the
question states (arithmetic, antonyms, json, explanations). All arms train on all eight, 8 prompts × 8 samples of 32
tokens a step, and are evaluated on the bare question, greedily. Arms: `grpo` on the bare question; `grape-paper`, the
method of the recipe of this name (half fresh answers under the generation prompt, half revisions, one baseline; no KL,
a sum over tokens); `grape-on-policy` (sampled for the bare question; the policy that has seen the generation prompt
scores the tokens); `grape-topr` (half and half, TOPR's weights, a baseline for each origin); `grape-failures` (that,
with revisions only of failed groups); `rejection` (samples under the generation prompt, the best of eight if its score
is at least 0.5, trained on after the bare question). Before any run, the untrained model's samples are measured: on the
bare question, under the generation prompt, and as revisions of wrong answers.
**Confidence.** Antonyms, GRPO with advantages divided by their spread (so that arms differ in what they prefer, not in
scale), 10 × 10 samples; the reward is the mean of three judges whose verdicts are wrong with the probabilities 0.05,
0.25 and 0.45, weighted by their confidences (`noisy_verdicts.py`). Arms: clean (no noise), flat (no confidences),
stated (1 − ε), above chance (1 − 2ε), inverse variance ((1 − 2ε)/(ε(1 − ε)): inverse-variance weights of
verdicts with their bias removed), shuffled (that of another judge). Held-out accuracy is exact.

Learning rates: every arm's is chosen from RATES on tuning data with seed 100, by the mean score of all evaluations over
the categories (confidence: accuracy); ties go to the middle rate. Where a rate at the edge is best, the next one is
tried too.

Decision rule, written before the held-out runs of all arms but GRPO; first version of 17 November in 337d50f3.
Intervals are of paired differences, by a bootstrap over seeds and held-out rows, 95 %. A run's score of a row is its Σ
ω τ, the mean of the last three evaluations.
1. A GRAPE arm is WORTH IT in a category or a kind (form hidden, form stated) if it beats both `grpo` and `rejection`
   over its rows by 0.05: both lower bounds are at least 0.05. It LOSES there if the mean difference to one of the two
   is below −0.02 and the upper bound below 0.
2. A GRAPE arm is worth it for a kind if rule 1 says so and it does not lose over the rows of the other kind. If no arm
   is, the page says so. Categories are shown, and decide nothing: of 20 rows, one in two loses something by chance.
3. The best GRAPE arm, for the default, is that with the highest mean over the eight categories, if its lower bound
   against `grape-paper` is above 0; else the paper's form stays.
4. Confidences PAY if `inverse variance` beats `flat` with a lower bound above 0, and `shuffled` does not. They are
   SPURIOUS if `shuffled` does as well. Else they make NO DIFFERENCE. `stated` and `above chance` are shown beside.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from benchmarks.noisy_verdicts import CONFIDENCES, rubric_file, write_rubric
from benchmarks.pieces import Study, parse, run_study
from benchmarks.rubric_results import ASKED, draw, show_categories, show_confidence, show_curves, show_success
from benchmarks.rubric_scores import RUBRIC, finish_categories, measure_success
from benchmarks.study_jobs import Job, Plan, available
from benchmarks.study_settings import (
    TUNING_SEED,
    StudySetting,
    chosen_label,
    current,
    rate_of,
    smallest,
    tuning,
    tuning_table,
)
from benchmarks.study_store import Result, write_once
from vigneron.data.tasks import load_task
from vigneron.recipe import load_config
from vigneron.rubric.model import Category
from vigneron.rubric.prompts import generation_prompt
from vigneron.rubric.read import read_rubric

RATES = (5e-6, 1e-5, 2e-5, 5e-5)
CONFIDENCE_RATES = (1e-5, 2e-5, 5e-5)
KL = "kl: {coefficient: 0.01}"
HALVES = "mix: {fresh: 0.5, revised: 0.5}"
TOPR = "correction: topr, baseline: origin"
PAPER = load_config("grape-paper", []).method.model_dump_json()
METHODS = {
    "grpo": f"{{name: grpo, {KL}}}",
    "grape-paper": PAPER,
    "grape-on-policy": f"{{name: grape, self_distillation: {{sees: generation_prompt}}, {KL}}}",
    "grape-topr": f"{{name: grape, {HALVES}, {TOPR}, {KL}}}",
    "grape-failures": f"{{name: grape, {HALVES}, {TOPR}, revise: failures, {KL}}}",
    "rejection": "{name: rejection_sampling, min_reward: 0.5}",
}


@dataclass(frozen=True, kw_only=True)
class Setting(StudySetting):
    steps: int = 200
    tuning_steps: int = 120
    """A question comes again, and can be revised, from step 51."""
    confidence_steps: int = 100
    confidence_tuning_steps: int = 60
    eval_every: int = 20
    rates: tuple[float, ...] = RATES
    confidence_rates: tuple[float, ...] = CONFIDENCE_RATES
    samples_each: int = 16
    prompts: int = 8
    group_size: int = 8
    tokens: int = 32

    def planned(self, arm: str, steps: int) -> float:
        return self.planned_seconds(steps, STEP_S.get(arm, GRAPE_STEP_S), EVALUATION_S)


def smoke(model: str) -> Setting:
    few = {"rates": (1e-5,), "confidence_rates": (2e-5,), "confidence_steps": 2, "confidence_tuning_steps": 2}
    short = {"samples_each": 1, "prompts": 2, "group_size": 2, "tokens": 6}
    return Setting(**smallest(model), **few, **short)  # type: ignore[arg-type]


# What an evaluation and a step are planned to take on an H200 with a second process beside, in seconds: guesses. With
# ten processes of three studies on one H200, a step of GRAPE took 0.53 to 0.73 (docs/results/rubric-study.md).
EVALUATION_S = 0.4
STEP_S = {"grpo": 0.12, "rejection": 0.13, "confidence": 0.09}
GRAPE_STEP_S = 0.2
SUCCESS_S = 20.0


# ---------------------------------------------------------------------------------------------- data


@cache
def write_data(runs: Path) -> None:
    """The rows of `forms` with the column `guide`, what the rubric's generation prompt puts before each. Once in a
    process."""
    categories = read_rubric(RUBRIC).categories
    for part in ("train", "tuning", "held_out"):
        rows = load_task("forms").rows(part)
        lines = [json.dumps({**row, "guide": guide(categories[row["category"]], row["prompt"])}) for row in rows]
        write_once(data_file(runs, part), "\n".join(lines) + "\n")


def guide(category: Category, prompt: str) -> str:
    whole = generation_prompt(category, prompt)
    assert isinstance(whole, str)
    assert whole.endswith(prompt)
    return whole.removesuffix(prompt)


def data_file(runs: Path, part: str) -> Path:
    return (runs / ".data" / f"forms-{part}.jsonl").resolve()


# ---------------------------------------------------------------------------------------------- jobs


def category_job(setting: Setting, runs: Path, arm: str, rate: float, seed: int, *, tuned: bool) -> Job:
    steps = setting.steps if tuned else setting.tuning_steps
    name = f"{arm}-seed-{seed}" if tuned else f"tune-{arm}-rate-{rate:g}"
    held_out = data_file(runs, "held_out" if tuned else "tuning")
    weighed = ", weigh_by_confidence: false" if not arm.startswith("grape") else ""
    prompt = 'prompt: "{guide}{prompt}", ' if arm == "rejection" else ""
    changes = (
        f"recipe={arm}",
        f"method={METHODS[arm]}",
        f"data={json.dumps({'train': str(data_file(runs, 'train')), 'held_out': str(held_out)})}",
        f"reward={{kind: rubric, file: {RUBRIC}{weighed}}}",
        f'sampling={{{prompt}stop: ["\\n"]}}',
        f"prompts_per_step={setting.prompts}",
        f"group_size={setting.group_size}",
        f"max_new_tokens={setting.tokens}",
        *setting.run_changes(steps, seed, rate),
    )
    prompts = {"rubric": read_rubric(RUBRIC).version} if arm.startswith("grape") else {}
    labels = {"part": "categories", "tuned": tuned, "arm": arm, "rate": rate, "seed": seed, **prompts}
    planned = setting.planned(arm, steps)
    job = Job(name, "grpo-study", changes, labels, planned, row_score="reward", finish=finish_categories)
    return replace(job, prepare=lambda: write_data(runs))


def confidence_job(setting: Setting, runs: Path, arm: str, rate: float, seed: int, *, tuned: bool) -> Job:
    steps = setting.confidence_steps if tuned else setting.confidence_tuning_steps
    slug = arm.replace(" ", "-")
    name = f"confidence-{slug}-seed-{seed}" if tuned else f"tune-confidence-{slug}-rate-{rate:g}"
    folder = (runs / ".data").resolve()
    changes = (
        f"recipe=confidence-{slug}",
        "method.scale_by_std=true",
        f"data.held_out={'held_out' if tuned else 'tuning'}",
        f"reward={json.dumps({'kind': 'rubric', 'file': str(rubric_file(arm, folder)), 'weigh_by_confidence': False})}",
        *setting.run_changes(steps, seed, rate),
    )
    labels = {"part": "confidence", "tuned": tuned, "arm": arm, "rate": rate, "seed": seed}
    job = Job(name, "pgsrm-antonyms", changes, labels, setting.planned("confidence", steps))
    return replace(job, prepare=lambda: write_rubric(arm, folder))


def success_job(setting: Setting, runs: Path, asked: str) -> Job:
    """How often the untrained model's samples are right: on the bare question, under the generation prompt, revised."""
    name = f"success-{asked}"
    changes = (
        f"recipe={name}",
        f"model.name={setting.model}",
        f"data={json.dumps({'train': str(data_file(runs, 'train'))})}",
        f"reward={{kind: rubric, file: {RUBRIC}, weigh_by_confidence: false}}",
        'sampling={stop: ["\\n"]}',
        f"max_new_tokens={setting.tokens}",
        "eval_every=0",
    )
    prompts = {"rubric": read_rubric(RUBRIC).version} if asked == "revised" else {}
    labels = {"part": "success", "asked": asked, "each": setting.samples_each, **prompts}
    job = Job(name, "grpo-study", changes, labels, SUCCESS_S, instead=measure_success)
    return replace(job, prepare=lambda: write_data(runs))


def tuning_job(make: Callable[..., Job], setting: Setting, runs: Path, arm: str, rate: float) -> Job:
    return make(setting, runs, arm, rate, TUNING_SEED, tuned=False)


def plan(setting: Setting, arms: Sequence[str], confidences: Sequence[str], runs: Path) -> Plan:
    jobs, main, more = [success_job(setting, runs, asked) for asked in ASKED], [], False
    for make, names, rates in (
        (category_job, arms, setting.rates),
        (confidence_job, confidences, setting.confidence_rates),
    ):
        for arm in names:
            tried = tuning(partial(tuning_job, make, setting, runs, arm), rates, runs)
            jobs += tried
            rate = rate_of(tried, runs)
            more |= rate is None
            if rate is not None:
                main += [make(setting, runs, arm, rate, seed, tuned=True) for seed in setting.seeds]
    return Plan([*jobs, *main], more)


# ---------------------------------------------------------------------------------------------- command line


def show(every: Sequence[Result], figure: Path | None) -> None:
    results = current(every, lambda one: (one["part"], one["arm"]), chosen_label)
    tables = [tuning_table(results, part, lambda one: one["arm"]) for part in ("categories", "confidence")]
    shown = (show_categories, show_curves, show_confidence)
    print(show_success(results), *tables, *(one(results) for one in shown), sep="\n\n")
    if figure is not None:
        draw(results, figure)


def study(setting: Setting, runs: Path) -> Study:
    first = {arm: category_job(setting, runs, arm, 1e-5, 0, tuned=True) for arm in METHODS}
    arms, refused = available(first)
    confidences = list(CONFIDENCES)

    def total() -> float:
        jobs = [
            (len(setting.seeds if tuned else rates), make(setting, runs, arm, 1e-5, 0, tuned=tuned).seconds)
            for make, names, rates in (
                (category_job, arms, setting.rates),
                (confidence_job, confidences, setting.confidence_rates),
            )
            for arm in names
            for tuned in (False, True)
        ]
        return len(ASKED) * SUCCESS_S + sum(times * each for times, each in jobs)

    return Study(lambda runs: plan(setting, arms, confidences, runs), refused, total)


def main(given: Sequence[str] | None = None) -> int:
    asked = parse("rubric_study", __doc__, given)

    def planned() -> Study:
        return study(smoke(asked.model) if asked.smoke else Setting(model=asked.model), asked.runs)

    return run_study(asked, show, planned)


if __name__ == "__main__":
    sys.exit(main())
