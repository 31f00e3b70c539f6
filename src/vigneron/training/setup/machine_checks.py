"""What a run needs of this machine, by `train` before anything is loaded and by `validate`: a GPU that is large enough,
libraries, a sampler that can run, files of weights that are all there."""

from collections import deque
from collections.abc import Iterator

from vigneron.config import Config
from vigneron.config.local_models import local_judges, local_players
from vigneron.errors import UserError
from vigneron.policy.compiling import can_compile
from vigneron.policy.device import is_emulated, resolve_device
from vigneron.policy.load import check_packed
from vigneron.policy.model_names import local_config
from vigneron.policy.parent import check_parent_name
from vigneron.policy.quantised import check_library, check_packed_library
from vigneron.policy.stored import PICKLE_KEYS, check_weight_files, is_packed
from vigneron.remote.setup import NO_4BIT, check_scale
from vigneron.training.memory_fit import check_gpu, check_host


def check_compile(config: Config) -> None:
    """Of a config as it was given: a resolved one compiles where that is possible."""
    if config.model.compile is True and config.scale.shard > 1:
        raise UserError("model.compile: true has no effect on sharded weights: leave it out, or set scale.shard=1")
    if config.model.compile is True and not can_compile(resolve_device(config.model.device)):
        raise UserError("model.compile: true needs a CUDA device: leave it out")


def machine_notices(config: Config) -> Iterator[str]:
    """Options that this machine gives no effect, or a slow one. The config is resolved."""
    model, device = config.model, resolve_device(config.model.device)
    if is_emulated(model.dtype, device):
        yield "model.dtype: bfloat16: this CPU has no bfloat16 products and emulates them, slowly: leave it out"
    if device.type == "cuda":
        return
    if config.optimizer.offload:
        yield f"optimizer.offload has no effect on '{device}': the moments are in its memory already"
    if model.offload_reference:
        yield f"model.offload_reference is for GPUs: on '{device}' it takes time and saves nothing"
    if model.memory_gb is not None:
        yield f"model.memory_gb limits the memory of a GPU: training on '{device}' takes what it needs"


def check_stored(config: Config) -> None:
    """Raise for a quantised checkpoint that cannot be trained as the config says, or not at all."""
    model = config.model
    if _is_packed(model.name, "model"):
        check_packed(model.name, model.weights, frozen=model.lora is not None, shared=config.scale.shard > 1)
        if config.scale.sampling.kind == "vllm":
            raise UserError(NO_4BIT)
    for key, name in frozen_models(config).items():
        _is_packed(name, key)


def _is_packed(name: str, key: str) -> bool:
    known = local_config(name)
    return known is not None and is_packed(known, f"{key}: '{name}'")


def frozen_models(config: Config) -> dict[str, str]:
    """Names of the language models that this process loads beside the one it trains, by their config keys."""
    models = {} if config.scale.judging is not None else local_judges(config.reward)
    models |= local_players(config.environment)
    if config.method.parent_model is not None:
        models["method.parent"] = config.method.parent_model
    if config.parent is not None and config.parent.kind == "local":
        models["parent.model"] = config.parent.model
    return models


def check_files(config: Config) -> Iterator[str]:
    """Check the files of weights by their headers; notes of folders without weights."""
    model = config.model
    for key, name in {"model": model.name, **frozen_models(config)}.items():
        note = check_weight_files(name, key, allow_pickle=model.allow_pickle and key in PICKLE_KEYS)
        if note is not None:
            yield note


def check_machine(config: Config) -> None:
    """Raise for what this machine lacks. The config is resolved."""
    model = config.model
    check_scale(config)
    check_gpu(config)
    check_host(config)
    device = resolve_device(model.device)
    if config.method.parent_model is not None:
        check_parent_name(config.method.parent_model)
    check_stored(config)
    deque(check_files(config), maxlen=0)
    if model.weights == "4bit":
        check_library(device)
    for key, name in {"model": model.name, **frozen_models(config)}.items():
        if _is_packed(name, key):
            check_packed_library(device, f"{key}: '{name}'")
