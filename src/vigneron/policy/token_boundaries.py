"""Token ids of a text that is trained from some place on: the tokens before that place are those that sampling uses.

The whole text is tokenized, and split where tokens end at the cut. Where one token would cross it (a prompt that ends
in a space, `<think>\\n` before `\\n</think>`), the text before keeps its own tokens, and the rest is tokenized as the
continuation of a text, so that SentencePiece puts no space before it.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]

# A text before a continuation: one of them ends in a token of its own.
ANCHORS = ("\n", "a", ".", " a", ")")


def ids_with_cuts(encode: Encode, text: str, cuts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Token ids of a text, and for each cut (increasing character positions) the number of tokens before it."""
    whole, *heads = encode([text, *(text[:cut] for cut in cuts)])
    return _joined(encode, text, cuts, whole, heads)


def _joined(
    encode: Encode, text: str, cuts: Sequence[int], whole: Sequence[int], heads: Sequence[Sequence[int]]
) -> tuple[list[int], list[int]]:
    crossed = next((n for n, head in enumerate(heads) if list(whole[: len(head)]) != list(head)), None)
    if crossed is None:
        return list(whole), [len(head) for head in heads]
    head = heads[crossed]
    for earlier in range(crossed):
        if list(head[: len(heads[earlier])]) != list(heads[earlier]):
            crossed, head = earlier, heads[earlier]
            break
    cut = cuts[crossed]
    later = [each - cut for each in cuts[crossed + 1 :]]
    rest, at = _continuation(encode, text[cut:], later)
    before = [len(each) for each in heads[: crossed + 1]]
    return [*head, *rest], [*before, *(len(head) + place for place in at)]


def _continuation(encode: Encode, text: str, cuts: Sequence[int]) -> tuple[list[int], list[int]]:
    """The same for a text that continues another one."""
    for anchor in ANCHORS:
        start, whole, *heads = encode([anchor, anchor + text, *(anchor + text[:cut] for cut in cuts)])
        if all(list(ids[: len(start)]) == list(start) for ids in (whole, *heads)):
            ids, at = _joined(encode, anchor + text, [len(anchor) + cut for cut in cuts], whole, heads)
            return ids[len(start) :], [place - len(start) for place in at]
    if not cuts:
        start, whole = encode(["", text])
        return list(whole[len(start) :]), []
    first, _ = _continuation(encode, text[: cuts[0]], [])
    rest, at = _continuation(encode, text[cuts[0] :], [cut - cuts[0] for cut in cuts[1:]])
    return first + rest, [len(first), *(len(first) + place for place in at)]


def sections_with_cuts(tokenizer: Any, encode: Encode, text: str, cuts: Sequence[int]) -> tuple[list[int], list[int]]:
    """The same as `ids_with_cuts` for a text with delimiters, in less time.

    A delimiter separates what is before it from what is after it, so only the tokens between the last one and the cut
    are compared: the same few texts in every row.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.truncation is not None or backend.padding is not None:
        return ids_with_cuts(encode, text, cuts)
    whole = backend.encode(text, add_special_tokens=False)
    known = _delimiter_ids(tokenizer, len(tokenizer))
    # Sections that begin with a delimiter, by its token's number and characters.
    places = [(n, *whole.offsets[n]) for n, i in enumerate(whole.ids) if i in known]
    places = [*([] if places and places[0][0] == 0 else [(0, 0, 0)]), *places]
    ids, at = list(whole.ids), list[int]()
    grown = 0
    for section, (token, begin, _) in enumerate(places):
        until, end = places[section + 1][:2] if section + 1 < len(places) else (len(whole.ids), len(text))
        later = [place[2] for place in places[section + 1 : section + 2]]
        # A cut right after a delimiter belongs to its section, one right before it to the section before.
        own = [cut for cut in cuts[len(at) :] if not later or cut < later[0]]
        heads = [_few_ids(tokenizer, text[begin:cut]) for cut in own]
        if any(tuple(whole.ids[token : token + len(head)]) != head for head in heads):
            if own[-1] > end:
                return ids_with_cuts(encode, text, cuts)
            part, places_in = ids_with_cuts(encode, text[begin:end], [cut - begin for cut in own])
            ids[token + grown : until + grown] = part
            at += [token + grown + place for place in places_in]
            grown += len(part) - (until - token)
        else:
            at += [token + grown + len(head) for head in heads]
    return ids, at


@lru_cache(maxsize=16)
def _delimiter_ids(tokenizer: Any, count: int) -> frozenset[int]:
    return frozenset(tokenizer.added_tokens_decoder)


@lru_cache(maxsize=256)
def _few_ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def continuations(encode: Encode, prompts: Sequence[str], texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
    """Token ids of each prompt and of the text that follows it."""
    heads = encode(prompts)
    wholes = encode([prompt + text for prompt, text in zip(prompts, texts, strict=True)])
    pairs = []
    for prompt, text, head, whole in zip(prompts, texts, heads, wholes, strict=True):
        ids, (at,) = _joined(encode, prompt + text, [len(prompt)], whole, [head])
        pairs.append((ids[:at], ids[at:]))
    return pairs


def plain_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts that are continued: with the tokens that the tokenizer puts before a text (BOS), without those
    that it puts after it (EOS)."""
    if not texts:
        return []
    appended = _appended(tokenizer)
    rows = tokenizer(list(texts))["input_ids"]
    return [ids[: len(ids) - appended] for ids in rows] if appended else [list(ids) for ids in rows]


def answer_lengths(tokenizer: Any, answers: Sequence[str]) -> list[int]:
    """How many tokens a completion takes that is the answer: with a space before it or without, whichever is shorter,
    and without the tokens that the tokenizer puts before and after a text."""
    if not answers:
        return []
    before = len(plain_ids(tokenizer, [""])[0])
    spaced, bare = (plain_ids(tokenizer, [space + text.strip() for text in answers]) for space in (" ", ""))
    return [min(len(one), len(other)) - before for one, other in zip(spaced, bare, strict=True)]


@lru_cache(maxsize=16)
def _appended(tokenizer: Any) -> int:
    """How many tokens the tokenizer puts after a text."""
    bare, whole = tokenizer("a", add_special_tokens=False)["input_ids"], tokenizer("a")["input_ids"]
    places = [at for at in range(len(whole) - len(bare) + 1) if whole[at : at + len(bare)] == bare]
    return len(whole) - len(bare) - places[0] if bare and places else 0
