"""AI labels with noise: a reward model of noisy pairs against the noisy labeller itself as the reward.

    python -m benchmarks.emerging.rlaif --out FOLDER [--seeds 0 1 2] [--small]     what is not in the folder yet
    python -m benchmarks.emerging.rlaif --tune --out FOLDER                        the learning rates, on tuning sums
    python -m benchmarks.emerging.rlaif table --out FOLDER                         the table alone

Set-up. The base is SmolLM2-135M after some steps of the recipe sft-ladder (`ladder_base.py`). The labeller is a rule:
is the last line the sum? Its label is flipped with the probability 0, 0.2 or 0.4, the same way whenever it sees the
same texts, as a greedy judge would be wrong.

    model-NOISE     pairs of a right and a wrong sample of the base, their labels flipped; a reward model of these pairs
                    (200 steps of 32 pairs); GRPO with its score as the reward
    direct-NOISE    GRPO with the flipped label of each sample as the reward (d-RLAIF's direct feedback)

GRPO on fresh sums for both: 60 steps of 32 prompts with 8 samples, no KL, from the same base. Measured: greedy accuracy
on the held-out sums; and the reward model's accuracy on pairs of the same sums with right labels. The learning rates
were chosen with clean labels on the tuning sums (`scorer`: the reward model alone).

Decision rule, before the runs. Noise costs an arm accuracy if the 95 % interval (t, paired by seed) of its accuracy at
this noise minus that at noise 0 lies below 0. One arm bears noise better than the other if the interval of the
difference of their accuracies at noise 0.2, or at 0.4, excludes 0. An arm learns at a noise if the interval of its
accuracy minus the base's lies above 0. Otherwise the page says that no difference was measured.
"""

import hashlib
import json
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.emerging.ladder_base import fresh_sums, ladder_base
from benchmarks.emerging.records import (
    Record,
    Records,
    arguments,
    arm_and_rate,
    difference,
    table,
    with_rates,
    write_rows,
)

NOISES = ("0", "0.2", "0.4")
KINDS = ("model", "direct")
ARMS = tuple(f"{kind}-{noise}" for noise in NOISES for kind in KINDS)
RATES = {**{arm: 1e-6 if arm.startswith("model") else 3e-6 for arm in ARMS}, "scorer": 1e-4}
TRIED = {"scorer": (1e-5, 3e-5, 1e-4, 3e-4), "model-0": (1e-6, 3e-6), "direct-0": (3e-6, 1e-5, 2e-5)}
SAMPLES = 8
PAIRS_A_PROMPT = 2

Row = dict[str, Any]


def uniform(*key: Any) -> float:
    return int(hashlib.sha256(json.dumps(key).encode()).hexdigest()[:13], 16) / 16**13


def noisy_rule(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    *,
    answer: Sequence[str],
    noise: Sequence[float],
    noise_seed: Sequence[int],
    **columns: Any,
) -> list[float | None]:
    """1 where the last line is the sum, else 0; flipped with the probability `noise`, keyed by the texts."""
    from vigneron.rewards.checkers import last_line_reward

    right = last_line_reward(prompts, completions, answer=answer)
    return [
        None if value is None else 1 - value if uniform(seed, prompt, text) < share else value
        for value, prompt, text, share, seed in zip(right, prompts, completions, noise, noise_seed, strict=True)
    ]


