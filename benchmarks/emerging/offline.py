"""Learning from a fixed set of samples: five epochs on 4,000 samples of a fine-tuned model, six ways.

python -m benchmarks.emerging.offline --out FOLDER [--seeds 0 1 2] [--small]     what is not in FOLDER/offline.jsonl yet
python -m benchmarks.emerging.offline --tune --out FOLDER                        the learning rates, on tuning sums
python -m benchmarks.emerging.offline table --out FOLDER                         the table alone

Set-up. The base is SmolLM2-135M after some steps of the recipe sft-ladder (`ladder_base.py`). For each seed it writes
16 samples of 250 sums (ladder-steps), which are scored by the checker. Every arm begins at the base, has batches of 200
samples, and sees each sample five times. Its learning rate was chosen by its greedy accuracy on the tuning sums:

    reinforce    −R log π with R = ±1, no importance weight
    topr         the same with TOPR's taper
    rejection    SFT on the right samples
    dpo          right against wrong samples of the same prompt, as many pairs as the rarer kind gives
    oreo         policy and value (a network of its own), β = 0.03
    a_star_po    4,000 samples of its own instead: 8 of the base for each prompt, then 2,000 of the policy, used once

Measured on the held-out sums: greedy accuracy after every epoch; of one sample a prompt at temperature 1 the accuracy,
the entropy, and the share in the right form (one number a line, as many as there are terms, then the end).

Decision rule, before the runs. An arm learns if the 95 % interval of its accuracy minus the base's lies above 0. It has
collapsed if its accuracy ends more than 0.05 below its best epoch's, or the share in the right form below 0.9 of the
base's. TOPR earns its place if REINFORCE collapses and it does not, or if the interval of their paired difference lies
above 0. OREO's value is useful if best-of-8 by it is above the mean of its samples by an interval above 0, and worth
eight samples if it is above its greedy answers.
"""

import json
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.emerging.ladder_base import fresh_sums, ladder_base
from benchmarks.emerging.records import Record, Records, arguments, arm_and_rate, difference, table, with_rates
from vigneron.errors import UserError

ARMS = ("reinforce", "topr", "rejection", "dpo", "oreo", "a_star_po")
RATES = {"reinforce": 1e-7, "topr": 1e-5, "rejection": 1e-5, "dpo": 3e-7, "oreo": 1e-6, "a_star_po": 3e-6}
TRIED = {
    **dict.fromkeys(ARMS, (3e-6, 1e-5, 3e-5)),
    "reinforce": (1e-7, 3e-7, 1e-6, 3e-6, 1e-5),
    "oreo": (3e-7, 1e-6, 3e-6),
    "dpo": (1e-7, 3e-7, 1e-6),
}
EPOCHS, BATCH, PROMPTS, SAMPLES = 5, 200, 250, 16
COLUMNS = (
    "accuracy",
    "gain",
    "best_accuracy",
    "sampled_accuracy",
    "form",
    "entropy",
    "best_of_8/accuracy",
    "beam_4/accuracy",
)


def vowel_checker(completions: list[str], **columns: Any) -> list[float]:
    """For --small: a random model gets this right now and then."""
    return [float(any(letter in "aeiou" for letter in text)) for text in completions]


