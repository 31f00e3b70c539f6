"""Where a model's files are, by its name: checks of names, and what can be read without loading weights."""

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from vigneron.errors import UserError, first_line
from vigneron.files import parse_json, user_path
from vigneron.policy.bundled import (
    BUNDLED_MODELS,
    BUNDLED_SHAPE,
    BUNDLED_TYPE,
    bundled_model_folder,
    bundled_weights,
    is_converted,
    quiet_transformers,
)
from vigneron.policy.tokenizer_trial import try_tokenizer

LARGEST_CONFIG = 2**24


MOST_LAYERS = 10_000


TOKENIZER_FILE = r"tok|vocab|merges|spiece|sentencepiece|tekken|\.model$|\.spm$"
"""Part of the name of a file that some tokenizer is read from."""


LAYER_COUNT = r"(?<!per_)layers?$"
"""Config keys that count layers: `num_hidden_layers`, `n_layer`; not `vocab_size_per_layer_input`."""


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


def check_tokenizer_files(name: str) -> None:
    """Raise for a folder with weights and no tokenizer, of which transformers makes one without tokens. A folder
    without weights passes: its memory can be planned."""
    folder = user_path(name)
    if not folder.is_dir() or _has_tokenizer(folder):
        return
    if any(file.name.endswith((".safetensors", ".bin")) for file in folder.iterdir()):
        raise UserError(
            f"model: '{name}' has weights and no tokenizer (tokenizer.json): save the base model's there, with "
            f"`AutoTokenizer.from_pretrained(BASE).save_pretrained({name!r})`"
        )


def _has_tokenizer(folder: Path) -> bool:
    return any(re.search(TOKENIZER_FILE, file.name) for file in folder.iterdir())


def _check_layer_count(file: Path, where: str) -> None:
    """transformers would build as many layers as a config claims. Other faults of the file show when it is loaded."""
    config = _json_of(file)
    parts = [part for part in (config, *config.values()) if isinstance(part, dict)]
    numbers = [value for part in parts for name, value in part.items() if re.search(LAYER_COUNT, str(name))]
    if any(isinstance(number, int) and number > MOST_LAYERS for number in numbers):
        raise UserError(f"{where} claims more than {MOST_LAYERS:,} layers in its config.json")


def check_config_file(name: str, key: str = "model") -> None:
    """Raise if a folder's config.json is not one that transformers can read. One with code of its own passes."""
    from transformers import AutoConfig

    if name in BUNDLED_MODELS or not (folder := Path(model_source(name, key))).is_dir():
        return
    where, config = f"{key}: cannot load '{name}': its config.json", _json_of(folder / "config.json")
    quantised = config.get("quantization_config")
    if quantised is not None and not isinstance(quantised, dict):
        raise UserError(f"{where} has the quantization_config {quantised!r}: expected a mapping, or nothing")
    try:
        with quiet_transformers():
            AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # external files can be broken in any way
        if "auto_map" not in config:
            raise UserError(f"{where}: {first_line(error)}") from error


def _json_of(file: Path) -> dict[str, Any]:
    """Empty if the file has no mapping: reading it as a config says why."""
    try:
        with file.open("rb") as opened:
            config = parse_json(opened.read(LARGEST_CONFIG))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def is_cached(name: str) -> bool:
    """Whether a model of the hub has been downloaded."""
    from huggingface_hub import try_to_load_from_cache

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except ValueError:  # a name that the hub does not allow
        return False


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


def local_tokenizer(name: str, *, trust_remote_code: bool = False, convert: bool = True) -> Any | None:
    """A model's tokenizer, if its files are on this machine: of a folder with none, transformers would make one without
    tokens. Without `convert`, the bundled model's only if the cache has it: converting it takes half a minute."""
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            if name in BUNDLED_MODELS and not convert and not is_converted(name):
                return None
            source = model_source(name)
            if name not in BUNDLED_MODELS and (folder := Path(source)).is_dir():
                if not _has_tokenizer(folder):
                    return None
                if not trust_remote_code:
                    try_tokenizer(source, f"model: '{name}'")
            return AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception:  # not downloaded yet, or broken, which loading the model explains
        return None