def task_rows(split: str, small: bool) -> list[Row]:
    from vigneron.data.tasks import load_task

    rows = fresh_sums(1200) if split == "train" else load_task("ladder-steps").rows(split)
    return [
        {name: row[name] for name in ("prompt", "answer", "level")}
        for row in (rows[:: len(rows) // 10] if small else rows)
    ]


def model_keys(base: str, small: bool) -> dict[str, Any]:
    return {"model": {"name": base, "compile": False, **({"device": "cpu"} if small else {})}}


def loaded(base: str, small: bool) -> Any:
    """The base as a trained run, to sample from and to evaluate."""
    from vigneron.api import Trained
    from vigneron.policy.from_config import policy_from_config
    from vigneron.policy.reference import Reference
    from vigneron.recipe import load_config

    config = load_config("grpo-ladder", keys={**model_keys(base, small), "max_new_tokens": 4 if small else 32})
    policy = policy_from_config(config)
    return Trained(Path(base), config, 0, policy, Reference.of(policy))


def accuracy(trained: Any, part: str, small: bool) -> float:
    """Greedy, on the sums of a part."""
    rows = [{**row, "noise": 0.0, "noise_seed": 0} for row in task_rows(part, small)]
    _, samples = trained.evaluate_samples(rows)
    return statistics.mean(bool(sample.correct) for sample in samples)


def right_and_wrong(trained: Any, split: str, seed: int, small: bool) -> list[Row]:
    """Pairs of a right and a wrong sample of the base, at most PAIRS_A_PROMPT for a prompt, with right labels."""
    from vigneron.rewards.checkers import last_line_reward

    rows = task_rows(split, small)
    texts = trained.sample([row["prompt"] for row in rows for _ in range(SAMPLES)], temperature=1.0, seed=seed)
    pairs = []
    for number, row in enumerate(rows):
        group = list(dict.fromkeys(text for text in texts[SAMPLES * number : SAMPLES * (number + 1)] if text.strip()))
        verdicts = last_line_reward(group, group, answer=[row["answer"]] * len(group))
        right = [text for text, verdict in zip(group, verdicts, strict=True) if verdict] or [row["answer"]] * small
        wrong = [text for text, verdict in zip(group, verdicts, strict=True) if not verdict]
        for chosen, rejected in list(zip(right, wrong, strict=False))[:PAIRS_A_PROMPT]:
            pairs.append({"prompt": row["prompt"], "chosen": chosen, "rejected": rejected})
    return pairs


def flipped(pairs: Sequence[Row], noise: float, seed: int) -> list[Row]:
    return [
        {**row, "chosen": row["rejected"], "rejected": row["chosen"]}
        if uniform(seed, row["prompt"], row["chosen"], row["rejected"]) < noise
        else row
        for row in pairs
    ]


def pairs_of(out: Path, split: str, seed: int, base: str, small: bool) -> list[Row]:
    """Sampled once for a split and a seed."""
    file = out / "pairs" / f"{split}-{seed}.jsonl"
    if not file.is_file():
        write_rows(file, right_and_wrong(loaded(base, small), split, seed, small))
    return [json.loads(line) for line in file.read_text().splitlines()]


class Bench:
    """The folder, the base and the part that is measured."""

    def __init__(self, out: Path, base: str, part: str, small: bool) -> None:
        self.out, self.base, self.part, self.small = out, base, part, small

    def run(self, name: str, seed: int) -> Record:
        if name == "base":
            return {"accuracy": accuracy(loaded(self.base, self.small), self.part, self.small)}
        arm, rate = arm_and_rate(name, RATES)
        kind, _, noise = arm.partition("-")
        scorer, record = None, {"lr": rate}
        if kind in ("model", "scorer"):
            scorer_rate = rate if kind == "scorer" else RATES["scorer"]
            scorer, figures = self.train_reward_model(f"{name}-{seed}", float(noise or 0), seed, scorer_rate)
            record |= figures
        if kind != "scorer":
            record |= self.train_policy(f"{name}-{seed}", float(noise), seed, rate, scorer)
        if scorer is not None:
            shutil.rmtree(scorer)  # gigabytes of weights and optimizer state
        return record

    def train_reward_model(self, name: str, noise: float, seed: int, rate: float) -> tuple[Path, Record]:
        from vigneron import api
        from vigneron.recipe import check_config

        pairs = pairs_of(self.out, "train", seed, self.base, self.small)
        test = pairs_of(self.out, self.part, seed, self.base, self.small)
        steps = 2 if self.small else 200
        recipe = {
            "recipe": "rlaif-reward",
            "method": {"name": "reward_model"},
            **model_keys(self.base, self.small),
            "data": {
                "train": write_rows(self.out / "pairs" / f"{name}.jsonl", flipped(pairs, noise, seed)),
                "held_out": write_rows(self.out / "pairs" / f"{name}.test.jsonl", test),
            },
            "optimizer": {"actor_lr": rate},
            "seed": seed,
            "steps": steps,
            "prompts_per_step": 4 if self.small else 32,
            "eval_every": steps,
            "save_every": 0,
        }
        folder = self.out / "runs" / f"reward-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        api.train(check_config(recipe, "rlaif-reward"), runs=folder.parent, name=folder.name)
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        tested = [record["eval/accuracy"] for record in records if "eval/accuracy" in record]
        return folder, {"pairs": len(pairs), "reward_model": tested[-1]}

    def train_policy(self, name: str, noise: float, seed: int, rate: float, scorer: Path | None) -> Record:
        from vigneron import api
        from vigneron.run_store.folder import RunFolder

        small = self.small
        rows = [{**row, "noise": noise, "noise_seed": seed} for row in task_rows("train", small)]
        train = write_rows(self.out / "rows" / f"{name}.jsonl", rows)
        keys: dict[str, Any] = {
            **model_keys(self.base, small),
            "data": {"train": train, "task": None, "checker": "last_line"},
            "reward": {"kind": "python", "function": "benchmarks.emerging.rlaif:noisy_rule"}
            if scorer is None
            else {"kind": "model", "model": str(scorer)},
            "seed": seed,
            "optimizer": {"actor_lr": rate},
            "steps": 2 if small else 60,
            "prompts_per_step": 4 if small else 32,
            "group_size": 2 if small else 8,
            "max_new_tokens": 4 if small else 32,
            "eval_every": 0,
            "save_every": 0,
        }
        shutil.rmtree(self.out / "runs" / name, ignore_errors=True)  # of an interrupted start
        trained = api.train("grpo-ladder", runs=self.out / "runs", name=name, **keys)
        rewards = [record["reward"] for record in RunFolder(trained.folder).metrics() if "reward" in record]
        figures = {"accuracy": accuracy(trained, self.part, small), "reward": rewards}
        shutil.rmtree(trained.folder)
        return figures


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(__doc__, given)
    records = Records(options.out, "rlaif-tuning" if options.tune else "rlaif")
    if options.what == "run":
        base, _ = ladder_base(options.out, small=options.small)
        bench = Bench(options.out, base, options.part, options.small)
        arms = with_rates(options.arms or TRIED, TRIED) if options.tune else options.arms or ARMS
        records.add_missing([("base", 0), *((arm, seed) for seed in options.seeds for arm in arms)], bench.run)
    print(table(records.read(), ("accuracy", "reward_model")))
    for arm in ARMS:
        kind, noise = arm.split("-")
        print(difference(records.read(), arm, "base", "accuracy"))
        if noise != "0":
            print(difference(records.read(), arm, f"{kind}-0", "accuracy"))
        if kind == "model":
            print(difference(records.read(), arm, f"direct-{noise}", "accuracy"))


if __name__ == "__main__":
    main()
