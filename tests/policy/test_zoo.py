"""Every architecture of the zoo against transformers; docs/reference/models.md has the results."""

from pathlib import Path

import pytest
import torch

from support.models_page import PAGE, page, row
from support.tiny_models import byte_tokenizer
from support.zoo import FAMILIES, UNLIKE, zoo_config, zoo_folder, zoo_model
from support.zoo_measures import EXACT, LIMITS, check_checkpoints, measure
from vigneron.policy.architecture import (
    TAKE_MASKS,
    engine_obstacle,
    language_model_class,
    replaces_attention,
    takes_packed_masks,
)
from vigneron.policy.load import make_policy
from vigneron.policy.packing import can_share_prompts


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
    if name in UNLIKE:  # `make docs`, which writes the page, checks those of all families
        check_checkpoints(name, folder, tmp_path)


def test_the_page_has_a_row_for_every_family() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in rows] == list(FAMILIES)
    assert text == page(rows)


@pytest.mark.slow
def test_what_is_predicted_of_masks_is_what_a_run_measures() -> None:
    """Of architectures whose attention cannot be replaced, and of a few others; `test_a_family` has all of them."""
    others = ("Llama", "Gemma 2", "gpt-oss", "DeepSeek V3", "LFM2")
    whole = {name: zoo_config(name) for name, (_, options) in FAMILIES.items() if "text_config" not in options}
    kinds = {name: language_model_class(config) for name, config in whole.items()}
    tested = [name for name, kind in kinds.items() if name in others or not replaces_attention(kind)]
    assert {whole[name].model_type for name in tested} >= set(TAKE_MASKS)
    predicted = {name: takes_packed_masks(kinds[name], whole[name]) for name in tested}
    policies = {name: make_policy(zoo_model(name), byte_tokenizer(), device=torch.device("cpu")) for name in tested}
    assert predicted == {name: can_share_prompts(policy) for name, policy in policies.items()}
    assert set(predicted.values()) == {False, True}
