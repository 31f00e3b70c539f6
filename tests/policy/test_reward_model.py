"""Loading a scorer: of a language model with a new head, of a scorer with its own; anything else is one line."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, BertConfig

from support.tiny_models import byte_tokenizer, tiny_scorer
from vigneron.errors import UserError
from vigneron.policy.reward_model import load_reward_model, reward_model_kind, set_reward_model_kind
from vigneron.rewards.model import load_reward_scorer


def test_a_new_head_depends_on_the_seed_alone(tiny_folder: Path) -> None:
    torch.manual_seed(5)
    one, same, other = (
        load_reward_model(str(tiny_folder), start=True, seed=seed, device="cpu").model.score.weight
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_scorer_keeps_its_head_and_its_kind(tmp_path: Path) -> None:
    scorer = tiny_scorer("llama")
    set_reward_model_kind(scorer, "first_is_better")
    scorer.model.save_pretrained(tmp_path)
    scorer.tokenizer.save_pretrained(tmp_path)
    for start in (True, False):
        loaded = load_reward_model(str(tmp_path), start=start, seed=9, device="cpu")
        assert torch.equal(loaded.model.score.weight, scorer.model.score.weight)
        assert reward_model_kind(loaded) == "first_is_better"


def test_padding_that_is_also_the_end_is_not_named(tiny_folder: Path) -> None:
    """transformers would read the token before the end; without padding it reads the last one, and refuses a batch."""
    model = load_reward_model(str(tiny_folder), start=True, device="cpu").model
    assert model.config.pad_token_id is None
    with pytest.raises(ValueError, match="no padding token"):
        model(torch.ones(2, 3, dtype=torch.long))


def test_what_cannot_score_is_refused(tmp_path: Path, tiny_folder: Path) -> None:
    with pytest.raises(
        UserError, match=r"^model: '.*' is not a reward or preference model: it has no score.weight; train one first$"
    ):
        load_reward_model(str(tiny_folder), start=False, device="cpu")

    shape = BertConfig(
        vocab_size=260, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=1
    )
    AutoModelForSequenceClassification.from_config(shape).save_pretrained(tmp_path / "bert")
    byte_tokenizer().save_pretrained(tmp_path / "bert")
    with pytest.raises(UserError, match="is not a reward model: it has no linear `score` head with one label"):
        load_reward_model(str(tmp_path / "bert"), start=True, device="cpu")

    scorer = tiny_scorer("llama")
    scorer.model.save_pretrained(tmp_path / "torn")
    scorer.tokenizer.save_pretrained(tmp_path / "torn")
    weights = load_file(tmp_path / "torn" / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "torn" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"it has no model\.norm\.weight"):
        load_reward_model(str(tmp_path / "torn"), start=True, device="cpu")


def test_what_is_rounded_or_held_in_float32_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vigneron.policy.device.has_bfloat16", lambda device: True)
    scorer = tiny_scorer("llama")
    scorer.model.resize_token_embeddings(2**15)  # 2**15 · 32 numbers: 2 MiB more in float32
    scorer.model.save_pretrained(tmp_path)
    scorer.tokenizer.save_pretrained(tmp_path)
    notices: list[str] = []
    load_reward_model(str(tmp_path), start=True, device="cpu", weights="bfloat16", notice=notices.append)
    assert notices == [f"model: '{tmp_path}': its weights in F32 are rounded to bfloat16"]
    notices.clear()
    load_reward_scorer(str(tmp_path), "reward", "cpu", notices.append)
    (text,) = notices
    assert text.startswith(
        f"reward.model: the weights of '{tmp_path}' are held in float32, 0.0 GB more than in bfloat16"
    )
    assert text.endswith("store the model in bfloat16 to save them")
