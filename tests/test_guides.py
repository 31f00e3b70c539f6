"""The guides of the first hour run as written from an empty folder: their files, and their commands on a tiny model.

What is changed: the model, and the numbers of steps and samples. The pages in a browser have tests of their own."""

import json
from pathlib import Path

import pytest

from support.command_line import Answer, vigneron
from support.guides import read_guide
from support.real_templates import policy_of, smollm2, template
from support.servers import Seen, Sent, chat, serving, verdict
from vigneron.labels.training_recipe import recipe_file, recipe_text, training_command
from vigneron.run_store.folder import RunFolder

pytestmark = pytest.mark.slow

SAMPLED = ["steps=1", "model.device=cpu", "prompts_per_step=2", "group_size=2", "max_new_tokens=4", "eval_every=1"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def done(words: list[str], *more: str, stdin: str = "") -> Answer:
    answer = vigneron(*words, *more, stdin=stdin)
    assert answer.code == 0, f"{words}: {answer.err}"
    return answer


def last_metrics(run: str) -> dict[str, float]:
    return RunFolder(Path("runs") / run).metrics()[-1]


def test_own_data_and_reward(here: Path, roomy_folder: Path) -> None:
    guide = read_guide("start/your-own-task.md")
    assert list(guide.files) == ["capitals.csv", "more-capitals.csv", "rewards.py", "capitals.yaml"]
    guide.write(here)
    model = f"model.name={roomy_folder}"
    validate, train, evaluate, talk = guide.commands
    done(validate, model)
    done(train, *SAMPLED, model)
    assert {"reward", "eval/accuracy"} <= set(last_metrics("capitals"))
    done(evaluate)
    assert "after" in done(talk, stdin="The capital of Egypt is\n").out


def test_the_readme(here: Path, roomy_folder: Path) -> None:
    guide = read_guide("../README.md", "Train on your data")
    assert list(guide.files) == ["rewards.py", "train.jsonl", "mine.yaml"]
    guide.write(here)
    (here / "held_out.jsonl").write_text('{"prompt": "A good name for a dog is"}\n')
    model = f"model.name={roomy_folder}"
    validate, probe, train, resume, talk, evaluate, export, *_ = guide.commands
    assert train[-1] == "steps=5"
    done(validate, model)
    assert "probe: 4 samples" in done(probe, "--samples", "4", *SAMPLED, model).out
    done(train, *SAMPLED, model)
    done(resume, "steps=2")
    assert last_metrics("mine")["step"] == 2
    done(talk, stdin="A good name for a bird is\n")
    done(evaluate)
    done(export)


def test_a_rubric_with_a_judge(here: Path, roomy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = read_guide("start/rubric.md")
    assert list(guide.files) == ["questions.jsonl", "rubric.yaml", "answers.jsonl", "explain.yaml"]
    guide.write(here)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    monkeypatch.setenv("VIGNERON_CACHE", str(here / "cache"))

    def judge(seen: Seen, before: int) -> Sent:
        critique = "patient teacher" in seen.body["messages"][0]["content"]
        return chat("It could be simpler.") if critique else verdict(0.75, 0.5)

    validate, attempt, train, review = guide.commands
    with serving(judge) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert "is valid" in done(validate).out
        assert "clear" in done(attempt).out
        # As the page says, for each answer: one request for `verify`, two for `critique`. One more asks for the form.
        assert len(server.seen) == 1 + 2 * 3
        done(train, *SAMPLED, f"model.name={roomy_folder}")
    assert last_metrics("explain")["reward/explanations/clear/score"] == pytest.approx(0.75)
    assert "clear" in done(review).out


def test_lora(here: Path, roomy_folder: Path) -> None:
    guide = read_guide("start/lora.md")
    assert list(guide.files) == ["problems.jsonl", "more-problems.jsonl", "lora.yaml"]
    guide.write(here)
    validate, train, evaluate, talk, export = guide.commands
    done(validate, f"model.name={roomy_folder}")
    done(train, *SAMPLED, f"model.name={roomy_folder}")
    saved = {file.name for file in Path("runs/lora/checkpoints/step-1").rglob("*")}
    assert {"adapter_model.safetensors", "adapter_config.json"} <= saved  # as PEFT names them
    assert "model.safetensors" not in saved
    done(evaluate)
    done(talk, stdin="How many legs have two cats?\n")
    done(export)
    assert Path("my-model/model.safetensors").is_file()  # merged


LONGER = r"""
import json, re

def judge(messages):
    asked = next(m["content"] for m in messages if m["role"] == "user")
    first, second = re.findall(r"<(?:first|second)-[0-9a-f]{8,}>\n(.*?)\n?</", asked, re.DOTALL)
    return json.dumps({"reasoning": "the longer one", "score": float(len(first) > len(second)), "confidence": 1})
"""


def test_preference_labels_to_dpo(here: Path, roomy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge in a Python function chooses in place of the person at the page."""
    monkeypatch.setenv("VIGNERON_CACHE", str(here / "cache"))
    guide = read_guide("start/labels.md")
    assert list(guide.files) == ["questions.jsonl"]
    guide.write(here)
    (here / "rewards.py").write_text(LONGER)
    label, train, talk = guide.commands
    label = [str(roomy_folder) if word == "smollm2-135m" else word for word in label]
    done(label, "--judge", "{kind: python, function: 'rewards:judge'}")
    pairs = Path("pairs.jsonl")
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    assert rows
    assert {"prompt", "chosen", "rejected"} <= set(rows[0])
    # What the page does when a person has labelled.
    given = training_command(recipe_file(pairs, "pairs"), recipe_text(pairs, "pairs", str(roomy_folder)), len(rows))
    assert given.split()[:3] == ["vigneron", "train", train[1]]
    done(train, "steps=1", "model.device=cpu")
    assert last_metrics("pairs-dpo")["rewards/margins"] == 0  # the first step's policy is the reference
    done(talk, stdin="Write a title.\n")


def test_tools(here: Path) -> None:
    guide = read_guide("guides/tools.md")
    assert list(guide.files) == ["my_tools.py", "prices.jsonl", "prices.yaml"]
    guide.write(here)
    policy = policy_of(smollm2(), template("qwen2_5"))
    policy.model.save_pretrained(here / "model")
    policy.tokenizer.save_pretrained(here / "model")
    validate, train, view = guide.commands
    done(validate, "model.name=model")
    done(train, *SAMPLED, "model.name=model")
    assert last_metrics("prices")["turns/mean"] >= 1
    assert view[0] == "view"
    first = read_guide("guides/tools.md", "Teach calls first")
    first.write(here)
    exec(first.files["make_calls.py"], {})
    teach, further = first.commands
    done(teach, "steps=1", "model.name=model", "model.device=cpu")
    (row, *_) = map(json.loads, (here / "calls.jsonl").read_text().splitlines())
    assert json.dumps(row["tools"][0]) in done(["validate", *further[1:]]).out  # the same text in either prompt
