"""AI labels with noise: a reward model of noisy pairs against the noisy labeller itself as the reward.

    python -m benchmarks.emerging.rlaif --out FOLDER [--seeds 0 1 2] [--small]     what is not in the folder yet
    python -m benchmarks.emerging.rlaif table --out FOLDER                         the table alone

`--steps` and `--lr` change GRPO's: choose them with the clean labels of one seed, in another folder.

Set-up. The base is SmolLM2-135M after some steps of the recipe sft-ladder (`ladder_base.py`). The labeller is a rule:
is the last line the sum? Its label is flipped with the probability 0, 0.2 or 0.4, the same way whenever it sees the
same texts, as a greedy judge would be wrong.

    model      pairs of a right and a wrong sample of the base, their labels flipped; a reward model of these pairs
               (30 steps of 32 pairs); GRPO with its score as the reward
    direct     GRPO with the flipped label of each sample as the reward (d-RLAIF's direct feedback)

GRPO on fresh sums for both: 16 steps of 32 prompts with 8 samples, learning rate 2e-5, no KL, from the same base.
Measured: greedy accuracy on the held-out sums; and the reward model's accuracy on pairs of the tuning sums with right
labels.

Decision rule, before the runs. Noise costs an arm accuracy if the 95 % interval (t, paired by seed) of its accuracy at
this noise minus that at noise 0 lies below 0. One arm bears noise better than the other if the interval of the
difference of their accuracies at noise 0.2, or at 0.4, excludes 0. An arm learns at a noise if the interval of its
accuracy minus the base's lies above 0. Otherwise the page says that no difference was measured.
"""

import argparse
import hashlib
import json
import math
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.emerging.ladder_base import fresh_sums, ladder_base
from benchmarks.emerging.records import interval, write_rows

RECORDS = "rlaif.jsonl"
NOISES = (0.0, 0.2, 0.4)
ARMS = ("model", "direct")
SAMPLES = 8
PAIRS_A_PROMPT = 2
STEPS, LR = 16, 2e-5

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
    from vigneron.policy.model import Reference
    from vigneron.recipe import load_config

    config = load_config("grpo-ladder", keys={**model_keys(base, small), "max_new_tokens": 4 if small else 32})
    policy = policy_from_config(config)
    return Trained(Path(base), config, 0, policy, Reference.of(policy))


def accuracy(trained: Any, small: bool) -> float:
    """Greedy, on the held-out sums."""
    rows = [{**row, "noise": 0.0, "noise_seed": 0} for row in task_rows("held_out", small)]
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


def pairs_of(out: Path, seed: int, base: str, small: bool) -> tuple[list[Row], list[Row]]:
    """For training and for the reward model's test; sampled once for a seed."""
    files = [out / "pairs" / f"{split}-{seed}.jsonl" for split in ("train", "tuning")]
    if not all(file.is_file() for file in files):
        trained = loaded(base, small)
        for file, split in zip(files, ("train", "tuning"), strict=True):
            write_rows(file, right_and_wrong(trained, split, seed, small))
    train, test = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
    return train, test


def train_reward_model(name: str, noise: float, seed: int, base: str, out: Path, small: bool) -> tuple[Path, Row]:
    from vigneron import api
    from vigneron.recipe import check_config

    pairs, test = pairs_of(out, seed, base, small)
    steps = 2 if small else 30
    recipe = {
        "recipe": "rlaif-reward",
        "method": {"name": "reward_model"},
        **model_keys(base, small),
        "data": {
            "train": write_rows(out / "pairs" / f"{name}.jsonl", flipped(pairs, noise, seed)),
            "held_out": write_rows(out / "pairs" / f"{name}.test.jsonl", test),
        },
        "optimizer": {"actor_lr": 1e-5},
        "seed": seed,
        "steps": steps,
        "prompts_per_step": 4 if small else 32,
        "eval_every": steps,
        "save_every": 0,
    }
    folder = out / "runs" / f"reward-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    api.train(check_config(recipe, "rlaif-reward"), runs=folder.parent, name=folder.name)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    tested = [record["eval/accuracy"] for record in records if "eval/accuracy" in record]
    return folder, {"pairs": len(pairs), "reward_model": tested[-1]}


