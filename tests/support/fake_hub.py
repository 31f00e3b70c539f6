"""A hub on the loopback: takes a repository and its files, or fails in the way it is given."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hub:
    url: str = ""
    fault: str | int | None = None
    """An HTTP status, `garbage`, `hang`, or None: it works."""
    seen: list[str] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    tokens: set[str] = field(default_factory=set)


@contextmanager
def hub(fault: str | int | None = None) -> Iterator[Hub]:
    state = Hub(fault=fault)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def answer(self, status: int, body: Any) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            state.seen.append(self.path)
            self.answer(200, {"sha": "0" * 40, "siblings": []})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            state.seen.append(self.path)
            state.tokens.add(self.headers.get("authorization", ""))
            if state.fault == "hang":
                time.sleep(5)
            elif isinstance(state.fault, int):
                body_with_token = {
                    "error": f"refused: {self.headers.get('authorization')}"
                }  # a bad hub repeats the token
                self.answer(state.fault, body_with_token)
            elif state.fault == "garbage":
                self.answer(200, b"<html>not JSON")
            elif "/preupload/" in self.path:
                names = [file["path"] for file in json.loads(body)["files"]]
                self.answer(
                    200, {"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]}
                )
            elif "/commit/" in self.path:
                lines = [json.loads(line) for line in body.splitlines()]
                state.files |= {line["value"]["path"] for line in lines if line["key"] == "file"}
                self.answer(200, {"commitUrl": f"{state.url}/me/mine/commit/1", "commitOid": "1", "success": True})
            else:
                self.answer(200, {"url": f"{state.url}/me/mine", "name": "me/mine", "errors": [], "warnings": []})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
