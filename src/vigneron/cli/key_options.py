"""`--steps 5` for a config key, which is given as `steps=5`: the error says so."""

from collections.abc import Collection, Sequence

from vigneron.errors import UserError


def refuse_key_as_option(words: Sequence[str], own: Collection[str]) -> None:
    """Raise for an option of a command that is a config key, or TRL's name of one. `own`: the command's options."""
    for at, word in enumerate(words):
        option, has_value, value = word.partition("=")
        if word == "--":
            return
        if not option.startswith("--") or option in own:
            continue
        key = _key(option.removeprefix("--").replace("-", "_"))
        if key is None:
            continue
        after = words[at + 1 : at + 2]
        value = value if has_value else next((each for each in after if not each.startswith("--")), "true")
        raise UserError(f"'{option}' is not an option: config keys are given as key=value, here `{key}={value}`")


def _key(name: str) -> str | None:
    """The key that an option's name is, or that TRL calls so."""
    from vigneron.config import Config
    from vigneron.config.trl_names import KEYS

    return name if name.split(".")[0] in Config.model_fields else KEYS.get(name)
