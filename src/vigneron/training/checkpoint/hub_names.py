"""Read a weights file under the model's own parameter names.

`save_pretrained` writes some architectures under the hub's names: experts one by one, a head called `embed_out`, a
prefix `language_model.`. transformers knows how to convert them; here it is done one parameter at a time, because all
weights may not fit into memory twice.
"""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

Conversion = tuple[WeightConverter | None, list[tuple[str, str]]]
"""A conversion, None for a tensor that is only renamed, and the (pattern, name) of each tensor that it takes."""


def model_weights(file: Path, model: Any, own: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The file's tensors by the name that `model` has for them, one at a time; those without one as in the file.

    `own` is the model's state dict.
    """
    with safe_open(file, framework="pt") as opened:
        for first, (converter, parts) in _conversions(list(opened.keys()), model, own).items():
            if converter is None:
                yield first, opened.get_tensor(parts[0][1])
                continue
            for pattern, name in parts:
                converter.add_tensor(first, name, pattern, opened.get_tensor(name))
            for name, values in converter.convert(first, model=model, config=model.config).items():
                yield name, values[0] if isinstance(values, list) else values


def _conversions(names: list[str], model: Any, own: dict[str, Tensor]) -> dict[str, Conversion]:
    """The conversions by the first parameter that each gives, in the order of transformers' own reader: experts are
    merged in the order of their numbers."""
    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    conversions: dict[str, Conversion] = {}
    for name in sorted(names, key=dot_natural_key):
        renamed, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, own)
        if renamed not in own:  # one of the model's own names, which a rule happens to match; or one that does not fit
            renamed, pattern = name, None
        if pattern is None:
            conversions[renamed] = (None, [("", name)])
        else:
            conversions.setdefault(renamed, (deepcopy(by_pattern[pattern]), []))[1].append((pattern, name))
    return conversions
