"""Circular preferences: rock beats scissors, scissors beat paper, paper beats rock, each with probability 0.9.

    python -m benchmarks.emerging.circular --out FOLDER [--seeds 0 1 2] [--small]     what is not in the folder yet
    python -m benchmarks.emerging.circular --tune --out FOLDER                        SPPO's and DPO's learning rates
    python -m benchmarks.emerging.circular table --out FOLDER                         the table alone

Set-up. The base is SmolLM2-135M, fine-tuned on 16 prompts to answer rock 60 %, paper 25 % and scissors 15 % of the
time. No answer beats all others, so no reward of one text has these preferences; the balanced mix (1/3 each) cannot be
beaten.

    sppo             SPPO, η = 1, 400 steps, a round per step, all samples; the win rate by the true probabilities
    dpo              DPO on 480 pairs of the base's answers, the winner drawn by the true probabilities, 60 steps
    reward_model     a Bradley-Terry model of the same pairs, then GRPO by it, 60 steps

Measured: the shares of the three words among 512 samples at temperature 1 after training (`last`), and their mean over
the steps (`mean`); exploitability, the win rate of the best answer against the mix minus ½: 0 for the balanced mix, 0.4
for a single word; what is no word of the three loses. `words`: the share of samples that are one of the three. The
learning rate of sppo was chosen with another seed by the exploitability of the mean over steps; `--tune` gives dpo's
loss on other pairs too (`pair_loss`). The policy of reward_model has its highest reward with one word alone.

Decision rule, before the runs. SPPO shows its worth if the exploitability of its mean over steps is below the base's
and below the last of dpo and of reward_model, by intervals of the paired differences that exclude 0.
"""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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

WORDS = ("rock", "paper", "scissors")
BEATS = {"rock": "scissors", "scissors": "paper", "paper": "rock"}
BASE = {"rock": 0.6, "paper": 0.25, "scissors": 0.15}
STRONG = 0.9
ARMS = ("sppo", "dpo", "reward_model")
NAMES = (
    "Anna",
    "Ben",
    "Carl",
    "Dora",
    "Emil",
    "Fay",
    "Gus",
    "Hana",
    "Ida",
    "Jon",
    "Kim",
    "Lea",
    "Max",
    "Nora",
    "Ole",
    "Pia",
)
PROMPTS = [f"{name} plays rock, paper, scissors and shows" for name in NAMES]
RATES = {"sppo": 1e-7, "dpo": 1e-6, "reward_model": 1e-5}
TRIED = {"sppo": (1e-7, 2e-7, 4e-7), "dpo": (3e-7, 1e-6, 5e-6), "reward_model": ()}
COLUMNS = (
    "exploitability_mean",
    "exploitability_last",
    "rock_last",
    "paper_last",
    "scissors_last",
    "words_last",
    "pair_loss",
)


def word_of(text: str) -> str | None:
    """The word that a completion is, or None."""
    text = text.strip().rstrip(".!").lower()
    return text if text in WORDS else None


def letter_word_of(text: str) -> str | None:
    """For --small: a random model writes no words, but letters."""
    return WORDS[sum(map(ord, text)) % 3] if text else None


def wins(one: str | None, other: str | None) -> float:
    """The probability that the first is preferred; what is no word loses to every word."""
    if one == other:
        return 0.5
    if one is None or other is None:
        return 0.0 if one is None else 1.0
    return STRONG if BEATS[one] == other else 1 - STRONG


def letter_win_rate(prompts: list[str], completions: list[str], **more: Any) -> list[float]:
    return win_rate(prompts, completions, read=letter_word_of, **more)


def win_rate(
    prompts: list[str],
    completions: list[str],
    log_metric: Any,
    read: Callable[[str], str | None] = word_of,
    **_: Any,
) -> list[float]:
    """Against the other completions of the prompt; logs the share of each word."""
    words = [read(text) for text in completions]
    for word in WORDS:
        log_metric(f"share_{word}", words.count(word) / len(words))
    rates = []
    for i, prompt in enumerate(prompts):
        others = [words[j] for j in range(len(prompts)) if prompts[j] == prompt and j != i]
        rates.append(sum(wins(words[i], other) for other in others) / max(len(others), 1))
    return rates


def exploitability(shares: dict[str, float]) -> float:
    """How much more than half of the games the best answer to a mix wins; what is no word loses."""
    rest = 1 - sum(shares.values())
    return max(sum(shares[other] * wins(one, other) for other in WORDS) + rest for one in WORDS) - 0.5


