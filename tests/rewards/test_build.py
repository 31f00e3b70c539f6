"""The reward a config asks for."""

from pathlib import Path

import pytest

from vigneron.config import BinaryRewardConfig, GuardsConfig, PythonRewardConfig, SemanticRewardConfig
from vigneron.errors import UserError
from vigneron.rewards.build import build_reward
from vigneron.rewards.checkers import exact_reward
from vigneron.rewards.sentiment import inversion_reward


def python(path: str):
    return build_reward(PythonRewardConfig(kind="python", function=path), exact_reward)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # and taken off again
    return tmp_path


def test_binary_is_the_checker() -> None:
    assert build_reward(BinaryRewardConfig(kind="binary"), inversion_reward) is inversion_reward


def test_semantic_takes_its_numbers_from_the_config_and_keeps_vectors_in_the_cache(tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text("2 2\na 3 4\nb 4 3\n")
    config = SemanticRewardConfig(kind="semantic", embedder=str(file), alpha=2.0, form="shift")
    reward = build_reward(config, exact_reward, cache=tmp_path / "cache.sqlite")
    assert reward(prompts=["p"], completions=["B."], answer=["a"]) == [pytest.approx(0.98**2)]
    assert (tmp_path / "cache.sqlite").is_file()


def test_a_python_function_by_its_path_in_a_module_beside_the_recipe(here: Path) -> None:
    (here / "grape_scores_one.py").write_text(
        "def shortness(completions, **_):\n    return [-len(c) for c in completions]\n"
    )
    (here / "grape_package").mkdir()
    (here / "grape_package" / "inner.py").write_text(
        "def one(completions, **_):\n    return [1.0] * len(completions)\n"
    )
    assert python("grape_scores_one:shortness")(completions=["ab", "c"]) == [-2, -1]
    assert python("grape_package.inner:one")(completions=["ab", "c"]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "no_such_vineyard:reward",
            "cannot import 'no_such_vineyard': .* in '.*', where vigneron was started",
        ),
        (
            "grape_scores_two.py:reward",
            "should be module:function, not .*: leave out '.py'",
        ),
        ("grape_scores_two:missing", "'grape_scores_two' has no function 'missing'"),
        ("grape_scores_two:NUMBER", "'grape_scores_two' has no function 'NUMBER'"),
        ("grape_scores_two.inner:reward", "cannot import 'grape_scores_two.inner'"),
        ("grape_broken_syntax:reward", "importing 'grape_broken_syntax' raised SyntaxError"),
        ("grape_broken_body:reward", "importing 'grape_broken_body' raised ZeroDivisionError"),
        ("grape_broken_import:reward", "cannot import 'grape_broken_import': .*no_such_vineyard"),
    ],
)
def test_a_bad_path_is_one_line(here: Path, path: str, message: str) -> None:
    (here / "grape_scores_two.py").write_text("NUMBER = 1\n")
    (here / "grape_broken_syntax.py").write_text("def reward(:\n")
    (here / "grape_broken_body.py").write_text("1 / 0\n")
    (here / "grape_broken_import.py").write_text("import no_such_vineyard\n")
    with pytest.raises(UserError, match=f"^reward.function: {message}") as caught:
        python(path)
    assert "\n" not in str(caught.value)


def test_guards_reach_the_reward(tmp_path: Path) -> None:
    file, other = tmp_path / "vectors.txt", tmp_path / "other.txt"
    file.write_text("3 2\nhot 1 0\ncold 0.6 0.8\nicy 0 1\n")
    other.write_text("2 2\ncold 1 0\nicy 0.6 0.8\n")

    def rewards(**guards: object) -> list[float]:
        config = SemanticRewardConfig(kind="semantic", embedder=str(file), alpha=1.0, guards=GuardsConfig(**guards))
        texts = ["icy", "hot", "cold cold"]
        return build_reward(config, exact_reward)(["p"] * 3, texts, answer=["cold"] * 3, input=["hot"] * 3)

    assert rewards() == pytest.approx([0.8, 0.6, 1.0])
    assert rewards(input_weight=0.5) == pytest.approx([0.8, 0.1, 0.7])
    assert rewards(max_length_ratio=1.0) == pytest.approx([0.8, 0.6, 0.0])
    assert rewards(max_repetition=0.1) == pytest.approx([0.8, 0.6, 0.0])
    assert rewards(second_embedder=str(other)) == pytest.approx([0.6, 0.0, 1.0])
