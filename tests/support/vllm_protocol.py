"""A server with vLLM's documented HTTP API and a tiny real model, in a separate process.

It has its own sampling code, loads weights from the given folder, and fails as
`POST /misbehave` requests: {"how": ..., "times": ...}.
"""

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import torch
import uvicorn
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from transformers import AutoModelForCausalLM, AutoTokenizer

from vigneron.files import write_atomically


class Engine:
    def __init__(self, folder: str) -> None:
        self.lock = threading.Lock()
        self.first_folder = folder
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.begin(folder)

    def begin(self, folder: str) -> None:
        self.folder = folder
        self.model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.paused = False
        self.how, self.times = "", 0
        self.requests: list[dict[str, Any]] = []

    def misbehaves(self, *ways: str) -> bool:
        with self.lock:
            if self.how not in ways or self.times <= 0:
                return False
            self.times -= 1
            return True

    @torch.no_grad()
    def logits(self, ids: list[int]) -> torch.Tensor:
        return self.model(torch.tensor([ids])).logits[0].float()

    def load(self, folder: str) -> None:
        state: dict[str, torch.Tensor] = {}
        for file in Path(folder).glob("*.safetensors"):
            state |= load_file(file)
        if not state:
            raise FileNotFoundError(f"no weights in {folder}")
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(state[name])


def processed(logits: torch.Tensor, body: dict[str, Any]) -> torch.Tensor:
    temperature = body.get("temperature", 1.0)
    scores = logits / (temperature if temperature > 1e-5 else 1.0)
    if temperature <= 1e-5:
        return scores.log_softmax(-1)
    if body.get("top_k", -1) > 0:
        scores[scores < scores.topk(min(body["top_k"], len(scores))).values[-1]] = -torch.inf
    if body.get("top_p", 1.0) < 1.0:
        ordered, order = scores.sort(descending=True)
        reached = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        scores[order[reached >= body["top_p"]]] = -torch.inf
    return scores.log_softmax(-1)


def sampled(engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(body.get("seed") or 0)
    ids, logprobs, reason, string = list(body["prompt"]), [], "length", None
    for _ in range(body["max_tokens"]):
        raw = engine.logits(ids)[-1]
        chances = processed(raw.clone(), body)
        greedy = body.get("temperature", 1.0) <= 1e-5
        token = int(chances.argmax() if greedy else torch.multinomial(chances.exp(), 1, generator=generator))
        reported = raw.log_softmax(-1) if engine.how == "raw" else chances
        ids.append(token)
        logprobs.append(float(reported[token]))
        if token in body.get("stop_token_ids", []):
            reason = "stop"
            break
        text = engine.tokenizer.decode(ids[len(body["prompt"]) :], skip_special_tokens=False) if "stop" in body else ""
        found = next((stop for stop in body.get("stop", []) if stop in text), None)
        # One that decodes several tokens in a step looks late.
        if found is not None and (engine.how != "looks late" or len(logprobs) % 3 == 0):
            reason, string = "stop", found
            break
    done = {"token_ids": ids[len(body["prompt"]) :], "logprobs": logprobs, "finish_reason": reason}
    return done | {"stop_reason": string}


def text_logprobs(engine: Engine, ids: list[int], count: int) -> list[Any]:
    """Of each token but the first its own, and those of the most likely ones."""

    def entry(row: torch.Tensor, token: int) -> dict[str, Any]:
        rank = int((row > row[token]).sum()) + 1
        return {"logprob": float(row[token]), "rank": rank, "decoded_token": engine.tokenizer.decode([token])}

    rows: list[Any] = [None]
    for one, row in zip(ids[1:], engine.logits(ids).log_softmax(-1), strict=False):
        tokens = dict.fromkeys([one, *row.topk(count).indices.tolist()])
        rows.append({str(token): entry(row, token) for token in tokens})
    return rows


def error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "error", "code": status}}, status)


