"""Imports point one way, and every package that is imported is declared."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "vigneron"

# Each layer may import those before it, and what stands beside the layers (batch, config, errors, files, …).
LAYERS = ["core", "policy", "rollout", "rewards", "training", "methods", "api", "report", "cli"]
NAMES = {"PyYAML": "yaml", "sentence-transformers": "sentence_transformers"}


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_layers_import_only_what_is_below_them() -> None:
    for path in SOURCE.rglob("*.py"):
        layer = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if layer not in LAYERS:
            continue
        above = LAYERS[LAYERS.index(layer) + 1 :]
        for module in imports_of(path):
            parts = module.split(".")
            if parts[0] == "vigneron" and len(parts) > 1:
                assert parts[1] not in above, f"{path.name} imports {module}"


def test_core_knows_neither_transformers_nor_a_config() -> None:
    for path in (SOURCE / "core").glob("*.py"):
        assert not {
            m for m in imports_of(path) if re.match(r"transformers|peft|torch\.distributed|vigneron\.config", m)
        }


def test_every_imported_package_is_declared() -> None:
    """Triton comes with the builds of torch that have CUDA, Ray by an extra: both are looked for before."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=]", line)[0] for line in project["dependencies"]}
    declared = {NAMES.get(name, name).lower().replace("-", "_") for name in declared}
    used = {m.split(".")[0] for path in SOURCE.rglob("*.py") for m in imports_of(path)}
    outside = {
        name
        for name in used
        if name not in sys.stdlib_module_names and name not in ("vigneron", "pydantic_core", "triton", "ray")
    }
    assert {name.lower() for name in outside} <= declared
