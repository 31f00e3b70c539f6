"""TRL's own loss on the frozen batch, in float32: its log-probs, its loss, the norm of its gradient."""

import tempfile
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.arguments import contestant_arguments
from benchmarks.frozen import Frozen
from benchmarks.lora import same_adapters
from benchmarks.parity import Verdict
from benchmarks.peer_trl import TimedTrainer, make_trainer
from benchmarks.work import Work


def trl_inputs(frozen: Frozen, device: torch.device) -> dict[str, Tensor]:
    """The dict that TRL passes from its sampling to its loss."""

    def tensor(values: object) -> Tensor:
        return torch.as_tensor(values, device=device)

    mask_BT = tensor(frozen.mask_BT).long()
    return {
        "prompt_ids": tensor(frozen.prompt_BP),
        "prompt_mask": torch.ones_like(tensor(frozen.prompt_BP)),
        "completion_ids": tensor(frozen.completion_BT),
        "completion_mask": mask_BT,
        "advantages": tensor(frozen.advantages_B),
        "old_per_token_logps": tensor(frozen.behaviour_BT),
        "ref_per_token_logps": tensor(frozen.reference_BT),
        "num_items_in_batch": mask_BT.sum(),
    }


def trl_verdict(trainer: TimedTrainer, frozen: Frozen) -> Verdict:
    model: Any = trainer.model
    same_adapters(model)
    inputs = trl_inputs(frozen, model.device)
    model.train()
    trainer.current_gradient_accumulation_steps = 1  # set by `train`, which is not called here
    ids_BS = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    attention_BS = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    with torch.no_grad():
        logprobs_BT, _, _ = trainer._get_per_token_logps_and_entropies(
            model, ids_BS, attention_BS, inputs["completion_ids"].shape[1]
        )
    loss = trainer._compute_loss(model, inputs)
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    return Verdict(logprobs_BT.float().cpu().numpy(), float(loss.detach()), float(norm))


def in_float32(work: Work) -> Work:
    """Parity is checked in float32 whatever the work's dtype, in one micro-batch."""
    return replace(work, dtype="float32", peer_microbatch=work.samples)


if __name__ == "__main__":
    arguments = contestant_arguments(__doc__)
    assert arguments.frozen is not None, "parity needs --frozen"
    with tempfile.TemporaryDirectory() as folder:
        trl_verdict(make_trainer(in_float32(arguments.work), "trl-tuned", folder), Frozen.load(arguments.frozen)).save(
            arguments.out
        )
