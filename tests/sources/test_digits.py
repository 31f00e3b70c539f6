"""d-RLAIF's `reads: digits`: the expected digit, by hand, of a local model and of an endpoint."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedTokenizerFast

from support.servers import Seen, Sent, chat, serving
from support.tiny_models import byte_tokenizer, smollm2_tokenizer
from support.tiny_runs import tiny_config, write_data
from vigneron.api import train
from vigneron.config.judges import EndpointJudgeConfig, LocalJudgeConfig
from vigneron.errors import UserError
from vigneron.rewards.graders.models import JudgeGrader
from vigneron.rubric.model import JudgeItem
from vigneron.rubric.prompts import score_messages
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.judges import Judge, JudgePrompts, build_judge
from vigneron.sources.local_judge import digit_tokens
from vigneron.sources.reply_parsing import UnparsableReply, digit_probabilities, parse_digits
from vigneron.sources.verdict import GraderInput

WIDTH = 16
SCALE = math.sqrt(WIDTH - 1)
"""A unit vector after a layer norm of width 16."""
WEIGHTS = {"1": 0.5, "7": 1.0, "9": 0.75}
ZERO_AFTER_ONE = 1.0


def digit_model(folder: Path, tokenizer: PreTrainedTokenizerFast, weights: dict[str, float]) -> Path:
    """A GPT-2 with its layers at zero is a table: after anything, the tokens have these logits (times SCALE); after 1,
    the token 0 has ZERO_AFTER_ONE and all others 0."""
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=2048, n_embd=WIDTH, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    ids = {text: tokenizer.convert_tokens_to_ids(text) for text in ("0", "1", *weights)}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.transformer.ln_f.weight.fill_(1.0)
        model.transformer.wte.weight[:, 0] = 1.0
        model.transformer.wte.weight[ids["1"]] = torch.eye(WIDTH)[1]
        for text, weight in weights.items():
            model.lm_head.weight[ids[text], 0] = weight
        model.lm_head.weight[ids["0"], 1] = ZERO_AFTER_ONE
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def local(model: Path, folder: Path) -> Judge:
    config = LocalJudgeConfig(kind="local", model=str(model), reads="digits")
    return build_judge(config, cache=AnswerCache(folder / "answers.sqlite"), device="cpu")


QUESTION = JudgePrompts(None, lambda critique: (("user", "How good?"),))


def expected(weights: list[float]) -> float:
    """Σ i·P(i) over 1 to 10, rescaled: by plain loops."""
    total, mean = sum(weights), 0.0
    for place, weight in enumerate(weights):
        mean += (place + 1) * weight / total
    return (mean - 1) / 9


def test_the_expected_digit_of_a_tokenizer_that_splits_ten(tmp_path: Path) -> None:
    judge = local(digit_model(tmp_path / "model", byte_tokenizer(), WEIGHTS), tmp_path)
    judge.preflight()
    assert judge.score_format == "digits"
    (found,) = judge.verdicts([QUESTION])
    # Logits are w·√15 (a layer norm with ε = 1e-5) and 0 for every other token. 1 is followed by 0 with the probability
    # e^√15 / (e^√15 + the rest): so often it is 10.
    mass = [math.exp(SCALE * WEIGHTS.get(str(digit), 0.0)) for digit in range(1, 10)]
    rest = len(byte_tokenizer()) - 1
    becomes_ten = math.exp(SCALE) / (math.exp(SCALE) + rest)
    weights = [mass[0] * (1 - becomes_ten), *mass[1:], mass[0] * becomes_ten]
    assert found.score == pytest.approx(expected(weights), abs=1e-4)
    assert found.reasoning == f"the expected digit is {1 + 9 * found.score:.2f} of 10"
    again = local(tmp_path / "model", tmp_path)
    assert again.verdicts([QUESTION])[0].score == found.score
    assert (again.calls, again.cached) == (0, 1)


def test_the_expected_digit_of_a_tokenizer_that_has_ten(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["10"])
    weights = {**WEIGHTS, "10": 1.25}
    (found,) = local(digit_model(tmp_path / "model", tokenizer, weights), tmp_path).verdicts([QUESTION])
    by_hand = expected([math.exp(SCALE * weights.get(str(digit), 0.0)) for digit in range(1, 11)])
    assert found.score == pytest.approx(by_hand, abs=1e-4), "and nothing of 1 goes to 10"


def test_how_tokenizers_write_ten() -> None:
    """The bundled model's tokenizer splits numbers into digits."""
    tokens = digit_tokens(smollm2_tokenizer())
    assert tokens is not None
    assert (tokens.ten, len(tokens.zero)) == ([], 1)
    assert smollm2_tokenizer().decode([tokens.one, *tokens.zero]) == "10"
    assert [smollm2_tokenizer().decode(ids[:1]).strip() for ids in tokens.digits] == list("123456789")


