"""Tiny models and tokenizers, built in the process: real transformers models of real shapes, with random weights."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    CodeGenConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from browser import browser, browser_page  # noqa: F401
from vigneron.policy.load import make_policy
from vigneron.policy.model import Policy

VOCABULARY = 260

# A shell that starts us in its background has us and our children ignore Ctrl-C; what it does is tested here.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: with two processes the others run beside it."""
    items.sort(key=lambda item: "test_demo" not in item.nodeid)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and `<end>`, which is also the padding."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": 0, **{character: i + 1 for i, character in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}answer: "
    return fast


GROUPED_HEADS = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
LEARNED_POSITIONS = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
SHAPES = {
    "gpt2": lambda: GPT2Config(**LEARNED_POSITIONS, bos_token_id=0, eos_token_id=0),
    "llama": lambda: LlamaConfig(**GROUPED_HEADS),
    "qwen": lambda: Qwen3Config(**GROUPED_HEADS, head_dim=8),
    # Two that the sampling engine cannot take: attention of its own kind, and a sliding window.
    "codegen": lambda: CodeGenConfig(
        **(LEARNED_POSITIONS | {"n_head": 4}), rotary_dim=4, n_ctx=64, bos_token_id=0, eos_token_id=0
    ),
    "mistral": lambda: MistralConfig(**GROUPED_HEADS, sliding_window=3),
}


def tiny_model(kind: str, seed: int = 0) -> PreTrainedModel:
    """GPT-2 has learned positions and tied embeddings; Llama rotary ones and grouped heads; Qwen norms its queries."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(SHAPES[kind]())


def tiny_policy(kind: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32) -> Policy:
    model = tiny_model(kind, seed).to(dtype).eval()
    return make_policy(model, byte_tokenizer(), device=torch.device("cpu"))


def tiny_scorer(kind: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32) -> Policy:
    """A sequence-classification model of the same shapes, with a head large enough that texts differ."""
    torch.manual_seed(seed)
    config = SHAPES[kind]()
    config.num_labels = 1
    model = AutoModelForSequenceClassification.from_config(config).to(dtype).eval()
    with torch.no_grad():
        model.score.weight.mul_(20)
    return make_policy(model, byte_tokenizer(), device=torch.device("cpu"))


@pytest.fixture(params=["gpt2", "llama", "qwen"])
def policy(request: pytest.FixtureRequest) -> Policy:
    return tiny_policy(request.param)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama as a transformers folder, for everything that loads a model by name."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny_model("llama").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def obliging_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers `xy` to everything. With its layers at zero a GPT-2 is a table: x is followed by y, y by the
    end, all else by x."""
    tokenizer = byte_tokenizer()
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=256,
        n_embd=8,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=False,
    )
    model = AutoModelForCausalLM.from_config(config)
    x, y = (tokenizer(letter)["input_ids"][0] for letter in "xy")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.transformer.ln_f.weight.fill_(1.0)
        model.transformer.wte.weight[:, 0] = 1.0
        model.transformer.wte.weight[x] = torch.eye(8)[1]
        model.transformer.wte.weight[y] = torch.eye(8)[2]
        for follows, feature in ((x, 0), (y, 1), (0, 2)):
            model.lm_head.weight[follows, feature] = 1.0
    folder = tmp_path_factory.mktemp("models") / "obliging"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def roomy_folder(tmp_path: Path, tiny_folder: Path) -> Path:
    """The tiny model with room for a revision's text, which is long in bytes."""
    folder = tmp_path / "roomy"
    shutil.copytree(tiny_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return folder
