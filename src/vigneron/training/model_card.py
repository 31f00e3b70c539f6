"""The model card of a checkpoint: base model, data, method, metrics, limits.

Pure: a run's config and metrics in, Markdown out. It contains no path, address or key of the machine.
"""

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from typing import Any

import yaml

from vigneron.config import Config, DataConfig
from vigneron.recipe import Dumper
from vigneron.run_store.headline_metrics import headline_metrics
from vigneron.run_store.metric_table import Metric
from vigneron.values import is_number

RLMT = "R. Patel (2025): *Understanding Reinforcement Learning for Model Training, and future directions with GRAPE*."
PGSRM = "*Parent-Guided Semantic Reward Model (PGSRM)*: embedding similarity to a parent's answer as the reward."

ABOUT_REWARD = {
    "semantic": "The reward is the similarity between the embeddings of the answer and of a parent's answer (PGSRM).",
    "token_f1": "The reward is the F1 score of the words of the answer against those of a parent's answer.",
    "probability": "The reward is the probability that the model itself gives a parent's answer after its own text "
    "(RLPR).",
    "binary": "The reward is 1 for a correct answer and 0 for any other.",
    "python": "The reward is a custom Python function.",
    "environment": "The reward is what the environment of its conversations gave.",
    "model": "The reward is the score of a reward model.",
    "preference": "The reward is how often a preference model prefers the text to the others of its group.",
    "process": "The reward combines a process model's probabilities that each step is right.",
    "rubric": "The reward is a rubric: weighted items, scored by programs or by a judge.",
    "combined": "The reward combines several rewards; the config below has their weights.",
}

LIMITS = {
    "narrow": "It was trained on {rows} rows of one kind. On other inputs it was not evaluated, and may be worse than "
    "the base model.",
    "rewarded": "It was trained to maximise a reward. A high reward does not prove quality: read its answers.",
    "semantic": "Similar embeddings do not mean a correct answer: opposites can be similar, and so can a wrong and a "
    "right answer.",
    "token_f1": "Shared words do not mean a correct answer: a negation changes one word.",
    "probability": "A text that makes an answer likely does not prove it: the model judges its own reasoning.",
    "model": "A reward model has errors, and a policy that is trained on it exploits them.",
    "preference": "A preference model has errors, and a policy that is trained on it exploits them.",
    "process": "A process model has errors, and a policy that is trained on it exploits them.",
    "rubric": "Where a judge scored, the model has learned its errors and biases.",
    "scorer": "Its scores compare texts of the kind it was trained on. They mean little for other texts, and for texts "
    "that were optimised against it.",
    "not evaluated": "Nothing was held out: no metric here measures it on unseen data.",
    "unsafe": "It was not tested for safety, and has at least the faults of its base model.",
}