class Circular:
    def __init__(self, out: Path, *, small: bool) -> None:
        self.out, self.small = out, small
        self.steps, self.sppo_steps, self.base_steps = (3, 3, 2) if small else (60, 400, 40)
        self.word_of = letter_word_of if small else word_of

    def model(self, name: str) -> dict[str, Any]:
        return {"name": name, "compile": False, **({"device": "cpu"} if self.small else {})}

    def trained(self, name: str, **keys: Any) -> Any:
        from vigneron import api
        from vigneron.recipe import check_config

        shutil.rmtree(self.out / "runs" / name, ignore_errors=True)  # of an interrupted start
        recipe = {"recipe": name, "eval_every": 0, "save_every": 0, **keys}
        if "method" in keys and keys["method"]["name"] in ("sppo", "grpo"):
            recipe |= {"max_new_tokens": 4, "group_size": 4 if self.small else 16}
        return api.train(check_config(recipe, name), name=name, runs=self.out / "runs")

    def base(self) -> str:
        """The model that all arms begin at, fine-tuned once."""
        folder = self.out / "runs" / "base"
        if not (folder / "done").is_file():
            start = "smollm2-135m"
            if self.small:
                from benchmarks.fuzzing.tiny import save_tiny_model

                start = str(self.out / "tiny")
                save_tiny_model(Path(start))
            rows = [
                {"prompt": prompt, "answer": word, "n": n}
                for prompt in PROMPTS
                for word, share in BASE.items()
                for n in range(round(20 * share))
            ]
            random.Random(0).shuffle(rows)
            file = write_rows(self.out / "base.jsonl", rows)
            self.trained(
                "base",
                method={"name": "sft"},
                model=self.model(start),
                data={"train": file},
                optimizer={"actor_lr": 3e-5},
                steps=self.base_steps,
                prompts_per_step=32,
                max_new_tokens=4,
            )
            (folder / "done").touch()
        return str(folder)

    def pairs(self, seed: int) -> str:
        """Pairs of the base's own answers, the winner drawn by the true probabilities."""
        from vigneron import api

        texts = api.load_run(self.base()).sample(
            [p for p in PROMPTS for _ in range(60)], temperature=1.0, max_new_tokens=4, seed=seed
        )
        draw, rows = random.Random(seed), []
        for at in range(0, len(texts), 2):
            one, other = texts[at], texts[at + 1]
            if self.word_of(one) == self.word_of(other) or not (one.strip() and other.strip()):
                continue
            won = draw.random() < wins(self.word_of(one), self.word_of(other))
            chosen, rejected = (one, other) if won else (other, one)
            rows.append({"prompt": PROMPTS[at // 60], "chosen": chosen, "rejected": rejected, "n": at})
        return write_rows(self.out / f"pairs-{seed}.jsonl", rows)

    def run(self, run: str, seed: int) -> Record:
        if run == "base":
            from vigneron import api

            return self.figures(api.load_run(self.base()))
        arm, lr = arm_and_rate(run, RATES)
        model, prompts = (
            self.model(self.base()),
            write_rows(self.out / "prompts.jsonl", [{"prompt": p} for p in PROMPTS]),
        )
        common: dict[str, Any] = {"model": model, "seed": seed, "steps": self.steps}
        rule = "letter_win_rate" if self.small else "win_rate"
        by_rule = {"kind": "python", "function": f"benchmarks.emerging.circular:{rule}"}
        name, rate = f"{run}-{seed}", {"actor_lr": lr}
        if arm == "sppo":
            method = {"name": "sppo", "eta": 1.0, "samples": "all"}
            common["steps"] = self.sppo_steps
            keys = {"method": method, "reward": by_rule, "data": {"train": prompts}, "optimizer": rate}
            return self.figures(self.trained(name, prompts_per_step=16, **keys, **common))
        pairs = {"train": self.pairs(seed)}
        if arm == "dpo":
            data = {**pairs, "held_out": self.pairs(seed + 1000)}
            keys = {"method": {"name": "dpo"}, "data": data, "optimizer": rate, "eval_every": self.steps}
            return self.figures(self.trained(name, prompts_per_step=32, **keys, **common))
        scorer = self.trained(
            f"scorer-{seed}",
            method={"name": "reward_model"},
            data=pairs,
            prompts_per_step=32,
            optimizer={"actor_lr": 1e-5},
            **common,
        )
        reward = {"kind": "model", "model": str(scorer.folder)}
        keys = {
            "method": {"name": "grpo"},
            "reward": reward,
            "data": {"train": prompts},
            "optimizer": rate,
        }
        return self.figures(self.trained(name, prompts_per_step=8, **keys, **common))

    def figures(self, trained: Any) -> Record:
        texts = trained.sample([p for p in PROMPTS for _ in range(32)], temperature=1.0, max_new_tokens=4, seed=1)
        words = [self.word_of(text) for text in texts]
        last = {word: words.count(word) / len(words) for word in WORDS}
        record: Record = {f"{word}_last": share for word, share in last.items()}
        record |= {"words_last": sum(last.values()), "exploitability_last": exploitability(last)}
        lines = (trained.folder / "metrics.jsonl").read_text().splitlines()
        logged = [json.loads(line) for line in lines]
        record["pair_loss"] = next((r["eval/loss/dpo"] for r in reversed(logged) if "eval/loss/dpo" in r), None)
        steps = [r for r in logged if "reward/share_rock" in r]
        if steps:
            mean = {word: sum(r[f"reward/share_{word}"] for r in steps) / len(steps) for word in WORDS}
            record |= {f"{word}_mean": share for word, share in mean.items()}
            record["exploitability_mean"] = exploitability(mean)
            record["rock"] = [r["reward/share_rock"] for r in steps]
            record["paper"] = [r["reward/share_paper"] for r in steps]
            record["scissors"] = [r["reward/share_scissors"] for r in steps]
        if trained.folder.name != "base":
            shutil.rmtree(trained.folder)
        return record


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(__doc__, given)
    records = Records(options.out, "circular-tuning" if options.tune else "circular")
    if options.what == "run":
        circular = Circular(options.out, small=options.small)
        arms = options.arms or ARMS
        arms = with_rates(arms, TRIED) if options.tune else arms
        records.add_missing([("base", 0), *((arm, seed) for seed in options.seeds for arm in arms)], circular.run)
    print(table(records.read(), COLUMNS))
    # The rule compares the mean over SPPO's steps with where the others end.
    compared = [{**r, "exploitability": r.get("exploitability_mean", r["exploitability_last"])} for r in records.read()]
    for other in ("base", "dpo", "reward_model"):
        print(difference(compared, "sppo", other, "exploitability"))


if __name__ == "__main__":
    main()
