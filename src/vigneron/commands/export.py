"""`vigneron export`: write a run's model as a transformers folder, and verify that it is the same model."""

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
from vigneron.files import give_mode_of, sync
from vigneron.policy.architecture import auto_class
from vigneron.policy.bundled import quiet_transformers
from vigneron.policy.chat import stop_at_turn_end
from vigneron.policy.chat_template import TemplateError, render
from vigneron.policy.model import Policy
from vigneron.policy.quantised import to_float32
from vigneron.policy.reward_model import HEAD
from vigneron.redaction import MARK, redacted
from vigneron.rollout.demonstrations import demonstrations
from vigneron.rollout.pairs import sequences_of
from vigneron.run_data.stored import first_rows
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.metrics_file import records_of
from vigneron.training.checkpoint.base_identity import begin_identity
from vigneron.training.model_card import Rows, model_card

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES: dict[Dtype, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TEXTS = 16
"""Number of texts on which both models are compared."""
TOLERANCE = 1e-3
"""Largest allowed difference of any log-prob, in nats, in float32. Merging an adapter changes log-probs by about 1e-5
(rounding); a missing tensor or another chat template, by whole nats."""
CONVERSATION = [{"role": "user", "content": "Is this the same?"}, {"role": "assistant", "content": "It is."}]


@dataclass(frozen=True)
class Exported:
    path: Path
    step: int
    texts: int
    difference: float
    """Largest difference between the log-probs of the exported model and of the run's, both in the exported dtype."""
    rounding: float
    """Largest change of a log-prob by rounding to the dtype; 0 for float32."""


def export(run: str | Path, target: str | Path, *, step: int | None = None, dtype: Dtype = "float32") -> Exported:
    """Writes to a temporary folder and renames it after verification: a folder that exists was verified."""
    target = Path(target).expanduser().resolve()
    check_target(target)
    trained = load_run(run, step=step)
    draft = target.with_name(f".{target.name}.draft-{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        exported = _write_and_verify(trained, draft, DTYPES[dtype])
        draft.rename(target)
        sync(target.parent)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write '{target}': {reason(error)}; nothing was written") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Exported(target, trained.step, *exported)


def check_target(target: Path) -> None:
    if target.is_dir() and any(target.iterdir()):
        raise UserError(f"'{target}' exists and is not empty: choose another folder")
    if target.exists() and not target.is_dir():
        raise UserError(f"'{target}' is a file: choose another name")


def _write_and_verify(trained: Trained, draft: Path, dtype: torch.dtype) -> tuple[int, float, float]:
    folder, policy, config = RunFolder(trained.folder), trained.policy, trained.config
    data = folder.data(config)
    compared = first_rows(data, ("held_out", "train"), TEXTS)
    ids = comparison_ids(trained, compared)
    base = begin_identity(config.model.name, trained.reference.policy)()
    to_float32(policy.model)
    policy.compute_dtype, policy.low_precision = torch.float32, False
    original = model_outputs(policy, ids)
    merge(policy)
    stop_at_turn_end(policy, [row["prompt"] for row in first_rows(data, ("train", "held_out"), 1)])
    expected = original
    if dtype != torch.float32:
        policy.causal.to(dtype).float()
        expected = model_outputs(policy, ids)
        policy.causal.to(dtype)
    _save(policy, draft)
    rows = Rows(len(data.train), len(data.held_out))
    card = model_card(
        config, records_of(folder.path), step=trained.step, rows=rows, base_hash=base["sha256"], merged=True
    )
    (draft / "README.md").write_text(card, encoding="utf-8")
    give_mode_of(draft / "README.md")
    model, tokenizer = _load_with_transformers(draft, trained)
    check_tokens(policy.tokenizer, tokenizer, [row["prompt"] for row in compared])
    outputs = [_transformers_outputs(model.to(policy.device), one) for one in ids]
    difference = _largest_difference(outputs, expected)
    if not difference <= TOLERANCE:  # a NaN too
        raise UserError(
            f"the exported model differs from the run's: by {difference:.3g} in a log-prob, more than {TOLERANCE:g}; "
            "nothing was written"
        )
    return len(ids), difference, _largest_difference(original, expected)


def comparison_ids(trained: Trained, rows: Sequence[Row]) -> list[tuple[int, ...]]:
    """Token ids of the texts to compare on: prompts, with their answers where they have one."""
    config, policy = trained.config, trained.policy
    if config.method.reads == "pairs":
        sequences = sequences_of(policy, rows, "the run's data", joined=config.method.joins_pairs)[: 2 * TEXTS]
    else:
        answered = [row for row in rows if row.get("answer")]
        sequences = [each.ids for each in demonstrations(policy, answered, of="the run's data")]
        sequences += prompts_token_ids(policy.tokenizer, [row["prompt"] for row in rows if not row.get("answer")])
    limit = policy.context_length
    return [ids[:limit] for ids in sequences]


def merge(policy: Policy) -> None:
    """Merge a LoRA adapter into the weights."""
    if hasattr(policy.model, "merge_and_unload"):
        policy.model = policy.model.merge_and_unload()


@torch.no_grad()
def model_outputs(policy: Policy, ids: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Log-probs of the whole vocabulary at every position; of a reward model, its score."""
    outputs = []
    for one in ids:
        row = torch.tensor([one], device=policy.device)
        hidden = policy.hidden(row, torch.arange(len(one), device=policy.device)[None])[0]
        if hasattr(policy.causal, HEAD):
            outputs.append(getattr(policy.causal, HEAD)(hidden[-1].float()).cpu())
        else:
            outputs.append(policy.logits(hidden).float().log_softmax(-1).cpu())
    return outputs


@torch.no_grad()
def _transformers_outputs(model: Any, ids: tuple[int, ...]) -> Tensor:
    """The same, computed by transformers alone."""
    logits = model(input_ids=torch.tensor([ids], device=model.device)).logits[0].float().cpu()
    return logits if logits.dim() == 1 else logits.log_softmax(-1)


def _largest_difference(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(outputs, expected, strict=True))


def _save(policy: Policy, draft: Path) -> None:
    generation = getattr(policy.causal, "generation_config", None)
    if generation is not None and not hasattr(policy.causal, HEAD):
        ends = sorted(policy.eos_ids)
        generation.eos_token_id = ends[0] if len(ends) == 1 else ends
        generation.pad_token_id = policy.pad_id
    with quiet_transformers():
        policy.causal.save_pretrained(draft)
        policy.tokenizer.save_pretrained(draft)


def _load_with_transformers(draft: Path, trained: Trained) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    options = {"trust_remote_code": trained.config.model.trust_remote_code}
    with quiet_transformers():
        scorer = trained.config.method.trains == "scorer"
        kind = (
            AutoModelForSequenceClassification if scorer else auto_class(AutoConfig.from_pretrained(draft, **options))
        )
        model = kind.from_pretrained(draft, dtype=torch.float32, use_safetensors=True, **options).eval()
        return model, AutoTokenizer.from_pretrained(draft, **options)


def check_tokens(ours: Any, theirs: Any, prompts: Sequence[Any]) -> None:
    """Both tokenizers must give the same tokens for the run's prompts and the same text for a conversation."""
    same = prompts_token_ids(ours, prompts) == prompts_token_ids(theirs, prompts)
    if same and ours.chat_template:
        same = _rendered(ours) == _rendered(theirs)
    if not same:
        raise UserError("the exported tokenizer or chat template differs from the run's: nothing was written")


def _rendered(tokenizer: Any) -> Any:
    try:
        return render(tokenizer, [(CONVERSATION, False)])
    except TemplateError as error:  # a template may raise: then both must
        return first_line(error)


HUB_TIMEOUT_S = 60.0
"""Seconds without a response before a push fails."""


def check_push(repo: str) -> str:
    """Check the name and return the token, before anything is loaded."""
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]*[\w-]", repo):
        raise UserError(f"--push: '{repo}' is not a repository name: expected NAME/MODEL")
    from huggingface_hub import get_token

    token = get_token()
    if not token:
        raise UserError("--push: no Hugging Face token: set HF_TOKEN, or run `hf auth login`")
    return token


def push(folder: Path, repo: str, token: str) -> str:
    """Upload the folder and return its URL. A new repository is private."""
    from huggingface_hub import HfApi, get_session
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    get_session().timeout = HUB_TIMEOUT_S  # huggingface_hub has no timeout
    api = HfApi(token=token, endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        url = str(api.create_repo(repo, private=True, exist_ok=True))
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Exported by Vigneron")
    except Exception as error:  # the network: it can fail in any way
        raise UserError(f"--push: {error_line(error, token)}; the exported model is in '{folder}'") from None
    return url


def error_line(error: Exception, token: str) -> str:
    """The error in one line, without the token."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines)[:300] or type(error).__name__
    return re.sub(r"hf_\w{8,}", MARK, redacted(text, token)).rstrip(".")
