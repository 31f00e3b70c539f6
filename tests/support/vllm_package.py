"""A package `vllm` with the classes that the in-process engine uses and a tiny real model behind them: vLLM itself
needs a CUDA device. What sleeps is NaN, and is refused when used, as it would be garbage there.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from support.vllm_protocol import sampled, text_logprobs

OPTIONS = {
    "dtype",
    "load_format",
    "enable_sleep_mode",
    "gpu_memory_utilization",
    "max_model_len",
    "logprobs_mode",
    "generation_config",
    "enforce_eager",
    "compilation_config",
}
STARTED: list["LLM"] = []


class SamplingParams:
    def __init__(self, **options: Any) -> None:
        assert not ("stop" in options and not options.get("detokenize", True)), "stop strings need the detokenizer"
        self.options = options


class LLM:
    """Its own sampling code, of `vllm_protocol`. `ignores`: it does not take new weights."""

    fails: Exception | None = None
    """Raised when it starts."""

    def __init__(self, model: str, **options: Any) -> None:
        if LLM.fails is not None:
            raise LLM.fails
        assert options.keys() <= OPTIONS
        assert (options["load_format"], options["logprobs_mode"]) == ("dummy", "processed_logprobs")
        torch.manual_seed(0)  # as vLLM does
        self.options = options
        self.model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model)).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.how, self.ignores = "", False
        self.asleep: set[str] = set()
        self.log: list[str] = []
        longest = SimpleNamespace(max_model_len=self.model.config.max_position_embeddings)
        self.llm_engine = SimpleNamespace(model_config=longest, engine_core=SimpleNamespace(shutdown=lambda: None))
        STARTED.append(self)

    @torch.no_grad()
    def logits(self, ids: list[int]) -> torch.Tensor:
        return self.model(torch.tensor([ids])).logits[0].float()

    @torch.no_grad()
    def sleep(self, level: int = 1) -> None:
        assert level == 2
        assert not self.asleep
        self.asleep = {"weights", "kv_cache"}
        self.saved = [weight.clone() for weight in self.model.parameters()]
        for weight in self.model.parameters():
            weight.fill_(torch.nan)
        self.log.append("sleep")

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.asleep -= set(tags or self.asleep)
        self.log.append(f"wake {tags}")

    @torch.no_grad()
    def collective_rpc(self, method: str, kwargs: Mapping[str, Iterable[tuple[str, torch.Tensor]]]) -> None:
        assert method == "reload_weights"
        assert "weights" not in self.asleep
        given = dict(kwargs["weights_iterator"])
        own = dict(self.model.named_parameters())  # tied weights once
        assert given.keys() == own.keys()
        for (name, weight), saved in zip(own.items(), self.saved, strict=True):
            weight.copy_(saved if self.ignores else given[name])
        self.log.append("load")

    def reset_prefix_cache(self) -> bool:
        return True

    def generate(self, prompts: Sequence[Any], params: Sequence[SamplingParams], use_tqdm: bool) -> list[Any]:
        assert not self.asleep
        assert not use_tqdm
        self.log.append(f"generate {len(prompts)}")
        return [self._one(one["prompt_token_ids"], each.options) for one, each in zip(prompts, params, strict=True)]

    def _one(self, prompt: list[int], options: Mapping[str, Any]) -> Any:
        done: Any = sampled(self, {"prompt": prompt, **options})  # type: ignore[arg-type]
        rows = [{t: SimpleNamespace(logprob=p)} for t, p in zip(done["token_ids"], done["logprobs"], strict=True)]
        count = options.get("prompt_logprobs")
        text = text_logprobs(self, prompt, count) if count else None  # type: ignore[arg-type]
        read = text and [one and {int(k): SimpleNamespace(**v) for k, v in one.items()} for one in text]
        output = SimpleNamespace(**{**done, "logprobs": rows})
        return SimpleNamespace(outputs=[output], prompt_logprobs=read)


def install(folder: Path, patch: pytest.MonkeyPatch, version: str = "0.22.1") -> None:
    """Make `import vllm` find it."""
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text("from support.vllm_package import LLM, SamplingParams\n")
    (folder / f"vllm-{version}.dist-info").mkdir()
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    (folder / f"vllm-{version}.dist-info" / "METADATA").write_text(text)
    patch.syspath_prepend(folder)
    patch.setattr(LLM, "fails", None)
    STARTED.clear()
