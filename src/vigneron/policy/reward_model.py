"""A scorer: a transformers sequence-classification model that gives a text one number, read at its last token.

It is carried by a `Policy`, whose trunk it shares; it writes nothing, and has no head over the vocabulary.
"""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vigneron.batch import Batch
from vigneron.distributed import ranks
from vigneron.errors import UserError
from vigneron.policy.bundled import quiet_transformers
from vigneron.policy.load import (
    checkpoint_activations,
    first_line,
    make_policy,
    model_source,
    resolve_compute_dtype,
    resolve_device,
)
from vigneron.policy.model import Policy
from vigneron.policy.packing import can_share_prompts, lay_out
from vigneron.policy.rank_batches import map_microbatches

ScorerKind = Literal["reward", "first_is_better"]
"""What the number is, as the model's one label says: how good a text is, or the log-odds that the first of two is
better."""
HEAD = "score"


def load_scorer(
    name: str,
    *,
    start: bool,
    seed: int = 0,
    device: str = "auto",
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    activation_checkpointing: bool = False,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    key: str = "model",
    shared: bool = False,
) -> Policy:
    """A scorer to go on with. `start`: of a language model's trunk, with a new head that depends on the seed alone.

    `key` is where the config names it; `shared` as in `load_policy`.
    """
    where = resolve_device(device)
    blank = shared and not ranks.is_first()
    model, tokenizer, new = _load_pretrained(name, key, allow_pickle, trust_remote_code, blank)
    head = getattr(model, HEAD, None)
    if not isinstance(head, nn.Linear) or head.out_features != 1:
        raise UserError(f"{key}: '{name}' does not give a text one number: a `{HEAD}` head with one label does")
    if lost := sorted(new - {f"{HEAD}.weight"}):
        raise UserError(f"{key}: cannot load '{name}': it has no {', '.join(lost[:3])}")
    if new and not start:
        raise UserError(f"{key}: '{name}' is no reward or preference model, it has no {HEAD}.weight: train one first")
    if new:
        _begin_head(head, getattr(model.config, "initializer_range", 0.02), seed)
    model.eval()
    here = torch.device("cpu") if shared else where
    policy = make_policy(model if blank else model.to(here), tokenizer, device=here)
    if policy.pad_id in policy.eos_ids:
        # transformers looks for the last token that is not padding, and would overlook the end: better that it refuses.
        model.config.pad_token_id = None
    policy.shares_prompts = blank or can_share_prompts(policy)
    policy.device, policy.compute_dtype = where, resolve_compute_dtype(dtype, where)
    if activation_checkpointing:
        checkpoint_activations(policy)
    return policy


def _load_pretrained(
    name: str, key: str, allow_pickle: bool, trust_remote_code: bool, blank: bool
) -> tuple[Any, Any, set[str]]:
    """The model, its tokenizer, and the weights that the folder does not have."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    source = model_source(name, key)
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
            model, info = AutoModelForSequenceClassification.from_pretrained(
                source,
                num_labels=1,
                dtype=torch.float32,
                use_safetensors=None if allow_pickle else True,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
                device_map="meta" if blank else None,
            )
    except Exception as error:  # the edge to somebody's files: they can be broken in any way
        raise UserError(f"{key}: cannot load '{name}': {first_line(error)}") from error
    return model, tokenizer, set(info["missing_keys"])


def _begin_head(head: nn.Linear, spread: float, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.weight.copy_(spread * torch.randn(head.weight.shape, generator=draws))


def scorer_kind(policy: Policy) -> str:
    return str(policy.causal.config.id2label[0])


def set_scorer_kind(policy: Policy, kind: ScorerKind) -> None:
    """Written into the model's own config, under the name of its one label."""
    policy.causal.config.id2label, policy.causal.config.label2id = {0: kind}, {kind: 0}


def scores(policy: Policy, batch: Batch) -> Float[Tensor, " B"]:
    """The number of each sample, read at the last token it has: by its length, whatever the padding is."""
    layout = lay_out(batch, policy.pad_id, policy.device, with_last=True, for_graphs=policy.graphed)
    hidden_MH = policy.hidden(layout.ids_RS, layout.positions_RS, layout.allowed_R1SS).flatten(0, 1)
    head = getattr(policy.causal, HEAD)
    # In the weights' own precision: differences between two scores are small.
    return head(hidden_MH[layout.completion_end_B].to(head.weight.dtype)).squeeze(-1)


@torch.no_grad()
def scores_in_parts(policy: Policy, batch: Batch, tokens_at_once: int) -> Float[Tensor, " B"]:
    """The same without a gradient, for batches of any size."""
    found: Tensor = map_microbatches(batch, tokens_at_once, lambda part: {"scores_B": scores(policy, part)})["scores_B"]
    return found
