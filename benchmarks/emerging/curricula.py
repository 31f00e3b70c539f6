"""Curricula at equal samples: E2H's four schedules against hard-only and shuffled epochs, accuracy by level.

    python -m benchmarks.emerging.curricula --out FOLDER [--seeds 0 1 2] [--small]     what is not in the folder yet
    python -m benchmarks.emerging.curricula --tune --out FOLDER                        learning rates, on tuning sums
    python -m benchmarks.emerging.curricula table --out FOLDER                         the table alone

Set-up. The base is SmolLM2-135M after some steps of the recipe sft-ladder (`ladder_base.py`): levels 1 and 2 are mostly
right and level 5 mostly wrong. Every arm begins at it: GRPO on fresh sums, 60 steps of 32 prompts with 8 samples,
no KL, the learning rate chosen for each arm by its mean over levels on the tuning sums.

    cosine, gaussian, balanced, classical     E2H: sums of 1 to 5 terms, drawn by their level
    hard_only                                 sums of 5 terms alone
    shuffled                                  shuffled epochs over all sums, which is the default
    success                                   by each prompt's measured success (only with --arms)

Measured on the held-out sums, greedy: accuracy of each level, and the mean over levels.

Decision rule, before the runs. A schedule helps on hard sums if the 95 % interval (t, paired by seed) of its accuracy
at level 5 minus hard_only's lies above 0. It is worth its column if the interval of its mean over levels minus
shuffled's lies above 0. Otherwise the page says that no difference was measured.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.emerging.ladder_base import fresh_sums, ladder_base
from benchmarks.emerging.records import Record, Records, arguments, arm_and_rate, table, with_rates, write_rows
from vigneron.errors import UserError

NAME = "curricula"
FIGURES = (*(f"level_{level}" for level in (1, 2, 3, 4, 5)), "mean")
DIFFERENCES = {"level_5 − hard_only": ("level_5", "hard_only"), "mean − shuffled": ("mean", "shuffled")}
SCHEDULES = ("cosine", "gaussian", "balanced", "classical")
ARMS: dict[str, dict[str, Any] | None] = {
    **{name: {"by": "level", "schedule": name} for name in SCHEDULES},
    "hard_only": {"by": "level", "schedule": "balanced", "levels": [5]},
    "shuffled": None,
    "success": {"by": "success"},
}
DEFAULT_ARMS = tuple(name for name in ARMS if name != "success")
RATES = dict.fromkeys(ARMS, 3e-6)
TRIED = dict.fromkeys(ARMS, (3e-6, 1e-5, 2e-5))


def by_level(trained: Any, rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Greedy accuracy of each level, and the mean over levels."""
    _, samples = trained.evaluate_samples(rows)
    level_of = {row["prompt"]: row["level"] for row in rows}
    verdicts: dict[int, list[bool]] = {}
    for sample in samples:
        verdicts.setdefault(level_of[sample.prompt], []).append(bool(sample.correct))
    accuracies = {f"level_{level}": mean(of) for level, of in sorted(verdicts.items())}
    return {**accuracies, "mean": mean(accuracies.values())}


def train_arm(name: str, seed: int, base: str, out: Path, small: bool, part: str) -> Record:
    from vigneron import api
    from vigneron.run_store.folder import RunFolder

    arm, rate = arm_and_rate(name, RATES)
    rows = fresh_sums(1200, small=small)
    keys: dict[str, Any] = {
        **model_keys(base, small),
        "data": {"task": None, "train": write_rows(out / "sums.jsonl", rows), "checker": "last_line"},
        "curriculum": ARMS[arm],
        "optimizer": {"actor_lr": rate},
        "seed": seed,
        "steps": 3 if small else 60,
        "prompts_per_step": 4 if small else 32,
        "group_size": 2 if small else 8,
        "eval_every": 0,
        "save_every": 0,
    }
    run = out / "runs" / f"{name}-{seed}"
    shutil.rmtree(run, ignore_errors=True)  # of an interrupted start
    trained = api.train("grpo-ladder", runs=run.parent, name=run.name, **keys)
    folder = RunFolder(trained.folder)
    records = folder.metrics()
    figures = by_level(trained, part_rows(part, small))
    seconds = sum(record["seconds"] for record in folder.records("timings.jsonl"))
    shutil.rmtree(trained.folder)  # gigabytes of optimizer state
    samples = keys["steps"] * keys["prompts_per_step"] * keys["group_size"]
    rewards = [record["reward"] for record in records if "reward" in record]
    return {**figures, "samples": samples, "reward": rewards, "seconds": seconds}


def base_figures(base: str, step: int, small: bool, part: str) -> Record:
    """The base before any arm has trained it."""
    from vigneron.api import Trained
    from vigneron.policy.from_config import policy_from_config
    from vigneron.policy.reference import Reference
    from vigneron.recipe import load_config

    config = load_config("grpo-ladder", keys=model_keys(base, small))
    policy = policy_from_config(config)
    trained = Trained(Path(base), config, 0, policy, Reference.of(policy))
    return {**by_level(trained, part_rows(part, small)), "sft_steps": step}


def model_keys(base: str, small: bool) -> dict[str, Any]:
    model = {"name": base, "compile": False, **({"device": "cpu"} if small else {})}
    return {"model": model, "max_new_tokens": 4 if small else 32}


def part_rows(part: str, small: bool) -> list[dict[str, Any]]:
    from vigneron.data.tasks import load_task

    rows = load_task("ladder-steps").rows(part)
    return rows[::9] if small else rows


def with_differences(records: Sequence[Record]) -> list[Record]:
    """With the two differences of the decision rule, to the run of the same seed."""
    by_run = {(record["arm"], record["seed"]): record for record in records}

    def difference(record: Record, figure: str, other: str) -> float | None:
        against = by_run.get((other, record["seed"]))
        return None if against is None or record["arm"] in (other, "base") else record[figure] - against[figure]

    return [{**record, **{name: difference(record, *of) for name, of in DIFFERENCES.items()}} for record in records]


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(__doc__, given)
    arms = options.arms or DEFAULT_ARMS
    if unknown := {arm.partition("@")[0] for arm in arms} - set(ARMS):
        raise UserError(f"--arms: unknown {', '.join(sorted(unknown))}: expected {', '.join(ARMS)}")
    records = Records(options.out, f"{NAME}-tuning" if options.tune else NAME)
    arms = with_rates(arms, TRIED) if options.tune else arms
    if options.what == "run":
        base, step = ladder_base(options.out, small=options.small)
        records.add_missing([("base", 0)], lambda arm, seed: base_figures(base, step, options.small, options.part))
        records.add_missing(
            [(arm, seed) for seed in options.seeds for arm in arms],
            lambda arm, seed: train_arm(arm, seed, base, options.out, options.small, options.part),
        )
    print(table(with_differences(records.read()), (*FIGURES, *DIFFERENCES)))


if __name__ == "__main__":
    main()