class CutOff(Response):
    """A body shorter than its content-length: the connection closes in the middle of the response."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"1000"), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{", "more_body": False})


def app(engine: Engine) -> Starlette:
    def completions(request: Request, body: dict[str, Any]) -> Response:
        with engine.lock:
            engine.requests.append(body)
        if engine.paused:
            return error(503, "paused")
        if engine.misbehaves("die"):
            os._exit(1)
        if engine.misbehaves("drop"):
            return CutOff()
        if engine.misbehaves("broken"):
            return error(500, "EngineCore encountered an issue")
        if engine.misbehaves("slow"):
            while engine.how == "slow":
                time.sleep(0.02)
        if max(body["prompt"]) >= engine.model.config.vocab_size:
            return error(400, f"Token id {max(body['prompt'])} is out of vocabulary")
        completion = sampled(engine, body)
        ids, logprobs = completion["token_ids"], completion["logprobs"]
        if engine.misbehaves("no logprobs"):
            logprobs = None
        elif engine.misbehaves("too few logprobs"):
            logprobs = logprobs[:-1]
        if engine.misbehaves("no token ids"):
            ids = None
        if engine.misbehaves("no end") and completion["finish_reason"] == "stop":
            ids, logprobs = ids[:-1], logprobs[:-1]
        tokens = None if logprobs is None else {"token_logprobs": logprobs, "tokens": []}
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": completion["finish_reason"],
            "stop_reason": completion["stop_reason"],
            "logprobs": tokens if body.get("logprobs") is not None else None,
            "token_ids": ids if body.get("return_token_ids") else None,
            "prompt_logprobs": text_logprobs(engine, body["prompt"], body["prompt_logprobs"])
            if body.get("prompt_logprobs")
            else None,
        }
        return JSONResponse({"object": "text_completion", "model": "child", "choices": [choice]})

    def collective_rpc(request: Request, body: dict[str, Any]) -> Response:
        if body["method"] != "reload_weights":
            return error(400, f"no method {body['method']}")
        if not engine.paused:
            return error(500, "weights are changed while requests run")
        if engine.misbehaves("refuse update"):
            return error(500, "size mismatch")
        if not engine.misbehaves("ignore update"):
            engine.load(body["kwargs"]["weights_path"])
        return JSONResponse({"results": [None]})

    def pause(request: Request, body: dict[str, Any]) -> Response:
        engine.paused = True
        return JSONResponse({"status": "paused"})

    def resume(request: Request, body: dict[str, Any]) -> Response:
        engine.paused = False
        return JSONResponse({"status": "resumed"})

    def is_paused(request: Request, body: dict[str, Any]) -> Response:
        return error(404, "Not Found") if engine.how == "no dev mode" else JSONResponse({"is_paused": engine.paused})

    def models(request: Request, body: dict[str, Any]) -> Response:
        name = "child" if engine.how != "two models" else "other"
        card = {"object": "model", "parent": None, "max_model_len": engine.model.config.max_position_embeddings}
        names = dict.fromkeys(("child", name))
        return JSONResponse({"object": "list", "data": [{"id": one, "root": engine.folder, **card} for one in names]})

    def version(request: Request, body: dict[str, Any]) -> Response:
        return JSONResponse({"version": "0.11.2" if engine.how == "old" else "0.32.0"})

    def misbehave(request: Request, body: dict[str, Any]) -> Response:
        """Restart with the first weights, or those of another folder, and fail in this way."""
        engine.begin(body.get("folder") or engine.first_folder)
        engine.how, engine.times = body.get("how", ""), body.get("times", 1)
        return JSONResponse({})

    routes = {
        "/health": lambda request, body: Response(),
        "/requests": lambda request, body: JSONResponse(engine.requests),
        "/reset_prefix_cache": lambda request, body: Response(),
        "/v1/completions": completions,
        "/v1/models": models,
        "/version": version,
        "/pause": pause,
        "/resume": resume,
        "/is_paused": is_paused,
        "/collective_rpc": collective_rpc,
        "/misbehave": misbehave,
    }

    def endpoint(answer: Any) -> Any:
        from starlette.concurrency import run_in_threadpool

        async def answered(request: Request) -> Response:
            text = await request.body()
            return await run_in_threadpool(answer, request, json.loads(text) if text else {})

        return answered

    return Starlette(routes=[Route(path, endpoint(answer), methods=["GET", "POST"]) for path, answer in routes.items()])


def serve(folder: str, told: str) -> None:
    """Its port is in a file as soon as it can be asked."""
    torch.set_num_threads(1)
    server = uvicorn.Server(uvicorn.Config(app(Engine(folder)), log_level="error"))
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        write_atomically(Path(told), str(listening.getsockname()[1]))
        server.run(sockets=[listening])
