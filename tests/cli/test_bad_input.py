"""What a user can get wrong: one line on stderr, exit code 2, no traceback, before a model is loaded where possible."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from support.command_line import Answer, vigneron, write_jsonl, write_recipe
from vigneron import api
from vigneron.errors import UserError
from vigneron.training.setup import build as building


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written outside the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VIGNERON_RUNS", raising=False)


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model fails the test: the error could have been found before."""

    def reached(*_: Any, **__: Any) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr(building, "policy_from_config", reached)
    monkeypatch.setattr(api, "policy_from_config", reached)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", reached)


def assert_one_line(answer: Answer, *parts: str) -> None:
    assert answer.code == 2, answer
    assert answer.err.startswith("error: ")
    assert len(answer.err.splitlines()) == 1, answer.err
    assert "Traceback" not in answer.out + answer.err
    for part in parts:
        assert part in answer.err, (part, answer.err)


# ---------------------------------------------------------------------------------------------- recipes


@pytest.mark.usefixtures("no_model")
class TestRecipe:
    def test_unknown_recipe(self) -> None:
        for verb in ("train", "validate"):
            assert_one_line(vigneron(verb, "pgsrm-antonym"), "unknown recipe", "did you mean 'pgsrm-antonyms'?")
        assert_one_line(vigneron("init", "zzz", "a.yaml"), "unknown recipe 'zzz'", "`vigneron recipes` lists them")

    def test_missing_file(self) -> None:
        assert_one_line(vigneron("train", "missing.yaml"), "'missing.yaml'", "No such file")

    def test_a_folder_for_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "folder.yaml").mkdir()
        assert_one_line(vigneron("train", "folder.yaml"), "'folder.yaml'", "Is a directory")

    @pytest.mark.parametrize(
        ("override", "parts"),
        [
            ("stepz=3", ("unknown key 'stepz'", "did you mean 'steps'?")),
            ("reward.alhpa=3", ("unknown key 'reward.alhpa'", "did you mean 'alpha'?")),
            ("steps=ten", ("steps: should be a valid integer", "not 'ten'")),
            ("group_size=0", ("group_size: should be greater than 0", "not 0")),
            ("steps", ("'steps' is not of the form key=value",)),
            ("steps=[1", ("steps: should be a valid integer", "'[1'")),
            ("data.columns={a: }}", ("data.columns={a: }}", "not valid YAML")),
            ("data.task=antonym", ("data.task: unknown task 'antonym'", "did you mean 'antonyms'?")),
            ("data.template=Say {wrd}", ("data.template", "{wrd}", "'wrd'")),
            ("data.template=Say {}", ("data.template", "Say {}")),
            ("data.template='Say {word'", ("data.template", "Say {word")),
            ("data.template=Say {word.zzz}", ("data.template", "zzz")),
            ("data.template=Say {word[zzz]}", ("data.template", "{word[zzz]}")),
        ],
    )
    def test_bad_override(self, override: str, parts: tuple[str, ...]) -> None:
        for verb in ("train", "validate"):
            assert_one_line(vigneron(verb, "demo", override), *parts)

    def test_every_error_has_its_line(self) -> None:
        answer = vigneron("train", "demo", "stepz=3", "steps=ten", "group_size=0")
        assert answer.code == 2
        assert len(answer.err.splitlines()) == 3
        assert all(line.startswith("error: demo: ") for line in answer.err.splitlines())

    def test_no_folder_is_left_by_a_bad_recipe(self, tmp_path: Path) -> None:
        assert vigneron("train", "demo", "steps=ten").code == 2
        assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------- data


