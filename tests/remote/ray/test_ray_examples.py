"""The examples of a cluster: Ray itself accepts the one, bash the other, and both ask for what a recipe has."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from support import ROOT
from vigneron.recipe import load_config

EXAMPLES = ROOT / "examples"


def test_ray_accepts_the_cluster() -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(yaml.safe_load((EXAMPLES / "ray-cluster.yaml").read_text()))
    validate_config(prepared)
    assert prepared["provider"]["worker_ips"] == ["10.0.0.2", "10.0.0.3"]
    assert prepared["max_workers"] == 2


def test_the_slurm_script_is_a_script(tmp_path: Path) -> None:
    script = EXAMPLES / "ray-slurm.sh"
    subprocess.run(["bash", "-n", script], check=True)
    said = subprocess.run(["bash", script], capture_output=True, text=True)
    assert (said.returncode, said.stderr.split()[0]) == (2, "usage:")


@pytest.mark.parametrize("name", ["ray-cluster.yaml", "ray-slurm.sh"])
def test_the_keys_they_give_are_keys(name: str) -> None:
    text = re.sub(r"\\\n[# ]*", "", (EXAMPLES / name).read_text())
    keys = re.findall(r"(scale\.[a-z_.]+)=(\S+)", text)
    assert {"scale.sampling.kind", "scale.sampling.actors", "scale.ray_address"} <= {key for key, _ in keys}
    values = [f"{key}={re.sub(r'.*[$].*', '2' if 'actors' in key else 'head:6379', value)}" for key, value in keys]
    config = load_config("grpo-antonyms", [value.strip('"') for value in values])
    assert config.scale.sampling.kind == "ray"
