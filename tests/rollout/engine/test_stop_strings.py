"""Stop strings: a completion ends with the token that completes one, and nothing before that token changes."""

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from support.tiny_models import byte_tokenizer, smollm2_tokenizer, tiny_policy
from support.zoo import zoo_model
from vigneron.core.draws import Sampling
from vigneron.policy.load import make_policy
from vigneron.rollout.engine import schedule
from vigneron.rollout.engine import stop_strings as stop_strings_module
from vigneron.rollout.engine.engine import Engine
from vigneron.rollout.engine.generate_fallback import GenerateSampler
from vigneron.rollout.engine.sample import sample, sampler_of
from vigneron.rollout.engine.stop_strings import StopStrings, stop_strings
from vigneron.rollout.on_policy import OnPolicy

LETTERS = "ab €é\nQ:😀"


@cache
def byte_pairs() -> PreTrainedTokenizerFast:
    """Byte-level tokens of several characters, and some that begin or end inside of a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    of_byte = dict(zip(_bytes_in_order(), alphabet_in_order(), strict=True))
    longer = [b"ab", b" a", b"\n\n", b"a\n", b"Q:", b"\nQ", b":Q:", "€".encode()[:2], b"\xac\n", b"b\xe2", b"\x9f\x98"]
    pieces = ["<end>", *alphabet, *("".join(of_byte[byte] for byte in piece) for piece in longer)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def _bytes_in_order() -> list[int]:
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [*printed, *(byte for byte in range(256) if byte not in printed)]


def alphabet_in_order() -> list[str]:
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [*map(chr, printed), *(chr(256 + n) for n in range(256 - len(printed)))]


@cache
def sentence_pieces() -> PreTrainedTokenizerFast:
    """As Llama 2: spaces inside of tokens, the first of a text dropped, and bytes for unknown characters."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "▁a", "ab", "▁ab", "▁▁", "Q", ":", "Q:", "▁Q:", "é", "é:"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", pad_token="</s>")


TOKENIZERS = {"bytes": cache(byte_tokenizer), "pairs": byte_pairs, "pieces": sentence_pieces}


def end_by_hand(tokenizer: Any, ids: list[int], stops: tuple[str, ...]) -> int | None:
    """Decodes every beginning of the completion."""
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if any(stop in text for stop in stops):
            return count
    return None


@st.composite
def completions(draw: Any) -> tuple[str, list[int], tuple[str, ...]]:
    """Ids of a text of few characters, with other ids among them, so that stop strings do occur."""
    name = draw(st.sampled_from(sorted(TOKENIZERS)))
    tokenizer = TOKENIZERS[name]()
    size = len(tokenizer.get_vocab())
    text = draw(st.text(LETTERS, max_size=60))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    rare = st.one_of(st.integers(0, size - 1), st.integers(max(0, size - 13), size - 1))
    for place, token in draw(st.lists(st.tuples(st.integers(0, 60), rare), max_size=30)):
        ids.insert(min(place, len(ids)), token)
    stops = draw(st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=3, unique=True))
    return name, ids, tuple(stops)


def byte_pieces(text: bytes) -> list[int]:
    return [sentence_pieces().convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in text]


@given(completions(), st.lists(st.integers(1, 9), min_size=1, max_size=8), st.sampled_from([1, 2, 16]))
@example(("pairs", [0], ("<end>",)), [1], 16)
@example(("pieces", byte_pieces("€€€€€€€€é\n".encode()), ("\n",)), [1], 16)  # a window begins inside of a character
@example(("pieces", byte_pieces(b"\xff" + b"a" * 20 + b"\n"), ("\n",)), [1], 16)  # one wrong byte spoils all behind it
@settings(max_examples=60)
def test_the_end_is_that_of_decoding_every_beginning(
    case: tuple[str, list[int], tuple[str, ...]], chunks: list[int], window: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stop_strings_module, "WINDOW", window)
        check_ends(*case, chunks)


def check_ends(name: str, ids: list[int], strings: tuple[str, ...], chunks: list[int]) -> None:
    tokenizer = TOKENIZERS[name]()
    expected = end_by_hand(tokenizer, ids, strings)
    stops = StopStrings(tokenizer, strings)
    assert stops.end(ids) == expected
    # In parts, as a sampler sees them.
    seen, found = 0, None
    while seen < len(ids) and found is None:
        count = min(len(ids), seen + chunks[seen % len(chunks)])
        found = stops.end(ids[:count], seen)
        seen = count
    assert found == expected


@given(
    st.lists(st.sampled_from(["Hello", " world", "\n", "\n\n", " Q", "uestion", ":", "😀", "é", " 3", "<|im_end|>"]))
)
@settings(max_examples=20)
def test_a_real_vocabulary(parts: list[str]) -> None:
    tokenizer = smollm2_tokenizer()
    ids = [i for part in parts for i in tokenizer(part, add_special_tokens=False)["input_ids"]]
    for strings in (("\n",), ("Question:", "😀"), ("d\n\n", "<|im_end|>")):
        stops = stop_strings(tokenizer, strings)
        assert stops is not None
        assert stops.end(ids) == end_by_hand(tokenizer, ids, strings)


