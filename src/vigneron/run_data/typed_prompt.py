"""A typed text as a prompt of a run, in the form of the run's own rows."""

from string import Formatter
from typing import Any

from vigneron.config import Config
from vigneron.config.values import template_columns
from vigneron.data.tasks import load_task


def typed_template(config: Config) -> str | None:
    """The prompt template, if it has one column, for the typed text; None if it needs more than a text."""
    template = config.data.template
    if template is None and config.data.task is not None:
        template = load_task(config.data.task).child_prompt
    if template is None:
        return None
    fields = {field for _, field, _, _ in Formatter().parse(template) if field is not None}
    if len(fields) != 1 or fields != set(template_columns(template)):  # several columns, or a part of one
        return None
    try:
        typed_prompt("text", template, conversational=False)
    except (LookupError, ValueError):  # not a text: {number:d}
        return None
    return template


def typed_prompt(typed: str, template: str | None, *, conversational: bool) -> Any:
    text = typed if template is None else template.format(**{template_columns(template)[0]: typed})
    return [{"role": "user", "content": text}] if conversational else text
