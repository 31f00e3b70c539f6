"""Vigneron on a work: a real run through the training loop, timed from outside.

ours            the whole training loop
ours-sampling   the engine alone: calls from prompt ids to completion ids and log-probs, its copy of the weights updated
                in each
ours-vllm       the whole training loop, with vLLM in this process as its sampler
ours-vllm-server   the same with a vLLM server on the same GPU
"""

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.algorithm_1 import ALPHA, CRITIC_LEARNING_RATE, ENTROPY_COEFFICIENT, VALUE_COEFFICIENT
from benchmarks.arguments import contestant_arguments
from benchmarks.frozen import GROUP, Frozen
from benchmarks.lora import LORA_ALPHA, same_adapters
from benchmarks.measure import GB, Measurement, Phase, Recorder
from benchmarks.models import model_folder
from benchmarks.parity import Verdict
from benchmarks.prompts import DISTINCT_STEPS, prompt_rows, prompt_token_ids
from benchmarks.vllm_server import vllm_server
from benchmarks.work import Work
from vigneron.batch import Batch, Samples, Signals
from vigneron.core.draws import Sampling
from vigneron.methods import build_method
from vigneron.policy.logprobs import score
from vigneron.recipe import check_config
from vigneron.rollout.engine.sample import sample
from vigneron.timing import Stopwatch, recording_timings
from vigneron.training import loop
from vigneron.training.callbacks import Silent
from vigneron.training.method import Method, Metrics
from vigneron.training.parts import Parts
from vigneron.training.run import Run
from vigneron.training.setup.start import start_run
from vigneron.training.update import GradientUpdate


def recipe(work: Work, model: Path, data: Path) -> dict[str, Any]:
    """The work as a recipe. GRPO with TRL's defaults: mean over tokens, k3; PGSRM as in Algorithm 1."""
    methods: dict[str, dict[str, Any]] = {
        "grpo": {"name": "grpo", "aggregation": "tokens", "kl": {"coefficient": work.kl_beta, "estimator": "k3"}},
        "actor_critic": {
            "name": "actor_critic",
            "faithful": True,
            "entropy_coefficient": ENTROPY_COEFFICIENT,
            "value_coefficient": VALUE_COEFFICIENT,
            "kl": {"coefficient": work.kl_beta},
        },
    }
    rewards = {
        "grpo": {"kind": "python", "function": "benchmarks.prompts:share_of_e"},
        "actor_critic": {"kind": "semantic", "embedder": "lexical", "alpha": ALPHA},
    }
    optimizer: dict[str, Any] = {"actor_lr": work.learning_rate, "kind": work.optimizer}
    if work.method == "actor_critic":
        optimizer["critic_lr"] = CRITIC_LEARNING_RATE
    return {
        "recipe": work.name,
        "method": methods[work.method],
        "model": model_keys(work, model),
        "data": {"train": str(data)},
        "reward": rewards[work.method],
        "sampling": {"temperature": work.temperature},
        "optimizer": optimizer,
        "steps": work.warmups + work.steps,
        "prompts_per_step": work.prompts,
        "group_size": work.group,
        "max_new_tokens": work.new_tokens,
        "eval_every": 0,
        "save_every": 0,
        "successive_kl_every": 0,
    }


def model_keys(work: Work, model: Path) -> dict[str, Any]:
    """The recipe's `model`. Only what differs from the default is set."""
    keys: dict[str, Any] = {
        "name": str(model),
        "device": work.device,
        "dtype": work.dtype,
        "compile": work.device == "cuda",
    }
    if work.weights != "auto":
        keys["weights"] = work.weights
    if work.memory_limit is not None:
        keys["memory_gb"] = round(work.memory_limit * GB / 2**30, 3)
    if work.lora_rank is not None:
        keys["lora"] = {"rank": work.lora_rank, "alpha": LORA_ALPHA, "targets": "all-linear"}
    return keys


