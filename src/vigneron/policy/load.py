"""Load a model to train: a hub id, a folder, or a bundled model."""

from collections.abc import Callable
from typing import Any, Literal

import torch

from vigneron.distributed import ranks
from vigneron.errors import UserError, first_line
from vigneron.policy.architecture import auto_class, check_language_model, language_model_class
from vigneron.policy.bundled import BUNDLED_MODELS, quiet_transformers
from vigneron.policy.chat import add_chat_tokens
from vigneron.policy.checkpointing import checkpoint_layers
from vigneron.policy.compiling import can_compile, compile_layers, set_compiling
from vigneron.policy.device import resolve_compute_dtype, resolve_device
from vigneron.policy.fused_modules import can_fuse, fuse_modules
from vigneron.policy.held_weights import has_low_precision
from vigneron.policy.hub import check_on_hub
from vigneron.policy.longrope import install_longrope
from vigneron.policy.lora import Lora, add_lora, encoder_names, not_adaptable
from vigneron.policy.model import Policy
from vigneron.policy.model_checks import capture_obstacle, check_head
from vigneron.policy.model_names import check_config_file, model_source
from vigneron.policy.packing import can_share_prompts
from vigneron.policy.quantised import check_packed_library, prepare, quantise
from vigneron.policy.reference import Reference
from vigneron.policy.stored import Bfloat16Cast, Stored, check_complete, hold, is_packed, read_model
from vigneron.policy.tokenizer_trial import try_tokenizer

Weights = Literal["auto", "float32", "bfloat16", "4bit"]


def load_policy(
    name: str,
    *,
    device: str = "auto",
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    chat: Literal["auto", "minted"] = "auto",
    lora: Lora | None = None,
    activation_checkpointing: bool = False,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    shared: bool = False,
    weights: Weights = "auto",
    trained: bool = True,
    notice: Callable[[str], None] = lambda text: None,
) -> Policy:
    """Load a model with dropout off. Pickled weights and remote code are refused unless allowed.

    `weights` as in the config; what is not `trained`, such as a judge, is frozen.
    `shared`: for sharding. Rank 0 loads the weights into host memory, the other ranks only their shapes.
    """
    where = resolve_device(device)
    compute_dtype = resolve_compute_dtype(dtype, where)
    frozen = lora is not None or not trained
    cast = "no" if shared else bfloat16_cast(weights, compute_dtype, frozen=frozen)
    blank = shared and not ranks.is_rank0()
    stored, tokenizer, packed = _load_pretrained(
        name, blank, cast, where, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
    )
    model = stored.model
    _freeze_encoders(model)
    if not trained:
        model.requires_grad_(False)
    if chat == "minted":
        add_chat_tokens(model, tokenizer)
    notices: list[str | None] = [*stored.notices]
    if packed:
        check_packed(name, weights if trained else "auto", frozen=frozen, shared=shared)
        prepare(model, compute_dtype)
    elif weights == "4bit":
        notices.append(quantise(model, where, compute_dtype, excluded=not_adaptable(model)))
    notices.append(hold(model, cast))
    for text in notices:
        if text:
            notice(text)
    if cast == "rounded" and compute_dtype != torch.bfloat16:
        model.float()  # rounded as in training, for products in float32
    if lora is not None:
        model = add_lora(model, lora)
    model.eval()
    here = torch.device("cpu") if shared else where
    policy = make_policy(model if blank else model.to(here), tokenizer, device=here)
    policy.low_precision = has_low_precision(model)
    if activation_checkpointing:
        checkpoint_activations(policy)
    if not blank:
        _check_held(policy, weights, notice)
        policy.shares_prompts = can_share_prompts(policy)
    policy.device, policy.compute_dtype = where, compute_dtype
    return policy


def check_packed(name: str, weights: Weights, *, frozen: bool, shared: bool) -> None:
    """Raise if a checkpoint in 4 bits cannot be loaded so."""
    if not frozen or weights in ("float32", "bfloat16"):
        raise UserError(f"model: '{name}' is stored in 4 bits: set `model.lora` and `model.weights: 4bit`")
    if shared:
        raise UserError(f"model: '{name}' is stored in 4 bits, which is not supported with sharding: set scale.shard=1")


def _check_held(policy: Policy, weights: Weights, notice: Callable[[str], None]) -> None:
    """`check_head`. A model that needs float32 weights, as Mamba, which casts states to their dtype, gets them unless
    another way was chosen."""
    try:
        check_head(policy)
    except UserError as error:
        if not policy.low_precision:
            raise
        if weights != "auto":
            raise UserError(f"{error}; `model.weights: {weights}` may be the reason: leave it out") from error
        policy.model.float()
        policy.low_precision = has_low_precision(policy.model)
        check_head(policy)
        kind = policy.causal.config.model_type
        notice(f"the frozen weights are held in float32: '{kind}' computes otherwise in bfloat16")


