"""`vigneron export`: a run's model as a plain transformers folder, checked to be the same model before it is there."""

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor

from vigneron.api import Trained, load_run
from vigneron.data.prompts import Row, prompts_token_ids
from vigneron.errors import UserError, first_line, reason
from vigneron.files import sync
from vigneron.policy.bundled import quiet_transformers
from vigneron.policy.model import Policy
from vigneron.policy.reward_model import HEAD
from vigneron.redaction import MARK, redacted
from vigneron.rollout.demonstrations import demonstrations
from vigneron.rollout.pairs import sequences_of
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.metrics_file import records_of
from vigneron.training.checkpoint.read import weights_identity
from vigneron.training.model_card import Rows, model_card

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES: dict[Dtype, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TEXTS = 16
"""That both models read."""
TOLERANCE = 1e-3
"""Nats, of any token of the vocabulary at any place, in float32. Adding an adapter's product to a weight in another
order moves a log-prob by 1e-5 or so; a tensor that is not there, or a template that is another, by whole nats."""
CONVERSATION = [{"role": "user", "content": "Is this the same?"}, {"role": "assistant", "content": "It is."}]


@dataclass(frozen=True)
class Exported:
    path: Path
    step: int
    texts: int
    difference: float
    """The largest between what the folder's model and the run's child say, with the child's weights rounded alike."""
    rounding: float
    """What the rounding alone moves; 0 where nothing was rounded."""


def export(run: str | Path, target: str | Path, *, step: int | None = None, dtype: Dtype = "float32") -> Exported:
    """Written beside and renamed: a folder that is there was checked."""
    target = Path(target).expanduser().resolve()
    check_target(target)
    trained = load_run(run, step=step)
    trained.policy.compute_dtype = torch.float32
    draft = target.with_name(f".{target.name}.draft-{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        exported = _written(trained, draft, DTYPES[dtype])
        draft.rename(target)
        sync(target.parent)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write '{target}': {reason(error)}; nothing is left there") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Exported(target, trained.step, *exported)


def check_target(target: Path) -> None:
    if target.is_dir() and any(target.iterdir()):
        raise UserError(f"'{target}' exists and is not empty: choose another folder")
    if target.exists() and not target.is_dir():
        raise UserError(f"'{target}' is a file: choose another name")


def _written(trained: Trained, draft: Path, dtype: torch.dtype) -> tuple[int, float, float]:
    folder, policy, config = RunFolder(trained.folder), trained.policy, trained.config
    data = folder.data()
    ids = sequences(trained, (data.held_out or data.train)[:TEXTS])
    base = weights_identity(config.model.name, trained.reference.policy)
    child = said_by(policy, ids)
    merge(policy)
    expected = child
    if dtype != torch.float32:
        policy.causal.to(dtype).float()
        expected = said_by(policy, ids)
        policy.causal.to(dtype)
    _save(policy, draft)
    rows = Rows(len(data.train), len(data.held_out))
    card = model_card(
        config, records_of(folder.path), step=trained.step, rows=rows, base_hash=base["sha256"], merged=True
    )
    (draft / "README.md").write_text(card, encoding="utf-8")
    model, tokenizer = _load_plainly(draft, trained)
    check_tokens(policy.tokenizer, tokenizer, [row["prompt"] for row in (data.held_out or data.train)[:TEXTS]])
    found = [_plain_numbers(model.to(policy.device), one) for one in ids]
    difference = _largest(found, expected)
    if not difference <= TOLERANCE:  # a NaN too
        raise UserError(
            f"the exported model is not the run's child: their log-probs differ by {difference:.3g}, more than "
            f"{TOLERANCE:g}; nothing was written"
        )
    return len(ids), difference, _largest(child, expected)


def sequences(trained: Trained, rows: Sequence[Row]) -> list[tuple[int, ...]]:
    """Texts that both models read: prompts with their answers, where they have one."""
    config, policy = trained.config, trained.policy
    if config.method.reads == "pairs":
        found = sequences_of(policy, rows, "the run's data", joined=config.method.joins_pairs)[: 2 * TEXTS]
    else:
        answered = [row for row in rows if row.get("answer")]
        found = [each.ids for each in demonstrations(policy, answered, of="the run's data")]
        found += prompts_token_ids(policy.tokenizer, [row["prompt"] for row in rows if not row.get("answer")])
    limit = policy.context_length
    return [ids[:limit] for ids in found]


def merge(policy: Policy) -> None:
    """The adapter's product is added to the weights, and the adapter is gone."""
    if hasattr(policy.model, "merge_and_unload"):
        policy.model = policy.model.merge_and_unload()


@torch.no_grad()
def said_by(policy: Policy, ids: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Log-probs of the whole vocabulary at every place; of a scorer, its score."""
    found = []
    for one in ids:
        row = torch.tensor([one], device=policy.device)
        hidden = policy.hidden(row, torch.arange(len(one), device=policy.device)[None])[0]
        if hasattr(policy.causal, HEAD):
            found.append(getattr(policy.causal, HEAD)(hidden[-1].float()).cpu())
        else:
            found.append(policy.logits(hidden).float().log_softmax(-1).cpu())
    return found


@torch.no_grad()
def _plain_numbers(model: Any, ids: tuple[int, ...]) -> Tensor:
    """The same by transformers alone."""
    logits = model(input_ids=torch.tensor([ids], device=model.device)).logits[0].float().cpu()
    return logits if logits.dim() == 1 else logits.log_softmax(-1)


def _largest(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True))


def _save(policy: Policy, draft: Path) -> None:
    generation = getattr(policy.causal, "generation_config", None)
    if generation is not None and not hasattr(policy.causal, HEAD):
        ends = sorted(policy.eos_ids)
        generation.eos_token_id = ends[0] if len(ends) == 1 else ends
        generation.pad_token_id = policy.pad_id
    with quiet_transformers():
        policy.causal.save_pretrained(draft)
        policy.tokenizer.save_pretrained(draft)


def _load_plainly(draft: Path, trained: Trained) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    kind: Any = AutoModelForSequenceClassification if trained.config.method.trains == "scorer" else AutoModelForCausalLM
    options = {"trust_remote_code": trained.config.model.trust_remote_code}
    with quiet_transformers():
        model = kind.from_pretrained(draft, dtype=torch.float32, use_safetensors=True, **options).eval()
        return model, AutoTokenizer.from_pretrained(draft, **options)


def check_tokens(ours: Any, theirs: Any, prompts: Sequence[Any]) -> None:
    """The same tokens for the run's prompts, and the same text for a conversation."""
    same = prompts_token_ids(ours, prompts) == prompts_token_ids(theirs, prompts)
    if same and ours.chat_template:
        same = _rendered(ours) == _rendered(theirs)
    if not same:
        raise UserError("the exported tokenizer or chat template is not the run's: nothing was written")


def _rendered(tokenizer: Any) -> Any:
    try:
        return tokenizer.apply_chat_template(CONVERSATION, tokenize=False)
    except Exception as error:  # a template may refuse it: then both have to
        return first_line(error)


SILENT_FOR = 60.0
"""Seconds that a hub may say nothing before it is given up."""


def check_push(repo: str) -> str:
    """The token, before anything is loaded."""
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]*[\w-]", repo):
        raise UserError(f"--push: '{repo}' is no repository of a hub: it has the form NAME/MODEL")
    from huggingface_hub import get_token

    token = get_token()
    if not token:
        raise UserError("--push: no token for the hub: set HF_TOKEN, or run `hf auth login`")
    return token


def push(folder: Path, repo: str, token: str) -> str:
    """The address it has there. A new repository is private: whoever wants it seen says so there."""
    from huggingface_hub import HfApi, get_session
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    get_session().timeout = SILENT_FOR  # huggingface_hub waits for ever
    api = HfApi(token=token, endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        address = str(api.create_repo(repo, private=True, exist_ok=True))
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Exported by Vigneron")
    except Exception as error:  # the edge to somebody's network: it can fail in any way
        raise UserError(f"--push: {said(error, token)}; the model itself is in '{folder}'") from None
    return address


def said(error: Exception, token: str) -> str:
    """One line, without the token."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines)[:300] or type(error).__name__
    return re.sub(r"hf_\w{8,}", MARK, redacted(text, token)).rstrip(".")
