"""A hub on the loopback that has one dataset, `me/sums`: what `datasets.load_dataset` asks of it."""

import io
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REPOSITORY = "me/sums"
README = b"""---
configs:
- config_name: plain
  default: true
  data_files:
  - {split: train, path: plain/train-*}
  - {split: test, path: plain/test-*}
- config_name: hard
  data_files:
  - {split: train, path: hard/train-*}
---
"""


@dataclass
class DatasetHub:
    files: dict[str, bytes]
    commit: str = "a" * 40
    url: str = ""
    seen: list[str] = field(default_factory=list)
    history: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """The files of earlier commits."""

    def publish(self, commit: str, **files: bytes) -> None:
        """A new commit with another file for `plain_train` …"""
        self.history[self.commit] = self.files
        names = {name: f"{name.replace('_', '/')}-00000-of-00001.parquet" for name in files}
        self.files = {**self.files, **{names[name]: data for name, data in files.items()}}
        self.commit = commit

    def at(self, path: str) -> tuple[str, dict[str, bytes]]:
        """The commit that a path names, or the newest, and its files."""
        commit = next((each for each in self.history if each in path), self.commit)
        return commit, self.history.get(commit, self.files)


def parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), file)
    return file.getvalue()


@contextmanager
def dataset_hub(train: Sequence[Mapping[str, Any]], test: Sequence[Mapping[str, Any]]) -> Iterator[DatasetHub]:
    hub = DatasetHub(
        {
            "README.md": README,
            "plain/train-00000-of-00001.parquet": parquet(train),
            "plain/test-00000-of-00001.parquet": parquet(test),
            "hard/train-00000-of-00001.parquet": parquet(train[:1]),
        }
    )

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def send(self, status: int, body: Any, headers: Mapping[str, str] = {}) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            path = self.path.split("?")[0]
            hub.seen.append(path)
            commit, held = hub.at(path)
            api, resolve = f"/api/datasets/{REPOSITORY}", f"/datasets/{REPOSITORY}/resolve/{commit}/"
            if path.startswith(f"{api}/tree/"):
                self.send(200, list(self.entries(held, path.split(f"/tree/{commit}")[-1].strip("/"))))
            elif path == api or path == f"{api}/revision/{commit}":
                files = [{"rfilename": name} for name in held]
                self.send(200, {"id": REPOSITORY, "sha": commit, "siblings": files, "tags": [], "downloads": 0})
            elif path.removeprefix(resolve) in held:
                data = held[path.removeprefix(resolve)]
                self.send(200, data, {"ETag": f'"{commit}-{len(data)}"', "X-Repo-Commit": commit})
            elif path.startswith(resolve):
                self.send(404, {}, {"X-Error-Code": "EntryNotFound"})
            else:
                self.send(404, {}, {"X-Error-Code": "RepoNotFound"})

        def entries(self, held: dict[str, bytes], folder: str) -> Iterator[dict[str, Any]]:
            """What is directly in a folder."""
            inside = {name: name.removeprefix(folder).strip("/") for name in held if name.startswith(folder)}
            for name, rest in inside.items():
                if "/" not in rest:
                    yield {"type": "file", "path": name, "size": len(held[name]), "oid": "0" * 40}
            for part in {rest.split("/")[0] for rest in inside.values() if "/" in rest}:
                yield {"type": "directory", "path": f"{folder}/{part}".strip("/"), "size": 0, "oid": "0" * 40}

        do_GET = do_HEAD = do_POST = answer

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
