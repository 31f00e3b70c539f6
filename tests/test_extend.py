"""A method, a rollout and a curriculum of a user's own: trained, resumed, reported; and what a user may get wrong."""

import json
import re
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from support.command_line import vigneron
from support.judged_data import write_pairs
from support.tiny_runs import final_state, tiny_recipe, write_data
from vigneron import api
from vigneron.config import Config
from vigneron.errors import UserError
from vigneron.recipe import check_config, load_config, parse_yaml
from vigneron.run_store.folder import RunFolder

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "own_method"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the command were run in the example's folder."""
    monkeypatch.chdir(EXAMPLE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "rloo", raising=False)


def example_config(tiny_folder: Path, **changes: Any) -> Config:
    given = parse_yaml((EXAMPLE / "own_method.yaml").read_text(), "own_method.yaml")
    given |= {"model": {"name": str(tiny_folder), "device": "cpu"}, "steps": 6, "prompts_per_step": 4, "group_size": 2}
    given |= {"eval_every": 3, "save_every": 3, "keep_last": 9} | changes
    return check_config(given, "own_method.yaml")


@pytest.mark.slow
@pytest.mark.usefixtures("example")
def test_the_example_is_trained_resumed_and_reported(tmp_path: Path, tiny_folder: Path) -> None:
    whole = api.train(example_config(tiny_folder), name="whole", runs=tmp_path).folder
    part = api.train(example_config(tiny_folder, steps=3), name="part", runs=tmp_path).folder
    api.resume(part, "steps=6")
    assert final_state(part)["metrics"] == final_state(whole)["metrics"]
    assert {k: v for k, v in final_state(part).items() if k.endswith(".safetensors")} == {
        k: v for k, v in final_state(whole).items() if k.endswith(".safetensors")
    }
    records = RunFolder(whole).metrics()
    assert all(name in records[-1] for name in ("loss/policy", "loss/kl", "kl", "entropy", "kl_previous"))

    # The rollout's hint is in what was sampled, and the first steps took the shorter half of the prompts.
    database = sqlite3.connect(whole / "samples.sqlite")
    prompts = [row[0] for row in database.execute("select prompt from samples where kind = 'train' and step <= 5")]
    assert prompts
    assert all(prompt.startswith("One word. ") for prompt in prompts)
    rows = [json.loads(line) for line in (whole / "data" / "train.jsonl").read_text().splitlines()]
    lengths = sorted(len(row["prompt"]) for row in rows)
    assert max(len(prompt) - len("One word. ") for prompt in prompts) <= lengths[len(lengths) // 2]

    done = vigneron("report", str(whole), "--out", str(tmp_path / "report.html"))
    assert done.code == 0, done.err
    assert "RLOO" in (tmp_path / "report.html").read_text() or "rloo:build" in (tmp_path / "report.html").read_text()


OWN_METHODS = """
from vigneron.config import DpoConfig, MethodOptions, PpoConfig
from vigneron.data.curriculum import Curriculum
from vigneron.config import SlotOptions
from vigneron.methods import dpo, ppo

class WithCritic(MethodOptions):
    @property
    def has_critic(self): return True

def with_critic(parts, options: WithCritic):
    return ppo.build(parts, PpoConfig(name="ppo"))

class OfPairs(MethodOptions):
    @property
    def reads(self): return "pairs"

def of_pairs(parts, options: OfPairs):
    return dpo.build(parts, DpoConfig(name="dpo"))

class Counting(Curriculum):
    seen = 0
    def observe(self, batch):
        self.seen += len(batch)
        return {"curriculum/seen": self.seen}
    def scalars(self): return {"seen": self.seen}
    def load(self, scalars): self.seen = scalars["seen"]

def counting(parts, options: SlotOptions):
    return Counting(parts.rows, parts.config.prompts_per_step, parts.config.seed)
"""


@pytest.fixture
def own_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_methods.py").write_text(OWN_METHODS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


CRITIC = {"method": {"name": "own_methods:with_critic"}, "optimizer": {"actor_lr": 1e-3, "critic_lr": 1e-2}}
PAIRS = {"method": {"name": "own_methods:of_pairs"}, "optimizer": {"actor_lr": 1e-3}}
REWARD = {"kind": "semantic", "embedder": "lexical", "form": "shift", "clean": "none"}
STATEFUL = {"curriculum": {"name": "own_methods:counting"}}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [CRITIC | STATEFUL, PAIRS], ids=["critic", "pairs"])
@pytest.mark.usefixtures("own_methods")
def test_what_the_options_class_says_survives_the_folder(
    tmp_path: Path, tiny_folder: Path, changes: dict[str, Any]
) -> None:
    """A critic's learning rate, a method without a reward, a curriculum's state: resumed, shown, evaluated."""
    small = {"steps": 4, "save_every": 2, "eval_every": 2, "prompts_per_step": 2, "keep_last": 9}
    pairs = changes is PAIRS
    recipe = tiny_recipe(tiny_folder, write_pairs(tmp_path) if pairs else write_data(tmp_path), **small | changes)
    if pairs:
        recipe = {key: value for key, value in recipe.items() if key not in ("reward", "max_new_tokens", "group_size")}
    else:
        recipe["reward"] = REWARD
    whole = api.train(check_config(recipe, "own.yaml"), name="whole", runs=tmp_path).folder
    part = api.train(check_config(recipe | {"steps": 2}, "own.yaml"), name="part", runs=tmp_path).folder
    done = vigneron("resume", str(part), "steps=4")
    assert done.code == 0, done.err
    assert final_state(part)["metrics"] == final_state(whole)["metrics"]
    assert vigneron("show", str(part)).code == 0
    done = vigneron("eval", str(part))
    assert done.code == 0, done.err
    if not pairs:
        assert RunFolder(part).metrics()[-1]["curriculum/seen"] == RunFolder(whole).metrics()[-1]["curriculum/seen"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("example")
def test_listing_runs_imports_no_user_code(tmp_path: Path, tiny_folder: Path) -> None:
    folder = api.train(example_config(tiny_folder, steps=1, eval_every=0), name="run", runs=tmp_path).folder
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("rloo:", "module_that_must_not_be_imported:"))
    assert RunFolder(folder).config().method.name == "module_that_must_not_be_imported:build"
    assert vigneron("runs", str(tmp_path)).code == 0
    assert vigneron("report", str(folder), "--out", str(tmp_path / "report.html")).code == 0
    with pytest.raises(UserError, match="cannot import 'module_that_must_not_be_imported'"):
        api.resume(folder, "steps=2")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"method": {"name": "rlo:build"}}, "cannot import 'rlo'"),
        ({"method": {"name": ":build"}}, "method: should be module:function, not ':build'"),
        ({"method": {"name": "functools:reduce"}}, "needs a parameter `options`"),
        ({"method": {"name": "grpoo"}}, "'trpo', or module:function, not 'grpoo' (did you mean 'grpo'?)"),
        ({"method": {"name": "rloo:build", "betaa": 1}}, "unknown key 'method.betaa' (available: name, kl)"),
        ({"method": {"name": "rloo:build", "kl": {"cofficient": 1}}}, "'method.kl.cofficient' (did you mean"),
        ({"rollout": {"name": "rloo:hinted", "hintt": ""}}, "'rollout.hintt' (did you mean 'hint'?)"),
        ({"method": {"name": "rloo:biuld"}}, "'rloo' has no function 'biuld'"),
        ({"method": {"name": "rloo:short_first"}}, "subclass of MethodOptions"),
        ({"method": {"name": "rloo:build", "kll": {}}}, "unknown key 'method.kll' (did you mean 'kl'?)"),
        ({"method": {"name": "rloo:build", "kl": {"coefficient": -1.0}}}, "method.kl.coefficient"),
        ({"curriculum": {"name": "rloo:short_first", "warmup_steps": -1}}, "curriculum.warmup_steps"),
        ({"rollout": {"name": "hinted"}}, "rollout.name: should be module:function, not 'hinted'"),
        ({"group_size": 1}, "set `group_size` to 2 or more"),
    ],
)
@pytest.mark.usefixtures("example")
def test_mistakes_get_one_line(tiny_folder: Path, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=re.escape(line)) as raised:
        example_config(tiny_folder, **changes)
    assert str(raised.value).count("\n") == 0


def test_sppo_needs_no_entry_in_a_registry() -> None:
    """Its module is found by its name, its options by the union in config/methods.py."""
    assert load_config("sppo-instructions").method.name == "sppo"


@pytest.mark.slow
@pytest.mark.usefixtures("example")
def test_grpo_in_one_file_learns(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a reward that a random model can earn: completions with a vowel."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    grpo = __import__("grpo")
    assert len((ROOT / "examples" / "grpo.py").read_text().splitlines()) <= 150
    # Answers have vowels, so a completion is right if it has one too.
    monkeypatch.setattr(grpo, "normalise", lambda text: any(letter in "aeiou" for letter in text.lower()))
    arguments = ["--model", str(tiny_folder), "--steps", "25", "--learning-rate", "5e-3", "--group-size", "8"]
    grpo.main([*arguments, "--prompts-per-step", "4"])
    rewards = [float(found) for found in re.findall(r"reward (\S+)", capsys.readouterr().out)]
    assert len(rewards) == 25
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2