def bfloat16_cast(weights: Weights, compute_dtype: torch.dtype, *, frozen: bool) -> Bfloat16Cast:
    """Which weights are held in bfloat16. `frozen`: only an adapter is trained, or nothing."""
    if weights == "bfloat16":
        return "rounded"
    held = frozen and weights != "float32" and compute_dtype == torch.bfloat16
    return "exact" if held else "no"


def checkpoint_activations(policy: Policy) -> None:
    """Turn on activation checkpointing: less memory, more time."""
    checkpoint_layers(policy.causal)
    policy.activation_checkpointing = True


def speed_up(policy: Policy, reference: Reference, *, graphs: bool, compiled: bool) -> str | None:
    """Turn on fused modules, CUDA graphs and torch.compile for a policy and its reference, if the device supports them.
    Layers whose parts are all fused are not compiled, losses and the choice of tokens are. The result is a notice if
    the model cannot be captured in graphs.

    No graphs with activation checkpointing: its backward pass runs in another order than recorded.
    """
    policies = list({id(p): p for p in (policy, *([reference.policy] if reference.is_loaded else []))}.values())
    fuses = can_fuse(policy.device, policy.compute_dtype) and policy.sharding is None
    fused = [fuse_modules(each.causal) for each in policies] if fuses else [False]
    graphs = graphs and policy.device.type == "cuda" and not policy.activation_checkpointing
    obstacle = capture_obstacle(policy) if graphs else None
    policy.compiled = compiled and can_compile(policy.device)
    set_compiling(policy.compiled)
    for each in policies:
        each.graphed = graphs and obstacle is None
        if policy.compiled and not all(fused):
            compile_layers(each.causal)
    if obstacle is None:
        return None
    return f"training without CUDA graphs, which is slower: the model's layers cannot be captured: {obstacle}"


def make_policy(model: Any, tokenizer: Any, *, device: torch.device, dtype: torch.dtype = torch.float32) -> Policy:
    """A policy from a model in memory. Its end tokens are those of the model, generation config and tokenizer."""
    config = model.config
    generation = getattr(model, "generation_config", None)
    ends: set[int] = set()
    for source in (config, config.get_text_config(), generation, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        listed = ids if isinstance(ids, list | tuple) else [] if ids is None else [ids]
        if not all(isinstance(one, int) for one in listed):
            raise UserError(f"model: its eos_token_id is {ids!r}: expected a token id or a list of them")
        ends |= set(listed)
    _keep_score_caps(model)
    pad = getattr(tokenizer, "pad_token_id", None)
    pad = pad if pad is not None else min(ends, default=0)
    return Policy(model, tokenizer, frozenset(ends), pad, device, dtype, long_rope=install_longrope(model))


def _keep_score_caps(model: Any) -> None:
    """SDPA ignores the cap on attention scores; some releases of transformers choose it all the same."""
    config = model.config
    if getattr(config.get_text_config(), "attn_logit_softcapping", None) and config._attn_implementation == "sdpa":
        config._attn_implementation = "eager"


def _load_pretrained(
    name: str, blank: bool, cast: Bfloat16Cast, device: torch.device, *, allow_pickle: bool, trust_remote_code: bool
) -> tuple[Stored, Any, bool]:
    """The model, its tokenizer, and whether its files are 4-bit. `blank`: on the meta device, without weights."""
    from transformers import AutoConfig, AutoTokenizer

    source, where = model_source(name), f"model: '{name}'"
    options = {"trust_remote_code": trust_remote_code}
    check_on_hub(source, f"model: cannot load '{name}'")
    check_config_file(name)
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(source, **options)
            check_language_model(config, where)
            packed = is_packed(config, where)
            if packed:
                check_packed_library(device, where)
            if name not in BUNDLED_MODELS and not trust_remote_code:
                try_tokenizer(source, where)
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            tokenizer("a")  # invalid settings fail on first use
            stored = read_model(
                auto_class(config),
                language_model_class(config),
                source,
                config,
                where,
                cast=cast,
                blank=blank,
                device=device,
                allow_pickle=allow_pickle,
                **options,
            )
            check_complete(set() if blank else stored.missing, where)
    except UserError:
        raise
    except Exception as error:  # external files can be broken in any way
        raise UserError(f"model: cannot load '{name}': {first_line(error)}") from error
    return stored, tokenizer, packed


def _freeze_encoders(model: Any) -> None:
    for name in encoder_names(model):
        model.get_submodule(name).requires_grad_(False)
