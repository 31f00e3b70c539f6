"""Real HTTP servers on loopback, in threads of the test: one that answers by script, and one that embeds."""

import json
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

Headers = dict[str, str]


@dataclass(frozen=True)
class Sent:
    """What a script says is sent. `drip` seconds between single bytes; `cut` closes after so many bytes of the body."""

    status: int = 200
    body: str = ""
    headers: Headers = field(default_factory=dict)
    delay: float = 0.0
    drip: float = 0.0
    cut: int | None = None


@dataclass
class Seen:
    body: dict[str, Any]
    headers: Headers
    path: str
    at: float


@dataclass
class Server:
    url: str
    seen: list[Seen] = field(default_factory=list)
    busy: int = 0
    most: int = 0
    """The most requests that waited for their answers together."""

    @property
    def inputs(self) -> list[str]:
        """What the user's last message was in every chat request."""
        return [s.body["messages"][-1]["content"] for s in self.seen]


Script = Callable[[Seen, int], Sent]
"""The request and how many came before it; what is sent."""


def chat(text: str | None, finish: str = "stop", *, refusal: str | None = None, logprobs: Any = None) -> Sent:
    message = {"role": "assistant", "content": text, **({"refusal": refusal} if refusal else {})}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    if logprobs is not None:
        choice["logprobs"] = {"content": [{"token": token, "logprob": p, "bytes": None} for token, p in logprobs]}
    return Sent(body=json.dumps({"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}))


def verdict(score: Any = 0.75, confidence: Any = 0.5, reasoning: Any = "so") -> Sent:
    return chat(json.dumps({"reasoning": reasoning, "score": score, "confidence": confidence}))


def refusal(status: int, message: str = "no", **headers: str) -> Sent:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Sent(status, json.dumps({"error": {"message": message, "type": "x", "code": None}}), named)


def vectors(rows: list[Any]) -> Sent:
    data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
    return Sent(body=json.dumps({"object": "list", "data": data, "model": "m"}))


def expiring_key(good: Script) -> tuple[Script, threading.Event]:
    """Five good answers; then the two requests under way are refused, and what comes after them is held until the event
    is set."""
    both, stopped = threading.Barrier(2, timeout=LONG_S), threading.Event()

    def script(seen: Seen, before: int) -> Sent:
        if before in (5, 6):
            both.wait()
        if before > 6:
            assert stopped.wait(LONG_S)
        return good(seen, before) if before < 5 else refusal(401)

    return script, stopped


@contextmanager
def serving(script: Script) -> Iterator[Server]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen = Seen(body, headers, self.path, time.monotonic())
            with lock:
                before = len(server.seen)
                server.seen.append(seen)
                server.busy += 1
                server.most = max(server.most, server.busy)
            sent = script(seen, before)
            time.sleep(sent.delay)
            with lock:
                server.busy -= 1
            self.send(sent)

        def send(self, sent: Sent) -> None:
            content = sent.body.encode()
            try:
                self.send_response(sent.status)
                for name, value in {"Content-Type": "application/json", **sent.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if sent.cut is not None:
                    self.wfile.write(content[: sent.cut])
                    self.wfile.flush()
                    # Reset, not closed in order.
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.close_connection = True
                    self.connection.close()
                    return
                if not sent.drip:
                    self.wfile.write(content)
                    return
                for byte in content:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    time.sleep(sent.drip)
            except OSError:
                self.close_connection = True

        def finish(self) -> None:
            with suppress(OSError, ValueError):
                super().finish()

        def log_message(self, *_: Any) -> None: ...

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = Server(f"http://127.0.0.1:{http.server_address[1]}/v1")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


LONG_S = 600.0
"""Longer than a test waits for anything, however slow the machine is."""


def interrupted_twice(
    process: "subprocess.Popen[str] | BaseProcess", when: Callable[[], bool], stopping: Callable[[], bool]
) -> None:
    """Ctrl-C, and another one when the process is `stopping`, which ends it: what is under way takes longer than this
    waits."""
    assert process.pid is not None
    try:
        for ready in (when, stopping):
            while not ready():
                assert not _ended(process, 0.01), "the first Ctrl-C waits for what is under way"
            if ready is stopping:
                assert not _ended(process, 0.5), "the first Ctrl-C waits for what is under way"
            os.kill(process.pid, signal.SIGINT)
        assert _ended(process, LONG_S / 5), "it hangs"
    finally:
        process.kill()


def catches(process: "subprocess.Popen[str] | BaseProcess", number: signal.Signals) -> bool:
    """Whether it has a handler for a signal. Once a run's has been called, a signal has its default effect again."""
    caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def hurry_only(monkeypatch: pytest.MonkeyPatch, which: Callable[[dict[str, Any]], bool]) -> None:
    """A client's deadline is for these requests alone, which are not answered: others have as long as it takes,
    however slow the machine is."""
    from vigneron.http_client import HttpClient

    request = HttpClient.request

    def patient(http: HttpClient, path: str, body: Any, *, timeout_s: float, **options: Any) -> Any:
        return request(http, path, body, timeout_s=timeout_s if which(body) else LONG_S, **options)

    monkeypatch.setattr(HttpClient, "request", patient)


def _ended(process: "subprocess.Popen[str] | BaseProcess", timeout: float) -> bool:
    """Whether it has ended after so many seconds at most."""
    if isinstance(process, BaseProcess):
        process.join(timeout)
        return process.exitcode is not None
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=timeout)
    return process.returncode is not None


@cache
def port_of_nobody() -> int:
    """Connections to it are refused: this process holds it and does not listen, so that no other can have it."""
    _held.bind(("127.0.0.1", 0))
    return _held.getsockname()[1]


_held = socket.socket()


def free_port() -> int:
    """Free now; another process may take it."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
