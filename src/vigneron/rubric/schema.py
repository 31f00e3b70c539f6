"""The published JSON Schema of rubric files: for editors, and for those who write rubrics by program."""

import json
from typing import Any

from vigneron.rubric.model import Rubric

ABOUT = "What a good answer is, category by category. Files are YAML, or JSON of the same shape."


def rubric_schema() -> dict[str, Any]:
    schema = Rubric.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "A rubric of Vigneron",
        "description": ABOUT,
    }


def rubric_schema_text() -> str:
    return json.dumps(rubric_schema(), indent=2, ensure_ascii=False) + "\n"
