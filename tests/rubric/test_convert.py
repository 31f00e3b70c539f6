"""Other people's formats: what they can hold comes back as it was, and what they cannot is named."""

import json
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vigneron.errors import UserError
from vigneron.rewards.rubric import grape_reward
from vigneron.rubric.formats import healthbench, openai_read, openai_write, verifiers
from vigneron.rubric.formats.convert import Options, convert, rubric_file_text
from vigneron.rubric.formats.openai_messages import to_openai, to_vigneron
from vigneron.rubric.formats.openai_read import weighted_sum
from vigneron.rubric.formats.parts import NoCounterpart, fitting_name
from vigneron.rubric.model import Rubric
from vigneron.rubric.prompts import SCORE
from vigneron.rubric.read import normalised, parse_rubric, read_rubric

# ------------------------------------------------------------------------------------------------ any rubric

visible = st.characters(codec="utf-8", categories=["L", "M", "N", "P", "S"], exclude_characters="{}")
# Space around a text, which a template's end or a block of YAML may change, is not the formats' affair.
texts = st.lists(st.text(visible, min_size=1, max_size=8), min_size=1, max_size=4).map(" ".join)
lines = st.lists(texts, min_size=1, max_size=3).map("\n".join)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,20}", fullmatch=True).map(str.strip)
columns = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: name != "prompt")
weights = st.floats(1e-3, 1e3)


def template(*variables: str) -> st.SearchStrategy[str]:
    pieces = st.one_of(texts, st.sampled_from(variables), columns.map(lambda c: f"{{{{ row.{c} }}}}"))
    return st.lists(pieces, min_size=1, max_size=4).map(" ".join)


prompts = template("{{ response }}", "{{ question }}")
references = template("{{ question }}")
maybe_prompts = st.none() | prompts


def items_of(flow: str, **keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    common = {"name": names, "description": lines, "weight": weights}
    return st.fixed_dictionaries({**common, "flow": st.just(flow), **keys})


judged = items_of("judge", critique=maybe_prompts, score=maybe_prompts)
checks = (
    items_of(
        "string_check",
        operation=st.sampled_from(["equals", "differs", "includes", "includes_any_case"]),
        reference=references,
    )
    | items_of("text_similarity", metric=st.sampled_from(["ratio", "token_f1", "rouge_l"]), reference=references)
    | items_of("semantic", embedder=st.just("text-embedding-3-large"), alpha=st.just(1.0), reference=references)
)


def rubrics(items: st.SearchStrategy[dict[str, Any]], **keys: Any) -> st.SearchStrategy[Rubric]:
    listed = st.lists(items, min_size=1, max_size=4, unique_by=lambda item: item["name"])
    whole = st.dictionaries(names, listed.map(lambda found: {"items": found}), min_size=1, max_size=1)
    return whole.map(lambda categories: Rubric.model_validate({**keys, "categories": categories}))


def items(rubric: Rubric) -> list[dict[str, Any]]:
    (category,) = rubric.categories.values()
    return [item.model_dump() for item in category.items]


def without(found: list[dict[str, Any]], *keys: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in item.items() if key not in keys} for item in found]


@settings(max_examples=20, deadline=None)
@given(
    rubrics(judged | checks | items_of("verify", truth=columns, score=st.none() | template("{{ truth }}"))),
    st.booleans(),
)
def test_our_own_files_come_back_as_they_were(rubric: Rubric, as_json: bool) -> None:
    assert parse_rubric(rubric_file_text(rubric, json_form=as_json), "r", json=as_json) == rubric


@settings(max_examples=30, deadline=None)
@given(rubrics(judged | checks | items_of("verify", truth=columns, score=maybe_prompts)))
def test_openai_and_back(rubric: Rubric) -> None:
    """All but the descriptions of items that no model scores; a single grader has no weight and no category."""
    grader, notices = openai_write.graders_of(rubric, "r")
    json.dumps(grader)
    back, _ = openai_read.rubric_of(grader, "r")
    expected = items(normalised(rubric)[0])
    for ours, theirs in zip(expected, items(back), strict=True):
        assert theirs.pop("weight") == pytest.approx(ours.pop("weight"), rel=1e-9)
        scored = ours["flow"] in ("judge", "verify")
        assert theirs == (ours if scored else {**ours, "description": theirs["description"]})
        assert scored or any("description" in line for line in notices)
    if len(expected) > 1:
        assert list(back.categories) == [fitting_name(name) for name in rubric.categories]


