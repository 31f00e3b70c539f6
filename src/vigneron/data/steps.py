"""Steps of a solution: where they end, in characters and in tokens, and the labels of their ends.

A step is what stands between two separators. It ends with its last character that is not white space; pieces of white
space alone are no steps. The last step ends with the text.

    prompt + completion + labels      one label for each step: 1 right, 0 wrong, null unclear, or a share between
    prompt + steps + labels           the steps as a list
    prompt + completions + labels     the same, as TRL's stepwise format has it
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from vigneron.config.options import StepLabels
from vigneron.data.prompts import Row, completion_text, texts_of
from vigneron.errors import UserError
from vigneron.values import is_number

LISTS = ("steps", "completions")


def step_spans(text: str, separator: str | None) -> list[tuple[int, int]]:
    """(start, stop) of each step in characters, without surrounding white space. No separator: the text is one step."""
    pieces = [text] if separator is None else text.split(separator)
    begins = accumulate((len(piece) + len(separator or "") for piece in pieces[:-1]), initial=0)
    return [
        (begin + len(piece) - len(piece.lstrip()), begin + len(piece.rstrip()))
        for begin, piece in zip(begins, pieces, strict=True)
        if piece.strip()
    ]


def step_ends(
    tokenizer: Any, ids: Sequence[Sequence[int]], texts: Sequence[str], separator: str | None, cut: Sequence[bool]
) -> list[list[int]]:
    """For each text, the index of the token that each step ends with.

    `ids` are the text's tokens and the end-of-text token, where the last step ends; of a text that is `cut`, the steps
    that it has whole. A text without a step has one: all of it.
    """
    spans = [step_spans(text, separator) for text in texts]
    stops = [[stop for _, stop in (each if is_cut else each[:-1])] for each, is_cut in zip(spans, cut, strict=True)]
    within = [row if is_cut else row[:-1] for row, is_cut in zip(ids, cut, strict=True)]
    ends = token_ends(tokenizer, within, texts, stops, skip_special=False)
    return [
        [end for end in each if end < len(row)] if is_cut else [*each, len(row) - 1]
        for each, row, is_cut in zip(ends, ids, cut, strict=True)
    ]


def prefix_lengths(
    tokenizer: Any, ids: Sequence[Sequence[int]], texts: Sequence[str], separator: str | None
) -> list[list[int]]:
    """For each step but the last, the number of tokens of a text up to where the next step begins: with the separator,
    so that a continuation begins a new step. A token that has both steps belongs to the prefix."""
    begins = [[begin + 1 for begin, _ in step_spans(text, separator)[1:]] for text in texts]
    starts = token_ends(tokenizer, [row[:-1] for row in ids], texts, begins, skip_special=False)
    ends = step_ends(tokenizer, ids, texts, separator, [False] * len(texts))
    return [
        [max(start, end + 1) for start, end in zip(row_starts, row_ends, strict=False)]
        for row_starts, row_ends in zip(starts, ends, strict=True)
    ]


def token_ends(
    tokenizer: Any,
    ids: Sequence[Sequence[int]],
    texts: Sequence[str],
    stops: Sequence[Sequence[int]],
    *,
    skip_special: bool = True,
) -> list[list[int]]:
    """The token with which the first `stop` characters of a text are complete; the number of tokens if none is.

    It may contain a separator, or the next step's first characters, where the tokenizer merges them.
    """
    if not any(stops):
        return [[] for _ in ids]
    known = list(dict.fromkeys(token for row in ids for token in row))
    pieces = dict(zip(known, texts_of(tokenizer, [[token] for token in known], skip_special=skip_special), strict=True))
    decoded = texts_of(tokenizer, ids, skip_special=skip_special)
    return [
        _ends(tokenizer, row, [pieces[token] for token in row], whole, text, wanted, skip_special)
        for row, whole, text, wanted in zip(ids, decoded, texts, stops, strict=True)
    ]


def _ends(
    tokenizer: Any,
    ids: Sequence[int],
    pieces: Sequence[str],
    whole: str,
    text: str,
    stops: Sequence[int],
    skip_special: bool,
) -> list[int]:
    # A space may have been put before the text, or an empty think block; of a cut text the tokens are a beginning.
    shift = next((n for n in (0, 1) if whole[n:].startswith(text) or text.startswith(whole[n:])), None)
    if shift is None and text in whole:
        shift = whole.index(text)
    if shift is None:  # a tokenizer that changes texts: the length of the tokenized beginning is as near as it gets
        lengths = [len(tokenizer(text[:stop], add_special_tokens=False)["input_ids"]) for stop in stops]
        return [max(0, min(length, len(ids)) - 1) for length in lengths]
    if "".join(pieces) == whole:
        characters = list(accumulate(map(len, pieces)))
        return [bisect_left(characters, stop + shift) for stop in stops]

    def first_that_covers(stop: int) -> int:
        def covers(token: int) -> bool:
            beginning = texts_of(tokenizer, [ids[: token + 1]], skip_special=skip_special)[0]
            return len(whole) >= stop and beginning.startswith(whole[:stop])

        return bisect_left(range(len(ids)), True, key=covers)

    return [first_that_covers(stop + shift) for stop in stops]


def with_step_text(row: Row, place: object, labels: StepLabels) -> Row:
    name = next((name for name in LISTS if isinstance(row.get(name), list)), None)
    if name is None:
        return row
    steps, separator = row[name], labels.separator
    if not steps or not all(isinstance(step, str) for step in steps):
        raise UserError(f"data: {place}: {name} must be a list of texts")
    if separator is None and len(steps) > 1:
        raise UserError(
            f"data: {place}: {name} has {len(steps)} steps: set `method.separator` to what should stand between"
        )
    separator = separator or ""
    texts = [step.removeprefix(separator).removesuffix(separator) for step in steps]
    for number, step in enumerate(texts, start=1):
        if not step.strip() or (separator and separator in step):
            problem = f"contains the separator {separator!r}" if step.strip() else "is empty"
            raise UserError(f"data: {place}: step {number} of {name} {problem}")
    rest = {key: value for key, value in row.items() if key not in LISTS}
    return {**rest, "completion": separator.join(texts)}


class StepLabelReader:
    """Rows with their labels as numbers; those without a label to train on are left out and counted."""

    def __init__(self, labels: StepLabels, *, separated: bool = False) -> None:
        self.labels = labels
        self.rows = self.left_out = 0
        self.separated = separated or labels.separator is None or labels.last
        self.error: UserError | None = None
        """The first error, until a text has the separator: without one it is the separator that is wrong."""

    def __call__(self, row: Row, place: object) -> Row | None:
        labels, text = self.labels, completion_text(row["answer"])
        self.separated = self.separated or (labels.separator or "") in text
        self.rows += 1
        try:
            given = _labels(row, text, place, labels)
        except UserError as error:
            if self.separated:
                raise self.error or error from None
            self.error = self.error or error
            return None
        known = any(label is not None for label in labels.used(given))
        self.left_out += not known
        return {**_one_turn(row), labels.column: given} if known else None

    def add(self, later: "StepLabelReader") -> None:
        self.rows += later.rows
        self.left_out += later.left_out
        self.separated = self.separated or later.separated
        self.error = self.error or later.error

    def finish(self, where: str) -> list[str]:
        if not self.separated:
            raise UserError(
                f"data: {where}: the separator {self.labels.separator!r} occurs in no completion: set "
                "`method.separator` to what stands between steps, or to null for one label per text"
            )
        if self.error is not None:
            raise self.error
        if self.left_out == self.rows:
            raise UserError(f"data: {where}: every label is null: label some steps 1 or 0")
        return [f"{where}: {self.left_out} rows without a label are left out"] if self.left_out else []


def _one_turn(row: Row) -> Row:
    """The last answer alone has steps: earlier turns belong to the prompt."""
    inert = ["messages", *(["completion"] if not isinstance(row.get("completion"), str) else [])]
    return {name: value for name, value in row.items() if name not in inert}


def _labels(row: Row, text: str, place: object, labels: StepLabels) -> list[float | None]:
    given = row.get(labels.column)
    if not isinstance(given, list):
        csv = " (a CSV file cannot hold lists: write .jsonl)" if isinstance(given, str) else ""
        raise UserError(
            f"data: {place}: '{labels.column}' must be a list with one label for each step: 1, 0 or null{csv}"
        )
    count = len(step_spans(text, labels.separator))
    if len(given) != count and not (labels.last and given):
        steps = f"{count} step{'s' * (count != 1)}"
        if labels.separator is None:
            why = "`method.separator` is null, so that a completion is one step: set it to what stands between steps"
        else:
            why = "check `method.separator`, and that each step has one label"
            steps += f", which {labels.separator!r} separates"
        raise UserError(f"data: {place}: {len(given)} label{'s' * (len(given) != 1)} for {steps}: {why}")
    for label in given:
        if label is not None and not (isinstance(label, bool) or (is_number(label) and 0 <= label <= 1)):
            raise UserError(f"data: {place}: the label {label!r:.40} is not 1, 0, null, or a number between 0 and 1")
    return [None if label is None else float(label) for label in given]
