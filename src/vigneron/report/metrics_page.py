"""docs/reference/metrics.md, made from the table of metrics by `make docs`."""

import sys
from collections.abc import Iterator
from pathlib import Path

from vigneron.run_store.metric_table import METRICS, SECTIONS

INTRODUCTION = """# Metrics

Every metric that a run logs, by its key in `metrics.jsonl`. A part of a key in CAPITALS stands for any name. `eval/KEY`
is the metric KEY on held-out rows: greedy completions of prompts, or pairs. A reward's `log_metric(name, value)` is
logged as `reward/NAME`. "Better" is the direction that `keep_best` uses; for a metric without one, and for your own, it
keeps the highest value, or the lowest where the key contains `loss` or ends in `_error`. `vigneron compare` computes
stability and size.

`make docs` generates this page from the table in `run_store/metric_table.py`.
"""
ARROWS = {"up": "higher", "down": "lower", None: ""}


def metrics_page() -> str:
    return "\n".join([INTRODUCTION, *_sections()])


def _sections() -> Iterator[str]:
    for section in SECTIONS:
        yield f"## {section}\n\n| key | shown as | better | meaning |\n|---|---|---|---|"
        for metric in METRICS:
            if metric.section == section:
                meaning = metric.meaning.replace("|", "\\|")
                yield f"| `{metric.key}` | {metric.label} | {ARROWS[metric.direction]} | {meaning} |"
        yield ""


def main(root: Path = Path()) -> None:
    path = root / "docs" / "reference" / "metrics.md"
    path.write_text(metrics_page(), encoding="utf-8")
    sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main()
