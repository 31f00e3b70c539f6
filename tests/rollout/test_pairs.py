"""Preference pairs as they are read from rows, and as a batch: next to each other, and never torn apart."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small_batch import make_batch
from support.tiny_models import tiny_policy
from vigneron.data.pairs import PairReader, read_pairs
from vigneron.errors import UserError
from vigneron.policy.microbatches import bundles, microbatches
from vigneron.recipe import check_config
from vigneron.rollout.pairs import OrderedPairs, Pairs, paired_up, sequences_of
from vigneron.run_data.load import load_data

SYSTEM, USER, GOOD, BAD = (
    {"role": role, "content": text}
    for role, text in (("system", "s"), ("user", "hi"), ("assistant", "yo"), ("assistant", "no"))
)


def as_bytes(text: str) -> tuple[int, ...]:
    return tuple(tiny_policy("gpt2").tokenizer(text)["input_ids"])


def read(*rows: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    return read_pairs(list(rows), "'file'")


def complaint(*rows: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        read(*rows)
    (line,) = str(caught.value).splitlines()
    return line


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (("The sky is", " blue", " green"), ("The sky is", " blue", " green")),
        ((None, "The sky is blue.", "The sky is black."), ("The sky is", " blue.", " black.")),
        ((None, "a b", "a b c"), ("a", " b", " b c")),
        (([USER], [GOOD], [BAD]), ([USER], [GOOD], [BAD])),
        ((None, [USER, GOOD], [USER, BAD]), ([USER], [GOOD], [BAD])),
        (("hi", [GOOD], [BAD]), ([USER], [GOOD], [BAD])),
        ((" hi\n", [USER, GOOD], [USER, BAD]), ([USER], [GOOD], [BAD])),
        (("hi", [SYSTEM, USER, GOOD], [SYSTEM, USER, BAD]), ([SYSTEM, USER], [GOOD], [BAD])),
        ((None, "问:法国首都?答:巴黎", "问:法国首都?答:罗马"), ("问:法国首都?答:", "巴黎", "罗马")),
        ((None, "答:42", "答:43"), ("答:", "42", "43")),
        ((None, "答: 巴黎", "答: 罗马"), ("答:", " 巴黎", " 罗马")),
        ((None, "日本のガ", "日本のカ"), ("日本の", "ガ", "カ")),
        ((None, "日本のカ\u3099", "日本のカ"), ("日本の", "カ\u3099", "カ")),  # ガ of two code points
        ((None, "ไปกิน", "ไปกัน"), ("ไป", "กิน", "กัน")),
        ((None, "答👍🏽", "答👍🏿"), ("答", "👍🏽", "👍🏿")),
        ((None, "用 Python 写", "用 Pytorch 写"), ("用", " Python 写", " Pytorch 写")),
    ],
)
def test_trls_formats(given: Any, wanted: Any) -> None:
    prompt, chosen, rejected = given
    row = {"chosen": chosen, "rejected": rejected} | ({} if prompt is None else {"prompt": prompt})
    ((made,), notices) = read(row)
    assert (made["prompt"], made["chosen"], made["rejected"]) == wanted
    assert notices == []


PAIR = {"prompt": "p", "chosen": "a", "rejected": "b"}


def test_bad_pairs_are_named_by_their_row() -> None:
    assert complaint() == "data: 'file' has no rows"
    assert "row 2 has no 'rejected'" in complaint(PAIR, {"prompt": "p", "chosen": "a"})
    assert "(did you mean 'choosen'?)" in complaint({"prompt": "p", "choosen": "a", "rejected": "b"})
    assert "row 1 has no 'prompt', and its texts have no common prefix" in complaint({"chosen": "a", "rejected": "b"})
    assert "row 1 has no 'prompt'" in complaint({"chosen": [USER, GOOD], "rejected": [BAD, GOOD]})
    assert "row 1: chosen is empty" in complaint({**PAIR, "chosen": "  "})
    empty = [{"role": "assistant", "content": ""}]
    assert "row 2: rejected is empty" in complaint(PAIR, {"prompt": [USER], "chosen": [GOOD], "rejected": empty})
    assert "row 1: chosen is neither a string nor a list" in complaint({**PAIR, "chosen": 5})
    assert "must both be strings, or both lists of messages" in complaint({**PAIR, "chosen": [GOOD]})
    for chosen, line in (
        ([GOOD, BAD], "turn 2 of chosen is a second answer in a row"),
        ([GOOD, USER], "chosen ends with the role 'user'"),
        ([USER, GOOD], "chosen goes on after the prompt with the role 'user': expected 'assistant'; both sides must"),
        ([*empty, USER, GOOD], "turn 1 of chosen is an empty answer"),
    ):
        assert f"row 1: {line}" in complaint({"prompt": [USER], "chosen": chosen, "rejected": [BAD]})


@pytest.mark.parametrize(
    ("prompt", "line"),
    [
        (
            "ho",
            "row 1: prompt is a text, and `chosen` and `rejected` do not begin with the same turns of which the last",
        ),
        ([USER], "row 1: `chosen` and `rejected` begin with the prompt again: leave `prompt` out"),
    ],
)
def test_sides_that_begin_with_another_prompt_are_named(prompt: Any, line: str) -> None:
    assert line in complaint({"prompt": prompt, "chosen": [USER, GOOD], "rejected": [USER, BAD]})


def test_a_text_preferred_to_itself_is_left_out_and_counted() -> None:
    same = {"prompt": "hot", "chosen": "a", "rejected": " a "}
    rows, (notice,) = read(PAIR, same, same)
    assert rows == [PAIR]
    assert notice == "'file': 2 pairs have equal texts and are left out, the first in row 2: 'hot'"
    assert "in all 1 pairs `chosen` and `rejected` are equal" in complaint(same)


ROWS = [
    {"prompt": "say", "chosen": "yes", "rejected": " no"},
    {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
]
HI = "user: hi\nanswer: "


def test_a_batch_has_the_chosen_text_and_next_to_it_the_rejected_one() -> None:
    batch = Pairs(tiny_policy("gpt2"))(ROWS, first=3)
    wanted = [(*as_bytes(text), 0) for text in ("yes", " no", "yo", "no")]
    assert list(batch.samples.completion_lists()) == wanted
    assert batch.samples.prompt_ids == (*(as_bytes("say"),) * 2, *(as_bytes(HI),) * 2)
    assert batch.packing.paired
    assert batch.samples.group_B.tolist() == [3, 3, 4, 4]
    assert batch.samples.sample_B.tolist() == [6, 7, 8, 9]
    assert sequences_of(tiny_policy("gpt2"), ROWS, "the rows", joined=False)[3] == (*as_bytes(HI + "no"), 0)


def test_a_preference_model_reads_both_texts_in_both_orders() -> None:
    batch = OrderedPairs(tiny_policy("gpt2"))(ROWS)
    wanted = ["First: yes\nSecond: no", "First: no\nSecond: yes", "First: yo\nSecond: no", "First: no\nSecond: yo"]
    assert list(batch.samples.completion_lists()) == [(*as_bytes(f"\n{text}\nBetter:"), 0) for text in wanted]
    assert batch.samples.columns["first"] == ("chosen", "rejected") * 2
    assert not batch.packing.paired


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=7),
    budget=st.integers(1, 80),
    shareable=st.booleans(),
)
def test_no_cut_tears_a_pair_apart(sizes: list[tuple[int, int, int]], budget: int, shareable: bool) -> None:
    prompts = [prompt for prompt, _, _ in sizes for _ in range(2)]
    lengths = [length for _, *both in sizes for length in both]
    batch = make_batch(prompts, lengths, paired=True, share_prompts=shareable)
    parts = microbatches(batch, budget)
    assert sorted(s for part in parts for s in part.samples.sample_B.tolist()) == batch.samples.sample_B.tolist()
    for part in parts:
        samples = part.samples.sample_B.tolist()
        assert [one + 1 for one in samples[0::2]] == samples[1::2]
        assert part.samples.group_B[0::2].tolist() == part.samples.group_B[1::2].tolist()
        widths = [
            len(part.samples.prompt_ids[row[0]]) + sum(part.samples.lengths_B[i] for i in row) for row in bundles(part)
        ]
        assert len(part) == 2 or (sum(widths) if shareable else max(widths) * len(widths)) <= budget


def test_pairs_are_the_best_and_the_worst_of_a_group() -> None:
    nan = torch.nan
    rewards = torch.tensor([0.1, 0.9, 0.5, 0.3, 0.3, 0.3, nan, 0.2, nan, nan, 0.7, 0.4])
    groups = torch.arange(12) // 3
    made = paired_up(make_batch([1] * 12, [2] * 12, rewards_B=rewards, group_B=groups))
    names = [sample - 40 for sample in made.samples.sample_B.tolist()]
    assert names[:4] == [1, 0, 10, 11]  # group 1 is flat, group 2 has one reward
    assert sorted(names) == list(range(12))
    assert made.trained_BT.any(1).tolist() == [True] * 4 + [False] * 8
    assert made.signals.metrics == {"pairs": 2, "groups_without_pair": 2}
    assert made.packing.paired


def test_a_sample_that_is_not_trained_on_is_in_no_pair() -> None:
    excluded = torch.tensor([True, False, False])
    batch = make_batch([1] * 3, [2] * 3, rewards_B=torch.tensor([1.0, 0.5, 0.0]), group_B=torch.zeros(3).long())
    assert paired_up(batch.with_signals(excluded_B=excluded)).samples.sample_B.tolist() == [41, 42, 40]


def test_a_task_without_pairs_is_refused_and_one_with_pairs_read() -> None:
    def config(task: str) -> Any:
        return check_config({"method": {"name": "dpo"}, "data": {"task": task}}, "my.yaml")

    with pytest.raises(UserError, match="the task 'colors' has no preference pairs"):
        load_data(config("colors"))
    data = load_data(config("instructions"))
    assert (len(data.train), len(data.held_out)) == (436, 122)
    assert all(row["chosen"] == f" {row['answer']}" != row["rejected"] for row in data.train)


def test_pairs_of_runs_of_earlier_versions_keep_their_space() -> None:
    """Their folders have rows without it, and no `space_pairs`."""
    given = {"method": {"name": "dpo"}, "data": {"train": "rows.jsonl"}}
    old, new = (check_config(given, "my.yaml", stored=stored).data.space_pairs for stored in (True, False))
    assert (old, new) == (True, False)
    rows = [{"prompt": "say", "chosen": "yes", "rejected": " no"}, {"prompt": "say ", "chosen": "a", "rejected": "b"}]
    read = [PairReader(spaced=True)(row, "row 1") for row in rows]
    assert [(row["chosen"], row["rejected"]) for row in read if row] == [(" yes", " no"), ("a", "b")]
    assert [PairReader()(row, "row 1") for row in rows] == rows
