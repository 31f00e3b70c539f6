"""The model card of a checkpoint: what it was made of, how, what came of it, and what it is not good for.

Pure: a run's config and figures in, Markdown out. Nothing of the machine stands in it: no path, no address, no key.
"""

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from typing import Any

import yaml

from vigneron.config import Config
from vigneron.recipe import Dumper
from vigneron.run_store.headline_metrics import Shown, is_number, watched_in

RLMT = "R. Patel (2025): *Understanding Reinforcement Learning for Model Training, and future directions with GRAPE*."
PGSRM = "*Parent-Guided Semantic Reward Model (PGSRM)*: embedding similarity to a parent's answer as the reward."

ABOUT_METHOD = {
    "actor_critic": "Actor-critic, by PGSRM's Algorithm 1: the policy gradient with a value for each prompt.",
    "dpo": "Direct preference optimization: the preferred text of a pair is made likelier than the other.",
    "grape": "GRAPE: groups of answers, some of them revised, scored by a rubric and compared within their group.",
    "grpo": "GRPO: groups of samples, each compared with the mean of its group, with a clipped ratio.",
    "ppo": "PPO: a clipped ratio, with a critic and the KL to the base model in the reward.",
    "preference_model": "A preference model: of two texts, the probability that the first is better.",
    "reinforce": "REINFORCE: the reward-weighted log-likelihood of samples, less a baseline.",
    "rejection_sampling": "Rejection sampling: fine-tuning on the best of each prompt's samples.",
    "reward_model": "A reward model: of two texts, the preferred one is to score higher (Bradley-Terry).",
    "score_model": "A reward model of people's scores: a score is the share of people who would accept a text.",
    "sft": "Supervised fine-tuning: the negative log-likelihood of demonstrations.",
    "sppo": "SPPO: self-play on win rates; the log-ratio to the previous policy is moved towards a sample's win rate.",
    "trpo": "TRPO: the importance ratio, kept near the policy that sampled by their KL.",
}

ABOUT_REWARD = {
    "semantic": "The reward is the similarity between the embeddings of the answer and of a parent's answer (PGSRM).",
    "binary": "The reward is 1 for an answer that counts as right, and 0 for any other.",
    "python": "The reward is a function of the trainer's own.",
    "model": "The reward is what a reward model gives the text.",
    "preference": "The reward is how often a preference model prefers the text to the others of its group.",
    "rubric": "The reward is a rubric's: items with weights, scored by programs or by a judge.",
}

LIMITS = {
    "narrow": "It learned from {rows} rows of one kind. What it says to anything else was not looked at, and may be "
    "worse than the base model.",
    "rewarded": "It was trained to earn a reward. A high reward is no proof of quality: look at its answers.",
    "semantic": "Nearness of embeddings is not truth: opposites can lie near each other, and a wrong answer near a "
    "right one.",
    "model": "A reward model has its own errors, and a policy that is trained on it finds them.",
    "preference": "A preference model has its own errors, and a policy that is trained on it finds them.",
    "rubric": "Where a judge scored, its errors and tastes are in the model.",
    "scorer": "Its scores compare texts of the kind it was trained on. Elsewhere, and for texts that were written to "
    "please it, they mean little.",
    "not evaluated": "Nothing was held out: no figure here says how it does on what it has not seen.",
    "unsafe": "It was not tested for safety, and has at least the faults of its base model.",
}


PACKAGES = ("vigneron", "torch", "transformers", "peft", "tokenizers", "safetensors")
HUB_NAMES = {"smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct"}
"""Of bundled models. Theirs is the quantised copy, written out again."""


@dataclass(frozen=True)
class Rows:
    train: int
    held_out: int