def test_a_judge_without_digits_is_refused_in_one_line(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    digits = set("0123456789")
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    kept = [token for token in state["model"]["vocab"] if token not in digits]
    state["model"]["vocab"] = {token: place for place, token in enumerate(kept)}
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    without = PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), eos_token="<end>", pad_token="<end>"
    )
    without.chat_template = tokenizer.chat_template
    config = GPT2Config(
        vocab_size=len(without), n_positions=64, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    folder = tmp_path / "model"
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    without.save_pretrained(folder)
    with pytest.raises(UserError) as caught:
        local(folder, tmp_path).preflight()
    assert str(caught.value) == (
        f"reward.judge.reads: '{folder}' has no single tokens for the digits 1 to 9: "
        "set `reads: json` or `reads: yes_no`"
    )


# ------------------------------------------------------------------------------------------------ an endpoint


def digits(*places: dict[str, float]) -> Sent:
    """A reply of the likeliest tokens, with the probabilities of each place."""
    best = [max(place, key=place.__getitem__) for place in places]
    sent = chat("".join(best), "length", logprobs=[(b, math.log(p[b])) for b, p in zip(best, places, strict=True)])
    body = json.loads(sent.body)
    for listed, place in zip(body["choices"][0]["logprobs"]["content"], places, strict=True):
        listed["top_logprobs"] = [{"token": t, "logprob": math.log(p), "bytes": None} for t, p in place.items()]
    return Sent(body=json.dumps(body))


def endpoint(url: str, folder: Path, **keys: Any) -> Judge:
    config = EndpointJudgeConfig(kind="endpoint", model="grape", url=url, reads="digits", retries=0, **keys)
    return build_judge(config, cache=AnswerCache(folder / "answers.sqlite"))


@pytest.mark.parametrize(
    ("places", "wanted"),
    [
        ([{"7": 0.6, "8": 0.2, "10": 0.1, "Good": 0.1}], (0.6 * 7 + 0.2 * 8 + 0.1 * 10) / 0.9),
        ([{"\n": 0.9, "3": 0.1}, {"3": 0.5, " 4": 0.5}], 3.5),
        ([{"1": 0.8, "2": 0.2}, {"0": 0.75, "<end>": 0.25}], 0.2 * 1 + 0.2 * 2 + 0.6 * 10),
        ([{"2": 0.8, "1": 0.2}, {"0": 0.75, "<end>": 0.25}], 0.8 * 2 + 0.2 * 1),
    ],
    ids=["one token each", "after a space", "ten in two tokens", "1 is taken for 1 where it was not written"],
)
def test_an_endpoints_expected_digit(tmp_path: Path, places: list[dict[str, float]], wanted: float) -> None:
    with serving(lambda seen, n: digits(*places)) as server:
        judge = endpoint(server.url, tmp_path)
        judge.preflight()
        (found,) = judge.verdicts([QUESTION])
        assert found.score == pytest.approx((wanted - 1) / 9)
        body = server.seen[-1].body
        assert (body["logprobs"], body["top_logprobs"], body["max_tokens"]) == (True, 20, 4)
        assert "response_format" not in body
        again = endpoint(server.url, tmp_path)
        assert again.verdicts([QUESTION])[0] == type(found)(found.score, found.confidence, found.reasoning)
        assert (again.calls, again.cached) == (0, 1)


def test_an_endpoint_that_writes_words_is_asked_once_more_and_then_missing(tmp_path: Path) -> None:
    def script(seen: Seen, before: int) -> Sent:
        return digits({"Quite": 0.9, "Very": 0.1}, {" good": 1.0})

    with serving(script) as server:
        (found,) = endpoint(server.url, tmp_path).verdicts([QUESTION])
        assert found.score is None
        assert found.why == "its reply 'Quite good': it did not begin with a number from 1 to 10"
        assert len(server.seen) == 2
        assert server.inputs[1].endswith("Reply with one whole number from 1 to 10 and nothing before it.")


def test_an_endpoint_without_log_probs_is_refused_at_the_preflight_and_missing_later(tmp_path: Path) -> None:
    with serving(lambda seen, n: chat("7")) as server:
        judge = endpoint(server.url, tmp_path)
        with pytest.raises(
            UserError, match=r"^reward\.judge\.reads: 'grape' at '.*' returns no log-probs .*`reads: js"
        ):
            judge.preflight()
        (found,) = judge.verdicts([QUESTION])
        assert (found.score, found.why) == (None, "its reply came without log-probs of its likeliest tokens")


def test_a_stated_confidence_has_no_effect() -> None:
    with pytest.raises(ValueError, match="with `reads: digits` the confidence is computed from the probability"):
        EndpointJudgeConfig(kind="endpoint", model="m", reads="digits", confidence="logprob")


def test_the_prompt_asks_for_a_number() -> None:
    item = JudgeItem(name="kind", description="It is kind.", flow="judge", critique="You are a critic.")
    *_, (_, asked) = score_messages(item, GraderInput("q", "r"), "c", score_format="digits")
    assert asked.endswith("Reply with one whole number from 1, not at all, to 10, fully, and nothing else.")


def test_an_item_without_a_critique_is_scored_directly(tmp_path: Path) -> None:
    """d-RLAIF: one request, whose prompt speaks of no critique."""
    item = JudgeItem(name="kind", description="It is kind.", flow="judge")
    with serving(lambda seen, n: digits({"7": 0.5, "8": 0.5})) as server:
        (found,) = JudgeGrader(item, endpoint(server.url, tmp_path))([GraderInput("q", "r")])
        assert found.score == pytest.approx(6.5 / 9)
        (seen,) = server.seen
        assert "critique" not in json.dumps(seen.body["messages"])


@pytest.mark.slow
def test_a_run_is_rewarded_with_the_expected_digit(tmp_path: Path, tiny_folder: Path) -> None:
    """The model's digits are the same for every answer, so every reward is the same: the expected digit."""
    (tmp_path / "rubric.yaml").write_text(
        "category_column: null\ncategories: {all: {items: [{name: kind, description: It is kind., flow: judge}]}}"
    )
    judge = {
        "kind": "local",
        "model": str(digit_model(tmp_path / "judge", byte_tokenizer(), WEIGHTS)),
        "reads": "digits",
    }
    reward = {"kind": "rubric", "file": str(tmp_path / "rubric.yaml"), "judge": judge, "normalise": True}
    config = tiny_config(
        tiny_folder,
        write_data(tmp_path),
        method={"name": "grpo"},
        optimizer={"actor_lr": 1e-3},
        reward=reward,
        steps=2,
        eval_every=0,
        save_every=0,
    )
    folder = train(config, name="digits", runs=tmp_path / "runs").folder
    (found,) = local(tmp_path / "judge", tmp_path).verdicts([QUESTION])
    rewards = [json.loads(line)["reward"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rewards == pytest.approx([found.score] * 2, abs=1e-5)
    assert "reads: digits" in (folder / "config.yaml").read_text()


# ------------------------------------------------------------------------------------------------ for all inputs


@given(st.lists(st.floats(0, 1), min_size=10, max_size=10))
def test_the_score_is_within_0_and_1_and_moves_with_the_digits(weights: list[float]) -> None:
    if sum(weights) == 0:
        with pytest.raises(UnparsableReply):
            parse_digits(json.dumps(weights))
        return
    score = parse_digits(json.dumps(weights))
    assert 0 <= score.score <= 1
    assert 0 <= score.confidence <= 1
    assert score.score == pytest.approx(expected(weights), abs=1e-9)
    mirrored = parse_digits(json.dumps(weights[::-1]))
    assert mirrored.score == pytest.approx(1 - score.score, abs=1e-9)


@pytest.mark.parametrize(("digit", "wanted"), [(1, 0.0), (10, 1.0), (4, 1 / 3)])
def test_a_certain_digit(digit: int, wanted: float) -> None:
    score = parse_digits(json.dumps([float(place == digit) for place in range(1, 11)]))
    assert (score.score, score.confidence) == (pytest.approx(wanted), 1.0)


def test_half_1_and_half_10_is_the_middle_without_confidence() -> None:
    score = parse_digits(json.dumps([0.3, *[0.0] * 8, 0.3]))
    assert (score.score, score.confidence) == (pytest.approx(0.5), pytest.approx(0.0))


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_splitting_1_keeps_the_whole_probability(one: float, zero: float) -> None:
    places = [[(b"1", math.log(one))], [(b"0", math.log(zero))]]
    found = digit_probabilities(places, [b"1", b"0"])
    assert sum(found) == pytest.approx(one)
    assert found[9] == pytest.approx(one * zero)
