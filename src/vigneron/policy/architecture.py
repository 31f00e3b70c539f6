"""What a model's config says about sampling and training it, before its weights are loaded. A run tests it again.

docs/reference/models.md has the results for every common architecture.
"""

from typing import Any

from vigneron.errors import UserError
from vigneron.policy.attention import LOCAL_LAYERS, may_have_windows

ATTENTION_LAYERS = {"full_attention", *LOCAL_LAYERS}
# Of the models whose attention cannot be replaced, those that take a mask of queries and keys.
TAKE_MASKS = ("codegen", "falcon", "gptj", "stablelm")


def auto_class(config: Any) -> Any:
    """The auto class that loads a model with a language model's head: some composite models have only one of images
    and text."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    composite = config.get_text_config() is not config
    known = type(config) in AutoModelForCausalLM._model_mapping
    return AutoModelForImageTextToText if composite and not known else AutoModelForCausalLM


def language_model_class(config: Any) -> Any:
    """The class that `auto_class` loads; None if transformers has none."""
    mapping = auto_class(config)._model_mapping
    return mapping.get(type(config), None)


def check_language_model(config: Any, where: str) -> None:
    if language_model_class(config) is None and not getattr(config, "auto_map", None):
        raise UserError(f"{where}: transformers has no language model with a causal head for '{config.model_type}'")


def reward_model_class(config: Any) -> Any:
    """The sequence-classification model of an architecture; None if transformers has none."""
    from transformers import AutoModelForSequenceClassification

    mapping = AutoModelForSequenceClassification._model_mapping
    return mapping.get(type(config), None)


def leaves_out_encoders(kind: type, config: Any) -> bool:
    """Whether a class loads only the text model of a composite config (Qwen3.5, Llama 4)."""
    composite = config is not None and config.get_text_config() is not config
    return composite and not isinstance(config, getattr(kind, "config_class", None) or object)


NO_ENCODERS = "it is loaded as a text model: checkpoints and exports have no encoder of images"


def is_recurrent(kind: type, config: Any) -> bool:
    """Whether layers keep a state instead of keys and values."""
    layers = set(getattr(config.get_text_config(), "layer_types", None) or ATTENTION_LAYERS)
    return bool(getattr(kind, "_is_stateful", False)) or not layers <= ATTENTION_LAYERS


def replaces_attention(kind: type) -> bool:
    """Whether all layers call the attention function that the config names."""
    return bool(getattr(kind, "_supports_attention_backend", False))


def engine_obstacle(kind: type, config: Any) -> str | None:
    """What the engine does not support; None if it samples from such a model."""
    if is_recurrent(kind, config):
        return "recurrent layers"
    if not replaces_attention(kind) and may_have_windows(config.get_text_config()):
        return "local attention of its own kind"
    return None


def takes_packed_masks(kind: type, config: Any) -> bool:
    """Whether prompts can be shared and rows packed in training."""
    if is_recurrent(kind, config):
        return False
    return replaces_attention(kind) or (config.model_type in TAKE_MASKS and not getattr(config, "alibi", False))
