"""The sizes of a run's passes and of its cache, where its config leaves them open."""

from typing import Any

from vigneron.config import Config
from vigneron.config.phases import engine_samples
from vigneron.policy.model import Policy
from vigneron.policy.parent import LocalParent, Parent
from vigneron.policy.reference import Reference
from vigneron.run_store.folder import RunFolder
from vigneron.timing import phase
from vigneron.training.memory import FEW_TOKENS, MOST_TOKENS, find_sizes, reference_states_bytes
from vigneron.training.method_copies import Copies
from vigneron.training.out_of_memory import others_bytes
from vigneron.training.sampling_graphs import sampling_graph_bytes
from vigneron.values import GB, memory_text

FIND_ANEW = "microbatch_tokens=auto model.cache_gb=null model.activation_checkpointing=auto model.graphs=true"
"""The keys that keep what was found, as a resume takes them."""


def with_sizes(
    config: Config,
    policy: Policy,
    reference: Reference,
    parent: Parent | None,
    folder: RunFolder,
    longest: int,
    *,
    held_out: int,
) -> Config:
    """With the sizes that fit into memory, where they are not given: a resumed run keeps them. `held_out`: the number
    of rows that are evaluated on."""
    model = config.model
    auto, cached = config.microbatch_tokens == "auto", engine_samples(config)
    # One of them is given, or was kept when the sizes were found.
    unknown = model.cache_gb is None if cached else model.activation_checkpointing == "auto"
    if auto or (unknown and policy.device.type == "cuda"):
        wanted = MOST_TOKENS if auto else config.resolved_microbatch_tokens
        may_checkpoint = model.activation_checkpointing == "auto"
        prompt = longest - (config.completion_tokens if config.method.reads == "prompts" else 0)
        with phase("see what fits into memory"):
            sizes = find_sizes(
                policy,
                longest,
                config.optimizer,
                wanted=wanted,
                may_checkpoint=may_checkpoint,
                reference=parent.model if isinstance(parent, LocalParent) else reference,
                reference_states=reference_states_bytes(config, policy.text_config.hidden_size),
                copies=Copies.of(config, held_out=held_out > 0),
                sampling_graphs=sampling_graph_bytes(config, policy.text_config, policy.size, prompt, wanted, held_out),
            )
        changes: dict[str, Any] = {"microbatch_tokens": sizes.microbatch_tokens} if auto else {}
        held: dict[str, Any] = {}
        if model.cache_gb is None and sizes.cache_bytes is not None and cached:
            held["cache_gb"] = round(sizes.cache_bytes / GB, 3)
        if may_checkpoint:
            held["activation_checkpointing"] = sizes.checkpointing
        if sizes.tight:
            held["graphs"] = False
        config = config.model_copy(update={**changes, "model": model.model_copy(update=held)})
        folder.write_config(config)
    if reference.is_loaded:
        reference.policy.graphed = policy.graphed
    if config.model.cache_gb is not None:
        policy.cache_bytes = int(config.model.cache_gb * GB)
    return config


def crowded_notice(asked: Config, config: Config) -> str | None:
    """Where other processes, and no limit of its own, leave a run room for few tokens in a pass."""
    tokens = config.resolved_microbatch_tokens
    limited = config.model.memory_gb is not None
    if asked.microbatch_tokens != "auto" or tokens >= FEW_TOKENS or limited or not (others := others_bytes(config)):
        return None
    return (
        f"a pass has {tokens} tokens at most, because other processes hold {memory_text(others)} of this GPU: steps "
        f"are slow, also after a resume, unless it finds the sizes anew: `{FIND_ANEW}`"
    )