undesired = lines.map(lambda text: healthbench.NOT + text)
met_or_not = st.fixed_dictionaries(
    {
        "name": names,
        "description": lines.filter(lambda text: not text.startswith(healthbench.NOT)) | undesired,
        "weight": weights | st.integers(1, 10),
        "tags": st.lists(texts.filter(lambda tag: not tag.startswith("item:")), max_size=2),
        "flow": st.just("judge"),
        "critique": st.just(healthbench.CRITIQUE),
    }
)


@settings(max_examples=40, deadline=None)
@given(rubrics(met_or_not, category_column="prompt_id"))
def test_healthbench_and_back(rubric: Rubric) -> None:
    text, notices = healthbench.text_of(rubric, "r")
    back, more = healthbench.rubric_of([json.loads(line) for line in text.splitlines()], "r")
    assert back == rubric
    assert not more
    assert notices == [
        "a rubric has no questions: fill in `prompt`, and copy the row for each question of its category"
    ]


choices = st.lists(texts, min_size=2, max_size=5, unique=True)
criteria = st.fixed_dictionaries({"name": names, "text": lines, "weight": weights}, optional={"choices": choices})


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(criteria, min_size=1, max_size=4, unique_by=lambda criterion: criterion["name"]))
def test_verifiers_there_and_back(given: list[dict[str, Any]]) -> None:
    rubric, notices = verifiers.rubric_of({"criteria": given}, "r")
    found, more = verifiers.criteria_of(rubric, "r")
    assert found["criteria"] == [{k: v for k, v in each.items() if v != ["no", "yes"]} for each in given]
    assert not notices
    assert not more
    assert verifiers.rubric_of(found["criteria"], "r")[0] == rubric


# ------------------------------------------------------------------------------------------------ OpenAI's graders

GUIDE = {
    "type": "multi",
    "name": "guide",
    "graders": {
        "exact": {
            "type": "string_check",
            "name": "the exact one!",
            "input": "{{sample.output_text}}",
            "reference": "{{ item.reference_answer }}",
            "operation": "like",
        },
        "near": {
            "type": "text_similarity",
            "name": "near",
            "input": "{{item.parts[0].text}}",
            "reference": "{{sample.output_text}}",
            "evaluation_metric": "fuzzy_match",
            "pass_threshold": 0.9,
        },
        "scored": {
            "type": "score_model",
            "name": "scored",
            "model": "o4-mini",
            "range": [1, 5],
            "sampling_params": {"seed": 1},
            "input": [
                {"role": "system", "content": "Grade strictly."},
                {"role": "user", "content": [{"type": "input_text", "text": "{{ item.q }}: {{ sample.output_text }}"}]},
            ],
        },
        "labelled": {
            "type": "label_model",
            "name": "labelled",
            "model": "o3-mini",
            "labels": ["good", "fair", "bad"],
            "passing_labels": ["good", "fair"],
            "input": [{"role": "user", "content": "Classify {{ sample.output_text }}."}],
        },
        "ran": {"type": "python", "name": "ran", "source": "def grade(sample, item):\n    return 1.0"},
        "far": {
            "type": "text_similarity",
            "name": "far",
            "input": "{{ sample.output_text }}",
            "reference": "x",
            "evaluation_metric": "bleu",
        },
        "field": {
            "type": "string_check",
            "name": "field",
            "input": "{{ sample.output_json.name }}",
            "reference": "x",
            "operation": "eq",
        },
        "unused": {
            "type": "string_check",
            "name": "unused",
            "input": "{{ sample.output_text }}",
            "reference": "x",
            "operation": "eq",
        },
    },
    "calculate_output": "(2 * exact + near + scored / 2 + 0.5*labelled + ran + far + field) / 4 + 1",
}


