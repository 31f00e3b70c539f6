"""Every architecture of the zoo against transformers; docs/reference/models.md has the results."""

from pathlib import Path

import pytest

from support.models_page import PAGE, page, row
from support.zoo import FAMILIES, zoo_config, zoo_folder
from support.zoo_measures import EXACT, LIMITS, check_checkpoints, measure
from vigneron.policy.architecture import engine_obstacle, language_model_class, takes_packed_masks


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(name: str, tmp_path: Path) -> None:
    folder = zoo_folder(name, tmp_path)
    measured = measure(name, folder)
    limit = LIMITS.get(name, EXACT)
    assert max(measured.short, measured.long, measured.gradient, measured.lora, measured.reward_model or 0) < limit
    config = zoo_config(name)
    kind, obstacle = language_model_class(config), engine_obstacle(language_model_class(config), config)
    assert (measured.sampler == "engine") if obstacle is None else (f"the model has {obstacle}" in measured.sampler)
    assert measured.shares_prompts == takes_packed_masks(kind, config)  # what `vigneron validate` predicts
    assert row(name, measured) in PAGE.read_text(encoding="utf-8")
    check_checkpoints(name, folder, tmp_path)


def test_the_page_has_a_row_for_every_family() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in rows] == list(FAMILIES)
    assert text == page(rows)
