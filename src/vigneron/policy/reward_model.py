"""A reward model: a transformers sequence-classification model with one label, read at a text's last token.

It is held in a `Policy`, whose trunk it uses; it has no LM head and cannot sample.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vigneron.batch import Batch
from vigneron.distributed import ranks
from vigneron.errors import UserError, first_line
from vigneron.policy.architecture import reward_model_class
from vigneron.policy.bundled import BUNDLED_MODELS, quiet_transformers
from vigneron.policy.device import on_device, resolve_compute_dtype, resolve_device
from vigneron.policy.held_weights import has_low_precision
from vigneron.policy.hub import check_on_hub
from vigneron.policy.load import Weights, bfloat16_cast, checkpoint_activations, make_policy
from vigneron.policy.model import Policy
from vigneron.policy.model_names import model_source
from vigneron.policy.packing import can_share_prompts, lay_out
from vigneron.policy.rank_batches import map_microbatches
from vigneron.policy.stored import Bfloat16Cast, Stored, hold, is_packed, read_model
from vigneron.policy.tokenizer_trial import try_tokenizer

RewardModelKind = Literal["reward", "first_is_better", "process"]
"""The meaning of the score, stored as the model's label: the reward of a text, the log-odds that the first of two texts
is better, or at each step's last token the log-odds that the step is right."""
HEAD = "score"


def load_reward_model(
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
    weights: Weights = "auto",
    notice: Callable[[str], None] = lambda text: None,
) -> Policy:
    """Load a reward model. `start`: to train it, also from a language model, with a new head initialized from the seed.

    `key` is its config key; `shared`, `weights` and `notice` as in `load_policy`.
    """
    where = resolve_device(device)
    compute_dtype = resolve_compute_dtype(dtype, where)
    # A frozen one is held in bfloat16 also for scores in float32, which upcast it.
    held_for = compute_dtype if start else resolve_compute_dtype("auto", where)
    cast = "no" if shared else bfloat16_cast(weights, held_for, frozen=not start)
    blank = shared and not ranks.is_rank0()
    stored, tokenizer = _load_pretrained(name, key, allow_pickle, trust_remote_code, blank, cast)
    model, new = stored.model, stored.missing
    if not start:
        model.requires_grad_(False)
    head = getattr(model, HEAD, None)
    if not isinstance(head, nn.Linear) or head.out_features != 1:
        raise UserError(f"{key}: '{name}' is not a reward model: it has no linear `{HEAD}` head with one label")
    if missing := sorted(new - {f"{HEAD}.weight"}):
        raise UserError(f"{key}: cannot load '{name}': it has no {', '.join(missing[:3])}")
    if new and not start:
        raise UserError(
            f"{key}: '{name}' is not a reward or preference model: it has no {HEAD}.weight; train one first"
        )
    if new:
        _init_head(head, getattr(model.config, "initializer_range", 0.02), seed)
    remedy = "store the model in bfloat16 to save them"
    for text in (*stored.notices, hold(model, cast, f"{key}: the weights of '{name}'", remedy)):
        if text:
            notice(text)
    if cast == "rounded" and compute_dtype != torch.bfloat16:
        model.float()
    model.eval()
    here = torch.device("cpu") if shared else where
    policy = make_policy(model if blank else model.to(here), tokenizer, device=here)
    if policy.pad_id in policy.eos_ids:
        # transformers reads the last token that is not padding and would skip EOS; without a pad id it raises instead.
        model.config.pad_token_id = model.config.get_text_config().pad_token_id = None
    policy.low_precision = has_low_precision(model)
    policy.shares_prompts = blank or can_share_prompts(policy)
    policy.device, policy.compute_dtype = where, compute_dtype
    if activation_checkpointing:
        checkpoint_activations(policy)
    return policy


