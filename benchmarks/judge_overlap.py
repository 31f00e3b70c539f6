"""Concurrency of judge calls: 512 samples × 6 items at an endpoint that takes 200 ms to answer.

python -m benchmarks.judge_overlap [--samples N] [--items N] [--latency-ms N] [--concurrency N]

A critique and a score are two calls. The ideal is calls × latency / concurrency; the endpoint is a process of its own.
"""

import argparse
import asyncio
import json
import math
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vigneron.config.judges import EndpointJudgeConfig
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import Conversation, JudgePrompts, build_judge

VERDICT = json.dumps({"reasoning": "It says what was asked for.", "score": 0.75, "confidence": 0.9})
MESSAGE = {"role": "assistant", "content": VERDICT}
ANSWER = json.dumps(
    {
        "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 200, "completion_tokens": 20},
    }
).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)


@dataclass(frozen=True)
class Load:
    samples: int = 512
    items: int = 6
    latency_s: float = 0.2
    concurrency: int = 64

    @property
    def ideal_s(self) -> float:
        return math.ceil(2 * self.samples * self.items / self.concurrency) * self.latency_s


def _serve(listening: socket.socket, latency_s: float) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                await asyncio.sleep(latency_s)
                writer.write(HEAD + ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, sock=listening)
        await server.serve_forever()

    asyncio.run(run())


@contextmanager
def slow_endpoint(latency_s: float) -> Iterator[str]:
    """The URL of an endpoint that always returns the same verdict, with a delay."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        process = multiprocessing.get_context("fork").Process(target=_serve, args=(listening, latency_s), daemon=True)
        process.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            process.kill()
            process.join()


def asked(sample: int, item: int) -> JudgePrompts:
    shown = f"Question {sample}. " + "The response goes on for a while. " * 20 + f"Item {item}."

    def score(critique: str) -> Conversation:
        return ("system", "Score the response as JSON."), ("user", f"{shown}\n{critique}")

    return JudgePrompts((("system", "Criticise the response."), ("user", shown)), score)


def seconds(load: Load) -> float:
    """Of all judgements, the first connections included."""
    with slow_endpoint(load.latency_s) as url, tempfile.TemporaryDirectory() as folder:
        config = EndpointJudgeConfig(kind="endpoint", model="judge", url=url, concurrency=load.concurrency)
        judge = build_judge(config, cache=AnswerCache(Path(folder) / "answers.sqlite"))
        judge.preflight()
        work = [asked(sample, item) for sample in range(load.samples) for item in range(load.items)]
        began = time.perf_counter()
        verdicts = judge.verdicts(work)
        took = time.perf_counter() - began
        judge.stop()
    missing = [verdict.why for verdict in verdicts if verdict.score is None]
    assert not missing, f"{len(missing)} missing: {missing[0]}"
    return took


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judge_overlap")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--items", type=int, default=6)
    parser.add_argument("--latency-ms", type=float, default=200.0)
    parser.add_argument("--concurrency", type=int, default=64)
    options = parser.parse_args()
    load = Load(options.samples, options.items, options.latency_ms / 1000, options.concurrency)
    took = seconds(load)
    print(
        f"{2 * load.samples * load.items} calls, {load.concurrency} at a time: {took:.2f} s, ideal {load.ideal_s:.2f} s"
    )
    print(f"ratio judge_overlap {took / load.ideal_s:.3f}")


if __name__ == "__main__":
    main()
