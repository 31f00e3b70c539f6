"""The built wheel, outside the checkout: every file of the package is inside it, and it works without the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_wheel_lists_recipes_and_trains(tmp_path: Path, tiny_folder: Path) -> None:
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    # A copy: a build folder in the checkout would pack what has been deleted since.
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, copy], check=True)
    (wheel,) = tmp_path.glob("vigneron-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("vigneron/")}
    files = [path for path in copy.rglob("src/vigneron/**/*") if path.is_file() and path.suffix != ".pyc"]
    assert {path.relative_to(copy / "src").as_posix() for path in files} == packed
    subprocess.run([*pip, "install", "-q", "--no-deps", "--target", str(site), str(wheel)], check=True)

    environment = os.environ | {"PYTHONPATH": str(site)}

    def run(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert run("-c", "import vigneron; print(vigneron.__file__)").startswith(str(site))
    assert "pgsrm-antonyms" in run("-m", "vigneron", "recipes")
    assert "coding is valid" in run("-m", "vigneron", "rubric", "validate", "coding")
    out = run("-m", "vigneron", "train", "demo", f"model.name={tiny_folder}", "steps=2", "prompts_per_step=2")
    assert "step 2/2" in out
    assert (tmp_path / "runs" / "demo" / "report.html").is_file()
    assert run("-m", "vigneron", "--version").strip() == wheel.name.split("-")[1]
