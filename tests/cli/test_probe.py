"""`validate --probe`: what it counts, by hand, and which rule says what."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM

from support.command_line import vigneron, write_recipe
from support.tiny_models import byte_tokenizer
from vigneron.commands.probe import mixed_share, probe_lines, suggestions
from vigneron.config import Config
from vigneron.policy.token_boundaries import answer_lengths
from vigneron.recipe import check_config
from vigneron.training.probe import Probe, Sampled

PLAIN = Probe(
    prompts=32,
    groups=32,
    group_size=8,
    hits=64,
    checked=256,
    hits_by_prompt=(2,) * 32,
    reward=0.25,
    missed=0.0,
    spread=0.4,
    flat=0.1,
    cut=0.0,
    lines=math.nan,
    echoed=0.0,
    answers_echo=0.0,
    answer_tokens=3,
    answer_words=1,
    multiline=False,
    pays_empty=0.0,
    pays_echo=0.1,
    pays_answer=1.0,
)


def config_of(reward: Any = "binary", **changes: Any) -> Config:
    recipe = {"method": {"name": "grpo"}, "data": {"train": "r.jsonl"}, "reward": reward, "prompts_per_step": 4}
    return check_config({**recipe, "group_size": 8, "max_new_tokens": 8, **changes}, "test")


def said(probe: Probe, config: Config) -> str:
    return "\n".join(suggestions(probe, config))


def test_nothing_to_change() -> None:
    """p0 = 1/4 of 32 samples a step: 8 hits, and 1 − ¼⁸ − ¾⁸ = 0.90 of the groups hold a hit and a miss."""
    assert mixed_share(0.25, 8) == pytest.approx(1 - 0.25**8 - 0.75**8)
    assert said(PLAIN, config_of()) == ""
    assert [*probe_lines(PLAIN, config_of())][-1] == "  suggests: nothing to change"


def test_which_reward() -> None:
    """No hit among 256: p0 is below 0.0148 (Wilson), so 32 samples have fewer than 0.48 hits, and 128 up to 1.9."""
    none = replace(PLAIN, hits=0, hits_by_prompt=(0,) * 32)
    assert none.interval[1] == pytest.approx(1.96**2 / (256 + 1.96**2))
    assert "even the upper bound of p0 gives 0.47 hits in a step and 47 in 100 steps" in said(none, config_of())
    assert 'embedder: "lexical"}`, a dense reward' in said(none, config_of()), "answers are words"
    several = replace(none, answer_tokens=7, answer_words=4)
    assert "{kind: token_f1}" in said(replace(none, answer_words=2), config_of()), "two short words"
    sentence = said(replace(none, answer_tokens=20, answer_words=14), config_of(max_new_tokens=32))
    assert 'embedder: "minilm"}`, a dense reward' in sentence
    assert "SFT did best" in sentence
    assert "`reward: {kind: token_f1}`, a dense reward, more samples a step, or SFT" in said(several, config_of())
    assert 'embedder: "minilm"}]' in said(several, config_of(prompts_per_step=16)), "annealed with an embedder"
    assert "0.18" not in said(several, config_of())
    some = replace(PLAIN, hits=2, hits_by_prompt=(1, 1) + (0,) * 30)
    assert "it did learn at 0.18 hits a step" in said(some, config_of(prompts_per_step=1))
    assert "annealed" in said(none, config_of(prompts_per_step=16))
    assert said(none, config_of({"kind": "semantic"})) == "", "it is dense"
    assert said(none, config_of({"kind": "semantic"}, prompts_per_step=16)) == "", "of open answers, none is equal"
    own = {"kind": "python", "function": "m:f"}
    assert said(none, config_of(own)) == "", "it tells samples apart"
    assert "a dense reward" in said(replace(none, flat=0.9), config_of(own))
    assert "the check" in said(PLAIN, config_of({"kind": "token_f1"}))
    both = {"kind": "combined", "combine": "annealed", "rewards": [{"kind": "binary"}, {"kind": "token_f1"}]}
    assert said(none, config_of(both, prompts_per_step=16)) == ""
    assert said(replace(PLAIN, hits=0, checked=0, hits_by_prompt=()), config_of()) == ""


def test_nothing_is_said_of_rewards_that_do_not_train_or_may_be_dense() -> None:
    """Distillation and GAD only measure by the reward; a rubric or a function may tell wrong answers apart."""
    none = replace(PLAIN, hits=0, hits_by_prompt=(0,) * 32, pays_empty=1.0)
    assert "another reward" in said(none, config_of())
    for method in ({"name": "distill", "parent": "smollm2-135m"}, {"name": "gad"}):
        assert said(none, config_of(method=method)) == ""
    assert "dense" not in said(none, config_of({"kind": "rubric", "file": "coding"}))
    assert "dense" not in said(none, config_of({"kind": "python", "function": "my:reward"}))


def test_which_group_size() -> None:
    """At p0 = 1/64, groups of 8 are mixed in 12 %, of 64 in 63 %: 1 − (63/64)⁶⁴ = 0.635."""
    rare = replace(PLAIN, hits=4, hits_by_prompt=(1,) * 4 + (0,) * 28)
    line = said(rare, config_of(prompts_per_step=64))
    assert "`group_size: 64`" in line
    assert "12% of groups of 8" in line
    assert "64%" in said(rare, config_of(prompts_per_step=64)) or "63%" in line
    assert "easier prompts" in said(replace(rare, hits=1), config_of(prompts_per_step=512))


def test_which_length_and_stop_text() -> None:
    assert "`max_new_tokens: 13`" in said(replace(PLAIN, answer_tokens=12), config_of())
    cut = replace(PLAIN, cut=0.9, lines=0.8)
    assert 'stop: ["\\n"]' in said(cut, config_of())
    assert "shows where an answer ends" in said(cut, config_of(sampling={"stop": ["\n"]}))
    assert "shows where an answer ends" in said(replace(cut, lines=0.1), config_of())
    assert "stop: [" not in said(replace(cut, multiline=True), config_of())


def test_what_an_echo_and_an_empty_answer_earn() -> None:
    paid = replace(PLAIN, pays_echo=0.7, hits=2, hits_by_prompt=())
    assert "`reward: {kind: semantic, form: contrastive" in said(paid, config_of({"kind": "semantic", "alpha": 2}))
    assert "echo" not in said(replace(paid, answers_echo=1.0), config_of({"kind": "semantic"})), "copying is the task"
    tempting = replace(paid, pays_echo=0.34, reward=0.09)
    assert "samples 0.09 on average" in said(tempting, config_of({"kind": "semantic"})), "less than half, but 4 times"
    assert "echo" not in said(replace(tempting, reward=0.2), config_of({"kind": "semantic"}))
    assert "`reward.temperature`" in said(tempting, config_of({"kind": "semantic", "form": "contrastive"}))
    assert "an empty answer earns 0.60" in said(replace(PLAIN, pays_empty=0.6), config_of())
    assert said(replace(PLAIN, pays_empty=math.nan, pays_echo=math.nan, pays_answer=math.nan), config_of()) == ""


def test_a_dense_reward_that_tells_nothing_apart() -> None:
    flat = replace(PLAIN, flat=0.8, hits=0, checked=0, hits_by_prompt=())
    assert "`debias: false`" in said(flat, config_of({"kind": "probability"}))
    assert "temperature" in said(flat, config_of({"kind": "token_f1"}))
    assert said(replace(flat, flat=0.3), config_of({"kind": "probability"})) == ""


def test_a_reward_that_only_measures_is_left_alone() -> None:
    """Distillation learns from the parent's log-probs."""
    found = replace(PLAIN, hits=0, hits_by_prompt=(), flat=1.0, pays_empty=1.0, answer_tokens=12)
    (line,) = said(found, config_of(method={"name": "distill", "parent": "runs/p"})).splitlines()
    assert line.startswith("`max_new_tokens: 13`")


