"""Process supervision on sums with running sums (ladder-steps), whose every step a rule labels exactly.

python -m benchmarks.emerging.process --out FOLDER [--parts best_of active pspo] [--seeds 0 1 2] [--small]
python -m benchmarks.emerging.process --tune --out FOLDER                        the learning rates, on tuning sums
python -m benchmarks.emerging.process table --out FOLDER                         the tables alone

Set-up. The base is SmolLM2-135M after some steps of the recipe sft-ladder (`ladder_base.py`). For each seed it writes
four solutions of each of some 2,400 fresh sums. A rule labels each line: right if it is the running sum of
as many terms. Models begin at the base. Learning rates were chosen on the tuning sums: of the process model by its
best-of-8 accuracy, of GRPO by its accuracy with `min`.

    best_of   A process model (every line's label) and an outcome model (whether the last line is right) of the same
              solutions. Of eight samples of each held-out sum each chooses one: its accuracy, against the mean of
              the samples and pass@8, and among right choices the share with a wrong line (trace errors).
    active    Process models of 500 and 2,000 labelled solutions. The first 500 are random; the others are random
              too, or the most convincing wrong answers by the model of the first 500 (80 %) and the most convincing of
              the rest (20 %). Measured: best-of-8 accuracy, and accuracy of labels of lines of other sums.
    pspo      GRPO for 60 steps with the process model's reward as the smallest probability (min), in PSPO's bounded
              form (pspo) and in the released, unbounded one (pspo_released); up to 64 tokens. Measured on held-out
              sums: lines and tokens of greedy answers, and accuracy.

Decision rule, before the runs, by 95 % intervals of paired differences over seeds. The process model is better at
choosing if its best-of-8 accuracy minus the outcome model's lies above 0, and more reliable if its trace errors minus
the outcome model's lie below 0. Active learning saves labels if with 2,000 solutions its best-of-8 accuracy minus
that of random choice lies above 0. PSPO's released form rewards length if its answers have more lines than those of
`min` by an interval above 0; a form is worth having if its accuracy minus that of `min` lies above 0.
"""

import argparse
import json
import math
import random
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.emerging.ladder_base import fresh_sums, ladder_base
from benchmarks.emerging.records import TUNING_SEED, interval

RECORDS = "process.jsonl"
PARTS = ("best_of", "active", "pspo")
SHAPES = ("min", "pspo", "pspo_released")
COUNTS = (500, 2000)
RATES = {"scorer": 1e-4, "grpo": 1e-6}
TRIED = {"scorer": (1e-5, 3e-5, 1e-4, 3e-4), "grpo": (1e-6, 3e-6, 1e-5)}
Row = dict[str, Any]


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def step_labels(terms: str, text: str) -> list[int]:
    """A line is right if it is the sum of as many terms."""
    sums = [str(total) for total in accumulate(map(int, terms.split(" + ")))]
    return [int(at < len(sums) and line == sums[at]) for at, line in enumerate(lines_of(text))]


def is_right(row: Row, text: str) -> bool:
    return lines_of(text)[-1:] == [row["result"]]


def has_trace_error(row: Row, text: str) -> bool:
    return step_labels(row["terms"], text) != [1] * int(row["level"])


