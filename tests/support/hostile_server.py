"""A server on loopback that answers a chat request in one of many wrong ways, on the socket itself.

`sent` counts the bytes that a client let it send: what is written beyond the socket's buffers was read.
"""

import gzip
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

ENDLESS = 900_000_000
CHUNK = b" " * 65_536
DRIPS = 4_000
"""Pauses that a dripping answer has, about: it ends some time, so that a client without a deadline does too."""


@dataclass(eq=False)
class Connection:
    """One connection of a client that has sent its request."""

    socket: socket.socket
    body: dict[str, Any]
    key: str
    sent: int = 0
    pauses: int = 0

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)
        self.sent += len(data)

    def drip(self, data: bytes) -> None:
        for at in range(len(data)):
            self.write(data[at : at + 1])
            self.pause()

    def pause(self) -> None:
        """A short while, or until the client has gone."""
        self.pauses += 1
        self.socket.settimeout(0.01)
        with suppress(TimeoutError):
            if self.socket.recv(1, socket.MSG_PEEK) == b"":
                raise ConnectionResetError
        self.socket.settimeout(None)

    def wait(self) -> None:
        """Until the client has gone."""
        self.socket.settimeout(120)
        self.socket.recv(1)

    def pour(self, head: bytes, block: bytes = CHUNK) -> None:
        self.write(head)
        while self.sent < ENDLESS:
            self.write(block)

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


Way = Callable[[Connection], None]