def test_every_kind_of_grader() -> None:
    rubric, notices = openai_read.rubric_of(GUIDE, "g.json")
    assert rubric.category_column is None
    assert list(rubric.categories) == ["guide"]
    found = {item["name"]: item for item in items(rubric)}
    assert {name: item["weight"] for name, item in found.items()} == {
        "the exact one-": 0.5,
        "near": 0.25,
        "scored": 0.125,
        "labelled": 0.125,
    }
    exact, near, scored, labelled = found.values()
    assert (exact["operation"], exact["reference"]) == ("includes", "{{ row.reference_answer }}")
    assert (near["metric"], near["reference"]) == ("ratio", "{{ row.parts[0].text }}")
    assert scored["score"] == (
        "Grade strictly.\n\n{{ row.q }}: {{ response }}\n\n"
        "Where a score from 1 to 5 is asked for above: 1 is 0 here, and 5 is 1."
    )
    assert "Grade strictly." in scored["critique"]
    assert "good; fair; bad. The score is 1 for: good; fair." in labelled["score"]
    said = "\n".join(notices)
    for line in (
        "the constant 1 of calculate_output is left out",
        "'the exact one!' is renamed to 'the exact one-'",
        "'near': `pass_threshold` is left out",
        "'scored': its model 'o4-mini' is not part of a rubric",
        "'scored': `sampling_params` is left out",
        "the grader 'ran' is left out: its source is not executed",
        "the grader 'far' is left out: `bleu` has no counterpart",
        "the grader 'field' is left out: `{{ sample.output_json.name }}` has no counterpart in a rubric",
        "the grader 'unused' is left out: its weight in `calculate_output` is 0",
    ):
        assert line in said
    check = rubric_file_text(rubric, json_form=False)
    assert parse_rubric(check, "again") == rubric


@pytest.mark.parametrize(
    ("formula", "weights"),
    [
        ("(a + b) / 2", {"a": 0.5, "b": 0.5}),
        ("0.3*a - -0.7 * b", {"a": 0.3, "b": 0.7}),
        ("2 * (a + 3) - a", {"a": 1.0, "": 6.0}),
    ],
)
def test_a_weighted_sum(formula: str, weights: dict[str, float]) -> None:
    assert weighted_sum(formula, ["a", "b"], "g") == weights


@pytest.mark.parametrize(
    ("formula", "why"),
    [
        ("min(a, b)", "it calls `min`"),
        ("a * b", "only sums"),
        ("a ^ 2", "only sums"),
        ("a / b", "only sums"),
        ("a + c", "there is no grader 'c'"),
        ("a +", "cannot be parsed"),
        ("a / 0", "cannot be parsed"),
        ("(" * 5000 + "a", "cannot be parsed"),
        ("__import__('os')", "it calls `__import__`"),
        ("", "cannot be parsed"),
    ],
)
def test_what_is_no_weighted_sum_is_refused(formula: str, why: str) -> None:
    with pytest.raises(UserError, match="is not a weighted sum") as caught:
        weighted_sum(formula, ["a", "b"], "g.json")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ([], "a grader must be a JSON object with a `type`"),
        ({"type": "multi", "graders": {}}, "a multi grader needs `graders`"),
        ({"type": "endpoint"}, "nothing can be converted: the grader 'grader' is left out: `type: endpoint`"),
        ({**GUIDE, "calculate_output": "exact - near"}, "calculate_output subtracts 'near'"),
        ({"type": "string_check", "input": 1, "reference": "a", "operation": "eq"}, "needs strings `input`"),
        ({"type": "score_model", "input": [{"role": "user", "content": {"image_url": 1}}]}, "that is not text"),
        ({"type": "score_model", "input": [{"role": "user", "content": "{% if x %}"}]}, "it contains `{%`"),
        ({"type": "score_model", "input": "x", "range": [1, 0]}, "its `range` from 1 to 0 is empty"),
    ],
)
def test_graders_that_cannot_be_read(given: Any, line: str) -> None:
    with pytest.raises(UserError) as caught:
        openai_read.rubric_of(given, "g.json")
    assert line in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_what_openai_has_no_word_for() -> None:
    grader, notices = openai_write.graders_of(read_rubric("explanations"), "explanations")
    assert list(grader["graders"]) == ["correct", "simple_words", "answers_the_question"]
    assert grader["graders"]["correct"]["input"][-1]["content"].count("<truth>\n{{ item.answer }}\n</truth>") == 1
    said = "\n".join(notices)
    for name, flow in (("right length", "length"), ("no padding", "regex"), ("whole sentences", "regex")):
        assert f"'{name}' is left out: `flow: {flow}` has no counterpart" in said
    for what in ("`generate` is left out", "`revise` is left out", "`tags` is left out", openai_write.DEFAULT_MODEL):
        assert what in said
    chosen, notices = openai_write.graders_of(read_rubric("explanations"), "explanations", model="mine")
    assert {each["model"] for each in chosen["graders"].values()} == {"mine"}
    assert openai_write.DEFAULT_MODEL not in "\n".join(notices)


