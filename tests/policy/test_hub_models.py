"""A model of the hub that cannot be had is one line after one request, not minutes of retries."""

from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import huggingface_hub.constants
import pytest

from vigneron.errors import UserError
from vigneron.policy.hub import check_on_hub
from vigneron.policy.load import load_policy
from vigneron.sources.embedders import load_embedder


@pytest.mark.parametrize(
    ("load", "key"), [(load_policy, "model"), (load_embedder, "reward.embedder")], ids=["policy", "embedder"]
)
def test_without_a_network(monkeypatch: pytest.MonkeyPatch, load: Callable[[str], Any], key: str) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    line = f"^{key}: cannot load 'vine/none': it is not on this disk, and the hub cannot be reached: check the network"
    with pytest.raises(UserError, match=line):
        load("vine/none")


def test_a_name_that_the_hub_does_not_have(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path)) as empty:
        Thread(target=empty.serve_forever, daemon=True).start()
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{empty.server_port}")
        with pytest.raises(UserError, match=r"^here: the hub has no such model, or it is private: check the name"):
            check_on_hub("vine/none", "here")
        empty.shutdown()
    with pytest.raises(UserError, match="nor a name that the hub allows"):
        check_on_hub("no such name", "here")
