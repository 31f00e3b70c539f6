"""Small sources of items, and sessions over them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vigneron.commands.label import LabelOptions, open_session
from vigneron.labels.session import Session
from vigneron.run_store.samples import Sample, SampleStore


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_comparisons(folder: Path, count: int = 4) -> Path:
    """In each row the first completion ends in `!`, the second in `?`."""
    rows = [{"prompt": f"say {n}:", "completion_a": f" {n}!", "completion_b": f" {n}?"} for n in range(count)]
    return write_rows(folder / "source.jsonl", rows)


def session_of(source: Path | None, out: Path, **options: Any) -> Session:
    return open_session(LabelOptions(source, out, **{"labeller": "ann", **options}), lambda line: None)


def judge_by(session: Session, mark: str) -> None:
    """Choose the completion that ends in a mark, wherever it is shown."""
    item = session.state()["item"]
    place = next(place for place, text in enumerate(item["completions"]) if text.endswith(mark))
    session.judge(item["id"], "ab"[place])


def make_run(folder: Path, samples: Sequence[Sample], prompts: Sequence[Any] = ()) -> Path:
    (folder / "data").mkdir(parents=True)
    (folder / "config.yaml").write_text("{}")
    if prompts:
        write_rows(folder / "data" / "train.jsonl", [{"prompt": prompt} for prompt in prompts])
    store = SampleStore(folder)
    store.add(samples)
    store.close()
    return folder


def sample(step: int, number: int, prompt: str, completion: str, kind: Any = "train", **extras: Any) -> Sample:
    return Sample(step, kind, number, prompt, completion, None, 0.5, 0.0, None, False, extras)
