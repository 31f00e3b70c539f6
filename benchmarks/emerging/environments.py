"""Environments that a model of 135M learns: a guessing game, a text maze, sums with a calculator and without.

    python -m benchmarks.emerging.environments --out FOLDER [--seeds 0 1 2] [--small]     what is not in the folder yet
    python -m benchmarks.emerging.environments --tune --out FOLDER                        learning rates, on tuning rows
    python -m benchmarks.emerging.environments table --out FOLDER                         the table alone

Set-up. Each game is warmed up by its SFT recipe, once (sft-guess, sft-maze, sft-sums-tool; `sums` by SFT on the
results), and then trained by its recipe (env-guess, env-maze, env-sums-tool) with each seed. `GAME-warmup` is the model
before the second step.

    guess         GRPO on games of 16 numbers
    maze          GRPO on mazes of 4 x 4 cells
    sums-tool     GRPO on large sums with a calculator
    sums          GRPO on the same sums without one, for as many steps

Measured on the held-out rows, greedy: the mean reward, the accuracy (games that are won, goals that are reached, sums
that are right), and the turns of a game.

Decision rule, before the runs. An environment is learned if the 95 % interval (t, paired by seed) of its accuracy, for
guess and maze of its reward, minus the warm-up's lies above 0. The calculator pays if that of sums-tool's accuracy
minus the accuracy of sums does.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.emerging.records import Record, Records, arguments, arm_and_rate, difference, table, with_rates
from vigneron.errors import UserError

NAME = "environments"
FIGURES = ("reward", "accuracy", "turns")
ARMS = ("guess", "maze", "sums-tool", "sums")
RATES = dict.fromkeys(ARMS, 1e-5)
TRIED = dict.fromkeys(ARMS, (3e-6, 1e-5, 3e-5))
DIFFERENCES = (
    ("guess", "guess-warmup", "reward"),
    ("maze", "maze-warmup", "reward"),
    ("sums-tool", "sums-tool-warmup", "accuracy"),
    ("sums-tool", "sums", "accuracy"),
)
WITHOUT_TOOL = {"environment": None, "reward": {"kind": "binary"}, "max_new_tokens": 8}
SMALL = {"steps": 1, "prompts_per_step": 2}


def recipe_of(arm: str, stage: str) -> tuple[str, dict[str, Any]]:
    """The recipe of an arm's `sft` or `env`, and keys over it."""
    if arm != "sums":
        return f"{stage}-{arm}", {}
    return f"{stage}-sums-tool", {**WITHOUT_TOOL, "data": {"task": "sums"}}


def keys_of(arm: str, stage: str, model: str | None, small: bool, part: str) -> tuple[str, dict[str, Any]]:
    from vigneron.recipe import load_config

    recipe, keys = recipe_of(arm, stage)
    config = load_config(recipe, keys={**keys, **({} if model is None else {"model": {"name": model}})})
    keys |= {"data": {"task": config.data.task, "held_out": part}, "eval_every": 0, "save_every": 0}
    tiny = {"device": "cpu", **({"chat": "minted"} if stage == "sft" else {})} if small else {}
    keys |= {"model": {"name": config.model.name, "compile": False, **tiny}}
    if small:
        keys |= {**SMALL, "max_new_tokens": 4, **({"group_size": 2} if stage == "env" else {})}
        if config.environment is not None:
            shorter = {"max_turns": 2, "max_reply_tokens": 160}
            keys["environment"] = {**config.environment.model_dump(by_alias=True), **shorter}
    return recipe, keys


def warmed_up(arm: str, out: Path, small: bool) -> str:
    """The folder of the arm's model after its warm-up, which is trained once."""
    from vigneron import api

    run = (out / "runs" / f"{arm}-warmup").resolve()
    if not (run / "done").is_file():
        shutil.rmtree(run, ignore_errors=True)  # of an interrupted start
        recipe, keys = keys_of(arm, "sft", tiny_base(out) if small else None, small, "tuning")
        api.train(recipe, runs=run.parent, name=run.name, **keys)
        (run / "done").touch()
    (checkpoint,) = (run / "checkpoints").glob("step-*")
    return str(checkpoint)


def tiny_base(out: Path) -> str:
    from benchmarks.fuzzing.tiny import save_tiny_model

    if not (out / "base").is_dir():
        save_tiny_model(out / "base", positions=2048)
    return str((out / "base").resolve())


def figures_of(trained: Any, rows: Sequence[Any] | None = None) -> Record:
    """Greedy, on the run's held-out rows or on those given."""
    metrics = trained.evaluate(rows)
    return {"reward": metrics["reward"], "accuracy": metrics["accuracy"], "turns": metrics.get("turns/mean", 1.0)}


def train_arm(name: str, seed: int, out: Path, small: bool, part: str) -> Record:
    from vigneron import api
    from vigneron.run_store.folder import RunFolder

    arm, rate = arm_and_rate(name, RATES)
    recipe, keys = keys_of(arm, "env", warmed_up(arm, out, small), small, part)
    run = out / "runs" / f"{name}-{seed}"
    shutil.rmtree(run, ignore_errors=True)
    trained = api.train(recipe, runs=run.parent, name=run.name, **keys, seed=seed, optimizer={"actor_lr": rate})
    figures = figures_of(trained)
    folder = RunFolder(trained.folder)
    rewards = [record["reward"] for record in folder.metrics() if "reward" in record]
    seconds = sum(record["seconds"] for record in folder.records("timings.jsonl"))
    shutil.rmtree(trained.folder)  # gigabytes of optimizer state
    return {**figures, "reward_by_step": rewards, "seconds": seconds}


def warm_figures(arm: str, out: Path, small: bool, part: str) -> Record:
    """The model after its warm-up, with the environment and the rows of the second step."""
    from vigneron.api import Trained
    from vigneron.policy.from_config import policy_from_config
    from vigneron.policy.reference import Reference
    from vigneron.recipe import load_config
    from vigneron.run_data.load import load_data

    recipe, keys = keys_of(arm, "env", warmed_up(arm, out, small), small, part)
    config = load_config(recipe, keys=keys)
    policy = policy_from_config(config)
    return figures_of(Trained(out, config, 0, policy, Reference.of(policy)), load_data(config).held_out)


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(__doc__, given)
    arms = options.arms or ARMS
    if unknown := {arm.partition("@")[0] for arm in arms} - set(ARMS):
        raise UserError(f"--arms: unknown {', '.join(sorted(unknown))}: expected {', '.join(ARMS)}")
    records = Records(options.out, f"{NAME}-tuning" if options.tune else NAME)
    out, small, part = options.out, options.small, options.part
    if options.what == "run":
        warm = [(f"{arm}-warmup", 0) for arm in dict.fromkeys(name.partition("@")[0] for name in arms)]
        records.add_missing(warm, lambda name, _: warm_figures(name.removesuffix("-warmup"), out, small, part))
        names = with_rates(arms, TRIED) if options.tune else arms
        records.add_missing(
            [(name, seed) for seed in options.seeds for name in names],
            lambda name, seed: train_arm(name, seed, out, small, part),
        )
    print(table(records.read(), FIGURES))
    if not options.tune:
        print("\n".join(difference(records.read(), *of) for of in DIFFERENCES))


if __name__ == "__main__":
    main()
