"""A typed text as a prompt of a run, in the form of the run's own rows."""

import string
from typing import Any

from vigneron.config import Config
from vigneron.data.tasks import load_task


def typed_template(config: Config) -> str | None:
    """The prompt template, if it has exactly one placeholder for the typed text."""
    template = config.data.template
    if template is None and config.data.task is not None:
        template = load_task(config.data.task).child_prompt
    if template is None or len(_placeholders(template)) != 1:
        return None
    return template


def _placeholders(template: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(template) if name]


def typed_prompt(typed: str, template: str | None, *, conversational: bool) -> Any:
    text = typed if template is None else template.format(**{_placeholders(template)[0]: typed})
    return [{"role": "user", "content": text}] if conversational else text
