"""A typed text in the template of a run's rows, or alone where the template needs more than a text."""

import pytest

from vigneron.recipe import check_config
from vigneron.run_data.typed_prompt import typed_prompt, typed_template


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("Say {q}:", "Say hot:"),
        ("{q} and {q} {{again}}", "hot and hot {again}"),
        ("{q} or {other}", "hot"),
        ("{q[0]}:", "hot"),
        ("{q.name}:", "hot"),
        ("{q:d}:", "hot"),
        ("no column", "hot"),
    ],
)
def test_a_template_of_one_column_takes_the_text(template: str, prompt: str) -> None:
    config = check_config({"data": {"train": "rows.jsonl", "template": template}, "method": {"name": "sft"}}, "mine")
    assert typed_prompt("hot", typed_template(config), conversational=False) == prompt
    message = typed_prompt("hot", typed_template(config), conversational=True)
    assert message == [{"role": "user", "content": prompt}]
