"""Draw samples from a recipe's model and score them by its reward: rows that `topr` and `oreo` read."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.core.masked import masked_sum
from vigneron.data.prompts import Row
from vigneron.data.recorded import RECORD
from vigneron.errors import UserError
from vigneron.files import append_line, check_out, write_rows, writing_for_user
from vigneron.policy.bundled import cache_folder
from vigneron.policy.device import resolve_device, use_device
from vigneron.policy.from_config import policy_from_config, seed_everything
from vigneron.rewards.apply import ApplyReward
from vigneron.rewards.build import attach_models, build_reward
from vigneron.rewards.checkers import load_checker
from vigneron.rewards.trial import try_user_functions
from vigneron.rollout.build import build_rollout
from vigneron.run_data.load import load_data
from vigneron.run_data.readers import checker_name
from vigneron.run_data.reference_answers import with_parent_answers
from vigneron.timing import phase, progress
from vigneron.training.drawn_parts import fingerprint, read_parts, write_parts
from vigneron.training.setup.preflight import model_checks
from vigneron.training.setup.resolve import newest_weights, resolved

PROMPTS = 64
"""Prompts that are sampled for at a time."""
REWARD = "reward"


@dataclass(frozen=True)
class Recording:
    """The files that were written, and what is in them."""

    file: Path
    rows: int
    mean_reward: float
    held_out: Path | None
    """The held-out prompts; None if there are none."""


def record_samples(config: Config, out: Path, samples: int, notice: Callable[[str], None]) -> Recording:
    """`samples` samples of each training prompt, with reward and log-prob, in `out`; the held-out rows beside it."""
    if config.method.reads != "prompts":
        raise UserError(
            f"`method: {config.method.name}` samples nothing: give a recipe that does, e.g. grpo-ladder, or the method "
            "with `samples: sampled`"
        )
    if config.environment is not None:
        raise UserError(
            "`environment`: recorded samples are single answers, and this recipe's are conversations: train it directly"
        )
    if getattr(config.reward, "combine", None) == "annealed":
        raise UserError("reward.combine: annealed changes during a run: sample with one of its rewards")
    held_out_file = out.with_suffix(".held_out.jsonl")
    for path in (out, held_out_file):
        check_out(path)
    config = resolved(config)
    data = load_data(config)
    for text in (*try_user_functions(config, data.train, ()), *model_checks(config, data).notices):
        notice(text)
    data = with_parent_answers(config, data, notice)
    parts_file = out.with_name(f"{out.name}.parts")
    rows = _recorded(config, data.train, samples, parts_file, notice)
    rewards = [row[REWARD] for row in rows if row[REWARD] is not None]
    if rows and not rewards and config.reward.missing_limit < 1:
        parts_file.unlink(missing_ok=True)
        raise UserError(f"the reward is missing for all {len(rows)} samples: nothing is written")
    write_rows(out, rows)
    if data.held_out:
        write_rows(held_out_file, data.held_out)
    parts_file.unlink(missing_ok=True)
    mean = sum(rewards) / len(rewards) if rewards else float("nan")
    return Recording(out, len(rows), mean, held_out_file if data.held_out else None)


def _recorded(
    config: Config, rows: Sequence[Row], samples: int, file: Path, notice: Callable[[str], None]
) -> list[Row]:
    """The samples of all rows. What is done stays in `file`, and is not drawn again by the next call."""
    drawn_with = _fingerprint(config, rows, samples)
    parts = read_parts(file, drawn_with, lambda part: [{**row, REWARD: row[REWARD]} for row in part])
    done = [row for part in parts for row in part]
    if done:
        notice(f"continues behind the {len(done)} samples in '{file}'")
    embeddings = cache_folder() / "embeddings.sqlite"
    embeddings.parent.mkdir(parents=True, exist_ok=True)
    use_device(resolve_device(config.model.device))
    built = build_reward(
        config.reward,
        load_checker(checker_name(config)),
        cache=embeddings,
        device=config.model.device,
        notice=notice,
        weights=partial(newest_weights, key="reward.file"),
        rows=rows,
    )
    reward = ApplyReward.of(config, built)
    try:
        seed_everything(config.seed)
        with phase("load the model"):
            policy = policy_from_config(config)
        attach_models(built, policy)
        rollout = build_rollout(config.model_copy(update={"group_size": samples}), policy)
        with writing_for_user(file):
            write_parts(file, drawn_with, parts)
        for first in range(len(done) // samples, len(rows), PROMPTS):
            progress("sample", first, len(rows))
            torch.manual_seed(config.seed + first)
            part = rows[first : first + PROMPTS]
            batch = reward(rollout(part, 0, first), whole_step=False)
            recorded = list(_rows_of(batch, [row for row in part for _ in range(samples)]))
            with writing_for_user(file):
                append_line(file, json.dumps(recorded, ensure_ascii=False))
            done += recorded
    except BaseException:  # Ctrl-C too
        if done:
            notice(f"{len(done)} samples are kept in '{file}': the same command continues behind them")
        raise
    finally:
        reward.close()
    return done


def _fingerprint(config: Config, rows: Sequence[Row], samples: int) -> str:
    written = config.model_dump(mode="json")
    written["reward"].pop("missing_limit", None)  # may be raised after it was reached
    return fingerprint([written, list(rows), samples])


def _rows_of(batch: Batch, rows: Sequence[Row]) -> Iterator[Row]:
    sums = masked_sum(batch.samples.behaviour_BT, batch.samples.mask_BT).tolist()
    rewards, cut = batch.signals.rewards_B.tolist(), batch.samples.truncated_B.tolist()
    for at, row in enumerate(rows):
        own = {name: value for name, value in row.items() if name not in (*RECORD, "messages")}
        yield {
            **own,
            "completion": batch.samples.completions[at],
            REWARD: rewards[at] if rewards[at] == rewards[at] else None,
            **({"logprobs": min(sums[at], 0.0)} if sums[at] == sums[at] else {}),  # unknown with `sampling.prompt`
            "token_ids": list(batch.samples.completion_lists()[at]),
            **({"truncated": True} if cut[at] else {}),
        }


def training_overrides(config: Config, recording: Recording, samples: int) -> list[str]:
    """What makes of the recipe that was sampled one that trains TOPR on the samples, with the same model."""
    data, held_out = config.data, recording.held_out or "null"
    of_source = ("task", "template", "chat", "config", "split", "held_out_split", "columns")
    of_data: dict[str, object] = {key: "false" if key == "chat" else "null" for key in of_source if getattr(data, key)}
    of_data |= {"train": recording.file, "held_out": held_out, "checker": checker_name(config)}
    stop = {"stop": config.sampling.stop} if config.sampling.stop else {}
    inert = {"group_size": "1", "sampling": json.dumps(stop), "parent": "null", "rollout": "null", "curriculum": "null"}
    inert |= {"scale": "{}"}
    reads_groups = config.reward.smallest_group > 1 or getattr(config.reward, "rewards_at", None) == "steps"
    return [
        "method={name: topr, rewards: advantage}" if samples > 1 else "method=topr",
        *(f"data.{key}={value}" for key, value in of_data.items()),
        *(f"{key}={value}" for key, value in inert.items() if getattr(config, key) != Config.model_fields[key].default),
        *(["reward=binary"] if reads_groups else []),
        *(
            [f"optimizer={{actor_lr: {config.optimizer.actor_lr:g}}}"]
            if "critic_lr" in config.optimizer.model_fields_set
            else []
        ),
    ]
