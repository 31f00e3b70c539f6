"""Models of the hub: whether one can be had, before the libraries try each of its files for half a minute."""

from pathlib import Path

from vigneron.errors import UserError, of_network
from vigneron.policy.model_names import is_cached

TIMEOUT_S = 20.0


def check_on_hub(source: str, where: str) -> None:
    """Raise if a model is neither on this disk nor on the hub. `source` is a folder or a hub id; `where` begins
    errors."""
    if Path(source).is_dir() or is_cached(source):
        return
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        HfApi().model_info(source, timeout=TIMEOUT_S)
    except HFValidationError as error:
        raise UserError(f"{where}: this is neither a folder nor a name that the hub allows") from error
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code in (401, 403, 404):
            raise UserError(
                f"{where}: the hub has no such model, or it is private: check the name, and log in with `hf auth login`"
            ) from error
    except (OfflineModeIsEnabled, OSError) as error:
        raise _unreachable(where) from error
    except Exception as error:
        if of_network(error):
            raise _unreachable(where) from error
        raise


def _unreachable(where: str) -> UserError:
    return UserError(
        f"{where}: it is not on this disk, and the hub cannot be reached: check the network, HF_HUB_OFFLINE and "
        "HF_ENDPOINT, or give a folder or a bundled one"
    )
