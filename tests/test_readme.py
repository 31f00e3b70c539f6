"""The README's script runs with the bundled model, and the guide to SFT from an empty folder."""

import re
from pathlib import Path

import pytest
import yaml

from support.command_line import vigneron
from support.guides import read_guide

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.usefixtures("few_held_out")
def test_the_script_trains_evaluates_and_samples_the_bundled_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    assert len(script.splitlines()) <= 15
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "README.md", "exec"), {})
    score, *texts = capsys.readouterr().out.splitlines()
    assert 0.0 <= float(score) <= 1.0
    assert len(texts) == 2
    (run,) = (tmp_path / "runs").iterdir()
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["name"] == "smollm2-135m"


@pytest.mark.slow
def test_the_page_on_fine_tuning_works_from_an_empty_folder(
    tmp_path: Path, roomy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a tiny model, as the guides of the first hour are tested."""
    guide = read_guide("guides/sft.md")
    assert list(guide.files) == ["talks.jsonl", "talks.yaml"]
    guide.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    answer = vigneron("train", "talks.yaml", "steps=1", f"model.name={roomy_folder}")
    assert answer.code == 0, answer.err
    assert (tmp_path / "runs" / "talks" / "checkpoints" / "step-1").is_dir()


def test_the_two_commands_are_the_makefiles() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in ("demo", "test"):
        assert f"make {command}" in README
        assert re.search(rf"^{command}: setup", makefile, flags=re.M)
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
