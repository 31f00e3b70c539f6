"""TRL's GRPOTrainer on a work, in its own process.

trl-default      with `generate`; TRL's defaults for speed: gradient checkpointing is on.
trl-tuned        with `generate`; gradient checkpointing off.
trl-compiled     trl-tuned with a static cache and the compiled `generate` that TRL switches off; not a setting of TRL.
trl-vllm         with vLLM in the same process (`vllm_mode: colocate`), awake during the update, which is TRL's default;
                 gradient checkpointing off. Its text is not decoded in vLLM, since TRL decodes the ids itself.
trl-vllm-sleep   the same with vLLM asleep during the update: less memory.

Set alike for all, because the comparison needs it: β and plain k3 as the KL (TRL's default multiplies it by the ratio),
rewards not divided by their std, lengths forced, the micro-batch, a constant learning rate, no logs and no checkpoints.
The loss is TRL's default, `dapo`: the mean over all tokens. Under LoRA the frozen base is in bfloat16 (TRL's default is
float32).
"""

import tempfile
from typing import Any

import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.arguments import contestant_arguments
from benchmarks.lora import LORA_ALPHA
from benchmarks.measure import Measurement, Recorder
from benchmarks.models import model_folder
from benchmarks.prompts import prompt_rows, share_of_e
from benchmarks.work import Work

VARIANTS: dict[str, dict[str, Any]] = {
    "trl-default": {},
    "trl-tuned": {"gradient_checkpointing": False},
    "trl-compiled": {"gradient_checkpointing": False, "cache_implementation": "static"},
    "trl-vllm": {"gradient_checkpointing": False, "use_vllm": True, "vllm_mode": "colocate"},
    "trl-vllm-sleep": {
        "gradient_checkpointing": False,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_enable_sleep_mode": True,
    },
}


class TimedTrainer(GRPOTrainer):
    """TRL's trainer with timing of its two phases before the update, and a check of the lengths."""

    recorder: Recorder

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        with self.recorder.phase("reference+reward"):
            return super()._generate_and_score_completions(inputs)

    def _generate(self, prompts: Any) -> Any:
        with self.recorder.phase("sampling"):
            made = super()._generate(prompts)
        self.check(made)
        return made

    def check(self, made: Any) -> None:
        """Of what was sampled in a step: prompt ids, completion ids, the mask of tools, messages, …"""
        lengths = {len(ids) for ids in made[1]}
        if lengths != {self.max_completion_length}:
            raise SystemExit(f"TRL's completions have {lengths} tokens: the lengths are not forced")


class CountSteps(TrainerCallback):
    """Stops the training when enough steps are measured."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        self._recorder.begin()
        return control

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> Any:
        control.should_training_stop = self._recorder.end_step()
        return control


def settings(work: Work, variant: str) -> dict[str, Any]:
    """Everything that differs from TRL's defaults."""
    microbatch = min(work.peer_microbatch, work.samples)
    if work.samples % microbatch:
        raise SystemExit(f"{work.name}: {work.samples} samples are not a multiple of the micro-batch, {microbatch}")
    forced: dict[str, Any] = {"generation_kwargs": {"min_new_tokens": work.new_tokens}}
    if VARIANTS[variant].get("use_vllm"):
        longest = (work.prompt_tokens or 0) + work.new_tokens
        forced = {"generation_kwargs": {"ignore_eos": True, "detokenize": False}, "vllm_max_model_length": longest}
    if half_base(work):
        forced["model_init_kwargs"] = {"dtype": "bfloat16"}
    return {
        "per_device_train_batch_size": microbatch,
        "gradient_accumulation_steps": work.samples // microbatch,
        "num_generations": work.group,
        "max_completion_length": work.new_tokens,
        "temperature": work.temperature,
        "beta": work.kl_beta,
        "use_bias_correction_kl": False,
        "loss_type": "dapo",
        "scale_rewards": "none",
        "learning_rate": work.learning_rate,
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch_fused",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "bf16": work.dtype == "bfloat16",
        "use_cpu": work.device == "cpu",
        "max_steps": work.warmups + work.steps,
        **forced,
        **VARIANTS[variant],
    }


def half_base(work: Work) -> bool:
    return work.lora_rank is not None and work.dtype == "bfloat16"


def adapter(work: Work) -> Any:
    """PEFT's config, the same as ours."""
    if work.lora_rank is None:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=work.lora_rank,
        lora_alpha=LORA_ALPHA,  # type: ignore[arg-type]  # any number works
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def rows_as_dataset(rows: list[dict[str, str]]) -> Dataset:
    """With an explicit fingerprint: the one of `datasets`, a hash of everything, fails with some versions."""
    return Dataset(InMemoryTable.from_pylist(rows), fingerprint="benchmark")


def make_trainer(work: Work, variant: str, folder: str) -> TimedTrainer:
    """The trainer with the model loaded by path: TRL then loads float32 weights and creates its own reference."""
    source = str(model_folder(work.model))
    tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left")
    quiet: dict[str, Any] = {"logging_strategy": "no", "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    trainer = TimedTrainer(
        model=source,
        reward_funcs=share_of_e,
        args=GRPOConfig(output_dir=folder, **settings(work, variant), **quiet),
        train_dataset=rows_as_dataset(prompt_rows(work, tokenizer)),
        processing_class=tokenizer,
        peft_config=adapter(work),
    )
    if variant == "trl-compiled":
        trainer.generation_config.disable_compile = False
    model: Any = trainer.model
    weights = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    if weights != {torch.float32}:
        raise SystemExit(f"TRL loaded the trained weights as {weights}; the comparison needs float32 on both sides")
    return trainer


def measure(work: Work, variant: str) -> Measurement:
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(work, variant, folder)
        trainer.recorder = recorder = Recorder(work)
        trainer.add_callback(CountSteps(recorder))
        trainer.train()
        return recorder.finish(variant, settings(work, variant))


if __name__ == "__main__":
    arguments = contestant_arguments(__doc__)
    measure(arguments.work, arguments.contestant).save(arguments.out)
