"""Load a model to train: a hub id, a folder, or a bundled model."""

import re
import warnings
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import torch

from vigneron.distributed import ranks
from vigneron.errors import UserError, first_line
from vigneron.files import parse_json, user_path
from vigneron.policy.architecture import auto_class, check_language_model
from vigneron.policy.bundled import (
    BUNDLED_MODELS,
    BUNDLED_TYPE,
    bundled_model_folder,
    bundled_weights,
    quiet_transformers,
)
from vigneron.policy.chat import add_chat_tokens
from vigneron.policy.checkpointing import checkpoint_layers
from vigneron.policy.compiling import can_compile, compile_layers, set_compiling
from vigneron.policy.longrope import install_longrope
from vigneron.policy.model import Policy, Reference, capture_obstacle, check_head
from vigneron.policy.packing import can_share_prompts
from vigneron.policy.tokenizer_trial import try_tokenizer

LARGEST_CONFIG = 2**24
MOST_LAYERS = 10_000
LAYER_COUNT = r"(?<!per_)layers?$"
"""Config keys that count layers: `num_hidden_layers`, `n_layer`; not `vocab_size_per_layer_input`."""

FUSED_OUTPUT = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
"""Model types whose output projections peft refuses to adapt."""


@dataclass(frozen=True)
class Lora:
    rank: int = 16
    alpha: float = 32.0
    targets: str | tuple[str, ...] = "all-linear"


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


def resolve_compute_dtype(dtype: Literal["auto", "float32", "bfloat16"], device: torch.device) -> torch.dtype:
    """The dtype of matrix products; the weights are always float32 master weights.

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
) -> Policy:
    """Load float32 master weights, with dropout off. Pickled weights and remote code are refused unless allowed.

    `shared`: for sharding. Rank 0 loads the weights into host memory, the other ranks only their shapes.
    """
    where = resolve_device(device)
    blank = shared and not ranks.is_rank0()
    model, tokenizer = _load_pretrained(name, blank, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code)
    _freeze_encoders(model)
    if chat == "minted":
        add_chat_tokens(model, tokenizer)
    if lora is not None:
        model = _add_lora(model, lora)
    model.eval()
    here = torch.device("cpu") if shared else where
    policy = make_policy(model if blank else model.to(here), tokenizer, device=here)
    if activation_checkpointing:
        checkpoint_activations(policy)
    if not blank:
        check_head(policy)
        policy.shares_prompts = can_share_prompts(policy)
    policy.device, policy.compute_dtype = where, resolve_compute_dtype(dtype, where)
    return policy


def checkpoint_activations(policy: Policy) -> None:
    """Turn on activation checkpointing: less memory, more time."""
    checkpoint_layers(policy.causal)
    policy.activation_checkpointing = True


def speed_up(policy: Policy, reference: Reference, *, graphs: bool, compiled: bool) -> str | None:
    """Turn on CUDA graphs and torch.compile for a policy and its reference, if the device supports them. The result is
    a notice if the model cannot be captured in graphs.

    No graphs with activation checkpointing: its backward pass runs in another order than recorded.
    """
    graphs = graphs and policy.device.type == "cuda" and not policy.activation_checkpointing
    obstacle = capture_obstacle(policy) if graphs else None
    policy.compiled = compiled and can_compile(policy.device)
    set_compiling(policy.compiled)
    for each in {id(p): p for p in (policy, reference.policy)}.values():
        each.graphed = graphs and obstacle is None
        if policy.compiled:
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
    bundled model only the type: converting its weights takes half a minute."""
    from transformers import AutoConfig

    if name in BUNDLED_MODELS:
        return AutoConfig.for_model(BUNDLED_TYPE)
    try:
        with quiet_transformers():
            return AutoConfig.from_pretrained(model_source(name), local_files_only=True)
    except UserError:
        raise
    except Exception:  # external files can be broken in any way: loading the model says how
        return None


def _load_pretrained(name: str, blank: bool, *, allow_pickle: bool, trust_remote_code: bool) -> tuple[Any, Any]:
    """`blank`: on the meta device, without reading weights."""
    from transformers import AutoConfig, AutoTokenizer

    source = model_source(name)
    options = {"trust_remote_code": trust_remote_code}
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(source, **options)
            check_language_model(config, f"model: '{name}'")
            if name not in BUNDLED_MODELS and not trust_remote_code:
                try_tokenizer(source, f"model: '{name}'")
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            tokenizer("a")  # invalid settings fail on first use
            model = auto_class(config).from_pretrained(
                source,
                config=config,
                dtype=torch.float32,
                use_safetensors=None if allow_pickle else True,
                device_map="meta" if blank else None,
                **options,
            )
    except UserError:
        raise
    except Exception as error:  # external files can be broken in any way
        raise UserError(f"model: cannot load '{name}': {first_line(error)}") from error
    return model, tokenizer


def encoder_names(model: Any) -> list[str]:
    """Of a composite model: the modules that belong to images and sounds, which texts do not train."""
    if model.config.get_text_config() is model.config:
        return []
    text = {id(module) for module in model.get_decoder().modules()} | {id(model.get_output_embeddings())}
    holds_text = {name for name, module in model.named_modules() if any(id(m) in text for m in module.modules())}
    outside = [name for name, module in model.named_modules() if name not in holds_text]
    return [name for name in outside if name.rpartition(".")[0] in holds_text]


def _not_adaptable(model: Any) -> list[str]:
    """Linear layers that adapters cannot be added to: routers of experts, which return more than a product, and what
    the kernels of Mamba read directly."""
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    fused = model.config.model_type in FUSED_OUTPUT
    return [name for name, module in linear if (fused and name.endswith(".out_proj")) or not _is_product(module)]


@torch.no_grad()
def _is_product(linear: torch.nn.Linear) -> bool:
    if type(linear).forward is torch.nn.Linear.forward:
        return True
    row = torch.zeros(1, linear.in_features, dtype=linear.weight.dtype, device=linear.weight.device)
    try:
        return isinstance(linear(row), torch.Tensor)
    except Exception:  # any model is possible
        return False


def _freeze_encoders(model: Any) -> None:
    for name in encoder_names(model):
        model.get_submodule(name).requires_grad_(False)


def local_tokenizer(name: str, *, trust_remote_code: bool = False) -> Any | None:
    """A model's tokenizer, if its files are on this machine."""
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            source = model_source(name)
            if Path(source).is_dir() and name not in BUNDLED_MODELS and not trust_remote_code:
                try_tokenizer(source, f"model: '{name}'")
            return AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception:  # not downloaded yet, or broken, which loading the model explains
        return None


def _add_lora(model: Any, lora: Lora) -> Any:
    from peft import LoraConfig, get_peft_model

    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    options: dict[str, Any] = {"lora_alpha": lora.alpha}  # annotated as int in peft, but any number works
    excluded = encoder_names(model)
    if lora.targets == "all-linear":  # of targets that were named, peft explains what is wrong with them
        excluded += _not_adaptable(model)
    if excluded:
        options["exclude_modules"] = rf"({'|'.join(map(re.escape, excluded))})(\..*)?"
    config = LoraConfig(
        r=lora.rank,
        target_modules=targets,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        **options,
    )
    try:
        with warnings.catch_warnings():  # about patterns for experts that peft adds to the config itself
            warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern keys did not match")
            return get_peft_model(model, config)
    except ValueError as error:
        raise UserError(f"model.lora: {first_line(error)}") from error