@pytest.mark.usefixtures("no_model")
class TestData:
    @pytest.mark.parametrize(
        ("rows", "parts"),
        [
            ([], ("has no rows",)),
            ([""], ("has no rows",)),
            (['{"prompt": "a", "answer": "b"}', '{"prompt": "a"}'], ("row 2 has no 'answer'",)),
            (['{"promt": "a", "answer": "b"}'], ("row 1 has no 'prompt'", "did you mean 'promt'?")),
            (['{"prompt": "", "answer": "b"}'], ("row 1 has an empty 'prompt'",)),
            (['{"prompt": 5, "answer": "b"}'], ("row 1", "prompt must be a text or a list")),
            (['{"prompt": "a", "answer": "b"}', "{oops"], ("line 2 is not JSON",)),
            (["[1, 2]"], ("line 1 is not a JSON object",)),
        ],
    )
    def test_bad_rows(self, tmp_path: Path, tiny_folder: Path, rows: list[str], parts: tuple[str, ...]) -> None:
        data = write_jsonl(tmp_path / "data.jsonl", rows)
        recipe = write_recipe(tmp_path, tiny_folder)
        for verb in ("train", "validate"):
            answer = vigneron(verb, recipe, f"data.train={data}")
            assert_one_line(answer, "data: ", "data.jsonl", *parts)

    @pytest.mark.parametrize("key", ["train", "held_out"])
    def test_missing_file(self, tmp_path: Path, tiny_folder: Path, key: str) -> None:
        recipe = write_recipe(tmp_path, tiny_folder)
        answer = vigneron("train", recipe, f"data.{key}=nowhere.jsonl")
        assert_one_line(answer, "nowhere.jsonl'")

    def test_unknown_kind_of_file(self, tmp_path: Path, tiny_folder: Path) -> None:
        (tmp_path / "data.txt").write_bytes(b"PAR1")
        recipe = write_recipe(tmp_path, tiny_folder)
        assert_one_line(vigneron("train", recipe, "data.train=data.txt"), "is not a .jsonl or .csv file")

    def test_a_broken_parquet_file(self, tmp_path: Path, tiny_folder: Path) -> None:
        (tmp_path / "data.parquet").write_bytes(b"PAR1")
        recipe = write_recipe(tmp_path, tiny_folder)
        assert_one_line(vigneron("train", recipe, "data.train=data.parquet"), "cannot read 'data.parquet': ")

    def test_bytes_that_are_no_text(self, tmp_path: Path, tiny_folder: Path) -> None:
        (tmp_path / "data.jsonl").write_bytes(b'{"prompt": "\xff"}\n')
        recipe = write_recipe(tmp_path, tiny_folder)
        assert_one_line(vigneron("train", recipe, "data.train=data.jsonl"), "is not UTF-8 text")

    def test_csv_with_too_many_fields(self, tmp_path: Path, tiny_folder: Path) -> None:
        (tmp_path / "data.csv").write_text("prompt,answer\na,b,c\n", encoding="utf-8")
        recipe = write_recipe(tmp_path, tiny_folder)
        assert_one_line(vigneron("train", recipe, "data.train=data.csv"), "row 1 has more fields than its header")

    def test_template_with_an_unknown_column(self, tmp_path: Path, tiny_folder: Path) -> None:
        recipe = write_recipe(tmp_path, tiny_folder)
        answer = vigneron("train", recipe, "data.template=Say {word}")
        assert_one_line(answer, "rows.jsonl", "row 1 has no column 'word': it has 'prompt', 'answer'")


# ---------------------------------------------------------------------------------------------- model and reward