class Bench:
    """The folder, and the sizes of the real and the small experiment."""

    def __init__(self, out: Path, *, part: str, small: bool) -> None:
        self.out, self.part, self.small, self.runs = out, part, small, out / "runs"
        self.batch, self.prompts, self.samples = (8, 4, 4) if small else (BATCH, PROMPTS, SAMPLES)
        self.checker = "benchmarks.emerging.offline:vowel_checker" if small else "last_line"
        out.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, rows: Sequence[dict[str, Any]]) -> str:
        path = self.out / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    def prompts_files(self) -> dict[str, str]:
        """The sums to train on, fresh ones of all levels; and those to measure on, held out or for tuning."""
        from vigneron.data.tasks import load_task

        task = load_task("ladder-steps")
        train, held_out = fresh_sums(self.prompts), task.rows(self.part)
        train = train[:: len(train) // self.prompts][: self.prompts]
        held_out = held_out[::30] if self.small else held_out
        return {"train": self.write("prompts.jsonl", train), "held_out": self.write("held-out.jsonl", held_out)}

    def common(self, base: str, seed: int) -> dict[str, Any]:
        return {
            "recipe": "offline",
            "model": {"name": base, "compile": False, **({"device": "cpu"} if self.small else {})},
            "seed": seed,
            "max_new_tokens": 8 if self.small else 32,
            "save_every": 0,
            "microbatch_tokens": 16384,
        }

    @cached_property
    def base(self) -> str:
        """The folder of the model that all arms begin with, trained once."""
        return ladder_base(self.out, small=self.small)[0]

    def recorded(self, base: str, seed: int) -> str:
        """The file of a seed's fixed samples."""
        from vigneron import api
        from vigneron.recipe import check_config

        path = self.out / f"samples-{seed}.jsonl"
        if not path.is_file():
            data = {**self.prompts_files(), "checker": self.checker}
            sampled = {"method": {"name": "grpo"}, "group_size": 2, "reward": {"kind": "binary"}, "data": data}
            config = check_config(self.common(base, seed) | sampled, "offline")
            recording = api.record_samples(config, out=path, samples=self.samples)
            print(f"seed {seed}: {recording.rows} samples, mean reward {recording.mean_reward:.3f}", flush=True)
        return str(path)

    def arm_keys(self, arm: str, file: str, seed: int) -> dict[str, Any]:
        """What distinguishes an arm: its method, its data, its number of steps."""
        rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
        steps = max(1, EPOCHS * len(rows) // self.batch)
        held_out = self.prompts_files()["held_out"]
        data = {"train": file, "held_out": held_out, "checker": self.checker}
        if arm in ("reinforce", "topr"):
            method: dict[str, Any] = {"name": "topr", "rewards": "signed", "taper": arm == "topr"}
            return {"method": method, "data": data, "steps": steps, "prompts_per_step": self.batch}
        if arm == "oreo":
            return {"method": {"name": "oreo"}, "data": data, "steps": steps, "prompts_per_step": self.batch}
        if arm == "rejection":
            right = [
                {"prompt": row["prompt"], "completion": row["completion"], "draw": number}
                for number, row in enumerate(rows)
                if row["reward"] == 1 and row["completion"].strip()
            ]
            train = self.write(f"right-{seed}.jsonl", right)
            steps = max(1, EPOCHS * len(right) // self.batch)
            return {
                "method": {"name": "sft"},
                "data": data | {"train": train},
                "steps": steps,
                "prompts_per_step": min(self.batch, len(right)),
            }
        if arm == "dpo":
            pairs = right_against_wrong(rows)
            train, batch = self.write(f"pairs-{seed}.jsonl", pairs), max(1, self.batch // 2)
            steps = max(1, EPOCHS * len(pairs) // batch)
            keys = {"method": {"name": "dpo"}, "data": {"train": train}, "steps": steps}
            return keys | {"prompts_per_step": min(batch, len(pairs)), "eval_every": 0}
        prompts = self.prompts_files()["train"]
        in_steps = self.prompts * self.samples - 8 * self.prompts
        batch = max(1, self.batch // 2)
        return {
            "method": {"name": "a_star_po"},
            "data": data | {"train": prompts},
            "reward": {"kind": "binary"},
            "steps": max(1, in_steps // batch),
            "prompts_per_step": batch,
        }

    def run(self, arm: str, seed: int) -> Record:
        """An arm's figures; a loss that is not finite does not end the other arms."""
        try:
            return self.measure_base(seed) if arm == "base" else self.run_arm(arm, self.base, seed)
        except UserError as error:
            return {"failed": str(error)}

    def run_arm(self, name: str, base: str, seed: int) -> Record:
        from vigneron import api
        from vigneron.recipe import check_config

        began = time.perf_counter()
        arm, rate = arm_and_rate(name, RATES)
        keys = self.arm_keys(arm, self.recorded(base, seed), seed)
        keys["optimizer"] = {"actor_lr": rate, **({"critic_lr": 1e-5} if arm == "oreo" else {})}
        given = self.common(base, seed) | {"eval_every": max(1, keys["steps"] // EPOCHS)} | keys
        if arm == "dpo":
            given.pop("max_new_tokens")  # it samples nothing
        trained = api.train(check_config(given, arm), runs=self.runs, name=f"{name}-{seed}-{int(time.time())}")
        curve = [
            record["eval/accuracy"]
            for record in map(json.loads, (trained.folder / "metrics.jsonl").read_text().splitlines())
            if "eval/accuracy" in record
        ]
        record: Record = {"steps": keys["steps"], "lr": rate, **self.measure(trained, seed), "curve": curve}
        record["best_accuracy"] = max([*curve[1:], record["accuracy"]])
        if arm == "oreo":
            record |= trained.evaluate_by_value(best_of=8, seed=seed)
            with suppress(UserError):  # a policy that no longer writes a new line, or a random one
                record |= trained.evaluate_by_value(beam=4, expand=4, seed=seed)
        shutil.rmtree(trained.folder / "checkpoints")  # gigabytes, and no longer needed
        return record | {"seconds": round(time.perf_counter() - began, 1)}

    def measure(self, trained: Any, seed: int) -> dict[str, float]:
        """Of a trained model on the held-out sums, whichever way it was trained."""
        import torch

        from vigneron.core.draws import Sampling
        from vigneron.policy.logprobs import score
        from vigneron.rewards.checkers import build_check
        from vigneron.rollout.on_policy import OnPolicy

        rows = [json.loads(line) for line in Path(self.prompts_files()["held_out"]).read_text().splitlines()]
        check, policy, length = build_check(self.checker), trained.policy, 8 if self.small else 32
        accuracy = {}
        for name, sampling in (("accuracy", None), ("sampled_accuracy", Sampling())):
            batch = check(OnPolicy(policy, sampling, length, seed=seed)(rows))
            accuracy[name] = sum(bool(verdict) for verdict in batch.signals.correct or ()) / len(rows)
        with torch.no_grad():
            entropy_BT = score(policy, batch, Sampling()).entropy_BT
        cut = batch.samples.truncated_B.tolist()
        formed = [
            not is_cut and in_form(text, row["level"])
            for row, text, is_cut in zip(rows, batch.samples.completions, cut, strict=True)
        ]
        return accuracy | {
            "entropy": float(entropy_BT[batch.samples.mask_BT].mean()),
            "form": sum(formed) / len(formed),
        }

    def measure_base(self, seed: int) -> Record:
        from types import SimpleNamespace

        from vigneron.policy.load import load_policy

        policy = load_policy(self.base, device="cpu" if self.small else "auto")
        return self.measure(SimpleNamespace(policy=policy), seed)


def right_against_wrong(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pairs of a right and a wrong sample of the same prompt, in the order of drawing."""
    sides: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for row in rows:
        if row["completion"].strip() and row["reward"] is not None:
            sides[row["prompt"]][row["reward"] != 1].append(row["completion"])
    return [
        {"prompt": prompt, "chosen": chosen, "rejected": rejected, "pair": number}
        for prompt, (right, wrong) in sides.items()
        for number, (chosen, rejected) in enumerate(zip(right, wrong, strict=False))
    ]


def in_form(text: str, level: int) -> bool:
    """As many lines as terms, each a number."""
    lines = text.strip().split("\n")
    return len(lines) == level and all(line.strip().isdigit() for line in lines)


def with_gains(records: Sequence[Record]) -> list[Record]:
    """Each record with `gain`, its accuracy minus the base's of the same seed. An arm that failed is left out."""
    base = {record["seed"]: record["accuracy"] for record in records if record["arm"] == "base"}
    return [
        record | ({"gain": record["accuracy"] - base[record["seed"]]} if record["arm"] != "base" else {})
        for record in records
        if "failed" not in record and record["seed"] in base
    ]


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(__doc__, given)
    records = Records(options.out, "offline-tuning" if options.tune else "offline")
    if options.what == "run":
        bench = Bench(options.out, part=options.part, small=options.small)
        arms = options.arms or ARMS
        arms = ("base", *(with_rates(arms, TRIED) if options.tune else arms))
        records.add_missing([(arm, seed) for seed in options.seeds for arm in arms], bench.run)
    print(table(with_gains(records.read()), COLUMNS))
    print(difference(records.read(), "topr", "reinforce", "accuracy"))
    for figure in ("sampled/accuracy", "accuracy"):
        chosen = [
            {**r, "arm": "best of 8", "value": r["best_of_8/accuracy"]} for r in records.read() if r["arm"] == "oreo"
        ]
        others = [{**r, "arm": f"its {figure}", "value": r[figure]} for r in records.read() if r["arm"] == "oreo"]
        print(difference([*chosen, *others], "best of 8", f"its {figure}", "value"))


if __name__ == "__main__":
    main()
