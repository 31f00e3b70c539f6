"""vLLM's offline engine on a work's prompts, sampling alone: no training, no change of weights, all of the GPU.

Compiled with CUDA graphs, as it comes; PyTorch's sampler, because FlashInfer's kernels would be built first. Two
measurements: `vllm-sampling`, completion ids alone, and `vllm-sampling-logprobs`, with the log-prob of each token,
which a trainer needs and ours always returns. A group is one request with `n`, so its prompt is computed once; the
prefix cache is emptied before each call, because a trainer's weights have changed by then. Text is not decoded.
"""

from typing import Any

from transformers import AutoTokenizer

from benchmarks.arguments import contestant_arguments
from benchmarks.measure import Measurement, Recorder
from benchmarks.models import model_folder
from benchmarks.prompts import DISTINCT_STEPS, prompt_token_ids
from benchmarks.work import Work


def engine_settings(work: Work) -> dict[str, Any]:
    """Random weights are drawn in place: their values do not change the time."""
    return {
        "model": str(model_folder(work.model)),
        "load_format": "dummy" if work.real_size else "auto",
        "dtype": work.dtype,
        "max_model_len": (work.prompt_tokens or 0) + work.new_tokens,
        "max_num_seqs": work.samples,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
    }


def sampling_settings(work: Work, *, logprobs: bool) -> dict[str, Any]:
    forced = {"max_tokens": work.new_tokens, "ignore_eos": True}
    wanted = {"logprobs": 0} if logprobs else {}
    return {"n": work.group, "temperature": work.temperature, "detokenize": False, **forced, **wanted}


def measure(llm: Any, work: Work, contestant: str, *, logprobs: bool) -> Measurement:
    from vllm import SamplingParams

    prompts = prompt_token_ids(work, AutoTokenizer.from_pretrained(model_folder(work.model)))
    given = sampling_settings(work, logprobs=logprobs)
    recorder = Recorder(work)
    step = 0
    while True:
        groups = prompts[step % DISTINCT_STEPS * work.prompts :][: work.prompts]
        llm.reset_prefix_cache()
        with recorder.phase("sampling"):
            made = llm.generate(
                [{"prompt_token_ids": ids} for ids in groups], sampling_params=SamplingParams(**given), use_tqdm=False
            )
        lengths = [len(one.token_ids) for request in made for one in request.outputs]
        if len(lengths) != work.samples or set(lengths) != {work.new_tokens}:
            raise SystemExit(
                f"vLLM made {len(lengths)} completions of {set(lengths)} tokens: the lengths are not forced"
            )
        step += 1
        if recorder.end_step():
            return recorder.finish(contestant, {**engine_settings(work), **given})


if __name__ == "__main__":
    arguments = contestant_arguments(__doc__)

    from vllm import LLM

    engine = LLM(**engine_settings(arguments.work))
    for name, wanted in ((arguments.contestant, False), (f"{arguments.contestant}-logprobs", True)):
        measure(engine, arguments.work, name, logprobs=wanted).save(arguments.out)
