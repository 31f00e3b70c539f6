"""Both phases of Constitutional AI, offline, with a rule as the judge: the commands of docs/guides/rlaif.md."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.command_line import Answer, vigneron
from vigneron.data.tasks import load_task
from vigneron.rewards.checkers import last_line_reward
from vigneron.rubric.ladder_rule import running_sums

RULE = '{kind: python, function: "vigneron.rubric.ladder_rule:judge"}'
SMALL = ["model.device=cpu", "steps=2", "prompts_per_step=4", "eval_every=2", "save_every=0"]


def done(*words: Any) -> Answer:
    answer = vigneron(*words)
    assert answer.code == 0, answer.err
    return answer


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_both_phases_on_a_tiny_model(tmp_path: Path, roomy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "cache"))
    sampled = ["max_new_tokens=8", "group_size=1"]
    done("train", "sft-ladder", "--name", "sft-ladder", f"model.name={roomy_folder}", *SMALL, *sampled)

    # Phase 1: revised answers of the model itself. Both faults of the ladder can be mended in a few revisions.
    done(
        "revise", "sft-ladder", "--sample", "runs/sft-ladder", "--principles", "ladder", "--model", RULE,
        "--revisions", 4, "--limit", 24, "--out", "revised.jsonl",
    )  # fmt: skip
    rows = read(tmp_path / "revised.jsonl")
    assert len(rows) == 24
    assert len(read(tmp_path / "revised.held_out.jsonl")) == len(load_task("ladder-steps").rows("held_out"))
    answers = ["\n".join(map(str, running_sums(row["prompt"]))) for row in rows]
    before, after = (
        sum(last_line_reward([""] * 24, [row[name] for row in rows], answer=answers))
        for name in ("first_answer", "completion")
    )
    assert before < after
    done("train", "constitutional-sft", "--name", "constitutional-sft", *SMALL, *sampled)
    done("train", "constitutional-plain", "--name", "constitutional-plain", *SMALL, *sampled)

    # Phase 2: a preference model of pairs that the rule labelled, and GRPO by it.
    done(
        "label", "--sample", "runs/constitutional-sft", "--prompts", "revised.jsonl", "--principles", "ladder",
        "--judge", RULE, "--group", 4, "--max-new-tokens", 4, "--limit", 24, "--out", "ai-pairs.jsonl",
    )  # fmt: skip
    pairs = read(tmp_path / "ai-pairs.jsonl")
    assert {row["labelled_by"] for row in pairs} == {"judge"}
    assert {row["preferred"] for row in pairs} <= {0.5, 1.0}
    # A tiny model finds no right line: one pair that is no tie, so that there is something to train on.
    with (tmp_path / "ai-pairs.jsonl").open("a") as file:
        file.write(json.dumps({"prompt": "1 + 2 =\n", "chosen": "1\n3", "rejected": "1\n4", "preferred": 1.0}) + "\n")
    done(
        "train",
        "constitutional-preference",
        "--name",
        "constitutional-preference",
        f"model.name={roomy_folder}",
        *SMALL,
    )
    done(
        "train", "constitutional", "--name", "constitutional", *SMALL, "group_size=2", "max_new_tokens=4",
        "eval_every=0",
    )  # fmt: skip
    metrics = read(tmp_path / "runs" / "constitutional" / "metrics.jsonl")
    assert [line["step"] for line in metrics if "reward" in line][-1] in (1, 2)
