"""`python -m benchmarks.hostile_judge`: GRAPE with a judge that misbehaves in every way of `support.hostile_server`.

Half of the requests are answered well, the others in one of the ways, the same for the same text, so that two runs meet
the same faults. One run is uninterrupted; another is killed between two checkpoints and resumed. Both must end, with
every reward finite or missing, every way met, and the key in no file; the resumed run must equal the uninterrupted
one, bit for bit.
"""

import argparse
import json
import math
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import yaml

from vigneron.redaction import MARK, redacted
from vigneron.run_store.samples import SampleStore

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

KEY = "sk-canary/7d1f+0c94aa"
# Long enough that a good answer arrives while floods are read.
TIMEOUT_S = 3.0
GOOD = "answers well"
LONGEST_RUN_S = 600.0
# Cached replies take no tokens, so a step that is repeated after a kill counts fewer.
OF_CACHE = ("reward/judge/tokens_in", "reward/judge/tokens_out")


class Judge:
    """Answers a request well, or in one of the ways: the next one, and the same again for the same text."""

    def __init__(self) -> None:
        self.met: Counter[str] = Counter()
        self._ways: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, to: Any) -> None:
        from support.hostile_server import WAYS, chat_json, score_json, whole

        asked = next(str(m["content"]) for m in to.body["messages"] if m["role"] == "user")
        draw = crc32(asked.encode())
        good = whole(chat_json(score_json(f"{draw % 7 / 6:.3f}")))
        name = GOOD
        with self._lock:
            if draw % 2 and not asked.startswith("Reply with"):
                name = self._ways.setdefault(asked, list(WAYS)[len(self._ways) % len(WAYS)])
            self.met[name] += 1
        WAYS.get(name, good)(to)


def soak(place: Path, steps: int) -> Counter[str]:
    from support import fault_runs
    from support.hostile_server import WAYS, hostile_server
    from support.judged_runs import recipe_file
    from support.tiny_models import byte_tokenizer, tiny_model
    from support.tiny_runs import final_state

    model = place / "model"
    tiny_model("llama").save_pretrained(model)
    byte_tokenizer().save_pretrained(model)
    judge = Judge()

    def exit_code(name: str, kill_at: int) -> int | None:
        given = {"OPENAI_API_KEY": KEY, "VIGNERON_CACHE": str(place / f"cache-{name}")}
        arguments = (str(place / f"{name}.log"), fault_runs.killed_at_step, (str(recipe), str(place), name, kill_at))
        process = fault_runs.started(fault_runs.logged, *arguments, environment=given)
        process.join(LONGEST_RUN_S)
        return process.exitcode

    with hostile_server(judge) as server:
        size = {"steps": steps, "save_every": 2, "prompts_per_step": 8, "group_size": 4, "max_new_tokens": 6}
        recipe = recipe_file(place, model, server.url, TIMEOUT_S, **size)
        options = yaml.safe_load(recipe.read_text())
        options["reward"]["missing_limit"] = 1.0
        options["reward"]["judge"]["concurrency"] = 32
        recipe.write_text(yaml.safe_dump(options))
        expected = [("whole", -1, 0), ("killed", steps - 1, -signal.SIGKILL), ("killed", -1, 0)]
        for name, kill_at, code in expected:
            found = exit_code(name, kill_at)
            if found != code:
                log = (place / f"{name}.log").read_text()[-2000:]
                raise SystemExit(f"the run '{name}' ended with {found} instead of {code}:\n{redacted(log, KEY)}")
    for name in ("whole", "killed"):
        check_rewards(place / name)
    check_keys(place)
    first, second = ({**final_state(place / name), "metrics": _metrics(place / name)} for name in ("whole", "killed"))
    if differing := [key for key in first if first[key] != second.get(key)]:
        raise SystemExit(f"the killed and resumed run differs from the uninterrupted run: {differing}")
    if missed := [way for way in WAYS if not judge.met[way]]:
        raise SystemExit(f"ways that no request met (raise --steps): {missed}")
    return judge.met


def _metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in OF_CACHE} for line in lines]


def check_rewards(folder: Path) -> None:
    """Finite or missing: rewards, scores, confidences and every metric."""
    store = SampleStore(folder, read_only=True)
    missing = present = 0
    for step in store.steps("train"):
        for sample in store.page(step=step, limit=10_000):
            item: Mapping[str, Any] = sample.extras["rubric"]["items"]["kind"]
            scores = [item["score"], item.get("confidence"), sample.reward, sample.advantage]
            if any(value is not None and not math.isfinite(value) for value in scores):
                raise SystemExit(f"step {step}: {scores} is neither finite nor missing")
            if item["score"] is not None and not 0 <= item["score"] <= 1:
                raise SystemExit(f"step {step}: a score of {item['score']}")
            missing, present = missing + (item["score"] is None), present + (item["score"] is not None)
    if not missing or not present:
        raise SystemExit(f"{missing} scores are missing and {present} are not: nothing was tried")
    for record in _metrics(folder):
        for key, value in record.items():
            if isinstance(value, float | int) and not math.isfinite(value):
                raise SystemExit(f"the metric {key} is {value}")


def check_keys(place: Path) -> None:
    """The key in no file, in whatever form; its mark in some."""
    marked = 0
    for path in place.rglob("*"):
        if path.is_file():
            text = path.read_bytes().decode("latin-1")
            marked += MARK in text
            if KEY in text or redacted(text, KEY).count(MARK) > redacted(text).count(MARK):
                raise SystemExit(f"the key is in {path.relative_to(place)}")
    if not marked:
        raise SystemExit("no file shows that a key was removed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        met = soak(Path(place), given.steps)
    bad = {way: count for way, count in met.items() if way != GOOD}
    for way, count in sorted(bad.items()):
        print(f"{count:5}  {way}")
    print(f"\n| requests to a judge that misbehaves in {len(bad)} ways | {met.total()} |\n|---|---|")
    print(f"| answered in one of them | {sum(bad.values())} |")
    print("| rewards that are neither finite nor missing | 0 |\n| files with the key, in any form | 0 |")
    print("| killed and resumed equals the uninterrupted run, bit for bit | yes |")
    print(f"| seconds | {time.monotonic() - began:.0f} |")


if __name__ == "__main__":
    main()
