"""A local judge: a model whose every probability is known, and one whose rounding is not."""

import json
import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig

from support.tiny_models import byte_tokenizer
from vigneron.config.judges import LocalJudgeConfig
from vigneron.errors import UserError
from vigneron.rewards.graders.models import JudgeGrader
from vigneron.rubric.model import JudgeItem, VerifyItem
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import Conversation, Judge, JudgePrompts, build_judge
from vigneron.sources.local_judge import one_token_ids
from vigneron.sources.local_model import LocalModel
from vigneron.sources.verdict import GraderInput, Verdict

OPENS, HIGH, LOW, ENDS = '{"reasoning": "so", "score": ', "0.75", "0.25", ', "confidence": 0.5}'
YES, NO = ("yes", " Yes"), ("no",)
WIDTH, CONTEXT = 16, 2048


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With its layers at zero a GPT-2 is a table: OPENS follows anything, then comes HIGH or LOW, then ENDS and the
    end. Ways to write yes and no are likely beside OPENS."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([OPENS, HIGH, LOW, ENDS, *YES, *NO])
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=CONTEXT, n_embd=WIDTH, n_layer=1, n_head=2, bos_token_id=0,
        eos_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    token = {text: tokenizer.convert_tokens_to_ids(text) for text in (OPENS, HIGH, LOW, ENDS, *YES, *NO)}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.transformer.ln_f.weight.fill_(1.0)
        model.transformer.wte.weight[:, 0] = 1.0
        for feature, texts in ((1, (OPENS,)), (2, (HIGH, LOW)), (3, (ENDS,))):
            for text in texts:
                model.transformer.wte.weight[token[text]] = torch.eye(WIDTH)[feature]
        head = model.lm_head.weight
        for text, weight in ((OPENS, 5.0), ("yes", 2.0), (" Yes", 1.5), ("no", 1.0)):
            head[token[text], 0] = weight
        head[token[HIGH], 1], head[token[LOW], 1] = 3.0, 2.8
        head[token[ENDS], 2] = head[0, 3] = 5.0
    folder = tmp_path_factory.mktemp("models") / "scripted"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def local(model: Path | str, folder: Path, **keys: Any) -> Judge:
    config = LocalJudgeConfig(kind="local", model=str(model), **{"max_tokens": 6, **keys})
    return build_judge(config, cache=AnswerCache(folder / "answers.sqlite"), device="cpu")


def asking(word: str, *, critique: bool = False) -> JudgePrompts:
    def score(said: str) -> Conversation:
        return ("user", f"{word}|{said}"), ("assistant", "Yes?"), ("user", "Score it.")

    return JudgePrompts((("user", word),) if critique else None, score)


def log_softmax(model: Path, text: str) -> torch.Tensor:
    """By transformers alone, of what follows a text."""
    ids = AutoTokenizer.from_pretrained(model)(text, return_tensors="pt").input_ids
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(model)(ids).logits[0, -1].double().log_softmax(-1)


def scores(found: Sequence[Verdict]) -> list[float | None]:
    return [each.score for each in found]


def test_it_writes_a_critique_then_a_verdict_and_both_are_kept(tmp_path: Path, scripted: Path) -> None:
    words = [f"w{i}" for i in range(40)]
    judge = local(scripted, tmp_path)
    judge.preflight()
    found = judge.verdicts([asking(word, critique=True) for word in words])
    written = OPENS + HIGH + ENDS
    assert {(v.score, v.confidence, v.reasoning, v.critique) for v in found} == {(0.75, 0.5, "so", written)}
    assert (judge.calls, judge.cached, judge.overlaps) == (80, 0, False)
    assert judge.name.startswith(f"{scripted}@sha256:")
    assert found[0].tokens_out == 8, "three tokens and the end, twice"
    again = local(scripted, tmp_path)
    assert scores(again.verdicts([asking(word, critique=True) for word in words])) == scores(found)
    assert (again.calls, again.cached) == (0, 80)


