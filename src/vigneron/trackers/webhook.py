"""The tracker `webhook`: posts a run's warnings, and how it ended, to the address in VIGNERON_WEBHOOK_URL.

The body is JSON with `text` and `content`, which Slack, Mattermost and Discord show, and `run`, `state`, `step`.
"""

import json
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from vigneron.errors import UserError
from vigneron.redaction import redacted

URL = "VIGNERON_WEBHOOK_URL"
NOTICES, STATUS = "notices.jsonl", "status.json"
TIMEOUT_S = 10.0
RETRY_S = 60.0
"""Seconds between two attempts."""
FOR_NOW = (408, 425, 429)
"""Refusals that may be over later, beside those from 500 on: too slow, too early, too often."""
LONGEST = 1500
"""Characters of a message."""


def check_webhook() -> None:
    address = urlsplit(os.environ.get(URL, ""))
    if address.scheme not in ("http", "https") or not address.netloc:
        raise UserError(f"trackers: webhook needs the environment variable {URL}, an http or https address")


def webhook(run: dict[str, Any]) -> tuple[Callable[[int, dict[str, float]], None], Callable[[], None]]:
    """It reads the run's folder: warnings after each step, and the state when the run has closed the tracker. A message
    that fails for now is tried again later, at the latest at the end."""
    folder, name = Path(run["folder"]), str(run["name"])
    read, last, next_try = int(run["notices"]), 0, 0.0
    waiting: deque[tuple[str, str, int]] = deque()

    def post_waiting() -> None:
        while waiting:
            text, state, step = waiting[0]
            _post(f"{name}: {text}", name, state, step)
            waiting.popleft()

    def look(step: int) -> None:
        nonlocal read, last
        last = step
        lines, read = _new_lines(folder / NOTICES, read)
        for line in lines:
            if line.get("kind") == "warning":
                waiting.append((f"warning in step {line.get('step')}: {line.get('text')}", "running", step))

    def log(step: int, metrics: dict[str, float]) -> None:
        nonlocal next_try
        look(step)
        if time.monotonic() < next_try:
            return
        try:
            post_waiting()
        except OSError as error:
            if isinstance(error, HTTPError) and error.code < 500 and error.code not in FOR_NOW:
                raise  # an address that will not do later either
            next_try = time.monotonic() + RETRY_S

    def finish() -> None:
        look(last)
        status = _object(_read(folder / STATUS))
        state = str(status.get("state", "killed"))
        state = "killed" if state == "running" else state  # it ended without writing its state
        reason = f": {status['error']}" if status.get("error") else ""
        waiting.append((f"{state} after step {last}{reason}", state, last))
        post_waiting()

    return log, finish


def _new_lines(path: Path, start: int) -> tuple[list[dict[str, Any]], int]:
    """The JSON objects behind a byte of a file, one a line, and where the last complete line ends."""
    lines = [line for line in _read(path, start).splitlines(keepends=True) if line.endswith(b"\n")]
    return [_object(line) for line in lines], start + sum(map(len, lines))


def _read(path: Path, start: int = 0) -> bytes:
    """Nothing of a file that cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read()
    except OSError:
        return b""


def _object(text: bytes) -> dict[str, Any]:
    """Empty where it is no JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _post(text: str, run: str, state: str, step: int) -> None:
    text = redacted(text)[:LONGEST]
    body = json.dumps({"text": text, "content": text, "run": run, "state": state, "step": step}).encode()
    request = Request(os.environ[URL], body, {"Content-Type": "application/json"}, method="POST")
    with urlopen(request, timeout=TIMEOUT_S) as answer:
        answer.read(1)