def train_arm(arm: str, noise: float, seed: int, base: str, out: Path, small: bool, steps: int, lr: float) -> Row:
    from vigneron import api
    from vigneron.run_store.folder import RunFolder

    name = f"{arm}-{noise:g}-{seed}"
    figures: Row = {}
    scorer = None
    if arm == "model":
        scorer, figures = train_reward_model(name, noise, seed, base, out, small)
    rows = [{**row, "noise": noise, "noise_seed": seed} for row in task_rows("train", small)]
    keys: dict[str, Any] = {
        **model_keys(base, small),
        "data": {"train": write_rows(out / "rows" / f"{name}.jsonl", rows), "task": None, "checker": "last_line"},
        "reward": {"kind": "python", "function": "benchmarks.emerging.rlaif:noisy_rule"}
        if scorer is None
        else {"kind": "model", "model": str(scorer)},
        "seed": seed,
        "optimizer": {"actor_lr": lr},
        "steps": steps,
        "prompts_per_step": 4 if small else 32,
        "group_size": 2 if small else 8,
        "max_new_tokens": 4 if small else 32,
        "eval_every": 0,
        "save_every": 0,
    }
    shutil.rmtree(out / "runs" / name, ignore_errors=True)  # of an interrupted start
    trained = api.train("grpo-ladder", runs=out / "runs", name=name, **keys)
    figures["accuracy"] = accuracy(trained, small)
    folder = RunFolder(trained.folder)
    rewards = [record["reward"] for record in folder.metrics() if "reward" in record]
    seconds = sum(record["seconds"] for record in folder.records("timings.jsonl"))
    for made in (trained.folder, scorer):
        if made is not None:
            shutil.rmtree(made)  # gigabytes of weights and optimizer state
    settings = {"steps": steps, "lr": lr, "seconds": seconds, "reward": rewards}
    return {"arm": arm, "noise": noise, "seed": seed, **figures, **settings}


def read_records(out: Path) -> list[Row]:
    file = out / RECORDS
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def run(out: Path, seeds: Sequence[int], small: bool, steps: int = STEPS, lr: float = LR) -> None:
    out.mkdir(parents=True, exist_ok=True)
    base, step = ladder_base(out, small=small)

    def add(record: Row) -> None:
        with (out / RECORDS).open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps({key: value for key, value in record.items() if key != "reward"}), flush=True)

    done = {(record["arm"], record["noise"], record["seed"]) for record in read_records(out)}
    if ("base", 0.0, 0) not in done:
        before = accuracy(loaded(base, small), small)
        add({"arm": "base", "noise": 0.0, "seed": 0, "accuracy": before, "sft_steps": step})
    for seed in seeds:
        for noise in NOISES:
            for arm in ARMS:
                if (arm, noise, seed) not in done:
                    add(train_arm(arm, noise, seed, base, out, small, 2 if small else steps, lr))


def table(records: Sequence[Row]) -> str:
    """Accuracy by arm and noise, then the differences of the decision rule, paired by seed."""
    cells: dict[tuple[str, float], dict[int, Row]] = {}
    for record in records:
        cells.setdefault((record["arm"], record["noise"]), {})[record["seed"]] = record
    base = next((record["accuracy"] for record in records if record["arm"] == "base"), math.nan)

    def minus(one: tuple[str, float], other: tuple[str, float]) -> str:
        seeds = sorted(set(cells.get(one, {})) & set(cells.get(other, {})))
        return interval([cells[one][seed]["accuracy"] - cells[other][seed]["accuracy"] for seed in seeds])

    heads = ["arm", "noise", "seeds", "accuracy", "reward model", "− base", "− noise 0", "− the other arm"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for (arm, noise), of in cells.items():
        found = [record["accuracy"] for record in of.values()]
        row = [arm, f"{noise:g}", str(len(of)), interval(found)]
        if arm != "base":
            other = ARMS[1 - ARMS.index(arm)]
            row += [
                interval([record["reward_model"] for record in of.values() if "reward_model" in record]),
                interval([value - base for value in found]),
                minus((arm, noise), (arm, 0.0)) if noise else "",
                minus((arm, noise), (other, noise)),
            ]
        lines.append(f"| {' | '.join([*row, *[''] * (len(heads) - len(row))])} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("run", "table"), default="run")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--lr", type=float, default=LR)
    parser.add_argument("--small", action="store_true", help="A tiny random model, for a test on a CPU.")
    options = parser.parse_args(arguments)
    if options.what == "run":
        run(options.out, options.seeds, options.small, options.steps, options.lr)
    print(table(read_records(options.out)))


if __name__ == "__main__":
    main()