def test_its_own_probability_of_the_number(tmp_path: Path, scripted: Path) -> None:
    (found,) = local(scripted, tmp_path, confidence="logprob").verdicts([asking("a")])
    tokenizer = AutoTokenizer.from_pretrained(scripted)
    expected = log_softmax(scripted, "user: a\n" + OPENS)[tokenizer.convert_tokens_to_ids(HIGH)].exp()
    assert (found.score, found.confidence) == (0.75, pytest.approx(float(expected), rel=1e-5))
    assert 0.4 < found.confidence < 0.7
    again = local(scripted, tmp_path, confidence="logprob")
    assert again.verdicts([asking("a")])[0].confidence == found.confidence
    assert again.cached == 1


def test_agreement_draws_differ_and_are_the_same_every_time(tmp_path: Path, scripted: Path) -> None:
    words = [f"w{i}" for i in range(12)]
    keys: dict[str, Any] = {"confidence": "agreement", "samples": 8, "temperature": 0.5}
    found = local(scripted, tmp_path, **keys).verdicts([asking(word) for word in words])
    assert None not in scores(found)
    assert len(set(scores(found))) > 2, "draws differ from question to question"
    high = [round((v.score - 0.25) * 16) for v in found]  # how many of the eight said 0.75
    for count, v in zip(high, found, strict=True):
        p = count / 8
        assert v.score == pytest.approx(0.25 + 0.5 * p)
        assert v.confidence == pytest.approx(1 - 2 * 0.5 * math.sqrt(p * (1 - p)))
    # At temperature 0.5 HIGH is some 0.7 likely: of 96 draws, never all and never few.
    assert 48 < sum(high) < 92
    (tmp_path / "other").mkdir()
    backwards = local(scripted, tmp_path / "other", **keys).verdicts([asking(word) for word in reversed(words)])
    assert scores(backwards) == scores(found)[::-1]


def test_yes_against_no_by_hand(tmp_path: Path, scripted: Path) -> None:
    judge = local(scripted, tmp_path, reads="yes_no")
    judge.preflight()
    (found,) = judge.verdicts([asking("a")])
    # e₀ through a layer norm of width 16: √15 at its place. The head's weights there are 2 and 1.5 against 1; what else
    # writes yes or no in one token is nothing.
    yes = math.exp(2 * math.sqrt(15)) + math.exp(1.5 * math.sqrt(15))
    p = yes / (yes + math.exp(math.sqrt(15)))
    assert found.score == pytest.approx(p, abs=1e-4)
    assert found.confidence == pytest.approx(2 * p - 1, abs=2e-4)
    assert found.reasoning == f"the probability of yes against no is {p:.3f}"
    again = local(scripted, tmp_path, reads="yes_no")
    assert again.verdicts([asking("a")])[0].score == found.score
    assert (again.calls, again.cached) == (0, 1)


JUDGED = JudgeItem(name="kind", description="It is kind.", flow="judge", critique="You are a critic.")
VERIFIED = VerifyItem(name="right", description="It is right.", flow="verify")


@pytest.mark.parametrize("item", [JUDGED, VERIFIED], ids=["judge", "verify"])
@pytest.mark.parametrize("reads", ["json", "yes_no"])
def test_what_the_model_reads_ends_with_one_question_only(
    tmp_path: Path, scripted: Path, monkeypatch: pytest.MonkeyPatch, item: JudgeItem | VerifyItem, reads: str
) -> None:
    read: list[str] = []
    render = LocalModel.prompts

    def heard(model: LocalModel, conversations: Sequence[Any]) -> list[tuple[int, ...]]:
        found = render(model, conversations)
        read.extend(model.policy.tokenizer.decode(ids) for ids in found)
        return found

    monkeypatch.setattr(LocalModel, "prompts", heard)
    judge = local(scripted, tmp_path, reads=reads)
    (verdict,) = JudgeGrader(item, judge)([GraderInput("q", "Hello, friend.", {"answer": "Hello."})])
    assert verdict.score is not None
    assert judge.score_format == reads
    last = read[-1]
    assert "Hello, friend." in last
    if reads == "yes_no":
        assert last.endswith("Is the criterion met? Reply with one word, yes or no.\nanswer: ")
        assert "JSON" not in last
    else:
        assert last.endswith("how sure you are of the score.\nanswer: ")
        assert last.count("JSON") == 1
        assert "yes or no" not in last


