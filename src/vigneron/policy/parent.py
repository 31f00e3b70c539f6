"""The parent of a distillation, whose log-probs of the child's samples are at hand: a frozen model, the same tokens.

It reads token ids, so what must be equal is what each id stands for. Vocabularies may differ by padding: a token that
the parent does not have is read as its padding, and divergences are over the tokens that both have.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from vigneron.batch import Batch
from vigneron.core.draws import Sampling, sampled_logprobs
from vigneron.errors import UserError, visible
from vigneron.files import user_path
from vigneron.policy.device import resolve_compute_dtype, resolve_device
from vigneron.policy.fused_head import HEAD_CHUNK
from vigneron.policy.load import load_policy
from vigneron.policy.logprobs import forward, reference_view, untruncated
from vigneron.policy.model import Policy
from vigneron.policy.model_names import check_model_name
from vigneron.policy.reference import Reference

KEY = "method.parent"


class Parent(Protocol):
    """What distillation asks of its parent, for `Parts.precompute`. All of it is without gradient, and at the sampling
    temperature, without top-k and top-p."""

    def logprobs(self, batch: Batch, sampling: Sampling) -> dict[str, Tensor]:
        """`parent_BT`: log-probs of the sampled tokens."""

    def top(self, batch: Batch, sampling: Sampling, count: int) -> dict[str, Tensor]:
        """`parent_BT`; and its `count` most likely tokens before each one, `parent_ids_BTK`, and their log-probs,
        `parent_top_BTK`."""


@dataclass(frozen=True)
class LocalParent:
    """A parent in this process."""

    model: Reference
    size: int | None = None
    """Rows of the child's vocabulary, where the parent's has more: the child has no other tokens."""

    def logprobs(self, batch: Batch, sampling: Sampling) -> dict[str, Tensor]:
        return self._view(batch, sampling, keep_hidden=False)

    def hidden(self, batch: Batch, sampling: Sampling) -> dict[str, Tensor]:
        """`parent_BT`, and the hidden states that an exact divergence needs, `parent_hidden_BTH`."""
        return self._view(batch, sampling, keep_hidden=True)

    def top(self, batch: Batch, sampling: Sampling, count: int) -> dict[str, Tensor]:
        batch = readable(batch, self.model.policy)
        shape, at = batch.samples.completion_BT.shape, untruncated(sampling)
        with self.model.active() as policy:
            layout, hidden_MH = forward(policy, batch)
            hidden_NH = hidden_MH[layout.predicts_N]
            chosen, top, ids = [], [], []
            for start in range(0, len(hidden_NH), HEAD_CHUNK):
                part = slice(start, start + HEAD_CHUNK)
                logprobs_NV = sampled_logprobs(policy.logits(hidden_NH[part]), at)
                best = logprobs_NV[:, : self.size].topk(count)
                chosen.append(logprobs_NV.gather(-1, layout.token_N[part, None])[:, 0])
                top.append(best.values)
                ids.append(best.indices)

        def spread(parts: list[Tensor]) -> Tensor:
            values = torch.cat(parts)
            blank = values.new_zeros(shape.numel(), *values.shape[1:])
            return blank.index_copy(0, layout.into_N, values).unflatten(0, shape)

        return {"parent_BT": spread(chosen), "parent_top_BTK": spread(top), "parent_ids_BTK": spread(ids)}

    def _view(self, batch: Batch, sampling: Sampling, *, keep_hidden: bool) -> dict[str, Tensor]:
        batch = readable(batch, self.model.policy)
        return reference_view(self.model, batch, sampling, keep_hidden=keep_hidden, name="parent")


def readable(batch: Batch, parent: Policy) -> Batch:
    """The batch with tokens that the parent has, packed as the parent can read it."""
    ids_BT, size = batch.samples.completion_BT, vocabulary(parent)
    if bool((ids_BT >= size).any()):
        known_BT = torch.where(ids_BT < size, ids_BT, parent.pad_id)
        batch = batch.with_samples(completion_BT=known_BT, completion_ids=None)
    if parent.unpacks():
        return batch
    return batch.with_packing(share_prompts=parent.shares_prompts, masked=True, per_row=1, pack=False)


def vocabulary(policy: Policy) -> int:
    return int(policy.causal.get_input_embeddings().weight.shape[0])


# ---------------------------------------------------------------------------------------------------------- loading


def load_parent(
    name: str,
    child: Policy,
    *,
    device: str,
    dtype: Literal["auto", "float32", "bfloat16"],
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    notice: Callable[[str], None] = lambda text: None,
) -> LocalParent:
    """A frozen model for a child, held once: in bfloat16 where products are, else in float32. Another tokenizer than
    the child's is an error, and a text that ends otherwise a notice."""
    check_parent_name(name)
    half = resolve_compute_dtype(dtype, resolve_device(device)) == torch.bfloat16
    with named_parent():
        policy = load_policy(
            name,
            device=device,
            dtype=dtype,
            allow_pickle=allow_pickle,
            trust_remote_code=trust_remote_code,
            weights="bfloat16" if half else "auto",
            trained=False,
            notice=notice,
        )
    check_same_tokens(child.tokenizer.get_vocab(), policy.tokenizer.get_vocab(), name)
    if text := end_notice(child, policy):
        notice(text)
    return LocalParent(Reference(policy, shares_weights=False), vocabulary(child))


def check_parent_name(name: str) -> None:
    """Raise for names that cannot be a parent, without loading it."""
    if (user_path(name) / "adapter_config.json").is_file():
        raise UserError(f"{KEY}: '{name}' is an adapter: merge it into a model by `vigneron export`, and give that")
    check_model_name(name, KEY)


@contextmanager
def named_parent() -> Iterator[None]:
    """Errors of loading begin with the config key `model`; here with the parent's."""
    try:
        yield
    except UserError as error:
        line = str(error)
        raise UserError(KEY + line.removeprefix("model") if line.startswith("model") else f"{KEY}: {line}") from error


def check_same_tokens(child: Mapping[str, int], parent: Mapping[str, int], name: str) -> None:
    """Both are tokenizers' `get_vocab()`."""
    if child == parent:
        return
    own, other = ({id_: token for token, id_ in tokens.items()} for tokens in (child, parent))
    first = min(id_ for id_ in own.keys() | other.keys() if own.get(id_) != other.get(id_))
    here, there = (f"'{visible(tokens[first])}'" if first in tokens else "none" for tokens in (own, other))
    raise UserError(
        f"{KEY}: '{name}' has another tokenizer than the model (token {first} is {there} there, {here} here): its "
        "log-probs are of other tokens; choose a parent of the same family, or train on its answers with `method: sft`"
    )


def end_notice(child: Policy, parent: Policy) -> str | None:
    """A parent that ends its texts otherwise finds the child's end unlikely, and its own is never sampled."""
    if child.eos_ids & parent.eos_ids or not (child.eos_ids and parent.eos_ids):
        return None

    def named(ids: Any) -> str:
        return ", ".join(visible(child.tokenizer.convert_ids_to_tokens(one) or str(one)) for one in sorted(ids))

    return (
        f"the parent ends its texts by {named(parent.eos_ids)} and the child by {named(child.eos_ids)}: the child "
        "learns not to end its own; a chat template, or a parent trained with the child's end, makes them agree"
    )
