"""`vigneron demo`: PGSRM and the binary reward with the same model and seed, evaluated on held-out words.

In PGSRM the child is the model that is trained, the parent the model whose answers it learns from.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vigneron.api import train
from vigneron.errors import UserError
from vigneron.recipe import load_config
from vigneron.report.html import write_report
from vigneron.report.terminal import TerminalView, say
from vigneron.run_store.folder import RunFolder


def run_demo(console: Console, overrides: Sequence[str], runs: Path | None) -> None:
    if any(override.startswith("reward") for override in overrides):
        raise UserError("the demo compares two rewards: change other keys, or use `vigneron train demo reward=…`")
    arms = [
        load_config("demo", [*overrides, "recipe=demo-pgsrm"]),
        load_config("demo", [*overrides, "recipe=demo-binary", "reward=binary"]),
    ]
    model = arms[0].model.name
    say(console, f"{model} learns antonyms from reference answers: PGSRM, then the binary reward.")
    folders = []
    for config in arms:
        say(console, f"\n{config.recipe}")
        with TerminalView(console, config.recipe) as view:
            folders.append(RunFolder(train(config, runs=runs, view=view).folder))
    rows = [summary(folder, folder.metrics()) for folder in folders]
    console.print(_table(rows))
    say(console, verdict(*rows))
    say(console, f"report  {write_report([folder.path for folder in folders])}")
    say(console, f"chat    vigneron chat {folders[0].path}")


def summary(folder: RunFolder, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Held-out metrics before and after, and the last ones of training."""
    config = folder.config()
    evals = [r for r in records if r.get("eval/accuracy") is not None]
    steps = [r for r in records if r.get("reward") is not None]
    return {
        "name": folder.path.name,
        "reward_kind": config.reward.kind,
        "steps": records[-1]["step"] if records else 0,
        "before": evals[0]["eval/accuracy"] if evals else None,
        "after": evals[-1]["eval/accuracy"] if len(evals) > 1 else None,
        "included_before": evals[0].get("eval/answer_included") if evals else None,
        "included_after": evals[-1].get("eval/answer_included") if len(evals) > 1 else None,
        "reward": steps[-1]["reward"] if steps else None,
        "entropy": steps[-1].get("entropy") if steps else None,
        "kl": steps[-1].get("kl") if steps else None,
    }


def verdict(pgsrm: dict[str, Any], binary: dict[str, Any]) -> str:
    """The result in one sentence, whichever reward is better."""
    if None in (pgsrm["after"], binary["after"]):
        return "nothing to compare: evaluation is off (eval_every=0)"
    gap = pgsrm["after"] - binary["after"]
    if abs(gap) < 0.1:
        return "Both rewards gave about the same held-out exact match."
    better = "PGSRM" if gap > 0 else "The binary reward"
    return f"{better} gave the higher held-out exact match (by {abs(gap):.2f})."


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    """Exact match, and how often a completion contains the answer: the difference is formatting."""
    table = Table(title="held-out words, greedy decoding", title_justify="left")
    for heading in ("reward", "exact match", "gain", "answer included"):
        table.add_column(heading)
    for row in rows:
        before, after = row["before"], row["after"]
        known = before is not None and after is not None
        table.add_row(
            "PGSRM" if row["reward_kind"] == "semantic" else "binary",
            f"{before:.2f} → {after:.2f}" if known else "–",
            f"{after - before:+.2f}" if known else "–",
            f"{row['included_before']:.2f} → {row['included_after']:.2f}" if known else "–",
        )
    return table
