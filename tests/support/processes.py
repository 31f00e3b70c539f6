"""The command line as processes of its own, in a folder of their own."""

import os
import subprocess
import sys
from pathlib import Path


def begun(place: Path, *arguments: str) -> "subprocess.Popen[str]":
    env = {**os.environ, "PYTHONPATH": f"{place}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "vigneron", *arguments]
    return subprocess.Popen(command, cwd=place, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def vigneron(place: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    process = begun(place, *arguments)
    out, err = process.communicate(timeout=900)
    assert process.returncode == code, (process.returncode, out, err)
    return out, err
