"""A folder to a hub, by huggingface_hub. The token is HF_TOKEN's (or `hf auth login`'s), and is said nowhere."""

import os
import re
from pathlib import Path

from vigneron.errors import UserError
from vigneron.redaction import MARK, redacted

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