@pytest.mark.usefixtures("no_model")
class TestReward:
    @pytest.mark.parametrize(
        ("embedder", "parts"),
        [
            ("missing.txt", ("file 'missing.txt' not found",)),
            ("missing.txt.gz", ("file 'missing.txt.gz' not found",)),
            ("wordlama", ("unknown embedder 'wordlama'", "did you mean 'wordllama'?")),
            ("./nowhere", ("unknown embedder './nowhere'",)),
            ("empty-folder", ("empty-folder' is not a sentence-transformers model",)),
            ("bad.txt", ("bad.txt', line 1 is not Numberbatch's header",)),
            ("short.txt", ("short.txt', line 2 does not have 3 finite numbers",)),
            ("bad.txt.gz", ("bad.txt.gz': ",)),
        ],
    )
    def test_unreadable_embedder(
        self, tmp_path: Path, tiny_folder: Path, embedder: str, parts: tuple[str, ...]
    ) -> None:
        (tmp_path / "empty-folder").mkdir()
        (tmp_path / "bad.txt").write_text("these are no vectors\n", encoding="utf-8")
        (tmp_path / "short.txt").write_text("1 3\nword 0.1 0.2\n", encoding="utf-8")
        (tmp_path / "bad.txt.gz").write_bytes(b"not gzip")
        recipe = write_recipe(tmp_path, tiny_folder, reward={"kind": "semantic", "embedder": embedder})
        assert_one_line(vigneron("train", recipe), "reward.embedder", *parts)

    @pytest.mark.parametrize(
        ("function", "parts"),
        [
            ("no_such_module:reward", ("cannot import 'no_such_module'",)),
            ("bad_rewards_of_mine:missing", ("'bad_rewards_of_mine' has no function 'missing'",)),
            ("bad_rewards_of_mine:number", ("'bad_rewards_of_mine' has no function 'number'",)),
            ("broken_rewards_of_mine:reward", ("importing 'broken_rewards_of_mine' raised SyntaxError",)),
            (
                "raising_rewards_of_mine:reward",
                ("importing 'raising_rewards_of_mine' raised RuntimeError: set me up first",),
            ),
        ],
    )
    def test_python_reward_that_cannot_be_imported(
        self,
        tmp_path: Path,
        tiny_folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        function: str,
        parts: tuple[str, ...],
    ) -> None:
        (tmp_path / "bad_rewards_of_mine.py").write_text("number = 5\n", encoding="utf-8")
        (tmp_path / "broken_rewards_of_mine.py").write_text("def reward(:\n", encoding="utf-8")
        (tmp_path / "raising_rewards_of_mine.py").write_text(
            "raise RuntimeError('set me up first')\n", encoding="utf-8"
        )
        recipe = write_recipe(tmp_path, tiny_folder, reward={"kind": "python", "function": function})
        assert_one_line(vigneron("train", recipe), "reward.function", *parts)


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("pass", ("returned None, not a list of numbers",)),
        ("return [1.0]", ("returned 1 values for 2 completions",)),
        ("return ['good'] * len(prompts)", ("returned the text 'good' for row 1",)),
        ("return [float('nan')] * len(prompts)", ("a missing reward is None, not NaN",)),
        ("return [None] * len(prompts)", ("missing for all 2 samples",)),
        ("return 1 / 0", ("raised ZeroDivisionError",)),
    ],
)
def test_python_reward_that_does_wrong(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, parts: tuple[str, ...]
) -> None:
    module = tmp_path / "wrong_rewards_of_mine.py"
    module.write_text(f"def reward(prompts, completions, **columns):\n    {body}\n", encoding="utf-8")
    reward = {"kind": "python", "function": "wrong_rewards_of_mine:reward"}
    answer = vigneron("train", write_recipe(tmp_path, tiny_folder, reward=reward))
    assert_one_line(answer, *parts)