@pytest.mark.parametrize("hits", [0, 3, 64])
@pytest.mark.parametrize("reward", ["binary", {"kind": "semantic", "alpha": 2, "embedder": "minilm"}])
def test_what_is_suggested_can_be_pasted(hits: int, reward: Any) -> None:
    """A line begins with keys of a recipe: with them it is a recipe again, and they are not suggested once more."""
    found = replace(PLAIN, hits=hits, hits_by_prompt=(), cut=0.5, lines=0.9, answer_tokens=9)

    def keys(config: Config) -> list[str]:
        return [line.split("`")[1] for line in suggestions(found, config) if line.startswith("`")]

    first = keys(config_of(reward))
    assert len(first) >= 2
    pasted = {name: value for key in first for name, value in yaml.safe_load(key).items()}
    assert keys(config_of(**{"reward": reward, **pasted})) == []


def test_the_rubrics_prompts_should_lead_to_hits_that_the_bare_question_does_not() -> None:
    """64 of 256 are right with the prompts."""
    grape = config_of({"kind": "rubric", "file": "coding"}, method={"name": "grape"})
    helped = Sampled(hits=64, checked=256, reward=0.5)
    bare = replace(PLAIN, hits=0, hits_by_prompt=(0,) * 32, flat=1.0, prompted=helped)
    assert "grpo" not in said(bare, grape)
    assert said(bare, grape).startswith("rejection sampling as well, with the rubric's prompt in `sampling.prompt`")
    assert "rejection" not in said(replace(bare, hits=40, hits_by_prompt=()), grape), "0.156 may be 0.206, and 0.25 too"
    assert "contrastive" not in said(bare, grape), "GRAPE needs a rubric"
    line = said(replace(bare, hits=80), grape)
    assert line.startswith("other `generate` prompts in the rubric: p0 is 0.312 for the bare question and 0.250 with")
    assert "other `generate`" in said(replace(bare, prompted=replace(helped, hits=0, reward=0.25)), grape)
    assert "other `generate`" not in said(replace(bare, prompted=replace(helped, hits=0)), grape), "better rewards"
    rubric = config_of({"kind": "rubric", "file": "coding"}, prompts_per_step=16)
    assert "`reward:" not in said(replace(bare, prompted=None), rubric), "not another reward in place of the rubric"
    assert "`method: {name: grpo}` as well" in said(replace(bare, hits=24), grape), "0.064 of 32 samples is 2 hits"
    assert "grpo" not in said(replace(bare, hits=4), grape), "0.006 of 32"
    assert "p0 is" not in said(replace(bare, hits=80, prompted=None), grape)
    assert "p0 is" not in said(replace(bare, prompted=replace(helped, hits=0, checked=0)), grape)