def _load_pretrained(
    name: str, key: str, allow_pickle: bool, trust_remote_code: bool, blank: bool, cast: Bfloat16Cast
) -> tuple[Stored, Any]:
    """The model with what is missing from its folder, and its tokenizer."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    source, where = model_source(name, key), f"{key}: '{name}'"
    check_on_hub(source, f"{key}: cannot load '{name}'")
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(source, num_labels=1, trust_remote_code=trust_remote_code)
            check_reward_model(config, where, trust_remote_code)
            if is_packed(config, where):
                raise UserError(f"{where} is stored in 4 bits, which a reward model cannot be: use the original")
            if name not in BUNDLED_MODELS and not trust_remote_code:
                try_tokenizer(source, where)
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
            stored = read_model(
                AutoModelForSequenceClassification,
                reward_model_class(config),
                source,
                config,
                where,
                cast=cast,
                blank=blank,
                allow_pickle=allow_pickle,
                trust_remote_code=trust_remote_code,
            )
    except UserError:
        raise
    except Exception as error:  # external files can be broken in any way
        raise UserError(f"{key}: cannot load '{name}': {first_line(error)}") from error
    return stored, tokenizer


def check_reward_model(config: Any, where: str, trust_remote_code: bool) -> None:
    if any(str(name).endswith("ForTokenClassification") for name in config.architectures or ()):
        raise UserError(
            f"{where} classifies tokens instead of texts, as process models of other trainers do, which are not "
            "supported: train one by `method: process_model`, or choose a reward model"
        )
    if reward_model_class(config) is None and not trust_remote_code:
        raise UserError(
            f"{where}: transformers has no sequence-classification model for '{config.model_type}', so no reward model "
            "can start from it: choose another model"
        )


def _init_head(head: nn.Linear, std: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.weight.copy_(std * torch.randn(head.weight.shape, generator=generator))


def reward_model_kind(policy: Policy) -> str:
    return str(policy.causal.config.id2label[0])


def set_reward_model_kind(policy: Policy, kind: RewardModelKind, separator: str | None = None) -> None:
    """Store the kind in the model's config as the name of its label, and a process model's separator of steps."""
    policy.causal.config.id2label, policy.causal.config.label2id = {0: kind}, {kind: 0}
    if kind == "process":
        policy.causal.config.step_separator = separator


def step_separator(policy: Policy) -> str | None:
    """What stood between steps when the process model was trained; None: texts were one step."""
    separator: str | None = getattr(policy.causal.config, "step_separator", None)
    return separator


def scores(policy: Policy, batch: Batch) -> Float[Tensor, " B"]:
    """The score of each sample at its last token, found by its length rather than by padding."""
    layout = lay_out(batch, policy, with_last=True)
    hidden_MH = policy.hidden(layout.ids_RS, layout.positions_RS, layout.apart).flatten(0, 1)
    head = getattr(policy.causal, HEAD)
    # In the weights' dtype: differences between two scores are small.
    return head(hidden_MH[layout.completion_end_B].to(head.weight.dtype)).squeeze(-1)


def scores_at(policy: Policy, batch: Batch, at_BT: Bool[Tensor, "B T"]) -> Float[Tensor, " N"]:
    """The scores at the marked tokens, sample by sample; the score at a token has read it."""
    layout = lay_out(batch, policy, with_last=True)
    hidden_MH = policy.hidden(layout.ids_RS, layout.positions_RS, layout.apart).flatten(0, 1)
    first_B = layout.completion_end_B - batch.samples.lengths_B + 1
    index_BT = first_B[:, None] + torch.arange(at_BT.shape[1], device=first_B.device)
    head = getattr(policy.causal, HEAD)
    return head(hidden_MH[index_BT[at_BT]].to(head.weight.dtype)).squeeze(-1)


def spread_scores(scores_N: Float[Tensor, " N"], at_BT: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Scores by token, 0 where none is."""
    return scores_N.new_zeros(at_BT.shape).masked_scatter(at_BT, scores_N)


@torch.no_grad()
def scores_in_parts(policy: Policy, batch: Batch, microbatch_tokens: int) -> Float[Tensor, " B"]:
    """`scores` without gradients, for batches of any size."""
    with on_device(policy.device):  # perhaps in a thread, which has a current device of its own
        results = map_microbatches(batch, microbatch_tokens, lambda part: {"scores_B": scores(policy, part)})
    scores_B: Tensor = results["scores_B"]
    return scores_B
