"""Load a model to train: a hub id, a folder, or a bundled model."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import torch

from vigneron.distributed import ranks
from vigneron.errors import UserError, first_line
from vigneron.files import parse_json, user_path
from vigneron.policy.architecture import auto_class, check_language_model, language_model_class
from vigneron.policy.bundled import (
    BUNDLED_MODELS,
    BUNDLED_SHAPE,
    BUNDLED_TYPE,
    bundled_model_folder,
    bundled_weights,
    is_converted,
    quiet_transformers,
)
from vigneron.policy.chat import add_chat_tokens
from vigneron.policy.checkpointing import checkpoint_layers
from vigneron.policy.compiling import can_compile, compile_layers, set_compiling
from vigneron.policy.frozen import is_narrow
from vigneron.policy.fused_modules import can_fuse, fuse_modules
from vigneron.policy.longrope import install_longrope
from vigneron.policy.lora import Lora, add_lora, encoder_names, not_adaptable
from vigneron.policy.model import Policy, Reference, capture_obstacle, check_head
from vigneron.policy.packing import can_share_prompts
from vigneron.policy.quantised import check_library, prepare, quantise
from vigneron.policy.stored import Narrow, Stored, check_complete, hold, is_packed, read_model
from vigneron.policy.tokenizer_trial import try_tokenizer

LARGEST_CONFIG = 2**24
MOST_LAYERS = 10_000
LAYER_COUNT = r"(?<!per_)layers?$"
"""Config keys that count layers: `num_hidden_layers`, `n_layer`; not `vocab_size_per_layer_input`."""

Weights = Literal["auto", "float32", "bfloat16", "4bit"]


def resolve_device(device: str) -> torch.device:
    if device != "auto":
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise UserError(f"model.device: '{device}' is set, but torch sees no CUDA device (try device: auto)")
        if device == "mps" and not torch.backends.mps.is_available():
            raise UserError("model.device: 'mps' is set, but torch sees no Apple GPU (try device: auto)")
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def use_device(device: torch.device) -> None:
    """Make a GPU that is given by its number the current one, on which Triton's kernels run."""
    if device.type == "cuda" and device.index is not None:
        if device.index >= torch.cuda.device_count():
            raise UserError(f"model.device: '{device}' is set, but torch sees {torch.cuda.device_count()} CUDA devices")
        torch.cuda.set_device(device)


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """`use_device` for a block."""
    numbered = device.type == "cuda" and device.index is not None
    return torch.cuda.device(device) if numbered else nullcontext()


def resolve_compute_dtype(dtype: Literal["auto", "float32", "bfloat16"], device: torch.device) -> torch.dtype:
    """The dtype of matrix products.

    auto: bfloat16 if the hardware supports it, else float32 (emulated bfloat16 is about 100× slower).
    """
    if dtype == "auto":
        return torch.bfloat16 if has_bfloat16(device) else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]


def has_bfloat16(device: torch.device) -> bool:
    """As reported by the hardware. Not measured: timings would make two runs of one recipe differ."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def model_source(name: str, key: str = "model") -> str:
    """The folder or hub id that transformers loads for a model's name; `key` is its config key."""
    check_model_name(name, key)
    if name in BUNDLED_MODELS:
        return str(bundled_model_folder(name))
    path = user_path(name)
    return str(path) if path.is_dir() else name


def check_model_name(name: str, key: str = "model") -> None:
    """Raise for names that cannot be a model, without loading it. Hub ids are not looked up."""
    if name in BUNDLED_MODELS:
        bundled_weights(name)
        return
    path = user_path(name)
    if path.is_dir():
        if (path / "adapter_config.json").is_file():
            raise UserError(f"{key}: '{name}' is an adapter, not a model: give its base model and set model.lora")
        if not (path / "config.json").is_file():
            raise UserError(f"{key}: the folder '{name}' has no config.json: it is not a transformers model")
        _check_layer_count(path / "config.json", f"{key}: '{name}'")
    elif path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"{key}: '{name}' is not a folder")
    elif "/" in name and (parent := user_path(name.partition("/")[0])).is_dir():
        _check_path(name, parent, key)
    elif near := get_close_matches(name, BUNDLED_MODELS, n=1, cutoff=0.8):
        raise UserError(f"{key}: unknown model '{name}' (did you mean '{near[0]}'?)")


def _check_path(name: str, parent: Path, key: str) -> None:
    """A name with a slash whose first part is a folder here is meant as a path, unless it is one of hub models."""
    inside = sorted(path.name for path in parent.iterdir() if (path / "config.json").is_file())
    near = get_close_matches(name.partition("/")[2], inside, n=1)
    if near or not inside:
        hint = f" (did you mean '{parent.name}/{near[0]}'?)" if near else ""
        raise UserError(f"{key}: '{name}' is not a folder, though '{parent.name}' is one here{hint}: check the path")