def test_revisions_should_be_right_nearly_as_often_as_first_answers() -> None:
    """1 of 168 is 0.006, its interval ends at 0.033; 32 of 256 is 0.125."""
    grape = config_of({"kind": "rubric", "file": "coding"}, method={"name": "grape"})
    helped, revised = (Sampled(hits=hits, checked=of, reward=0.5) for hits, of in ((32, 256), (1, 168)))
    bare = replace(PLAIN, hits=0, hits_by_prompt=(0,) * 32, prompted=helped, revised=revised)
    assert "other `revise` prompts in the rubric, with worked examples: p0 is 0.006 for revisions" in said(bare, grape)
    assert "revise" not in said(replace(bare, revised=None), grape)
    assert "revise" not in said(replace(bare, revised=replace(revised, hits=10)), grape), "its interval ends at 0.106"
    assert "revise" not in said(replace(bare, prompted=replace(helped, hits=16)), grape), (
        "half of 0.0625 is below 0.033"
    )


def test_which_curriculum() -> None:
    """A quarter of the prompts always right, the rest never: equally hard ones would be so in 10 %."""
    split = replace(PLAIN, hits_by_prompt=(8,) * 8 + (0,) * 24)
    assert "by: success" in said(split, config_of())
    assert "by: success" not in said(split, config_of(curriculum={"by": "success"}))


def table_of(out: str) -> dict[str, list[str]]:
    lines = [line.strip().split("  ", 1) for line in out.splitlines() if line.startswith("  ")]
    return {line[0]: line[1].split() for line in lines if len(line) == 2}