def test_templates_that_are_more_than_variables() -> None:
    (item,) = (
        Rubric.model_validate(
            {"categories": {"c": {"items": [{"name": "n", "description": "d", "flow": "length", "at_most": 3}]}}}
        )
        .categories["c"]
        .items
    )
    assert to_openai('{{ item.name }} {{item.description}} {{ row["a"].b[0] }}', item) == "n d {{ item.a.b[0] }}"
    for text in ("{% if row.a %}x{% endif %}", "{{ row.a | lower }}", "{{ critique }}", "{# c #}", '{{ row["a b"] }}'):
        with pytest.raises(NoCounterpart):
            to_openai(text, item)
    for text in ("{{ sample.choices }}", "{{ x }}", "{{ item._a }}", "{{ item.a | lower }}", "{{", "{# c #}"):
        with pytest.raises(NoCounterpart):
            to_vigneron(text)


KEYS = ["type", "name", "input", "reference", "operation", "graders", "calculate_output", "range", "labels", "model"]
KEYS += [
    "criteria",
    "text",
    "weight",
    "choices",
    "prompt_id",
    "rubrics",
    "criterion",
    "points",
    "tags",
    "role",
    "content",
]
WORDS = [
    "multi",
    "string_check",
    "score_model",
    "label_model",
    "eq",
    "{{ sample.output_text }}",
    "a",
    "a + 1",
    "{{",
    "",
]
leaves = st.none() | st.booleans() | st.floats() | st.integers() | st.sampled_from(WORDS) | st.text(max_size=5)
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=15,
)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(anything, st.dictionaries(st.sampled_from(KEYS), anything, max_size=6))
def test_whatever_a_file_holds_is_read_or_refused(given: Any, held: dict[str, Any]) -> None:
    multi = {"type": "multi", "graders": {"a": {"type": "string_check", **held}}, "calculate_output": "a"}
    for read, data in (
        (openai_read.rubric_of, given),
        (openai_read.rubric_of, multi),
        (openai_read.rubric_of, {"type": "score_model", **held}),
        (openai_read.rubric_of, {"type": "label_model", "labels": ["a"], "passing_labels": ["a"], "input": given}),
        (verifiers.rubric_of, given),
        (verifiers.rubric_of, [{"name": "n", "text": "t", **held}]),
        (healthbench.rubric_of, [{"prompt_id": "p", "rubrics": [{"criterion": "c", "points": 1, **held}]}]),
        (healthbench.rubric_of, [held]),
    ):
        rubric = None
        with suppress(UserError):
            rubric, _ = read(data, "f")
        for as_json in (False, True) if rubric else ():
            rubric_file_text(rubric, json_form=as_json).encode()


# ------------------------------------------------------------------------------------------------ HealthBench


def example(*points: float, **keys: Any) -> dict[str, Any]:
    rubrics = [{"criterion": f"c{n}", "points": p, "tags": ["axis:accuracy"]} for n, p in enumerate(points)]
    return {"prompt_id": "1f548d5b-cd00", "prompt": [{"role": "user", "content": "?"}], "rubrics": rubrics, **keys}


def test_points_below_zero_keep_the_order_of_answers() -> None:
    """By HealthBench's own formula, over every way to meet or miss the criteria."""
    points = (7, 5, -8, 2, -3)
    rubric, _ = healthbench.rubric_of([example(*points)], "h")
    (category,) = normalised(rubric)[0].categories.values()
    met = list(product((0.0, 1.0), repeat=len(points)))
    theirs = [sum(p for p, m in zip(points, each, strict=True) if m) / 14 for each in met]
    turned = [[1 - m if p < 0 else m for p, m in zip(points, each, strict=True)] for each in met]
    scores = torch.tensor(turned, dtype=torch.float64)
    weights = torch.tensor([item.weight for item in category.items], dtype=torch.float64)
    ours = grape_reward(scores, torch.ones_like(scores), weights)
    expected = torch.tensor([(14 * score + 11) / 25 for score in theirs], dtype=torch.float64)
    torch.testing.assert_close(ours, expected)
    assert [item.description.startswith(healthbench.NOT) for item in category.items] == [p < 0 for p in points]