@pytest.mark.slow
def test_a_python_reward_may_have_answers_of_any_kind(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "fine_rewards_of_mine.py"
    module.write_text(
        "def reward(prompts, completions, answer, **columns):\n    return [float(a[0]) for a in answer]\n"
    )
    data = write_jsonl(tmp_path / "numbers.jsonl", ['{"prompt": "a", "answer": [4]}'])
    recipe = write_recipe(tmp_path, tiny_folder, reward={"kind": "python", "function": "fine_rewards_of_mine:reward"})
    answer = vigneron("train", recipe, f"data={{train: {data}}}", "steps=1")
    assert answer.code == 0, answer.err
    assert "reward 4.000" in answer.out


class TestModel:
    @pytest.mark.usefixtures("weights_are_not_read")
    @pytest.mark.parametrize(
        ("name", "parts"),
        [
            ("./nowhere", ("'./nowhere' is not a folder",)),
            ("empty", ("empty' has no config.json",)),
            ("file.bin", ("file.bin' is not a folder",)),
            ("a/b/c", ("'a/b/c' is not a folder",)),
        ],
    )
    def test_no_model_there(self, tmp_path: Path, name: str, parts: tuple[str, ...]) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "file.bin").write_bytes(b"weights?")
        assert_one_line(vigneron("train", write_recipe(tmp_path, name)), "model: ", *parts)

    @pytest.fixture
    def weights_are_not_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def reached(*_: Any, **__: Any) -> None:
            pytest.fail("weights were read")

        monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", reached)

    @pytest.mark.parametrize(
        ("file", "content", "said"),
        [
            ("config.json", b"{oops", "model: cannot load"),
            ("config.json", b'{"model_type": "no-such-architecture"}', "model: cannot load"),
            ("model.safetensors", b"these are no weights at all, and long enough to look like a header", "is damaged"),
            ("tokenizer.json", b"{oops", "model: cannot load"),
        ],
    )
    def test_damaged_model(self, tmp_path: Path, tiny_folder: Path, file: str, content: bytes, said: str) -> None:
        model = shutil.copytree(tiny_folder, tmp_path / "damaged")
        (model / file).write_bytes(content)
        assert_one_line(vigneron("train", write_recipe(tmp_path, model)), said)

    def test_device_that_is_not_there(self, tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        answer = vigneron("train", write_recipe(tmp_path, tiny_folder), "model.device=cuda")
        assert_one_line(answer, "model.device", "try device: auto")


# ---------------------------------------------------------------------------------------------- runs


@pytest.mark.usefixtures("no_model")
class TestRuns:
    @pytest.mark.parametrize("verb", ["resume", "eval", "chat", "report"])
    def test_a_folder_that_is_no_run(self, tmp_path: Path, verb: str) -> None:
        (tmp_path / "empty").mkdir()
        assert_one_line(vigneron(verb, "empty"), "'empty' is not a run's folder")
        assert_one_line(vigneron(verb, "nowhere"), "there is no run 'nowhere' in 'runs' (`vigneron runs` lists them)")

    @pytest.mark.parametrize("verb", ["resume", "eval", "chat", "report"])
    @pytest.mark.parametrize(
        "content", [b"", b"a: [", b"\xff\xfe", b"steps: 3\n"], ids=["empty", "cut", "bytes", "part"]
    )
    def test_a_damaged_config(self, tmp_path: Path, verb: str, content: bytes) -> None:
        run = tmp_path / "run"
        (run / "checkpoints" / "step-1").mkdir(parents=True)
        (run / "checkpoints" / "step-1" / "manifest.json").write_text("{}", encoding="utf-8")
        (run / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n', encoding="utf-8")
        (run / "config.yaml").write_bytes(content)
        answer = vigneron(verb, run)
        assert answer.code == 2
        assert all(line.startswith("error: ") and "config.yaml" in line for line in answer.err.splitlines())

    def test_a_name_that_is_taken(self, tmp_path: Path, tiny_folder: Path) -> None:
        (tmp_path / "runs" / "mine").mkdir(parents=True)
        answer = vigneron("train", write_recipe(tmp_path, tiny_folder), "--name", "mine")
        assert_one_line(answer, "'runs/mine' exists", "vigneron resume runs/mine", "--name")
        assert list((tmp_path / "runs" / "mine").iterdir()) == []

    def test_a_file_where_runs_should_be(self, tmp_path: Path, tiny_folder: Path) -> None:
        (tmp_path / "taken").write_text("", encoding="utf-8")
        answer = vigneron("train", write_recipe(tmp_path, tiny_folder), "--runs", "taken")
        assert_one_line(answer, "cannot create a run in 'taken'", "is not a folder")

    def test_a_read_only_place(self, tmp_path: Path, tiny_folder: Path) -> None:
        place = tmp_path / "read-only"
        place.mkdir(mode=0o555)
        if os.access(place, os.W_OK):
            pytest.skip("this user can write anywhere")
        answer = vigneron("train", write_recipe(tmp_path, tiny_folder), "--runs", place)
        assert_one_line(answer, "cannot create the run's folder", "Permission denied")

    def test_a_run_without_a_checkpoint(self, tmp_path: Path, tiny_folder: Path) -> None:
        run = tmp_path / "run"
        run.mkdir()
        shutil.copy(write_recipe(tmp_path, tiny_folder), run / "config.yaml")
        assert_one_line(vigneron("eval", run), "has no checkpoint (available: none)")
        assert_one_line(vigneron("chat", run, "--step", 3), "has no checkpoint of step 3 (available: none)")
        assert_one_line(vigneron("report", run), "nothing to report yet")

    def test_rows_to_evaluate_on(self, tmp_path: Path, tiny_folder: Path) -> None:
        run = tmp_path / "run"
        run.mkdir()
        shutil.copy(write_recipe(tmp_path, tiny_folder), run / "config.yaml")
        assert_one_line(vigneron("eval", run, "--file", "nowhere.jsonl"), "nowhere.jsonl'")
        data = write_jsonl(tmp_path / "data.jsonl", ['{"prompt": "a"}'])
        assert_one_line(vigneron("eval", run, "--file", data), "row 1 has no 'answer'")

    def test_a_report_that_cannot_be_written(self, tmp_path: Path, tiny_folder: Path) -> None:
        run = tmp_path / "run"
        run.mkdir()
        shutil.copy(write_recipe(tmp_path, tiny_folder), run / "config.yaml")
        (run / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n', encoding="utf-8")
        assert_one_line(vigneron("report", run, "--out", "nowhere/report.html"), "cannot write 'nowhere/report.html'")


@pytest.mark.usefixtures("no_model")
class TestInit:
    def test_a_file_that_exists_is_kept(self, tmp_path: Path) -> None:
        (tmp_path / "mine.yaml").write_text("precious", encoding="utf-8")
        assert_one_line(vigneron("init", "demo", "mine.yaml"), "'mine.yaml' exists")
        assert (tmp_path / "mine.yaml").read_text(encoding="utf-8") == "precious"

    def test_only_yaml(self) -> None:
        assert_one_line(vigneron("init", "demo", "mine.txt"), "'mine.txt' should end in .yaml")

    def test_a_folder_that_is_not_there(self) -> None:
        assert_one_line(vigneron("init", "demo", "nowhere/mine.yaml"), "cannot write 'nowhere/mine.yaml'")


# ---------------------------------------------------------------------------------------------- the command line itself


@pytest.mark.parametrize(
    "words",
    [("tarin",), ("train",), ("train", "demo", "--nmae", "x"), ("eval", "run", "--step", "last"), ("chat",)],
)
def test_a_wrong_command_is_typers_own_error(words: tuple[str, ...]) -> None:
    answer = vigneron(*words)
    assert answer.code == 2
    assert "Usage: " in answer.err
    assert "Traceback" not in answer.err


def test_debug_gives_the_traceback() -> None:
    with pytest.raises(UserError, match="unknown recipe"):
        vigneron("--debug", "train", "zzz")


def test_ctrl_c_is_the_shells_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vigneron.recipe.load_config", interrupted)
    answer = vigneron("train", "demo")
    assert answer.code == 130
    assert "Traceback" not in answer.err


def test_a_process_of_its_own_says_the_same() -> None:
    """And it does not import torch to say so."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "vigneron", "train", "pgsrm-antonym"],
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert done.returncode == 2
    assert len(said) == 1
    assert said[0].startswith("error: unknown recipe 'pgsrm-antonym' (did you mean 'pgsrm-antonyms'?)")
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "pydantic" in imported
    assert not imported & {"torch", "transformers", "numpy", "matplotlib"}
