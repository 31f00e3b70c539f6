"""Asynchronous against synchronous sampling: the same recipe with several staleness limits, same seeds, same actor.

    python -m benchmarks.staleness run --seeds 3 --staleness 0 1 3     trains, and keeps docs/results/staleness.json
    python -m benchmarks.staleness table                               prints the table

The recipe `critic-antonyms`, longer: Algorithm 1 on SmolLM2-135M with the lexical reward, one Ray actor that samples.
Held-out metrics are of greedy answers to words outside the training data.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parent.parent / "docs" / "results" / "staleness.json"
SHOWN = ("eval/reward", "eval/accuracy")
METRICS = ("step", "reward", "version", "staleness", "importance/gap", "importance/limited", "importance/max", *SHOWN)


def trained(staleness: int, seed: int, steps: int, runs: Path) -> list[dict[str, Any]]:
    """The run's metrics, step by step."""
    from vigneron import api

    name = f"staleness-{staleness}-seed-{seed}"
    scale = [f"scale.staleness={staleness}", "scale.sampling={kind: ray, actors: 1}"]
    length = [f"steps={steps}", f"eval_every={steps // 2}", "save_every=0", f"seed={seed}"]
    run = api.train("critic-antonyms", *scale, *length, name=name, runs=runs).folder
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{key: record[key] for key in METRICS if key in record} for record in map(json.loads, lines)]


def run(options: argparse.Namespace) -> None:
    from benchmarks.measure import machine

    kept: dict[str, Any] = {"machine": machine("cpu"), "steps": options.steps, "runs": {}}
    if KEPT.exists() and (before := json.loads(KEPT.read_text()))["steps"] == options.steps:
        kept = before
    with tempfile.TemporaryDirectory() as place:
        for seed in range(options.seeds):
            for staleness in options.staleness:
                key = f"{staleness}/{seed}"
                if key not in kept["runs"]:
                    kept["runs"][key] = trained(staleness, seed, options.steps, Path(place))
                    KEPT.write_text(json.dumps(kept) + "\n")
                    print(key, kept["runs"][key][-1], flush=True)


def rows(kept: dict[str, Any]) -> list[list[str]]:
    """A row for each limit: held-out metrics before and after by seed, and the staleness of samples."""
    found = []
    for staleness in sorted({int(key.split("/")[0]) for key in kept["runs"]}):
        runs = [records for key, records in kept["runs"].items() if key.startswith(f"{staleness}/")]
        cells = [str(staleness)]
        for name in SHOWN:
            ends = [records[-1][name] for records in runs]
            cells += [" ".join(f"{value:.3f}" for value in ends), f"{statistics.mean(ends):.3f}"]
        steps = [record for records in runs for record in records if "reward" in record]
        gaps = [record["importance/gap"] for record in steps if record.get("staleness")]
        limited = [record["importance/limited"] for record in steps if record.get("staleness")]
        cells += [f"{statistics.mean(gaps):.4f}" if gaps else "0", f"{statistics.mean(limited):.4f}" if gaps else "0"]
        found.append(cells)
    return found


HEAD = ["staleness", "held-out reward, by seed", "mean", "held-out accuracy, by seed", "mean", "gap (nats)", "limited"]


def table(kept: dict[str, Any]) -> str:
    lines = [HEAD, ["---"] * len(HEAD), *rows(kept)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def kept_table() -> str:
    return table(json.loads(KEPT.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.staleness")
    verbs = parser.add_subparsers(dest="verb", required=True)
    more = verbs.add_parser("run")
    more.add_argument("--seeds", type=int, default=3)
    more.add_argument("--steps", type=int, default=20)
    more.add_argument("--staleness", type=int, nargs="+", default=[0, 1])
    verbs.add_parser("table")
    options = parser.parse_args()
    if options.verb == "run":
        run(options)
    print(kept_table())


if __name__ == "__main__":
    main()