PACKAGES = ("vigneron", "torch", "transformers", "peft", "tokenizers", "safetensors")
HUB_NAMES = {"smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct"}
"""Of bundled models, which are de-quantised copies."""


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
    """`metrics`: the run's, from its first evaluation to the saved step. `merged`: the adapter is in the weights."""
    is_adapter = config.model.lora is not None and not merged
    title = _one_line(config.recipe)
    parts = [
        _front_matter(config, is_adapter),
        f"# {title}, step {step}\n\n{_opening(config, step, is_adapter)}",
        f"## Base model\n\n{_base(config, base_hash)}",
        f"## Data\n\n{_data(config, rows)}",
        f"## How it was trained\n\n{_training(config, step)}",
        f"## Metrics\n\n{_metrics_table(config, [r for r in metrics if r['step'] <= step])}",
        "## Limits\n\n" + "\n".join(f"- {line}" for line in _limits(config, rows)),
        "## Versions\n\n" + ", ".join(f"{name} {number}" for name, number in (versions or installed()).items()) + ".",
        "## Papers\n\n" + "\n".join(f"- {paper}" for paper in _papers(config)),
        f"## Config\n\n```yaml\n{_config_shown(config)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _config_shown(config: Config) -> str:
    written = without_paths(config.model_dump(mode="json"))
    return yaml.dump(written, Dumper=Dumper, sort_keys=False, allow_unicode=True).strip().replace("```", "'''")


@lru_cache
def installed() -> Mapping[str, str]:
    versions = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # run from source
            continue
    return versions


def base_name(name: str) -> str | None:
    """A model's name on the Hub; None for a local folder."""
    known = HUB_NAMES.get(name, name)
    return known if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", known) else None


def without_paths(value: Any) -> Any:
    """Paths shortened to their last part, addresses without their host: the card may be published."""
    if isinstance(value, Mapping):
        return {key: without_paths(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_paths(one) for one in value]
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
    learns = config.method.reads == "prompts" and config.method.learns_from_reward
    return learns and config.reward.kind == "semantic"


def _opening(config: Config, step: int, is_adapter: bool) -> str:
    what = "A model that scores texts" if config.method.trains == "scorer" else "A language model"
    shape = "an adapter for its base model" if is_adapter else "full weights"
    about = f" The recipe's description: {_one_line(config.about)}." if config.about else ""
    return f"{what}, trained with Vigneron for {step} of {config.steps} steps; {shape}.{about}"


def _base(config: Config, base_hash: str) -> str:
    name = base_name(config.model.name)
    parts = PurePath(config.model.name).parts
    if name is not None:
        model = f"`{name}`" + (" (a de-quantised copy)" if config.model.name in HUB_NAMES else "")
    elif len(parts) > 2 and parts[-2] == "checkpoints":
        model = f"the run `{_one_line(parts[-3])}` after step {parts[-1].removeprefix('step-')}"
    else:
        model = f"a local model, `{_one_line(parts[-1])}`"
    minted = " Two tokens were added for chat turns." if config.model.chat == "minted" else ""
    return f"{model[0].upper()}{model[1:]}. SHA-256 of its weights: `{base_hash}`.{minted}"


def _short(name: str) -> str:
    """A model's name, or of a folder its last part; of a run's checkpoint the run's name and its step."""
    parts = PurePath(name).parts
    if len(parts) > 2 and parts[-2] == "checkpoints":
        return f"{parts[-3]}, {parts[-1]}"
    return parts[-1] if PurePath(name).is_absolute() else name


def _data(config: Config, rows: Rows) -> str:
    data = config.data
    named = {"pairs": "preference pairs", "recorded": "recorded samples"}
    of = named.get(config.method.reads, config.method.reads)
    counts = f"{rows.train} {of} to train on, {rows.held_out} held out."
    if data.task is not None:
        return (
            f"The built-in task `{data.task}`: {counts} Its inputs and answers were written by the "
            "project's authors with a language model's help; Apache-2.0."
        )
    text = f"{_source(data)}: {counts}"
    if config.parent is not None:
        text += f" Answers of the parent `{_one_line(PurePath(config.parent.model).name)}`, collected before training."
    return text + " The source and licence of its rows are not recorded."


def _source(data: DataConfig) -> str:
    names = data.train if isinstance(data.train, list) else [data.train or ""]
    if names[0].startswith("hf:"):
        return f"The hub's dataset `{_one_line(names[0].removeprefix('hf:'))}`"
    more = len(names) - 1
    others = f" and {more} more" if more else ""
    return f"`{_one_line(PurePath(names[0]).name)}`{others}, {'local files' if more else 'a local file'}"


def _training(config: Config, step: int) -> str:
    lines = [config.method.card]
    if config.method.parent_model is not None:
        lines.append(f"The parent: `{_one_line(_short(config.method.parent_model))}`.")
    rewarded = config.method.reads == "prompts" and config.method.learns_from_reward
    measured = config.method.reads in ("demonstrations", "recorded") and config.reward.kind != "binary"
    if rewarded or measured:
        lines.append(ABOUT_REWARD[config.reward.kind])
    samples = config.prompts_per_step * config.group_size
    of = {"prompts": "samples", "recorded": "recorded samples"}.get(config.method.reads, config.method.reads)
    lines.append(f"{step} steps of {samples} {of}, seed {config.seed}; the whole config is below.")
    return " ".join(line for line in lines if line)


def _metrics_table(config: Config, records: Sequence[Mapping[str, Any]]) -> str:
    shown = headline_metrics(config.model_dump(mode="json"), records, config.method)
    rows = [row for metric in shown if (row := _row(metric, records)) is not None]
    if not rows:
        return "None was measured."
    held_out = " Held-out rows were not trained on." if any("held-out" in row for row in rows) else ""
    return "\n".join(["| metric | first | last |", "|---|---:|---:|", *rows]) + f"\n\nFrom the run's logs.{held_out}"


def _row(metric: Metric, records: Sequence[Mapping[str, Any]]) -> str | None:
    values = [record[metric.key] for record in records if is_number(record.get(metric.key))]
    return f"| {metric.label} | {values[0]:.3f} | {values[-1]:.3f} |" if len(values) > 1 else None


def _limits(config: Config, rows: Rows) -> list[str]:
    lines = [LIMITS["narrow"].format(rows=rows.train)]
    if config.method.trains == "scorer":
        lines.append(LIMITS["scorer"])
    elif config.method.reads == "prompts" and config.method.learns_from_reward:
        lines += [LIMITS["rewarded"], LIMITS.get(config.reward.kind, "")]
    if rows.held_out == 0:
        lines.append(LIMITS["not evaluated"])
    return [line for line in (*lines, LIMITS["unsafe"]) if line]


def _papers(config: Config) -> list[str]:
    pgsrm = _is_pgsrm(config) or config.method.name == "actor_critic"
    return [*([PGSRM] if pgsrm else []), *([RLMT] if config.method.name != "actor_critic" else [])]


def _one_line(text: str) -> str:
    """Without characters that end a line, a table cell or a code span."""
    return " ".join(re.sub(r"[`|<>]", "", text).split())
