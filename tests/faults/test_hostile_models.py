"""Rows 19 and 21 of the fault table: a model's folder from somebody who means harm."""

import json
import os
import pickle
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.tiny_models import byte_tokenizer
from vigneron.errors import UserError
from vigneron.policy import chat_template as rendering
from vigneron.policy.chat import Conversation
from vigneron.policy.load import load_policy

MESSAGES = [{"role": "user", "content": "hello"}]


def written_by(template: str, messages: Any = MESSAGES) -> str:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return Conversation.of(tokenizer, messages).before(len(messages))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os.system('touch pwned') }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{% import 'os' as os %}{{ os.system('touch pwned') }}", "no loader"),
        ("{{ 'a' * 10**10 }}", "too much memory"),
        ("{{ '%9999999999d' % 1 }}", "too much memory"),
        ("{{ 'a'.center(9**10) }}", "too much memory"),
        ("{{ 'a' * 30000000 }}", "writes more than"),
        ("x" * 300_000, "not a text of up to"),
        ("{% if %}", "Expected an expression"),
    ],
)
def test_what_transformers_sandbox_and_our_limits_refuse(
    template: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"the model's chat template fails: .*{said}"):
        written_by(template)
    assert list(tmp_path.iterdir()) == []
    assert written_by("{{ messages[0].content }}") == "hello", "the next one is rendered as if nothing had been"


@pytest.mark.slow
def test_a_template_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    rendering._RENDERER.close()
    monkeypatch.setattr(rendering, "CPU_SECONDS", 0.5)
    began = time.process_time()
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(UserError, match="it takes too long"):
        written_by(endless)
    assert time.process_time() - began < 5
    rendering._RENDERER.close()


@pytest.mark.slow
def test_rendered_texts_are_kept_up_to_a_number_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "_CACHE", rendering._Cache(1000))
    for letter in "abc":
        assert written_by("{{ '" + letter + "' * 400 }}") == letter * 400
    assert rendering._CACHE.used == 800  # the first one is gone
    rendering._RENDERER.close()
    assert written_by("{{ 'b' * 400 }}") == "b" * 400
    assert rendering._RENDERER._process is None, "it was not rendered again"
    assert written_by("{{ 'x' * 2000 }}") == "x" * 2000  # larger than the cache
    assert rendering._CACHE.used == 0


@pytest.mark.slow
def test_a_template_sees_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that got out of the sandbox would be in a process without it."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-0123456789")
    rendering._RENDERER.close()
    assert written_by("{{ messages[0].content }}!") == "hello!"
    assert rendering._RENDERER._process is not None
    environment = Path(f"/proc/{rendering._RENDERER._process.pid}/environ")
    if environment.exists():
        assert b"canary" not in environment.read_bytes()


@pytest.mark.parametrize(
    "messages",
    [
        MESSAGES,
        [
            {"role": "system", "content": "be kind"},
            *MESSAGES,
            {"role": "assistant", "content": "é\n\x00{{ 1 }}"},
            *MESSAGES,
        ],
        [{"role": "user", "content": "👩‍👩‍👧 <|im_end|>"}],
    ],
)
def test_texts_are_those_of_transformers(messages: Any) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] | tojson }}{% endfor %}"
    )
    there = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert rendering.render(tokenizer, [(messages, True)]) == [there]


class Harm:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_pickled_weights_are_not_opened(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "model"
    shutil.copytree(tiny_folder, model)
    (model / "model.safetensors").unlink()
    (model / name).write_bytes(pickle.dumps(Harm()))
    with pytest.raises(UserError, match=r"model: (cannot load|.* is damaged)"):
        load_policy(str(model), device="cpu")
    assert not (tmp_path / "pwned").exists()


def test_code_that_a_tokenizer_brings_is_not_run(tiny_folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_folder, model)
    (model / "code.py").write_text("raise SystemExit('remote code ran')\n")
    config = json.loads((model / "tokenizer_config.json").read_text())
    config |= {"auto_map": {"AutoTokenizer": ["code.T", "code.T"]}, "tokenizer_class": "T"}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    with suppress(UserError):  # or it is loaded without that code
        load_policy(str(model), device="cpu")


@pytest.mark.parametrize("claimed", [{"num_hidden_layers": 10**9}, {"text_config": {"n_layer": 10**9}}])
def test_a_config_that_claims_a_billion_layers_is_refused(tiny_folder: Path, tmp_path: Path, claimed: Any) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_folder, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | claimed))
    with pytest.raises(UserError, match="claims more than 10,000 layers"):
        load_policy(str(model), device="cpu")


@pytest.mark.parametrize(
    ("file", "claimed"),
    [("config.json", {"eos_token_id": {"a": 1}}), ("tokenizer_config.json", {"model_max_length": [1]})],
)
def test_settings_of_a_wrong_type_are_one_line(tiny_folder: Path, tmp_path: Path, file: str, claimed: Any) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_folder, model)
    (model / file).write_text(json.dumps(json.loads((model / file).read_text()) | claimed))
    with pytest.raises(UserError, match=r"^model: "):
        load_policy(str(model), device="cpu")
