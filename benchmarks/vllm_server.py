"""A vLLM server for a run: `vllm serve` as docs/guides/vllm.md says, in a process of its own."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.processes import environment

LONGEST_S = 240.0
COMPILATION = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
"""CUDA graphs for decoding without torch.compile, as vLLM in the training process has them."""


@contextmanager
def vllm_server(model: Path, log: Path, memory_share: float) -> Iterator[str]:
    """The root of a server that has `memory_share` of the GPU."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--dtype", "bfloat16", "--logprobs-mode", "processed_logprobs"]
    command += ["--generation-config", "vllm", "--gpu-memory-utilization", str(memory_share)]
    command += ["--compilation-config", json.dumps(COMPILATION)]
    served = {**environment(), "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("w") as file:
        process = subprocess.Popen(command, env=served, stdout=file, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url, process, log)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + LONGEST_S
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the vLLM server did not start:\n{log.read_text()[-6000:]}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
