"""Diversity: many right answers, recorded unequally often. Flow-guided tuning (Flower) against SFT and GRPO.

    python -m benchmarks.emerging.diversity --out FOLDER [--seeds 0 1 2] [--small]     what is not in the folder yet
    python -m benchmarks.emerging.diversity table --out FOLDER                         the table alone

Set-up. Eight questions ("Name a colour:") with eight right answers each; the k-th is recorded about 24/k times, so that
a few are popular. All are equally right.

    sft        fine-tuning on the records: it should copy the popularity
    flower     one row per answer, score 1, flow balance: it should make all answers equally likely
    grpo       from the sft model, reward 1 for a right answer: any right answer will do

Every arm has 40 steps of 32 rows (grpo: 8 questions x 16 samples). Measured on 64 samples per question at temperature
1: the share of right answers; `answers`, the effective number of different right answers per question (e to the
entropy, at most 8); `most`, the share of the most frequent one among the right ones (1/8 if all are equally likely; the
records have 0.37).

Decision rule, before the runs. Flower shows its worth if its number of answers is above sft's by an interval of paired
differences that excludes 0, with a share of right answers no more than 0.05 below sft's.
"""

import math
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.emerging.records import Record, Records, arguments, difference, table, write_rows

ANSWERS = {
    "colour": "red blue green yellow orange purple brown pink",
    "animal": "dog cat horse cow sheep pig goat mouse",
    "fruit": "apple banana orange grape pear peach plum cherry",
    "metal": "iron gold silver copper tin lead zinc steel",
    "drink": "water tea coffee milk juice beer wine soda",
    "tool": "hammer saw drill axe knife file pliers wrench",
    "sport": "football tennis golf hockey boxing rowing skiing rugby",
    "month": "May June July March April August October January",
}
ARMS = ("sft", "flower", "grpo")
COLUMNS = ("right", "answers", "most")


def question(kind: str) -> str:
    return f"Name a {kind}:"


def is_right(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    right = {question(kind): {word.lower() for word in words.split()} for kind, words in ANSWERS.items()}
    return [float(text.strip().lower() in right[prompt]) for prompt, text in zip(prompts, completions, strict=True)]


class Diversity:
    def __init__(self, out: Path, *, small: bool) -> None:
        self.out, self.small = out, small

    def train(self, name: str, model: str, **keys: Any) -> Any:
        from vigneron import api
        from vigneron.recipe import check_config

        shutil.rmtree(self.out / "runs" / name, ignore_errors=True)  # of an interrupted start
        section = {"name": model, "compile": False, **({"device": "cpu"} if self.small else {})}
        steps = {"steps": 3 if self.small else 40, "eval_every": 0, "save_every": 0, "max_new_tokens": 6}
        return api.train(
            check_config({"recipe": name, "model": section, **steps, **keys}, name), name=name, runs=self.out / "runs"
        )

    def start(self) -> str:
        if not self.small:
            return "smollm2-135m"
        from benchmarks.fuzzing.tiny import save_tiny_model

        save_tiny_model(self.out / "tiny")
        return str(self.out / "tiny")

    def records(self, seed: int) -> str:
        rows = [
            {"prompt": question(kind), "answer": word, "n": n}
            for kind, words in ANSWERS.items()
            for rank, word in enumerate(words.split(), start=1)
            for n in range(24 // rank)
        ]
        random.Random(seed).shuffle(rows)
        return write_rows(self.out / f"records-{seed}.jsonl", rows)

    def sft(self, seed: int) -> Any:
        lr, data = {"actor_lr": 3e-5}, {"train": self.records(seed)}
        name = f"sft-{seed}"
        return self.train(
            name, self.start(), method={"name": "sft"}, data=data, optimizer=lr, seed=seed, prompts_per_step=32
        )

    def run(self, arm: str, seed: int) -> Record:
        if arm == "sft":
            return self.figures(self.sft(seed))
        if arm == "flower":
            rows = [
                {"prompt": question(kind), "answer": word, "score": 1.0}
                for kind, words in ANSWERS.items()
                for word in words.split()
            ]
            data = {"train": write_rows(self.out / "catalogue.jsonl", rows)}
            keys = {"method": {"name": "flower"}, "data": data, "optimizer": {"actor_lr": 3e-5}}
            return self.figures(self.train(f"flower-{seed}", self.start(), seed=seed, prompts_per_step=32, **keys))
        base = self.sft(seed)
        prompts = write_rows(self.out / "prompts.jsonl", [{"prompt": question(kind)} for kind in ANSWERS])
        reward = {"kind": "python", "function": "benchmarks.emerging.diversity:is_right"}
        keys = {
            "method": {"name": "grpo"},
            "reward": reward,
            "data": {"train": prompts},
            "optimizer": {"actor_lr": 1e-5},
        }
        size = {"prompts_per_step": 8, "group_size": 4 if self.small else 16}
        trained = self.train(f"grpo-{seed}", str(base.folder), seed=seed, **size, **keys)
        shutil.rmtree(base.folder)
        return self.figures(trained)

    def figures(self, trained: Any) -> Record:
        right, counts, most = [], [], []
        for kind in ANSWERS:
            texts = trained.sample([question(kind)] * 64, temperature=1.0, max_new_tokens=6, seed=1)
            verdicts = is_right([question(kind)] * 64, texts)
            good = Counter(text.strip().lower() for text, verdict in zip(texts, verdicts, strict=True) if verdict)
            right.append(mean(verdicts))
            total = sum(good.values())
            shares = [count / total for count in good.values()]
            counts.append(math.exp(-sum(share * math.log(share) for share in shares)) if shares else 0.0)
            most.append(max(shares, default=0.0))
        shutil.rmtree(trained.folder)
        return {"right": mean(right), "answers": mean(counts), "most": mean(most)}


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(__doc__, given)
    records = Records(options.out, "diversity")
    if options.what == "run":
        diversity = Diversity(options.out, small=options.small)
        arms = options.arms or ARMS
        records.add_missing([(arm, seed) for seed in options.seeds for arm in arms], diversity.run)
    print(table(records.read(), COLUMNS))
    for figure in ("answers", "right"):
        print(difference(records.read(), "flower", "sft", figure))


if __name__ == "__main__":
    main()