def head(status: str = "200 OK", length: int | None = None, *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", *more]
    lines += [] if length is None else [f"Content-Length: {length}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(body: bytes | str, status: str = "200 OK", *more: str) -> Way:
    content = body.encode() if isinstance(body, str) else body
    return lambda to: to.write(head(status, len(content), *more) + content)


def chat_json(content: Any, usage: str = '{"prompt_tokens": 7, "completion_tokens": 3}', **message: Any) -> str:
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": "stop"}
    return f'{{"choices": [{json.dumps(choice)}], "usage": {usage}}}'


def score_json(score: str = "0.5", confidence: str = "0.5", reasoning: str = '"so"') -> str:
    return f'{{"reasoning": {reasoning}, "score": {score}, "confidence": {confidence}}}'


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(c):04x}" for c in text)


def echo(form: Callable[[str], str]) -> Way:
    """A good score whose reasoning holds the key in some form."""
    return lambda to: whole(chat_json(score_json(reasoning=f'"you are {form(to.key)}"')))(to)


def escaped_body(to: Connection) -> None:
    """The key escaped in the response's own JSON, and once more in the reply's."""
    inner = chat_json(score_json(reasoning='"KEY and TWICE"'))
    whole(inner.replace("KEY", escaped(to.key)).replace("TWICE", escaped(to.key).replace("\\", "\\\\")))(to)


def error_echo(to: Connection) -> None:
    whole(f'{{"error": {{"message": "bad key {escaped(to.key)}"}}}}', "400 Bad Request")(to)


def nothing(to: Connection) -> None:
    to.wait()


def endless_1xx(to: Connection) -> None:
    to.pour(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def dripped_1xx(to: Connection) -> None:
    for _ in range(DRIPS):
        to.write(b"HTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\n")
        to.pause()


GOOD = chat_json(score_json())

TRANSPORT: dict[str, Way] = {
    "never answers": nothing,
    "drips the status line": lambda to: to.drip(b"HTTP/1.1 200 " + b"O" * DRIPS),
    "drips headers": lambda to: to.drip(b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * (DRIPS // 8)),
    "drips 1xx responses": dripped_1xx,
    "sends endless 1xx responses": endless_1xx,
    "drips the body": lambda to: (to.write(head(length=DRIPS)), to.drip(b" " * DRIPS)),
    "drips an error's body": lambda to: (to.write(head("500 Oops", DRIPS)), to.drip(b" " * DRIPS)),
    "sends an error of 900 MB": lambda to: to.pour(head("500 Oops", ENDLESS)),
    "refuses with 900 MB": lambda to: to.pour(head("400 Bad Request", ENDLESS)),
    "redirects with 900 MB": lambda to: to.pour(head("307 Moved", ENDLESS, "Location: /v1/chat/completions")),
    "sends a body of 900 MB": lambda to: to.pour(head(length=ENDLESS)),
    "sends an endless header": lambda to: to.pour(b"HTTP/1.1 200 OK\r\nX-A: ", b"a" * 65_536),
    "sends endless headers": lambda to: to.pour(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n" * 8000),
    "sends endless small chunks": lambda to: to.pour(
        head("200 OK", None, "Transfer-Encoding: chunked"), b"1\r\n \r\n" * 9000
    ),
    "sends a malformed chunk": lambda to: to.write(head("200 OK", None, "Transfer-Encoding: chunked") + b"zz\r\n"),
    "closes within the body": lambda to: to.write(head(length=1000) + b"{"),
    "resets within the body": lambda to: (to.write(head(length=1000) + b"{"), to.reset()),
    "closes without an answer": lambda to: None,
    "answers in another protocol": lambda to: to.write(b"\x16\x03\x01 SSH-2.0-hello\r\n\r\n"),
    "sends a gzip bomb": whole(gzip.compress(b" " * 50_000_000, 1), "200 OK", "Content-Encoding: gzip"),
}
ERRORS: dict[str, Way] = {
    "answers 500": whole("{}", "500 Oops"),
    "answers 429 for ever": whole("{}", "429 Slow", "Retry-After: 1e400"),
    "answers 503 until a bad date": whole("{}", "503 Busy", f"Retry-After: {'9' * 5000}"),
    "answers 400 with deep JSON": whole("[" * 500_000, "400 Bad Request"),
    "answers 422 with a message of a million": whole(json.dumps({"detail": "x\x1b[31m" * 160_000}), "422 No"),
}
REPLIES: dict[str, Way] = {
    "replies deep JSON": whole("[" * 500_000),
    "replies bytes that are not UTF-8": whole(b'{"choices": [{"message": {"content": "\xff\xfe"}}]}'),
    "replies a number as content": whole(chat_json(5)),
    "replies lone surrogates": whole(chat_json(score_json(reasoning='"\\ud800"'))),
    "replies a fence of a million spaces": whole(chat_json("```\n" + " " * 1_000_000)),
    "replies a million fences": whole(chat_json("```json\n" * 125_000)),
    "replies deep JSON in the content": whole(chat_json('{"score": ' + "[" * 985 + "]" * 985 + "}")),
    "replies a refusal": whole(chat_json(None, refusal="I will not.")),
    "replies a score of 1e999": whole(chat_json(score_json("1e999"))),
    "replies a score of 10^400": whole(chat_json(score_json("1" + "0" * 400))),
    "replies a score of 10^5000": whole(chat_json(score_json("1" + "0" * 5000))),
    "replies a score of NaN": whole(chat_json(score_json("NaN"))),
    "replies a confidence of -1": whole(chat_json(score_json("1", "-1"))),
    "replies the same key twice": whole(chat_json('{"score": 1, "score": 0, "reasoning": "", "confidence": 1}')),
    "counts 10^350 tokens": whole(chat_json(score_json(), '{"prompt_tokens": 1' + "0" * 350 + "}")),
    "counts 10^5000 tokens": whole(chat_json(score_json(), '{"prompt_tokens": 1' + "0" * 5000 + "}")),
    "counts 1e999 tokens": whole(chat_json(score_json(), '{"prompt_tokens": 1e999, "completion_tokens": -1e999}')),
    "counts a list of tokens": whole(chat_json(score_json(), "[1]")),
}
ECHOES: dict[str, Way] = {
    "echoes the key": echo(str),
    "echoes the key in \\u escapes": echo(escaped),
    "echoes the key with \\/": echo(lambda key: key.replace("/", "\\/")),
    "echoes the key percent-encoded": echo(lambda key: quote(key, safe="")),
    "echoes the key escaped twice": escaped_body,
    "echoes the key in an error": error_echo,
}
WAYS: dict[str, Way] = {**TRANSPORT, **ERRORS, **REPLIES, **ECHOES}


@dataclass
class Hostile:
    url: str
    connections: list[Connection] = field(default_factory=list)
    requested: threading.Event = field(default_factory=threading.Event)
    """Set once a whole request has arrived."""

    @property
    def pauses(self) -> int:
        """Of all connections together."""
        return sum(connection.pauses for connection in self.connections)

    @property
    def sent(self) -> int:
        """Bytes that clients let it send, all together."""
        return sum(connection.sent for connection in self.connections)


@contextmanager
def hostile_server(answer: Callable[[Connection], None]) -> Iterator[Hostile]:
    """Calls `answer` for every request, and closes the connection after it."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    server = Hostile(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")

    def serve(one: socket.socket) -> None:
        with one, suppress(OSError):
            body, headers = _request(one)
            connection = Connection(one, body, headers.get("authorization", "").removeprefix("Bearer "))
            server.connections.append(connection)
            server.requested.set()
            answer(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _request(one: socket.socket) -> tuple[dict[str, Any], dict[str, str]]:
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := one.recv(65_536)):
            raise ConnectionResetError
        data += more
    top, _, rest = data.partition(b"\r\n\r\n")
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in top.decode().split("\r\n")[1:])
    }
    while len(rest) < int(headers.get("content-length", 0)):
        rest += one.recv(65_536)
    return json.loads(rest or b"{}"), headers
