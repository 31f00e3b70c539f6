"""Where steps end, in characters and in tokens, for tokenizers that merge separators with their neighbours."""

from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from support.tiny_models import byte_tokenizer, smollm2_tokenizer
from vigneron.config.options import StepLabels
from vigneron.data.first_pass import read_list
from vigneron.data.prompts import texts_of
from vigneron.data.steps import StepLabelReader, step_ends, step_spans, token_ends, with_step_text
from vigneron.errors import UserError

LINES = StepLabels("labels", "\n")


def fast(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def merging() -> PreTrainedTokenizerFast:
    """Byte-level BPE over whole texts: tokens such as `7\\n`, `\\n\\n` and even `7\\n1`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = ["7\n1", "7\n12\n", "a\n\nb\n\n", "é\n", "7\n1"] * 20
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<end>"])
    tokenizer.train_from_iterator(texts, trainer)
    return fast(tokenizer)


def with_word_marks() -> PreTrainedTokenizerFast:
    """`▁` before words, as sentencepiece has it: a token alone is decoded without its space."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Metaspace()])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=["<end>", "<unk>", *bytes_])
    tokenizer.train_from_iterator(["7\n1 a b", "a\n\nb 7", "12 + 7"] * 20, trainer)
    return fast(tokenizer)


@cache
def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    made = {"bytes": byte_tokenizer(), "merging": merging(), "word marks": with_word_marks()}
    return {**made, "SmolLM2": smollm2_tokenizer()}


TEXTS = st.text(st.sampled_from(list("7712ab é€\n\n ")), max_size=24)


@pytest.mark.parametrize("separator", ["\n", "\n\n", "7", None])
@pytest.mark.parametrize("name", ["bytes", "merging", "word marks", "SmolLM2"])
@given(text=TEXTS)
@example(text="7\n1\n2")
@example(text="é\n€\n\n7\n")
@example(text="")
def test_a_step_ends_with_the_token_of_its_last_character(name: str, separator: str | None, text: str) -> None:
    tokenizer = tokenizers()[name]
    ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    decoded = texts_of(tokenizer, [ids])[0]
    if decoded != text:  # leading space of word marks
        text = decoded
        ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        if texts_of(tokenizer, [ids])[0] != text:
            return
    spans = step_spans(text, separator)
    ends = step_ends(tokenizer, [ids], [text], separator, [False])[0]
    assert len(ends) == max(1, len(spans))
    assert ends[-1] == len(ids) - 1
    assert ends == sorted(ends)
    for end, (_, stop), (begin, _) in zip(ends, spans, spans[1:], strict=False):
        before, upto = (texts_of(tokenizer, [ids[:count]])[0] for count in (end, end + 1))
        assert upto.startswith(text[:stop])
        assert not before.startswith(text[:stop])
        # The next step begins in a later token, unless one token has both.
        alone = texts_of(tokenizer, [[ids[end]]])[0].strip()
        assert len(upto) <= begin or len(alone) > 1 or "\ufffd" in upto


@given(text=TEXTS)
def test_steps_are_what_is_between_separators(text: str) -> None:
    for separator in ("\n", "\n\n", "7"):
        wanted = [piece.strip() for piece in text.split(separator) if piece.strip()]
        assert [text[start:stop] for start, stop in step_spans(text, separator)] == wanted
    assert [text[start:stop] for start, stop in step_spans(text, None)] == ([text.strip()] if text.strip() else [])


def test_a_token_that_spans_two_steps_ends_the_first() -> None:
    tokenizer = tokenizers()["merging"]
    ids = tokenizer("7\n1", add_special_tokens=False)["input_ids"]
    assert len(ids) == 1
    assert step_ends(tokenizer, [[*ids, 0]], ["7\n1"], "\n", [False]) == [[0, 1]]


def test_tokens_that_were_sampled_need_not_be_the_tokenizers_own() -> None:
    tokenizer = tokenizers()["merging"]
    one_by_one = [tokenizer.convert_tokens_to_ids(piece) for piece in ("7", "Ċ", "1")]
    assert token_ends(tokenizer, [one_by_one], ["7\n1"], [[1, 2, 3]]) == [[0, 1, 2]]


def test_a_space_before_the_text_and_a_cut_text() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer(" 7\n12\n3")["input_ids"]
    assert step_ends(tokenizer, [[*ids, 0]], ["7\n12\n3"], "\n", [False]) == [[1, 4, 7]]
    assert step_ends(tokenizer, [ids[:4]], ["7\n12\n3"], "\n", [True]) == [[1]]
    assert step_ends(tokenizer, [ids[:5]], ["7\n12\n3"], "\n", [True]) == [[1, 4]]


def test_a_tokenizer_that_loses_characters_still_has_an_end_for_each_step() -> None:
    tokenizer = Tokenizer(models.WordLevel({"<end>": 0, "<unk>": 1, "7": 2, "8": 3}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ids = fast(tokenizer)("7 7\n8\n9", add_special_tokens=False)["input_ids"]
    assert step_ends(fast(tokenizer), [[*ids, 0]], ["7 7\n8\n9"], "\n", [False]) == [[1, 2, 4]]


def test_special_tokens_in_a_text_are_characters_of_it() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer("7\n<end>\n8", add_special_tokens=False)["input_ids"]
    assert step_ends(tokenizer, [[*ids, 0]], ["7\n<end>\n8"], "\n", [False]) == [[0, 2, 5]]


def read(rows: list[dict[str, Any]], labels: StepLabels = LINES) -> list[dict[str, Any]]:
    joined = [with_step_text(row, f"'f', row {number}", labels) for number, row in enumerate(rows, start=1)]
    answered = [{**row, "answer": row.get("completion", row.get("answer"))} for row in joined]
    return read_list(answered, StepLabelReader(labels), "'f'")[0]


def test_all_forms_of_rows_are_one() -> None:
    wanted = {"prompt": "p", "completion": "1\n2", "answer": "1\n2", "labels": [1.0, None]}
    for given_ in (
        {"prompt": "p", "completion": "1\n2", "labels": [1, None]},
        {"prompt": "p", "steps": ["1", "2"], "labels": [True, None]},
        {"prompt": "p", "completions": ["1\n", "2"], "labels": [1.0, None]},
    ):
        assert read([given_]) == [wanted]


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"completion": "1\n2", "labels": [1]}, r"row 1: 1 label for 2 steps, which '\\n' separates"),
        ({"completion": "1\n2", "labels": 1}, r"'labels' must be a list"),
        ({"completion": "1\n2"}, r"'labels' must be a list"),
        ({"completion": "1\n2", "labels": [1, 2]}, r"the label 2 is not 1, 0, null"),
        ({"completion": "1\n2", "labels": [1, "good"]}, r"the label 'good' is not"),
        ({"completion": "1\n2", "labels": [None, None]}, r"every label is null"),
        ({"completion": "1 2", "labels": [1]}, r"the separator '\\n' occurs in no completion"),
        ({"steps": ["1\n2", "3"], "labels": [1, 1]}, r"step 1 of steps contains the separator '\\n'"),
        ({"steps": ["1", " "], "labels": [1, 1]}, r"step 2 of steps is empty"),
        ({"completions": ["1", 2], "labels": [1, 1]}, r"completions must be a list of texts"),
    ],
)
def test_bad_rows_are_one_line(row: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line) as caught:
        read([{"prompt": "p", **row}])
    assert "\n" not in str(caught.value)


def test_rows_without_a_label_to_learn_are_left_out() -> None:
    rows = [{"answer": "1\n2", "labels": [1, None]}, {"answer": "1\n3", "labels": [None, 1]}]
    for labels, kept in ((LINES, 2), (StepLabels("labels", "\n", last=True), 1)):
        known, notices = read_list(rows, StepLabelReader(labels), "'f'")
        assert len(known) == kept
        assert notices == ([] if kept == 2 else ["'f': 1 rows without a label are left out"])
