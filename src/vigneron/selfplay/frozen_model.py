"""A frozen model, with or without an adapter."""

from pathlib import Path

from vigneron.errors import UserError, first_line
from vigneron.files import user_path
from vigneron.policy.bundled import quiet_transformers
from vigneron.policy.chat import USER
from vigneron.policy.held_weights import float32_stand_ins
from vigneron.policy.load import load_policy, make_policy
from vigneron.policy.model import Policy


def load_frozen(name: str, adapter: str | None, device: str) -> Policy:
    """The model `name`. With the folder of an `adapter`, as its run had it: with its chat template too."""
    if adapter is None:
        return load_policy(name, device=device, trained=False)
    folder = user_path(adapter)
    if not (folder / "adapter_model.safetensors").is_file():
        raise UserError(f"environment.players: '{adapter}' is no adapter: it has no adapter_model.safetensors")
    try:
        return _adapted(name, folder, device)
    except UserError:
        raise
    except Exception as error:  # external files can be broken in any way
        raise UserError(
            f"environment.players: the adapter '{adapter}' cannot be loaded on '{name}': {first_line(error)}"
        ) from error


def _adapted(name: str, folder: Path, device: str) -> Policy:
    from peft import PeftModel
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    minted = USER in tokenizer.get_vocab()
    policy = load_policy(name, device=device, chat="minted" if minted else "auto", trained=False)
    with quiet_transformers(), float32_stand_ins(policy.model):
        model = PeftModel.from_pretrained(policy.model, folder).eval()
    policy.tokenizer.chat_template = tokenizer.chat_template
    adapted = make_policy(model.to(policy.device), policy.tokenizer, device=policy.device, dtype=policy.compute_dtype)
    adapted.low_precision, adapted.shares_prompts = policy.low_precision, policy.shares_prompts
    return adapted
