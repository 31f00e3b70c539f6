"""Read a model's stored weights into the dtypes they are held in. What cannot be read is refused in one line."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from vigneron.errors import UserError, first_line
from vigneron.policy.architecture import auto_class, language_model_class
from vigneron.policy.bundled import BUNDLED_MODELS, quiet_transformers
from vigneron.policy.held_weights import built_in_bfloat16, hold_in_bfloat16
from vigneron.policy.model_names import check_config_file, local_config, model_source
from vigneron.policy.weight_files import weight_files
from vigneron.values import memory_text

Bfloat16Cast = Literal["no", "exact", "rounded"]
"""Which matrices and embeddings are held in bfloat16: none, those whose numbers are bfloat16 numbers, all."""
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
STATE = ".quant_state."
"""Part of the names of what bitsandbytes stores beside 4-bit weights."""
WEIGHT_NAMES = ("weight", "_proj")
FLOATS = ("BF16", "F16", "F32", "F64")
POINTER, MOST_OF_A_POINTER = b"version https://git-lfs", 1024


class StoredWeights(NamedTuple):
    """How a checkpoint's matrices are stored."""

    bfloat16: bool = True
    """Whether they are bfloat16 numbers, so that `weights: auto` holds frozen ones so."""
    packed: bool = False
    """Whether linear layers are in 4 bits of bitsandbytes."""


IN_BFLOAT16 = StoredWeights()


class Stored(NamedTuple):
    model: Any
    missing: set[str]
    """Names of weights that the files do not have."""
    notices: list[str]


def read_model(
    auto: Any,
    kind: Any,
    source: str,
    config: Any,
    where: str,
    *,
    cast: Bfloat16Cast = "no",
    blank: bool = False,
    device: torch.device | None = None,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
) -> Stored:
    """Read a model from a folder or the hub.

    `auto` is transformers' auto class, `kind` the class that it would choose; `blank`: on the meta device, without
    reading weights; `device`: where 4-bit weights are put.
    """
    packed = is_packed(config, where)
    quantised = getattr(config, "quantization_config", None) is not None
    dtypes = set() if blank else _stored_dtypes(_files(source, where), where, quantised=quantised, packed=packed)
    direct = not packed and (cast == "rounded" or (cast == "exact" and dtypes == {"BF16"}))
    direct = direct and isinstance(kind, type) and isinstance(config, getattr(kind, "config_class", None) or ())
    options: dict[str, Any] = {"device_map": "meta"} if blank else {"device_map": {"": str(device)}} if packed else {}
    if not direct:
        options["trust_remote_code"] = trust_remote_code
    model, info = (built_in_bfloat16(kind) if direct else auto).from_pretrained(
        source,
        config=config,
        dtype=torch.float32,
        use_safetensors=None if allow_pickle else True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # reported below
        **options,
    )
    if direct:
        model.__class__ = kind
    for name, stored, expected in sorted(info["mismatched_keys"])[:1]:
        raise UserError(f"{where}: {name} has the shape {list(stored)}, but its config.json says {list(expected)}")
    if packed:
        _forget_quantiser(model)
    rounded = " and ".join(sorted(dtypes & {"F16", "F32", "F64"})) if cast == "rounded" else ""
    notices = [f"{where}: its weights in {rounded} are rounded to bfloat16"] if rounded else []
    notices += _left_out(info["unexpected_keys"], model, where)
    return Stored(model, set(info["missing_keys"]), notices)


def _left_out(unexpected: Iterable[str], model: Any, where: str) -> Iterator[str]:
    """Layers that the files have beyond those of the config: weights whose names differ from the model's by a number.
    Other names are those of parts that are left out on purpose, as encoders."""
    known = {re.sub(r"\.\d+\.", ".#.", name) for name, _ in model.named_parameters()}
    extra = sorted(name for name in unexpected if "." in name and re.sub(r"\.\d+\.", ".#.", name) in known)
    if extra:
        yield (
            f"{where}: its files have layers that its config.json does not have, which are left out: {len(extra)} "
            f"weights, as {extra[0]}"
        )


def check_complete(missing: set[str], where: str) -> None:
    """transformers would give them random numbers."""
    if missing:
        some = ", ".join(sorted(missing)[:3])
        raise UserError(
            f"{where} has no weights for {some}{' …' if len(missing) > 3 else ''}: its files do not fit its config.json"
        )


def is_packed(config: Any, where: str) -> bool:
    """Whether a checkpoint is stored in 4 bits by bitsandbytes. Raises for other kinds of quantisation."""
    given = getattr(config, "quantization_config", None)
    if given is None:
        return False
    given = given if isinstance(given, dict) else given.to_dict()
    method = str(given.get("quant_method", "an unknown method"))
    if method == "bitsandbytes" and given.get("load_in_4bit"):
        return True
    if method == "mxfp4":  # gpt-oss: transformers unpacks it
        return False
    method = "8-bit bitsandbytes" if method == "bitsandbytes" else method.upper() if len(method) < 5 else method
    raise UserError(
        f"{where} is quantised by {method}, which is not supported: use the original in bfloat16 (with `model.lora`, "
        "`model.weights: 4bit` quantises it), or a checkpoint in 4 bits of bitsandbytes"
    )