def _check_layer_count(file: Path, where: str) -> None:
    """transformers would build as many layers as a config claims. Other faults of the file show when it is loaded."""
    try:
        with file.open("rb") as opened:
            config = parse_json(opened.read(LARGEST_CONFIG))
    except (OSError, ValueError):
        return
    parts = [part for part in (config, *config.values()) if isinstance(part, dict)] if isinstance(config, dict) else []
    numbers = [value for part in parts for name, value in part.items() if re.search(LAYER_COUNT, str(name))]
    if any(isinstance(number, int) and number > MOST_LAYERS for number in numbers):
        raise UserError(f"{where} claims more than {MOST_LAYERS:,} layers in its config.json")


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
    narrow = "no" if shared else narrow_weights(weights, compute_dtype, frozen=frozen)
    blank = shared and not ranks.is_rank0()
    stored, tokenizer, packed = _load_pretrained(
        name, blank, narrow, where, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code
    )
    model = stored.model
    _freeze_encoders(model)
    if not trained:
        model.requires_grad_(False)
    if chat == "minted":
        add_chat_tokens(model, tokenizer)
    notices = [stored.notice]
    if packed:
        if not frozen or shared or weights in ("float32", "bfloat16"):
            raise UserError(f"model: '{name}' is stored in 4 bits: set `model.lora` and `model.weights: 4bit`")
        prepare(model, compute_dtype)
    elif weights == "4bit":
        notices.append(quantise(model, where, compute_dtype, excluded=not_adaptable(model)))
    notices.append(hold(model, narrow))
    for text in notices:
        if text:
            notice(text)
    if narrow == "rounded" and compute_dtype != torch.bfloat16:
        model.float()  # rounded as in training, for products in float32
    if lora is not None:
        model = add_lora(model, lora)
    model.eval()
    here = torch.device("cpu") if shared else where
    policy = make_policy(model if blank else model.to(here), tokenizer, device=here)
    policy.narrow = is_narrow(model)
    if activation_checkpointing:
        checkpoint_activations(policy)
    if not blank:
        _check_held(policy, weights, notice)
        policy.shares_prompts = can_share_prompts(policy)
    policy.device, policy.compute_dtype = where, compute_dtype
    return policy


def _check_held(policy: Policy, weights: Weights, notice: Callable[[str], None]) -> None:
    """`check_head`. A model that needs float32 weights, as Mamba, which casts states to their dtype, gets them unless
    another way was chosen."""
    try:
        check_head(policy)
    except UserError as error:
        if not policy.narrow:
            raise
        if weights != "auto":
            raise UserError(f"{error}; `model.weights: {weights}` may be the reason: leave it out") from error
        policy.model.float()
        policy.narrow = is_narrow(policy.model)
        check_head(policy)
        kind = policy.causal.config.model_type
        notice(f"the frozen weights are held in float32: '{kind}' computes otherwise in bfloat16")


def narrow_weights(weights: Weights, compute_dtype: torch.dtype, *, frozen: bool) -> Narrow:
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
    policies = list({id(p): p for p in (policy, reference.policy)}.values())
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


def local_config(name: str) -> Any:
    """The transformers config of a model that is on this machine; None if it is not, or comes with its own code. Of a
    bundled model type and sizes: converting its weights takes half a minute."""
    from transformers import AutoConfig

    if name in BUNDLED_MODELS:
        return AutoConfig.for_model(BUNDLED_TYPE, **BUNDLED_SHAPE)
    try:
        with quiet_transformers():
            return AutoConfig.from_pretrained(model_source(name), local_files_only=True)
    except UserError:
        raise
    except Exception:  # external files can be broken in any way: loading the model says how
        return None


def _load_pretrained(
    name: str, blank: bool, narrow: Narrow, device: torch.device, *, allow_pickle: bool, trust_remote_code: bool
) -> tuple[Stored, Any, bool]:
    """The model, its tokenizer, and whether its files are 4-bit. `blank`: on the meta device, without weights."""
    from transformers import AutoConfig, AutoTokenizer

    source, where = model_source(name), f"model: '{name}'"
    options = {"trust_remote_code": trust_remote_code}
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(source, **options)
            check_language_model(config, where)
            packed = is_packed(config, where)
            if packed:
                check_library(device)
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
                narrow=narrow,
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


def local_tokenizer(name: str, *, trust_remote_code: bool = False, convert: bool = True) -> Any | None:
    """A model's tokenizer, if its files are on this machine. Without `convert`, the bundled model's only if the cache
    has it: converting it takes half a minute."""
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            if name in BUNDLED_MODELS and not convert and not is_converted(name):
                return None
            source = model_source(name)
            if Path(source).is_dir() and name not in BUNDLED_MODELS and not trust_remote_code:
                try_tokenizer(source, f"model: '{name}'")
            return AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception:  # not downloaded yet, or broken, which loading the model explains
        return None