def test_a_model_that_answers_xy(tmp_path: Path, obliging_folder: Path) -> None:
    """By a binary reward: `xy` is right, an empty answer and the echoed prompt are not. At a low temperature every
    sample is a hit, and none is cut."""
    rows = [f'{{"prompt": "say {i}", "answer": "xy"}}\n' for i in range(6)]
    (tmp_path / "xy.jsonl").write_text("".join(rows))
    recipe = write_recipe(
        tmp_path,
        obliging_folder,
        method={"name": "grpo"},
        data={"train": str(tmp_path / "xy.jsonl")},
        group_size=4,
        max_new_tokens=4,
        sampling={"temperature": 0.05},
    )
    answer = vigneron("validate", recipe, "--probe", "--samples", 16)
    assert answer.code == 0, answer.err
    table = table_of(answer.out)
    assert "probe: 16 samples of the untrained model (4 prompts × 4)" in answer.out
    assert table["p0, share of hits"][0] == "1.000"
    assert table["hits in a step of 8"] == ["8.000"]
    assert table["mean reward"] == ["1.000"]
    assert table["spread of rewards in a group"][:1] == ["0.000"]
    assert table["cut by max_new_tokens"] == ["0%"]
    assert "reward of samples without a hit" not in table, "of a check it is 0"
    assert table["echoes of the input"] == ["0%"]
    assert table["reward of an empty answer"] == ["0.000"]
    assert table["reward of the echoed input"] == ["0.000"]
    assert table["reward of the reference answer"] == ["1.000"]


def test_what_samples_without_a_hit_earn(tmp_path: Path, obliging_folder: Path) -> None:
    """`xy` is not `xy z`, and has one of its two words: F1 = 2 · 1 · ½ / 1½."""
    (tmp_path / "xy.jsonl").write_text('{"prompt": "say it", "answer": "xy z"}\n')
    changes: dict[str, Any] = {"data": {"train": str(tmp_path / "xy.jsonl")}, "sampling": {"temperature": 0.05}}
    recipe = write_recipe(tmp_path, obliging_folder, reward={"kind": "token_f1"}, max_new_tokens=4, **changes)
    answer = vigneron("validate", recipe, "--probe", "--samples", 8)
    assert answer.code == 0, answer.err
    table = table_of(answer.out)
    assert table["p0, share of hits"][0] == "0.000"
    assert table["reward of samples without a hit"] == ["0.667"]


HELP = "Write the letter y, and write it again and again, and nothing but it."


@pytest.fixture
def helped_folder(tmp_path: Path, obliging_folder: Path) -> Path:
    """The model that answers `xy`, but from position 40 on, as after a long prompt, `yyyy`."""
    model = AutoModelForCausalLM.from_pretrained(obliging_folder)
    with torch.no_grad():
        model.transformer.wpe.weight[40:, 5] = 10.0
        model.lm_head.weight[byte_tokenizer()("y")["input_ids"][0], 5] = 1.0
    folder = tmp_path / "helped"
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("generate", [HELP, None])
def test_grape_is_sampled_with_the_rubrics_prompts_too(
    tmp_path: Path, helped_folder: Path, generate: str | None
) -> None:
    """`yyyy` is right: never for the bare question, always after the rubric's prompt."""
    item = {"name": "right", "description": "It is.", "flow": "string_check", "reference": "{{ row.answer }}"}
    category = {"items": [item], "revise": "Better.", **({} if generate is None else {"generate": generate})}
    (tmp_path / "rubric.yaml").write_text(yaml.safe_dump({"category_column": None, "categories": {"all": category}}))
    (tmp_path / "y.jsonl").write_text('{"prompt": "say it", "answer": "yyyy"}\n')
    recipe = write_recipe(
        tmp_path,
        helped_folder,
        method={"name": "grape"},
        reward={"kind": "rubric", "file": str(tmp_path / "rubric.yaml")},
        data={"train": str(tmp_path / "y.jsonl")},
        group_size=4,
        max_new_tokens=4,
        sampling={"temperature": 0.05},
    )
    answer = vigneron("validate", recipe, "--probe", "--samples", 64)
    assert answer.code == 0, answer.err
    table = table_of(answer.out)
    assert table["p0, share of hits"][0] == "0.000"
    assert table["mean reward"] == ["0.000"]
    assert ("and as many with the rubric's prompts" in answer.out) is (generate is not None)
    with_prompt = {key: value[0] for key, value in table.items() if "with the prompt" in key}
    wanted = {"p0 with the prompt": "1.000", "mean reward with the prompt": "1.000"}
    assert with_prompt == ({} if generate is None else wanted)
    revised = table.get("p0 of a revision", [None])[0]
    assert revised == ("1.000" if generate is None else None), "after the prompt none is wrong"


