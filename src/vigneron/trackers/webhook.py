"""The tracker `webhook`: posts a run's warnings, and how it ended, to the address in VIGNERON_WEBHOOK_URL.

The body is JSON with `text` and `content`, which Slack, Mattermost and Discord show, and `run`, `state`, `step`.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from vigneron.errors import UserError
from vigneron.redaction import redacted

URL = "VIGNERON_WEBHOOK_URL"
TIMEOUT_S = 10.0
LONGEST = 1500
"""Characters of a message."""


def check_webhook() -> None:
    address = urlsplit(os.environ.get(URL, ""))
    if address.scheme not in ("http", "https") or not address.netloc:
        raise UserError(f"trackers: webhook needs the environment variable {URL}, an http or https address")


def webhook(run: dict[str, Any]) -> tuple[Callable[[int, dict[str, float]], None], Callable[[], None]]:
    """It reads the run's folder: warnings after each step, and the state when the run has closed the tracker."""
    folder, name = Path(run["folder"]), str(run["name"])
    seen = len(_lines(folder / "notices.jsonl"))
    last = 0

    def log(step: int, metrics: dict[str, float]) -> None:
        nonlocal seen, last
        last = step
        lines = _lines(folder / "notices.jsonl")
        for line in lines[seen:]:
            if line.get("kind") == "warning":
                _post(f"{name}: warning in step {line.get('step')}: {line.get('text')}", name, "running", step)
        seen = len(lines)

    def finish() -> None:
        log(last, {})
        (status,) = _lines(folder / "status.json") or [{}]
        state = str(status.get("state", "killed"))
        state = "killed" if state == "running" else state  # it ended without writing its state
        reason = f": {status['error']}" if status.get("error") else ""
        _post(f"{name}: {state} after step {last}{reason}", name, state, last)

    return log, finish


def _lines(path: Path) -> list[dict[str, Any]]:
    """JSON objects, one a line; what cannot be read is left out."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        found += [record] if isinstance(record, dict) else []
    return found


def _post(text: str, run: str, state: str, step: int) -> None:
    text = redacted(text)[:LONGEST]
    body = json.dumps({"text": text, "content": text, "run": run, "state": state, "step": step}).encode()
    request = Request(os.environ[URL], body, {"Content-Type": "application/json"}, method="POST")
    with urlopen(request, timeout=TIMEOUT_S) as answer:
        answer.read(1)
