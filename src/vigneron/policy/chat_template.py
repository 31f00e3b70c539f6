"""Render chat templates, which come with a model and are not trusted, in a separate process.

transformers' sandbox keeps a template from Python, but not from running forever or filling the memory. The process has
limits of time, memory and output size, and does not see the environment's secrets.
"""

import atexit
import json
import os
import select
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from datetime import date
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

from vigneron.errors import UserError

LONGEST_TEMPLATE = 200_000
LONGEST_TEXT = 20_000_000
"""Characters; the texts of a data row are shorter than half of it."""
CPU_SECONDS = 5.0
"""Per conversation."""
CLOCK_SECONDS = 300.0
MEMORY = 2**30
CACHED = 20_000_000
"""Characters of rendered texts that are kept."""
KEPT_VARIABLES = ("PATH", "PYTHONPATH", "HOME", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""Environment variables that the process sees."""


class TemplateError(Exception):
    """A template raised an error, or exceeded a limit."""


class _Renderer:
    """One process for all templates, started on first use and restarted if it was killed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, request: bytes) -> list[dict[str, str]]:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            response = self._send(request)
        return [{"error": "it takes too long"}] if response is None else response

    def _start(self) -> None:
        self.close()
        limits = (CPU_SECONDS, MEMORY, LONGEST_TEXT)
        worker = str(Path(__file__).with_name("chat_template_worker.py"))
        command = [sys.executable, "-P", worker, *(str(limit) for limit in limits)]
        env = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ} | {"USE_TORCH": "0"}
        pipe = subprocess.PIPE
        # A new session: Ctrl-C must not reach it, so that the current step can finish.
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=env, start_new_session=True
        )
        if self._read() is None:
            self.close()
            raise UserError("the process that renders chat templates does not start: check that transformers imports")

    def _send(self, request: bytes) -> list[dict[str, str]] | None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
            response = self._read()
        except BaseException as error:  # Ctrl-C too: the rest of this response must not be read as the next one
            self.close()
            if isinstance(error, OSError):
                return None
            raise
        if response is None:
            self.close()
        return response

    def _read(self) -> list[dict[str, str]] | None:
        """A response line; None if the process has exited or does not answer."""
        assert self._process is not None
        assert self._process.stdout is not None
        handle, line = self._process.stdout.fileno(), bytearray()
        deadline = time.monotonic() + CLOCK_SECONDS
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(handle, 2**16) if ready else b""
            if not piece:
                return None
            line += piece
        response: list[dict[str, str]] = json.loads(line)
        return response

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
            self._process = None


_RENDERER = _Renderer()
atexit.register(_RENDERER.close)


_TODAY: str | None = None


def set_date(day: str | None) -> None:
    """The date that templates get as today's from now on, as YYYY-MM-DD; None: the real one."""
    global _TODAY
    _TODAY = day


def writes_date(tokenizer: Any) -> bool:
    return "strftime_now" in str(getattr(tokenizer, "chat_template", None))


def check_date(tokenizer: Any, day: str | None) -> None:
    """Raise for a given date that the template does not write."""
    if day is not None and not writes_date(tokenizer):
        raise UserError("model.chat_date has no effect: the model's chat template writes no date: remove it")


def today() -> str:
    return date.today().isoformat()


Render = tuple[Sequence[Any], bool]
"""Messages, and whether the generation prompt is added."""


def render(tokenizer: Any, renders: Sequence[Render], tools: Any = None) -> list[str]:
    """The results of `tokenizer.apply_chat_template(messages, tools, add_generation_prompt=…, tokenize=False)`."""
    try:
        template = tokenizer.get_chat_template(tools=tools)
        values = {**tokenizer.special_tokens_map, "tools": tools}
        request = {"template": template, "values": values, "date": _TODAY, "renders": list(renders)}
        line = json.dumps(request, default=str)
    except Exception as error:  # an external tokenizer can fail in any way
        raise TemplateError(str(error) or type(error).__name__) from error
    if not isinstance(template, str) or len(template) > LONGEST_TEMPLATE:
        raise TemplateError(f"it is not a text of up to {LONGEST_TEMPLATE} characters")
    return list(_render(line))


class _Cache:
    """The texts of the last requests, up to a number of characters: prompts repeat in every epoch."""

    def __init__(self, size: int) -> None:
        self.size, self.used = size, 0
        self._texts: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: bytes) -> tuple[str, ...] | None:
        with self._lock:
            if key in self._texts:
                self._texts.move_to_end(key)
            return self._texts.get(key)

    def put(self, key: bytes, texts: tuple[str, ...]) -> None:
        with self._lock:
            self.used += _characters(texts) - _characters(self._texts.pop(key, ()))
            self._texts[key] = texts
            while self.used > self.size:
                self.used -= _characters(self._texts.popitem(last=False)[1])


def _characters(texts: tuple[str, ...]) -> int:
    return sum(map(len, texts))


_CACHE = _Cache(CACHED)


def _render(request: str) -> tuple[str, ...]:
    data = request.encode()
    key = sha256(data).digest()
    if (known := _CACHE.get(key)) is not None:
        return known
    results = _RENDERER.render(data + b"\n")
    for result in results:
        if "error" in result:
            raise TemplateError(result["error"])
    texts = tuple(result["text"] for result in results)
    _CACHE.put(key, texts)
    return texts