def test_an_answer_is_as_long_as_a_completion_that_gives_it() -> None:
    """`xy` takes two tokens, also of a tokenizer that begins every text by one."""
    tokenizer = byte_tokenizer()
    assert answer_lengths(tokenizer, ["xy", " x"]) == [2, 1]
    end = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(f"{end} $A", None, [(end, tokenizer.eos_token_id)])
    assert len(tokenizer("xy")["input_ids"]) == 3
    assert answer_lengths(tokenizer, ["xy", " x"]) == [2, 1]


@pytest.mark.parametrize(
    "reward",
    [
        {"kind": "semantic", "form": "contrastive"},
        {"kind": "probability", "debias": False},
        {"kind": "combined", "combine": "annealed", "rewards": [{"kind": "binary"}, {"kind": "token_f1"}]},
    ],
)
def test_other_rewards_and_a_method_without_groups(tmp_path: Path, obliging_folder: Path, reward: Any) -> None:
    recipe = write_recipe(tmp_path, obliging_folder, reward=reward)
    answer = vigneron("validate", recipe, "--probe", "--samples", 32)
    assert answer.code == 0, answer.err
    assert "probe: 32 samples of the untrained model (2 prompts × 16)" in answer.out, "two groups of 8 each"
    assert "suggests:" in answer.out


def test_refused(tmp_path: Path, obliging_folder: Path) -> None:
    recipe = write_recipe(tmp_path, obliging_folder)
    assert "--samples has no effect without --probe" in vigneron("validate", recipe, "--samples", 16).err
    recipe = write_recipe(tmp_path, obliging_folder, method={"name": "sft"}, reward=None)
    assert "samples nothing" in vigneron("validate", recipe, "--probe").err


def test_an_api_is_asked_only_for_a_number_of_samples(tmp_path: Path, obliging_folder: Path) -> None:
    """Validation itself costs nothing, so a probe that would must say how much."""
    embedded = {"kind": "semantic", "embedder": "text-embedding-3-small"}
    judged = {"kind": "rubric", "file": "explanations", "judge": {"kind": "endpoint", "model": "gpt-4o"}}
    answering = {"kind": "endpoint", "model": "gpt-4o", "instruction": "Answer."}
    for changes, who in (
        ({"reward": embedded}, "the embedder 'text-embedding-3-small'"),
        ({"reward": judged}, "the judge 'gpt-4o'"),
        ({"parent": answering}, "the parent 'gpt-4o'"),
    ):
        recipe = write_recipe(tmp_path, obliging_folder, **changes)
        answer = vigneron("validate", recipe, "--probe")
        assert answer.code != 0
        assert f"--probe sends requests to {who}, which may cost money" in answer.err
        assert "as many again" not in answer.err
    recipe = write_recipe(tmp_path, obliging_folder, reward=judged, method={"name": "grape"}, group_size=4)
    assert "(256 is usual), and as many again with the rubric's prompts" in vigneron("validate", recipe, "--probe").err


@pytest.mark.slow
def test_the_bundled_model_on_antonyms() -> None:
    """`critic-antonyms`: p0 was 0.1 to 0.4 in its runs, and the input is another word than the answer."""
    answer = vigneron("validate", "critic-antonyms", "--probe", "--samples", 64, "model.device=cpu")
    assert answer.code == 0, answer.err
    line = next(line for line in answer.out.splitlines() if "p0, share of hits" in line)
    assert 0.0 < float(line.split("hits")[1].split()[0]) < 0.6
    paid = next(line for line in answer.out.splitlines() if "reward of the reference answer" in line)
    assert float(paid.split()[-1]) == pytest.approx(1.0, abs=1e-3)
