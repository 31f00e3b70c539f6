"""The server of `vllm_protocol` in a process of its own, and what it is told."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from support import fault_runs
from support.vllm_protocol import serve
from vigneron.remote.vllm.json_server import JsonServer
from vigneron.sources import client


class Served:
    """A server of the protocol, and what it is told."""

    def __init__(self, folder: Path) -> None:
        with TemporaryDirectory() as place:
            told = Path(place) / "port"
            self.process = fault_runs.started(serve, str(folder), str(told))
            while not told.exists():
                assert self.process.is_alive(), "the server did not start"
                time.sleep(0.02)
            self.url = f"http://127.0.0.1:{told.read_text()}"
        self.http = JsonServer(self.url, 600.0)

    def misbehave(self, how: str = "", times: int = 1, folder: Path | None = None) -> None:
        self.http.request("/misbehave", {"how": how, "times": times, "folder": folder and str(folder)})

    def requests(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.http.request("/requests")
        return found


@contextmanager
def serving_model(folder: Path) -> Iterator[Served]:
    served = Served(folder)
    try:
        yield served
    finally:
        served.process.kill()
        served.process.join()


def well_behaved(served: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """For one test: waits are short, and what an earlier test asked for is over."""
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.01)
    served.misbehave()
    return served