def _stored_dtypes(files: Iterable[Path], where: str, *, quantised: bool, packed: bool) -> set[str]:
    """The dtypes of the matrices in safetensors files, as these name them. `quantised`: the model's config says how,
    and `packed` that it is in 4 bits."""
    dtypes, states, found = set(), 0, False
    for file in files:
        try:
            opened = safe_open(file, framework="pt")
        except SafetensorError as error:  # raised for a file that is cut short, and for a pointer of Git LFS
            pointer = file.stat().st_size < MOST_OF_A_POINTER and file.read_bytes().startswith(POINTER)
            why = "is a pointer of Git LFS, without weights" if pointer else f"is damaged or incomplete ({error})"
            raise UserError(f"{where}: {file.name} {why}: download it again") from error
        with opened:
            for name in opened.keys():  # noqa: SIM118
                tensor = opened.get_slice(name)
                dtype, size = tensor.get_dtype(), len(tensor.get_shape())
                found, states = True, states + (STATE in name)
                if not quantised and not _can_be_read(name, dtype, size):
                    raise UserError(
                        f"{where} stores {name} as {dtype}, and its config.json does not say how it was quantised: use "
                        "the original in bfloat16, float16 or float32"
                    )
                if size > 1:
                    dtypes.add(dtype)
    if packed and found and not states:
        raise UserError(
            f"{where}: its config.json says that it is stored in 4 bits, and its files have plain weights: take "
            "`quantization_config` out of its config.json, or download the files again"
        )
    return dtypes


def _can_be_read(name: str, dtype: str, dimensions: int) -> bool:
    """Whether a tensor that is not quantised has a usable dtype. Buffers, as masks and positions, may have others."""
    if dtype in FLOATS:
        return True
    matrix = dimensions > 1
    weight = matrix and name.endswith(WEIGHT_NAMES)
    return not (weight or dtype[0] in "FC" or (matrix and dtype in ("I8", "U8")))


def stored_weights(name: str, config: Any, key: str = "model") -> StoredWeights:
    """By the headers of the files on this machine; without files by the dtype that the model's config names."""
    where = f"{key}: '{name}'"
    packed = is_packed(config, where)
    if name in BUNDLED_MODELS:  # other 4-bit numbers, unpacked
        return StoredWeights(bfloat16=False)
    files = [file for file in weight_files(name) if file.suffix == ".safetensors"]
    if not files:
        return StoredWeights(getattr(config, "dtype", None) in (None, torch.bfloat16), packed)
    return StoredWeights(
        not _stored_dtypes(files, where, quantised=True, packed=packed) & {"F16", "F32", "F64"}, packed
    )


PICKLE_KEYS = ("model", "method.parent")
"""Of models to which `model.allow_pickle` applies."""


def check_weight_files(name: str, key: str = "model", *, allow_pickle: bool) -> str | None:
    """Check by their headers that a folder's files of weights are all there and can be read. A note if it has none.
    Files of the hub that are missing here are downloaded when the model is loaded."""
    if name in BUNDLED_MODELS or not Path(source := model_source(name, key)).is_dir():
        return None
    check_config_file(name, key)
    where, config = f"{key}: '{name}'", local_config(name)
    packed = config is not None and is_packed(config, where)
    quantised = getattr(config, "quantization_config", None) is not None
    if _stored_dtypes(_files(source, where), where, quantised=quantised, packed=packed):
        return None
    if not weight_files(name):
        return f"{where} has a config and no weights: it can be checked and planned for, and not trained"
    if not allow_pickle:
        raise UserError(
            f"{where} has its weights in pickle files alone, which can execute code: convert them to safetensors"
            f"{', or set model.allow_pickle=true' if key in PICKLE_KEYS else ''}"
        )
    return None


def check_shapes(name: str, key: str = "model") -> list[str]:
    """Compare the names and shapes of a folder's weights with its config, by the files' headers; returns notices.
    Quantised weights have other shapes, and are compared when they are loaded."""
    config = None if name in BUNDLED_MODELS else local_config(name)
    if config is None or not any(file.suffix == ".safetensors" for file in weight_files(name)):
        return []
    kind, where = language_model_class(config), f"{key}: '{name}'"
    if kind is None or getattr(config, "quantization_config", None) is not None:
        return []
    try:
        with quiet_transformers():
            stored = read_model(auto_class(config), kind, model_source(name, key), config, where, blank=True)
    except UserError:
        raise
    except Exception as error:  # not every model can be built on the meta device: loading it will tell
        why = f"{type(error).__name__}: {first_line(error)}"
        return [f"{where}: its shapes are not compared with its config.json before it is loaded: {why}"]
    check_complete(stored.missing, where)
    return stored.notices


def _files(source: str, where: str) -> Iterator[Path]:
    """The safetensors files of a folder or hub id; of the hub they are downloaded."""
    single = _found(source, SINGLE)
    if single is not None:
        yield single
    elif (index := _found(source, INDEX)) is not None:
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{where}: {INDEX} is damaged or incomplete: download it again") from error
        for name in names:
            if (file := _found(source, name)) is None:
                raise UserError(f"{where}: {name} is missing, one of {len(names)} files of weights: download it again")
            yield file


def _found(source: str, name: str) -> Path | None:
    from transformers.utils import cached_file

    file = cached_file(
        source, name, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
    )
    return None if file is None else Path(file)


def hold(
    model: Any, cast: Bfloat16Cast, named: str = "the frozen weights", remedy: str = "`model.weights: bfloat16` does"
) -> str | None:
    """Hold weights in bfloat16; a notice if some that could be are not."""
    if cast == "no":
        return None
    left = hold_in_bfloat16(model, rounding=cast == "rounded")
    if left < 2**20:
        return None
    return f"{named} are held in float32, {memory_text(left)} more than in bfloat16, which would round them: {remedy}"


def _forget_quantiser(model: Any) -> None:
    """A model with 4-bit layers is otherwise one as any: transformers would refuse to move it, or write it packed."""
    for name in ("hf_quantizer", "quantization_method"):
        setattr(model, name, None)
    model.is_quantized = model.is_loaded_in_4bit = False
    for config in {id(c): c for c in (model.config, model.config.get_text_config())}.values():
        if hasattr(config, "quantization_config"):
            del config.quantization_config