def model_card(
    config: Config,
    metrics: Sequence[Mapping[str, Any]],
    *,
    step: int,
    rows: Rows,
    base_hash: str,
    versions: Mapping[str, str] | None = None,
    merged: bool = False,
) -> str:
    """`metrics`: the run's, from its first evaluation to the step that was saved. `merged`: an adapter no more."""
    is_adapter = config.model.lora is not None and not merged
    title = _one_line(config.recipe)
    parts = [
        _front_matter(config, is_adapter),
        f"# {title}, step {step}\n\n{_opening(config, step, is_adapter)}",
        f"## Base model\n\n{_base(config, base_hash)}",
        f"## Data\n\n{_data(config, rows)}",
        f"## How it was trained\n\n{_training(config, step)}",
        f"## Figures\n\n{_figures(config, [r for r in metrics if r['step'] <= step])}",
        "## Limits\n\n" + "\n".join(f"- {line}" for line in _limits(config, rows)),
        "## Versions\n\n" + ", ".join(f"{name} {found}" for name, found in (versions or installed()).items()) + ".",
        "## Papers\n\n" + "\n".join(f"- {paper}" for paper in _papers(config)),
        f"## Config\n\n```yaml\n{_config_shown(config)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _config_shown(config: Config) -> str:
    written = without_places(config.model_dump(mode="json"))
    return yaml.dump(written, Dumper=Dumper, sort_keys=False, allow_unicode=True).strip().replace("```", "'''")


def installed() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from its source
            continue
    return found


def base_name(name: str) -> str | None:
    """A model's name on the hub; None for a folder on somebody's machine."""
    known = HUB_NAMES.get(name, name)
    return known if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", known) else None


def without_places(value: Any) -> Any:
    """Paths by their last part, addresses without host: where things are is nobody else's business."""
    if isinstance(value, Mapping):
        return {key: without_places(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_places(one) for one in value]
    if not isinstance(value, str):
        return value
    if re.match(r"https?://", value):
        return value.split("://")[0] + "://…"
    return f"…/{PurePath(value).name}" if re.match(r"~|\.{0,2}/", value) else value


def _front_matter(config: Config, is_adapter: bool) -> str:
    scores = config.method.trains == "scorer"
    base = base_name(config.model.name)
    known: dict[str, Any] = {"base_model": base, "base_model_relation": "adapter" if is_adapter else "finetune"}
    front = {
        **(known if base else {}),
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-classification" if scores else "text-generation",
        "tags": ["vigneron", config.method.name.replace("_", "-"), *_reward_tags(config)],
    }
    return f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---"


def _reward_tags(config: Config) -> list[str]:
    sampled = config.method.reads == "prompts"
    return [*(["reinforcement-learning"] if sampled else []), *(["pgsrm"] if _is_pgsrm(config) else [])]


def _is_pgsrm(config: Config) -> bool:
    return config.method.reads == "prompts" and config.reward.kind == "semantic"


def _opening(config: Config, step: int, is_adapter: bool) -> str:
    what = "A model that scores texts" if config.method.trains == "scorer" else "A language model"
    shape = "an adapter, to be put on its base model" if is_adapter else "the whole model"
    about = f" Its recipe says of itself: {_one_line(config.about)}." if config.about else ""
    return f"{what}, trained with Vigneron for {step} of {config.steps} steps; {shape}.{about}"


def _base(config: Config, base_hash: str) -> str:
    name = base_name(config.model.name)
    parts = PurePath(config.model.name).parts
    if name is not None:
        said = f"`{name}`" + (" (a quantised copy, written out again)" if config.model.name in HUB_NAMES else "")
    elif len(parts) > 2 and parts[-2] == "checkpoints":
        said = f"the run `{_one_line(parts[-3])}` after step {parts[-1].removeprefix('step-')}"
    else:
        said = f"a local model, `{_one_line(parts[-1])}`"
    minted = " Two tokens were made for its conversations." if config.model.chat == "minted" else ""
    return f"{said[0].upper()}{said[1:]}. Its weights' SHA-256 is `{base_hash}`.{minted}"


def _data(config: Config, rows: Rows) -> str:
    data = config.data
    of = {"prompts": "prompts", "demonstrations": "demonstrations", "pairs": "preference pairs"}[config.method.reads]
    counts = f"{rows.train} {of} to train on, {rows.held_out} held out."
    if data.task is not None:
        return (
            f"The task `{data.task}`, which comes with Vigneron: {counts} Its inputs and answers were written by the "
            "project's authors with a language model's help; Apache-2.0."
        )
    said = f"`{_one_line(PurePath(data.train or '').name)}`, the trainer's own file: {counts}"
    if config.parent is not None:
        said += f" Answers of the parent `{_one_line(PurePath(config.parent.model).name)}`, asked before training."
    return said + " Where its rows come from, and their licence, only who trained it can say."


def _training(config: Config, step: int) -> str:
    lines = [ABOUT_METHOD[config.method.name]]
    if config.method.reads != "pairs" and (config.method.reads == "prompts" or config.reward.kind != "binary"):
        lines.append(ABOUT_REWARD[config.reward.kind])
    samples = config.prompts_per_step * config.group_size
    of = {"prompts": "samples", "demonstrations": "demonstrations", "pairs": "pairs"}[config.method.reads]
    lines.append(f"{step} steps of {samples} {of}, seed {config.seed}; the whole config is below.")
    return " ".join(lines)


def _figures(config: Config, metrics: Sequence[Mapping[str, Any]]) -> str:
    shown = watched_in(config.model_dump(mode="json"), metrics)
    rows = [row for figure in shown if (row := _row(figure, metrics)) is not None]
    if not rows:
        return "None was measured."
    held_out = (
        " Held-out figures are of rows that were not trained on." if any("held-out" in row for row in rows) else ""
    )
    return "\n".join(["| figure | first | last |", "|---|---:|---:|", *rows]) + f"\n\nOf the run's own logs.{held_out}"


def _row(figure: Shown, metrics: Sequence[Mapping[str, Any]]) -> str | None:
    values = [record[figure.key] for record in metrics if is_number(record.get(figure.key))]
    return f"| {figure.label} | {values[0]:.3f} | {values[-1]:.3f} |" if len(values) > 1 else None


def _limits(config: Config, rows: Rows) -> list[str]:
    lines = [LIMITS["narrow"].format(rows=rows.train)]
    if config.method.trains == "scorer":
        lines.append(LIMITS["scorer"])
    elif config.method.reads == "prompts":
        lines += [LIMITS["rewarded"], LIMITS.get(config.reward.kind, "")]
    if rows.held_out == 0:
        lines.append(LIMITS["not evaluated"])
    return [line for line in (*lines, LIMITS["unsafe"]) if line]


def _papers(config: Config) -> list[str]:
    pgsrm = _is_pgsrm(config) or config.method.name == "actor_critic"
    return [*([PGSRM] if pgsrm else []), *([RLMT] if config.method.name != "actor_critic" else [])]


def _one_line(text: str) -> str:
    """Nothing in it ends a line, a table's cell or a piece of code."""
    return " ".join(re.sub(r"[`|<>]", "", text).split())