class Bench:
    """The folder, and the sizes of the real and the small experiment."""

    def __init__(self, out: Path, *, part: str = "held_out", small: bool) -> None:
        self.out, self.part, self.small, self.runs = out, part, small, out / "runs"
        self.rates = dict(RATES)
        self.counts = (8, 16) if small else COUNTS
        self.per_prompt, self.steps, self.batch = (2, 1, 8) if small else (4, 200, 64)
        out.mkdir(parents=True, exist_ok=True)

    def records(self) -> list[dict[str, Any]]:
        file = self.out / RECORDS
        return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []

    def measure(self, part: str, arm: str, seed: int, figures: Callable[[], dict[str, float]]) -> None:
        """Unless the record is there already."""
        if self.has(part, arm, seed):
            return
        key = {"part": part, "arm": arm, "seed": seed}
        began = time.perf_counter()
        record = {**key, **figures(), "seconds": round(time.perf_counter() - began, 1)}
        with (self.out / RECORDS).open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record), flush=True)

    def has(self, part: str, arm: str, seed: int) -> bool:
        return any((r["part"], r["arm"], r["seed"]) == (part, arm, seed) for r in self.records())

    def rows(self, split: str) -> list[Row]:
        from vigneron.data.tasks import load_task

        rows = fresh_sums(600) if split == "fresh" else load_task("ladder-steps").rows(split)
        return rows[:: len(rows) // 10] if self.small else rows

    def trained(self, name: str, given: dict[str, Any]) -> Path:
        """The folder of a finished run; one that was interrupted begins again."""
        from vigneron import api
        from vigneron.recipe import check_config

        run = self.runs / name
        if not (run / "checkpoints" / f"step-{given['steps']}").is_dir():
            shutil.rmtree(run, ignore_errors=True)
            api.train(check_config(given, name), runs=self.runs, name=name)
        return run

    def common(self, seed: int) -> dict[str, Any]:
        model = {"name": self.base(), "compile": False, **({"device": "cpu"} if self.small else {})}
        return {"recipe": "process", "model": model, "seed": seed, "save_every": 0, "microbatch_tokens": 16384}

    def base(self) -> str:
        return ladder_base(self.out, small=self.small)[0]

    def samples(self, rows: Sequence[Row], count: int, seed: int) -> list[tuple[Row, str]]:
        """Each row with `count` completions of the base."""
        from vigneron.core.draws import Sampling
        from vigneron.policy.load import load_policy
        from vigneron.rollout.on_policy import OnPolicy

        policy = load_policy(self.base(), device="cpu" if self.small else "auto")
        tokens = 4 if self.small else 32
        texts = OnPolicy(policy, Sampling(), tokens, count, seed)(rows).samples.completions
        if self.small:  # a random model writes no sums: one term is changed instead
            draws = random.Random(seed)
            texts = tuple(row["answer"].replace(draws.choice("123"), "4") for row in rows for _ in range(count))
        return list(zip([row for row in rows for _ in range(count)], texts, strict=True))

    def solutions(self, split: str, count: int, seed: int) -> list[Row]:
        """Labelled solutions of a split, kept in a file. One without a line is left out."""
        path = self.out / f"{split}-{count}-{seed}.jsonl"
        if not path.is_file():
            made = [
                {
                    "prompt": row["prompt"],
                    "completion": text,
                    "labels": (labels := step_labels(row["terms"], text)),
                    "outcome": [*[None] * (len(labels) - 1), int(is_right(row, text))],
                }
                for row, text in self.samples(self.rows(split), count, seed)
                if lines_of(text)
            ]
            write(path, made)
        return [json.loads(line) for line in path.read_text().splitlines()]

    def scorer(self, name: str, solutions: Sequence[Row], seed: int, *, outcome: bool = False) -> Path:
        """A process model of the solutions, or an outcome model."""
        held_out = write(self.out / f"{name}-held-out.jsonl", self.solutions("tuning", 4, seed))
        method = {"name": "process_model", **({"labels": "outcome", "steps": "last"} if outcome else {})}
        steps = max(1, min(self.steps, 10 + 3 * len(solutions) // self.batch))
        keys = {"method": method, "steps": steps, "prompts_per_step": self.batch, "eval_every": steps}
        data = {"train": write(self.out / f"{name}.jsonl", solutions), "held_out": held_out}
        keys |= {"data": data, "optimizer": {"actor_lr": self.rates["scorer"]}}
        return self.trained(name, self.common(seed) | keys)

    def chosen(self, run: Path | None, seed: int) -> dict[str, float]:
        """Of eight samples of each held-out sum: the one that the model of a run scores highest, or (None) all."""
        count = 2 if self.small else 8
        path = self.out / f"{self.part}-samples-{seed}.jsonl"
        if not path.is_file():
            write(path, [{"row": r, "text": t} for r, t in self.samples(self.rows(self.part), count, 1000 + seed)])
        given = [json.loads(line) for line in path.read_text().splitlines()]
        rows, texts = [each["row"] for each in given], [each["text"] for each in given]
        right = [is_right(row, text) for row, text in zip(rows, texts, strict=True)]
        groups = [range(at, at + count) for at in range(0, len(texts), count)]
        if run is None:
            picked = list(range(len(texts)))
            more = {"pass_at_8": mean([any(right[at] for at in group) for group in groups])}
        else:
            scores = scores_of(run, [row["prompt"] for row in rows], texts, small=self.small)
            picked = [max(group, key=lambda at: (scores[at], -at)) for group in groups]
            more = final_metrics(run)
        traces = [has_trace_error(rows[at], texts[at]) for at in picked if right[at]]
        return {"accuracy": mean([right[at] for at in picked]), "trace_errors": mean(traces), **more}

    def best_of(self, seed: int) -> None:
        solutions = self.solutions("fresh", self.per_prompt, seed)
        self.measure("best_of", "mean of samples", seed, lambda: self.chosen(None, seed))
        for arm in ("outcome", "process"):

            def figures(arm: str = arm) -> dict[str, float]:
                return self.chosen(self.model(arm, solutions, seed), seed)

            self.measure("best_of", arm, seed, figures)
        self.free(f"outcome-{seed}")

    def model(self, arm: str, solutions: Sequence[Row], seed: int) -> Path:
        return self.scorer(f"{arm}-{seed}", solutions, seed, outcome=arm == "outcome")

    def free(self, name: str) -> None:
        """Weights that nothing needs any more: a checkpoint has 1.6 GB."""
        shutil.rmtree(self.runs / name / "checkpoints", ignore_errors=True)

    def active(self, seed: int) -> None:
        from vigneron.labels.active import most_convincing_first

        wanted = [f"random {self.counts[0]}", *(f"{arm} {n}" for n in self.counts[1:] for arm in ("random", "active"))]
        if all(self.has("active", arm, seed) for arm in wanted):
            return
        pool = self.solutions("fresh", self.per_prompt, seed)
        random.Random(seed).shuffle(pool)
        first, rest = pool[: self.counts[0]], pool[self.counts[0] :]
        start = self.scorer(f"labelled-{self.counts[0]}-{seed}", first, seed)
        self.measure("active", f"random {self.counts[0]}", seed, lambda: self.chosen(start, seed))
        prompts, texts = [row["prompt"] for row in rest], [row["completion"] for row in rest]
        scores = scores_of(start, prompts, texts, small=self.small)
        order = most_convincing_first(scores, [bool(row["outcome"][-1]) for row in rest])
        for count in self.counts[1:]:
            for arm, more in (("random", rest), ("active", [rest[at] for at in order])):
                labelled = [*first, *more[: count - len(first)]]
                name = f"labelled-{arm}-{count}-{seed}"

                def figures(name: str = name, labelled: list[Row] = labelled) -> dict[str, float]:
                    return self.chosen(self.scorer(name, labelled, seed), seed)

                self.measure("active", f"{arm} {count}", seed, figures)
                self.free(name)
        self.free(start.name)

    def pspo(self, seed: int) -> None:
        missing = [shape for shape in SHAPES if not self.has("pspo", shape, seed)]
        if not missing:
            return
        scorer = self.model("process", self.solutions("fresh", self.per_prompt, seed), seed)
        for shape in missing:
            self.measure("pspo", shape, seed, partial(self.train_policy, f"{shape}-{seed}", shape, seed, scorer))

    def train_policy(self, name: str, shape: str, seed: int, scorer: Path) -> dict[str, float]:
        """GRPO by a process model."""
        steps, tokens = (1, 8) if self.small else (60, 64)
        shaped = {"combine": "min"} if shape == "min" else {"shape": shape}
        keys = {
            "method": {"name": "grpo", "kl": {"coefficient": 0}},
            "data": {
                "train": write(self.out / "sums.jsonl", fresh_sums(600, small=self.small)),
                "held_out": write(self.out / f"{self.part}.jsonl", self.rows(self.part)),
                "checker": "last_line",
            },
            "reward": {"kind": "process", "model": str(scorer.resolve()), **shaped},
            "optimizer": {"actor_lr": self.rates["grpo"]},
            "steps": steps,
            "prompts_per_step": 2 if self.small else 16,
            "group_size": 2 if self.small else 8,
            "max_new_tokens": tokens,
            "eval_every": steps,
            "successive_kl_every": 0,
        }
        logged = final_metrics(self.trained(name, self.common(seed) | keys))
        names = {"accuracy": "eval/accuracy", "lines": "eval/reward/steps", "reward": "eval/reward"}
        names["tokens"] = "eval/completions/mean_length"
        self.free(name)
        return {short: logged[name] for short, name in names.items()}

    def tune(self, seed: int) -> None:
        """Models at every rate; then GRPO by the process model that chooses best, at every rate."""
        solutions = self.solutions("fresh", self.per_prompt, seed)
        self.measure("tuning", "mean of samples", seed, lambda: self.chosen(None, seed))
        for rate in TRIED["scorer"]:
            self.rates["scorer"] = rate
            for arm in ("outcome", "process"):
                name = f"{arm}@{rate:g}"

                def figures(arm: str = arm, name: str = name) -> dict[str, float]:
                    run = self.scorer(f"{name}-{seed}", solutions, seed, outcome=arm == "outcome")
                    return self.chosen(run, seed)

                self.measure("tuning", name, seed, figures)
        tried = [r for r in self.records() if r["part"] == "tuning" and r["arm"].startswith("process@")]
        best = max(tried, key=lambda record: record["accuracy"])["arm"]
        for rate in TRIED["grpo"]:
            self.rates["grpo"] = rate
            name = f"min@{rate:g}"
            scorer = self.runs / f"{best}-{seed}"
            self.measure("tuning", name, seed, partial(self.train_policy, f"{name}-{seed}", "min", seed, scorer))


def scores_of(run: Path, prompts: Sequence[str], texts: Sequence[str], *, small: bool) -> list[float]:
    from vigneron.policy.reward_model import load_reward_model
    from vigneron.rewards.process import ranking_reward
    from vigneron.training.setup.resolve import newest_weights

    device = "cpu" if small else "auto"
    scorer = load_reward_model(newest_weights(str(run)), start=False, device=device, dtype="float32")
    return list(ranking_reward(scorer)(prompts=list(prompts), completions=list(texts)))


def final_metrics(run: Path) -> dict[str, float]:
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return {name: value for name, value in last.items() if name.startswith("eval/") and isinstance(value, float)}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def write(path: Path, rows: Sequence[Row]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path.resolve())


COLUMNS = {
    "tuning": ("accuracy", "trace_errors", "eval/accuracy", "lines", "reward"),
    "best_of": ("accuracy", "trace_errors", "pass_at_8", "eval/accuracy"),
    "active": ("accuracy", "trace_errors", "eval/accuracy"),
    "pspo": ("accuracy", "lines", "tokens", "reward"),
}
DIFFERENCES = {
    "best_of": (("process", "outcome", "accuracy"), ("process", "outcome", "trace_errors")),
    "active": (("active 2000", "random 2000", "accuracy"), ("active 2000", "random 2000", "eval/accuracy")),
    "pspo": (
        ("pspo_released", "min", "lines"),
        ("pspo", "min", "lines"),
        ("pspo_released", "min", "accuracy"),
        ("pspo", "min", "accuracy"),
    ),
}


def print_tables(records: Sequence[dict[str, Any]]) -> None:
    for part, columns in COLUMNS.items():
        arms = list(dict.fromkeys(record["arm"] for record in records if record["part"] == part))
        if not arms:
            continue
        print(f"\n| {part} | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
        by_arm = {a: {r["seed"]: r for r in records if (r["part"], r["arm"]) == (part, a)} for a in arms}
        for arm, seeds in by_arm.items():
            cells = [interval([record.get(name, math.nan) for record in seeds.values()]) for name in columns]
            print(f"| {arm} | {' | '.join(cells)} |")
        for one, other, name in DIFFERENCES.get(part, ()):
            both = set(by_arm.get(one, {})) & set(by_arm.get(other, {}))
            if both:
                paired = [by_arm[one][seed][name] - by_arm[other][seed][name] for seed in sorted(both)]
                print(f"{one} − {other}, {name}: {interval(paired)}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("run", "table"), default="run")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--small", action="store_true", help="a tiny random model, in seconds")
    parser.add_argument("--tune", action="store_true", help="the learning rates, on the tuning part")
    given = parser.parse_args(arguments)
    bench = Bench(given.out, part="tuning" if given.tune else "held_out", small=given.small)
    if given.what == "run" and given.tune:
        bench.tune(TUNING_SEED)
    elif given.what == "run":
        for part in given.parts:
            for seed in given.seeds:
                getattr(bench, part)(seed)
    print_tables(bench.records())


if __name__ == "__main__":
    main()