def test_ways_to_write_a_word_in_one_token(scripted: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(scripted)
    assert one_token_ids(tokenizer, "yes") == sorted(tokenizer.convert_tokens_to_ids(list(YES)))
    assert one_token_ids(byte_tokenizer(), "yes") == []


def test_a_model_without_such_a_token_is_refused(tmp_path: Path, obliging_folder: Path) -> None:
    with pytest.raises(
        UserError, match=r"^reward\.judge\.reads: '.*' has no single token for `yes`: set `reads: json`"
    ):
        local(obliging_folder, tmp_path, reads="yes_no").preflight()


def test_a_judge_that_cannot_write_json_is_missing_never_zero(tmp_path: Path, obliging_folder: Path) -> None:
    judge = local(obliging_folder, tmp_path)
    (found,) = judge.verdicts([asking("a")])
    assert (found.score, found.why) == (None, "its reply 'xy': it was not one JSON object and nothing else")
    assert judge.calls == 2, "asked once more"
    assert judge.complete([(("user", "a"),)]) == ["xy"]
    (cut,) = local(obliging_folder, tmp_path, max_tokens=1).verdicts([asking("a")])
    assert "it was cut after 1 tokens (`reward.judge.max_tokens`)" in cut.why


def test_what_is_too_long_is_missing_alone(tmp_path: Path, scripted: Path) -> None:
    for reads in ("json", "yes_no"):
        short, long = local(scripted, tmp_path, reads=reads).verdicts([asking("a"), asking("x" * CONTEXT)])
        assert short.score is not None
        assert long.score is None
        assert long.why.startswith("does not fit: ")


def test_a_model_that_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^reward\.judge\.model: '/no/such' is not a folder"):
        local("/no/such", tmp_path)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama that is large enough for a row's rounding to depend on the rows beside it."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([*YES, *NO])
    torch.manual_seed(0)
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(tokenizer), **shape, initializer_range=0.2, bos_token_id=0, eos_token_id=0)
    folder = tmp_path_factory.mktemp("models") / "wide"
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_killed_and_resumed_it_comes_to_the_same_numbers_to_the_last_bit(tmp_path: Path, wide: Path) -> None:
    """What is kept of a batch changes nothing in the rest of it."""
    asked = [asking(word * 4) for word in ("ab", "cde", "fghi", "jklmn", "o")]
    found = local(wide, tmp_path / "whole", reads="yes_no").verdicts(asked)
    alone = [local(wide, tmp_path / str(i), reads="yes_no").verdicts([each])[0] for i, each in enumerate(asked[:3])]
    assert scores(alone) == pytest.approx(scores(found[:3]), abs=1e-4)
    assert scores(alone) != scores(found[:3]), "rounding does depend on who is beside whom"
    store = sqlite3.connect(tmp_path / "whole" / "answers.sqlite")
    rows = store.execute("SELECT key, value FROM answers ORDER BY rowid").fetchall()
    for kept in (rows[:1], rows[1::2]):
        cache = AnswerCache(tmp_path / str(len(kept)) / "resumed.sqlite")
        for key, value in kept:
            cache.put(key, json.loads(value)["answer"], str(wide))
        config = LocalJudgeConfig(kind="local", model=str(wide), max_tokens=6, reads="yes_no")
        resumed = build_judge(config, cache=cache, device="cpu")
        assert scores(resumed.verdicts(asked)) == scores(found)
        assert resumed.cached == len(kept)
