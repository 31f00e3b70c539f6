"""What TRL's options and methods are called here: hints for a recipe that uses their names."""

from collections.abc import Sequence

KEYS = {
    "num_generations": "group_size",
    "max_completion_length": "max_new_tokens",
    "learning_rate": "optimizer.actor_lr",
    "lr": "optimizer.actor_lr",
    "lr_scheduler_type": "optimizer.schedule",
    "warmup_steps": "optimizer.warmup_steps",
    "weight_decay": "optimizer.weight_decay",
    "max_grad_norm": "optimizer.max_grad_norm",
    "per_device_train_batch_size": "prompts_per_step",
    "max_steps": "steps",
    "eval_steps": "eval_every",
    "save_steps": "save_every",
    "save_total_limit": "keep_last",
    "report_to": "trackers",
    "temperature": "sampling.temperature",
    "top_k": "sampling.top_k",
    "top_p": "sampling.top_p",
    "mask_truncated_completions": "sampling.mask_truncated",
    "gradient_checkpointing": "model.activation_checkpointing",
    "optim": "optimizer.kind",
    "use_peft": "model.lora",
    "peft_config": "model.lora",
    "lora_r": "model.lora.rank",
    "lora_alpha": "model.lora.alpha",
    "lora_target_modules": "model.lora.targets",
    "load_in_4bit": "model.weights: 4bit",
    "quantization_config": "model.weights: 4bit",
    "use_vllm": "scale.sampling: {kind: vllm}",
    "vllm_mode": "scale.sampling: {kind: vllm}",
    "vllm_server_base_url": "scale.sampling.url",
    "vllm_gpu_memory_utilization": "scale.sampling.memory_share",
    "reward_funcs": "reward",
    "reward_weights": "reward.weights",
    "beta": "method.kl.coefficient",
    "epsilon": "method.clip_epsilon",
    "epsilon_high": "method.clip_epsilon_high",
    "num_iterations": "method.updates_per_step",
    "scale_rewards": "method.scale_by_std",
}
"""TRL's name of an option, and ours. `beta` is GRPO's: methods that have a `beta` know it."""

METHODS_AS = {
    "rloo": "`method: {name: reinforce, baseline: leave_one_out}`",
    "dr_grpo": "`method: {name: grpo}`",
    "gspo": "`method: {name: grpo, level: geometric, aggregation: samples}`",
    "cispo": "`method: {name: grpo, loss: cispo}`",
    "dapo": "`method: {name: grpo}` with `clip_epsilon_high` and `resample`",
    "ipo": "`method: {name: dpo, loss: ipo}`",
    "simpo": "`method: {name: dpo, loss: simpo}`",
    "orpo": "`method: {name: dpo, loss: orpo}`",
    "online_dpo": "`method: {name: dpo, pairs: sampled}`",
    "reward": "`method: {name: reward_model}`",
    "prm": "`method: {name: process_model}`",
}
"""Other names of methods, and what to write."""


def trl_hint(path: Sequence[int | str]) -> str | None:
    """A hint for an unknown key that has a name of TRL, or in `model.lora` of PEFT."""
    name = str(path[-1])
    if path[:2] == ("model", "lora"):
        return " (PEFT's name: here it is `rank`)" if name == "r" else None
    ours = KEYS.get(name) if len(path) == 1 or path[0] in ("method", "model") else None
    if ours is None or ours == ".".join(map(str, path)):
        return None
    return f" (here it is `{ours}`)" if path[-1] == "lr" else f" (TRL's name: here it is `{ours}`)"