def test_the_rows_are_the_dataset() -> None:
    row = example(3, 0, -1)
    row["rubrics"][0]["tags"] = {"axis": "accuracy"}
    rubric, notices = healthbench.rubric_of([row], "h")
    assert rubric.category_column == "prompt_id"
    assert [(item["name"], item["tags"]) for item in items(rubric)] == [
        ("criterion 1", ("axis:accuracy",)),
        ("criterion 3", ("axis:accuracy",)),
    ]
    assert notices == ["h, row 1: 'criterion 2' is left out: its points are 0"]


def test_one_generic_item_for_many_examples() -> None:
    rows = [example(1, prompt_id=f"p{n}") for n in range(101)]
    with pytest.raises(UserError, match="has 101 examples, each a category, and a rubric has at most 100"):
        healthbench.rubric_of(rows, "h")
    rubric, notices = healthbench.rubric_of(rows, "h", generic=True)
    assert len(items(rubric)) == 1
    assert len(notices) == 1
    assert parse_rubric(rubric_file_text(rubric, json_form=False), "r") == rubric


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([], "has no rows"),
        ([example(1), example(1)], "row 2: duplicate prompt_id '1f548d5b-cd00'"),
        ([{**example(1), "prompt_id": 3}], "row 1: `prompt_id` must be a category's name"),
        ([{"prompt_id": "p"}], "row 1 has no list of {criterion, points, tags}"),
        ([{**example(), "rubrics": [{"criterion": "c", "points": "3"}]}], "row 1: a criterion needs a string"),
        ([example(0)], "nothing can be converted"),
    ],
)
def test_rows_that_cannot_be_read(rows: list[Any], line: str) -> None:
    with pytest.raises(UserError) as caught:
        healthbench.rubric_of(rows, "h")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------ verifiers, and files


def test_choices_become_levels_of_the_score() -> None:
    given = [{"name": "a", "text": "t", "choices": ["bad", "fair", "good"]}, {"name": "b", "text": "t", "weight": 0}]
    rubric, notices = verifiers.rubric_of(given, "v")
    (item,) = items(rubric)
    assert item["score"].endswith("- bad = 0\n- fair = 0.5\n- good = 1")
    assert item["score"].startswith(SCORE)
    assert notices == ["'b' is left out: its weight is 0"]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, "no list of `criteria`"),
        ([{"name": "a"}], "criterion 1 needs strings `name` and `text`"),
        ([{"name": "a", "text": "t", "weight": -1}], "`weight` must be a number of at least 0, not -1"),
        ([{"name": "a", "text": "t", "choices": ["x", "x"]}], "`choices` must be two or more distinct strings"),
    ],
)
def test_criteria_that_cannot_be_read(given: Any, line: str) -> None:
    with pytest.raises(UserError, match="v") as caught:
        verifiers.rubric_of(given, "v")
    assert line in str(caught.value)


def test_a_truth_is_shown_by_their_config() -> None:
    found, notices = verifiers.criteria_of(read_rubric("explanations"), "e")
    assert [each["name"] for each in found["criteria"]] == ["correct", "simple words", "answers the question"]
    assert "'correct': set `answer_field: answer` so that verifiers' judge sees the truth" in notices
    assert "the prompts of 'simple words' is left out: a criterion is a single text" in notices


def test_toml_too(tmp_path: Path) -> None:
    file = tmp_path / "criteria.toml"
    file.write_text('[[criteria]]\nname = "a"\ntext = "It is so."\nweight = 2\n', encoding="utf-8")
    text, notices = convert(file, "verifiers", tmp_path / "r.yaml", "vigneron", Options())
    assert items(parse_rubric(text, "r"))[0]["description"] == "It is so."
    assert not notices
    file.write_text("x = ", encoding="utf-8")
    with pytest.raises(UserError, match="not valid TOML"):
        convert(file, "verifiers", tmp_path / "r.yaml", "vigneron", Options())


def test_names_of_every_script_fit() -> None:
    for text, name in (("Erklärung", "Erklärung"), ("数学: 1/2", "数学- 1-2"), ("__ क्या?", "क्या-"), ("?!", "item")):
        assert fitting_name(text) == name