@contextmanager
def started(
    work: Work,
    model: Path | None = None,
    changes: dict[str, Any] | None = None,
    rows: list[dict[str, Any]] | None = None,
) -> Iterator[Run]:
    """A run of the work in a temporary folder. No token ends a completion: lengths are forced, but for conversations.

    `changes` are keys of the recipe that are not the work's, `rows` prompts that are not."""
    model = model or model_folder(work.model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "prompts.jsonl"
        given = rows if rows is not None else prompt_rows(work, tokenizer)
        data.write_text("".join(json.dumps(row) + "\n" for row in given))
        config = check_config({**recipe(work, model, data), **(changes or {})}, work.name)

        def build(parts: Parts) -> Method:
            parts.policy.eos_ids = frozenset()
            return build_method(parts)

        run = start_run(config, Path(place), build, view=Silent())
        yield run
        run.close()


class Enough(Exception):
    """All steps are measured."""


class StepTimes:
    """A view of a run, like the terminal's: a step's time is that from one call to the next."""

    def __init__(self, work: Work, watch: Stopwatch) -> None:
        self._work, self._watch = work, watch
        self.recorder = Recorder(work)
        self.held = 0
        self.details: list[dict[str, float]] = []
        """Seconds of the phases inside the rollout, of every step."""

    def notice(self, text: str) -> None: ...

    def check(self, batch: Batch) -> None:
        """Of the work that was done in a step."""
        check_lengths(batch, self._work)

    def step(self, run: Any, metrics: Metrics, batch: Batch, seconds: float) -> None:
        self.check(batch)
        if run.policy.device.type == "cuda":
            self.held = torch.cuda.memory_allocated()
        for name, phases in PARTS.items():
            self.recorder.charge(name, sum(self._watch.seconds.get(phase, 0.0) for phase in phases))
        inside = {name: seconds for name, seconds in self._watch.seconds.items() if name.startswith("rollout/")}
        self.details.append(inside)
        if self.recorder.end_step():
            raise Enough

    def with_details(self, measurement: Measurement) -> Measurement:
        """With the times inside the rollout, of the measured steps."""
        measured = self.details[len(self.details) - len(measurement.step_seconds) :]
        names = sorted({name for inside in measured for name in inside})
        inside = {name: tuple(step.get(name, 0.0) for step in measured) for name in names}
        return replace(measurement, phase_seconds={**measurement.phase_seconds, **inside})


SERVER_SHARE = 0.3
"""Of the GPU's memory, for a vLLM server beside the run."""

PARTS: dict[Phase, tuple[str, ...]] = {"sampling": ("rollout",), "reference+reward": ("reward", "advantage")}
"""The loop's phases under the names of the comparison; the rest of a step, with its logs, counts as update."""


def measure(
    work: Work,
    model: Path | None = None,
    rows: list[dict[str, Any]] | None = None,
    name: str = "ours",
    changes: dict[str, Any] | None = None,
) -> Measurement:
    """Run the training loop, writing logs and samples as in any run."""
    began = time.perf_counter()
    with started(work, model, changes, rows) as run, recording_timings() as watch:
        settings: dict[str, Any] = {
            "microbatch_tokens": run.config.microbatch_tokens,
            "start_s": time.perf_counter() - began,
        }
        view = StepTimes(work, watch)
        with suppress(Enough):
            loop.train(run, view)
        memory = view.recorder.memory.taken(view.held)
        gaps = [row["vllm/probe_gap"] for row in run.folder.metrics() if "vllm/probe_gap" in row]
        if gaps:
            settings |= {"probe_gaps": gaps}
        return view.with_details(view.recorder.finish(name, settings, memory))


def measure_with_vllm(work: Work, name: str) -> Measurement:
    """vLLM in this process has the share of memory that it takes by default; a server, which does not sleep, a fixed
    one. The weights' folder is in memory if that has room."""
    if name == "ours-vllm":
        return measure(work, name=name, changes={"scale": {"sampling": {"kind": "vllm"}}})
    size = sum(file.stat().st_size for file in model_folder(work.model).glob("*.safetensors"))
    with tempfile.TemporaryDirectory(dir=folder_in_memory(2 * size)) as place:  # the last weights, and the next ones
        began, shared = time.perf_counter(), Path(place) / "weights"
        with vllm_server(model_folder(work.model), Path(place) / "log", SERVER_SHARE) as url:
            seconds = time.perf_counter() - began
            sampling = {"kind": "vllm", "url": url, "weights": str(shared)}
            measured = measure(work, name=name, changes={"scale": {"sampling": sampling}})
            return replace(measured, settings={**measured.settings, "server_start_s": seconds})


def folder_in_memory(needed: int, memory: Path = Path("/dev/shm")) -> Path | None:
    """The file system in memory; None if it has not so many bytes and a tenth more, or is not there."""
    if not memory.is_dir() or shutil.disk_usage(memory).free < 1.1 * needed:
        return None
    return memory


def measure_sampling(work: Work) -> Measurement:
    """Time whole calls of the sampler. The policy's version changes, so that its weights are copied again each time."""
    with started(work) as run:
        prompts = prompt_token_ids(work, run.policy.tokenizer)
        recorder = Recorder(work)
        step = 0
        while True:
            groups = prompts[step % DISTINCT_STEPS * work.prompts :][: work.prompts]
            run.policy.version = step + 1
            with recorder.phase("sampling"):
                done = sample(
                    run.policy,
                    [ids for ids in groups for _ in range(work.group)],
                    max_new_tokens=work.new_tokens,
                    sampling=Sampling(work.temperature),
                    step=step,
                    microbatch_tokens=run.config.resolved_microbatch_tokens,
                )
            if set(done.lengths_B.tolist()) != {work.new_tokens}:
                raise SystemExit("ours-sampling: the lengths are not forced")
            step += 1
            if recorder.end_step():
                return recorder.finish("ours-sampling", {})


def check_lengths(batch: Batch, work: Work) -> None:
    """Raise if a run did less than its work."""
    lengths = {spans[-1][1] - spans[0][0] for spans in batch.samples.spans}
    if len(batch) != work.samples or lengths != {work.new_tokens}:
        raise SystemExit(f"ours: {len(batch)} completions of {lengths} tokens: the lengths are not forced")


def frozen_batch(frozen: Frozen, device: torch.device) -> Batch:
    size, prompt_tokens = frozen.prompt_BP.shape

    def tensor(values: Any) -> torch.Tensor:
        return torch.as_tensor(values, device=device)

    advantages_B = tensor(frozen.advantages_B)
    return Batch(
        Samples(
            prompt_ids=tuple(tuple(row) for row in frozen.prompt_BP.tolist()),
            completion_BT=tensor(frozen.completion_BT),
            spans=tuple(((prompt_tokens, prompt_tokens + n),) for n in frozen.lengths_B.tolist()),
            behaviour_BT=tensor(frozen.behaviour_BT),
            truncated_B=torch.zeros(size, dtype=torch.bool, device=device),
            group_B=torch.arange(size, device=device) // GROUP,
            sample_B=torch.arange(size, device=device),
            prompts=("",) * size,
            completions=("",) * size,
        ),
        signals=Signals(
            rewards_B=advantages_B,
            advantages_BT=advantages_B[:, None].expand(frozen.completion_BT.shape),
            reference_BT=tensor(frozen.reference_BT),
        ),
    )


def parity(work: Work, frozen: Frozen) -> Verdict:
    """Our log-probs, and the loss and gradient norm of our update. Not compiled where that takes minutes."""
    exact = replace(work, dtype="float32", weights="auto", memory_limit=None, optimizer="adamw")
    changes: dict[str, Any] = {}
    if work.real_size:
        changes["model"] = {**model_keys(exact, model_folder(work.model)), "weights": "float32", "compile": False}
    with started(exact, changes=changes) as run:
        same_adapters(run.policy.model)
        batch = frozen_batch(frozen, run.policy.device)
        with torch.no_grad():
            logprobs_BT = score(run.policy, batch, Sampling(work.temperature)).logprobs_BT
        update = run.method.update
        assert isinstance(update, GradientUpdate)
        for _ in range(2):  # repeated shapes become CUDA graphs, which are the ones timed
            with torch.no_grad():
                logprobs_BT = score(run.policy, batch, Sampling(work.temperature)).logprobs_BT
            update.accumulate(batch, lambda part: update.loss(part, update.score(part)))
            for player in update.optimized:
                player.optimizer.zero_grad(set_to_none=True)
        metrics = update(batch)
        loss = metrics["loss/policy"] + work.kl_beta * metrics["loss/kl"]
        if work.method == "actor_critic":
            loss -= ENTROPY_COEFFICIENT * metrics["entropy"]
        return Verdict(logprobs_BT.cpu().numpy(), loss, metrics["grad_norm/actor"])


if __name__ == "__main__":
    arguments = contestant_arguments(__doc__)
    if arguments.frozen is not None:
        parity(arguments.work, Frozen.load(arguments.frozen)).save(arguments.out)
    elif arguments.contestant == "ours-sampling":
        measure_sampling(arguments.work).save(arguments.out)
    elif "vllm" in arguments.contestant:
        measure_with_vllm(arguments.work, arguments.contestant).save(arguments.out)
    else:
        measure(arguments.work).save(arguments.out)
