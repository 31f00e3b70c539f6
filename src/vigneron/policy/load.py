"""Loading a child: a hub id, a folder, or a bundled model."""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import torch

from vigneron.distributed import ranks
from vigneron.errors import UserError, first_line
from vigneron.files import parse_json, user_path
from vigneron.policy.bundled import BUNDLED_MODELS, bundled_model_folder, bundled_weights, quiet_transformers
from vigneron.policy.chat import mint
from vigneron.policy.compiling import can_compile, compile_layers, set_compiling
from vigneron.policy.model import Policy, Reference, check_head
from vigneron.policy.packing import can_share_prompts

LARGEST_CONFIG = 2**24
MOST_LAYERS = 10_000


@dataclass(frozen=True)
class Lora:
    rank: int = 16
    alpha: float = 32.0
    targets: str | tuple[str, ...] = "all-linear"


def resolve_device(device: str) -> torch.device:
    if device != "auto":
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise UserError(f"model.device: '{device}' asked for, but torch sees no CUDA device (try device: auto)")
        if device == "mps" and not torch.backends.mps.is_available():
            raise UserError("model.device: 'mps' asked for, but torch sees no Apple GPU (try device: auto)")
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def resolve_compute_dtype(dtype: Literal["auto", "float32", "bfloat16"], device: torch.device) -> torch.dtype:
    """Weights are float32 masters always; this is what the matrix products run in.

    auto: bfloat16 where the hardware has it, else float32 (emulated, as on most CPUs, it is about 100× slower).
    """
    if dtype == "auto":
        return torch.bfloat16 if has_bfloat16(device) else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]


def has_bfloat16(device: torch.device) -> bool:
    """As the hardware says: a time that is taken would make two runs of one recipe differ."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def model_source(name: str, key: str = "model") -> str:
    """What transformers is given for a model's name; `key` is where the config names it."""
    check_model_name(name, key)
    if name in BUNDLED_MODELS:
        return str(bundled_model_folder(name))
    path = user_path(name)
    return str(path) if path.is_dir() else name


def check_model_name(name: str, key: str = "model") -> None:
    """Refuse what cannot be a model, without loading it; whether a hub id is there shows when it is loaded."""
    if name in BUNDLED_MODELS:
        bundled_weights(name)
        return
    path = user_path(name)
    if path.is_dir():
        if (path / "adapter_config.json").is_file():
            raise UserError(f"{key}: '{name}' holds an adapter, not a model: name its base, and set model.lora")
        if not (path / "config.json").is_file():
            raise UserError(f"{key}: the folder '{name}' has no config.json: it is not a transformers model")
        _refuse_endless(path / "config.json", f"{key}: '{name}'")
    elif path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"{key}: '{name}' is not a folder")
    elif near := get_close_matches(name, BUNDLED_MODELS, n=1, cutoff=0.8):
        raise UserError(f"{key}: there is no '{name}' (did you mean '{near[0]}'?)")


def _refuse_endless(file: Path, where: str) -> None:
    """transformers would build as many layers as a config claims; whatever else is wrong with it shows when loaded."""
    try:
        with file.open("rb") as opened:
            config = parse_json(opened.read(LARGEST_CONFIG))
    except (OSError, ValueError):
        return
    parts = [part for part in (config, *config.values()) if isinstance(part, dict)] if isinstance(config, dict) else []
    numbers = [value for part in parts for name, value in part.items() if "layer" in str(name)]
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
    """Load weights as float32 masters, dropout off. Pickle weights and remote code are refused unless allowed.

    `shared`: for ranks that will share the weights. The first one has them on its host, the others their shapes alone.
    """
    where = resolve_device(device)
    blank = shared and not ranks.is_rank0()
    model, tokenizer = _load_pretrained(name, blank, allow_pickle=allow_pickle, trust_remote_code=trust_remote_code)
    if chat == "minted":
        mint(model, tokenizer)
    if lora is not None:
        model = _add_lora(model, lora)
    model.eval()
    here = torch.device("cpu") if shared else where
    policy = make_policy(model if blank else model.to(here), tokenizer, device=here)
    if activation_checkpointing:
        checkpoint_activations(policy)
        if lora is not None:
            model.enable_input_require_grads()
    if not blank:
        check_head(policy)
        policy.shares_prompts = can_share_prompts(policy)
    policy.device, policy.compute_dtype = where, resolve_compute_dtype(dtype, where)
    return policy


def checkpoint_activations(policy: Policy) -> None:
    """Less memory for more time."""
    _remove_dropout(policy.model)
    policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy.activation_checkpointing = True


def speed_up(policy: Policy, reference: Reference, *, graphs: bool, compiled: bool) -> None:
    """Graphs and torch.compile for a policy and its reference, where the device has them.

    Activation checkpointing goes without graphs: it computes the pass back in another order than it was recorded.
    """
    on_gpu = policy.device.type == "cuda"
    policy.compiled = compiled and can_compile(policy.device)
    set_compiling(policy.compiled)
    for each in {id(p): p for p in (policy, reference.policy)}.values():
        each.graphed = graphs and on_gpu and not policy.activation_checkpointing
        if policy.compiled:
            compile_layers(each.causal)


def make_policy(model: Any, tokenizer: Any, *, device: torch.device, dtype: torch.dtype = torch.float32) -> Policy:
    """A policy of a model in memory. Every end id that model, generation config or tokenizer names counts."""
    config = model.config
    generation = getattr(model, "generation_config", None)
    ends: set[int] = set()
    for source in (config, generation, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        found = ids if isinstance(ids, list | tuple) else [] if ids is None else [ids]
        if not all(isinstance(one, int) for one in found):
            raise UserError(f"model: its eos_token_id is {ids!r}: it should be a token's id, or a list of them")
        ends |= set(found)
    pad = getattr(tokenizer, "pad_token_id", None)
    pad = pad if pad is not None else min(ends, default=0)
    return Policy(model, tokenizer, frozenset(ends), pad, device, dtype)


def _load_pretrained(name: str, blank: bool, *, allow_pickle: bool, trust_remote_code: bool) -> tuple[Any, Any]:
    """`blank`: on `meta`, where no weight is read, and buffers have no values either."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source = model_source(name)
    options = {"trust_remote_code": trust_remote_code}
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(source, **options)
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            tokenizer("a")  # its settings may be of any type, and are used here for the first time
            model = AutoModelForCausalLM.from_pretrained(
                source,
                config=config,
                dtype=torch.float32,
                use_safetensors=None if allow_pickle else True,
                device_map="meta" if blank else None,
                **options,
            )
    except Exception as error:  # the edge to somebody's files: they can be broken in any way
        raise UserError(f"model: cannot load '{name}': {first_line(error)}") from error
    return model, tokenizer


def _add_lora(model: Any, lora: Lora) -> Any:
    from peft import LoraConfig, get_peft_model

    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    options: dict[str, Any] = {"lora_alpha": lora.alpha}  # peft's annotation says int; it takes any number
    config = LoraConfig(
        r=lora.rank,
        target_modules=targets,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        **options,
    )
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise UserError(f"model.lora: {first_line(error)}") from error


def _remove_dropout(model: Any) -> None:
    """eval() turns dropout off; checkpointing needs train(), so there it is set to 0 wherever it lives."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for attribute in ("attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "dropout"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, 0.0)