def test_few_tokens_are_decoded() -> None:
    """What makes a check cheap: of a real vocabulary, only the tokens with a newline or a part of a character."""
    stops = stop_strings(smollm2_tokenizer(), ("\n",))
    assert stops is not None
    ids = torch.arange(49152)[None]
    assert 0 < int(stops.can_end(ids).sum()) < 1500
    assert not stops.can_end(torch.tensor([[10**6]])).any(), "an id beyond the tokenizer's"


def test_no_stop_strings_cost_nothing() -> None:
    assert stop_strings(byte_tokenizer(), ()) is None


# ------------------------------------------------------------------------------------------------- in the samplers


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "GPT-Neo"])
@given(
    strings=st.lists(
        st.sampled_from([*map(chr, range(32, 127)), "\n", "é", "ab"]), min_size=1, max_size=20, unique=True
    ),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    every=st.sampled_from([1, 3, 8]),
    rows=st.integers(1, 9),
    greedy=st.booleans(),
)
@settings(max_examples=5)
def test_a_sample_is_the_untruncated_one_up_to_its_stop_string(
    kind: str, strings: list[str], sizes: list[int], every: int, rows: int, greedy: bool
) -> None:
    """Whatever the rows, refills and the number of steps between two checks; in the engine and in `generate`."""
    policy = (
        tiny_policy() if kind == "llama" else make_policy(zoo_model(kind), byte_tokenizer(), device=torch.device("cpu"))
    )
    prompts = [list(range(10 * i + 1, 10 * i + 3 + i)) for i, size in enumerate(sizes) for _ in range(size)]
    assert isinstance(sampler_of(policy), Engine if kind == "llama" else GenerateSampler)
    options: dict[str, Any] = {"max_new_tokens": 12, "sampling": None if greedy else Sampling(), "seed": 3, "step": 2}
    whole = sample(policy, prompts, **options)
    before = dict(schedule.CHECK_EVERY)
    schedule.CHECK_EVERY["cpu"] = every
    if kind == "llama":
        cache = policy.sampler._cache  # type: ignore[attr-defined]
        cache._limit = rows * cache.token_bytes * (max(map(len, prompts)) + 12)
    try:
        done = sample(policy, prompts, **options, stop=strings)
    finally:
        schedule.CHECK_EVERY.update(before)
    for row in range(len(prompts)):
        ids = whole.ids_BT[row, : int(whole.lengths_B[row])].tolist()
        end = end_by_hand(policy.tokenizer, ids, tuple(strings))
        length = len(ids) if end is None else end
        assert int(done.lengths_B[row]) == length
        assert done.ids_BT[row, :length].tolist() == ids[:length]
        assert (done.ids_BT[row, length:] == policy.pad_id).all()
        assert bool(done.truncated_B[row]) == (end is None and bool(whole.truncated_B[row]))
        torch.testing.assert_close(done.behaviour_BT[row, :length], whole.behaviour_BT[row, :length], atol=1e-5, rtol=0)
        assert (done.behaviour_BT[row, length:] == 0).all()


def test_without_end_tokens_rows_are_still_checked() -> None:
    """A model without an end token is otherwise read once, at the end."""
    policy = tiny_policy()
    policy.eos_ids = frozenset()
    whole = sample(policy, [[5, 6]] * 20, max_new_tokens=30, sampling=Sampling())
    ran: list[int] = []
    sampler: Any = sampler_of(policy)
    decode, sampler.decode = sampler.decode, lambda *a: (ran.append(1), decode(*a))
    done = sample(policy, [[5, 6]] * 20, max_new_tokens=30, sampling=Sampling(), stop=[chr(c) for c in range(32, 127)])
    assert not done.truncated_B.any()
    assert len(ran) == int(done.lengths_B.max()) - 1 < whole.ids_BT.shape[1] - 1


def test_masks_and_texts_end_with_the_stop_string() -> None:
    """Trained are the tokens up to the stop string, and rewards see that text; a sample that it ended is not masked as
    truncated."""
    policy = tiny_policy()
    rollout = OnPolicy(policy, Sampling(), 20, 8, seed=1, mask_truncated=True, stop=("e", "Z", "\x11"))
    batch = rollout([{"prompt": "hot"}, {"prompt": "a longer prompt"}])
    stopped = 0
    for row, text in enumerate(batch.samples.completions):
        ids = batch.samples.completion_lists()[row]
        by_string = text.endswith(("e", "Z", "\x11"))
        assert not any(stop in text[:-1] for stop in ("e", "Z", "\x11"))
        assert bool(batch.samples.truncated_B[row]) == (not by_string and ids[-1] != 0)
        assert bool(batch.trained_BT[row].any()) == (by_string or ids[-1] == 0)
        assert int(batch.samples.mask_BT[row].sum()) == len(ids)
        stopped += by_string
    assert 2 < stopped < 16
