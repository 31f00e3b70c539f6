"""The parent of a run that learns from one's log-probs."""

from collections.abc import Callable

from vigneron.config import Config, DistillConfig
from vigneron.policy.model import Policy
from vigneron.policy.model_names import local_tokenizer
from vigneron.policy.parent import Parent, check_parent_name, check_same_tokens, load_parent
from vigneron.timing import phase


def build_parent(config: Config, policy: Policy, notice: Callable[[str], None]) -> Parent | None:
    """The parent that the method names, loaded here or on a vLLM server; None if it has none."""
    name, model = config.method.parent_model, config.model
    if isinstance(config.method, DistillConfig) and config.method.url is not None:
        from vigneron.remote.vllm.parent import connect_parent

        return connect_parent(config.method, policy)
    if name is None:
        return None
    with phase("load the parent"):
        return load_parent(
            name,
            policy,
            device=model.device,
            dtype=model.dtype,
            allow_pickle=model.allow_pickle,
            trust_remote_code=model.trust_remote_code,
            notice=lambda text: notice(f"method.parent: {text}"),
        )


def check_parent(config: Config) -> None:
    """What can be known of a parent without loading it: its name, and its tokenizer if its files are here."""
    name = config.method.parent_model
    if name is None:
        return
    check_parent_name(name)
    trust = config.model.trust_remote_code
    own, other = (local_tokenizer(each, trust_remote_code=trust, convert=False) for each in (config.model.name, name))
    if own is not None and other is not None and config.model.chat != "minted":
        check_same_tokens(own.get_vocab(), other.get_vocab(), name)
