"""Chat templates, rendered where they can do no harm: they come with a model, from whoever made it.

transformers' sandbox keeps a template from Python, but not from running for ever or filling the memory. So it works in
a process of its own, with limits of time, memory and size, and without the environment's secrets.
"""

import atexit
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from vigneron.errors import UserError

LONGEST_TEMPLATE = 200_000
LONGEST_TEXT = 20_000_000
"""Characters; a row's own texts are shorter than half of it."""
CPU_SECONDS = 5.0
"""For one conversation."""
CLOCK_SECONDS = 300.0
MEMORY = 2**30
KEPT = ("PATH", "PYTHONPATH", "HOME", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""What the process sees of the environment."""


class Refused(Exception):
    """A template's own words, or what it did too much of."""


class _Renderer:
    """One process for all templates, begun when it is first needed and again where one was ended."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, asked: bytes) -> str:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._begin()
            said = self._asked(asked)
        if said is None:
            raise Refused("it takes too long")
        if "error" in said:
            raise Refused(said["error"])
        return str(said["text"])

    def _begin(self) -> None:
        self.close()
        limits = (CPU_SECONDS, MEMORY, LONGEST_TEXT)
        inside = str(Path(__file__).with_name("chat_template_worker.py"))
        command = [sys.executable, "-P", inside, *(str(limit) for limit in limits)]
        env = {name: os.environ[name] for name in KEPT if name in os.environ} | {"USE_TORCH": "0"}
        pipe = subprocess.PIPE
        # A session of its own: Ctrl-C lets the step that is under way come to its end.
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=env, start_new_session=True
        )
        if self._read() is None:
            self.close()
            raise UserError("the process that renders chat templates does not start: is transformers installed whole?")

    def _asked(self, asked: bytes) -> dict[str, Any] | None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(asked)
            self._process.stdin.flush()
            said = self._read()
        except BaseException as error:  # Ctrl-C too: half an answer must not be taken for the next one's
            self.close()
            if isinstance(error, OSError):
                return None
            raise
        if said is None:
            self.close()
        return said

    def _read(self) -> dict[str, Any] | None:
        """A whole line, or nothing where the process ended or does not answer."""
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
        said: dict[str, Any] = json.loads(line)
        return said

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


def rendered_prompt(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> str:
    """As `tokenizer.apply_chat_template` writes it, up to where the answer begins."""
    try:
        template = tokenizer.get_chat_template()
        values = {"add_generation_prompt": True, **tokenizer.special_tokens_map}
        asked = json.dumps({"template": template, "messages": list(messages), "values": values}, default=str)
    except Exception as error:  # the edge to somebody's tokenizer: it can fail in any way
        raise Refused(str(error) or type(error).__name__) from error
    if not isinstance(template, str) or len(template) > LONGEST_TEMPLATE:
        raise Refused(f"it is no text of up to {LONGEST_TEMPLATE} characters")
    return _kept(asked)


@lru_cache(maxsize=4096)
def _kept(asked: str) -> str:
    """Prompts come again with every epoch."""
    return _RENDERER.render(asked.encode() + b"\n")
