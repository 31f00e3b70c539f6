"""Imports follow the layers, no two modules import each other, and every imported package is declared."""

import ast
import re
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "vigneron"

# From the bottom. A package may import those of its own row and of the rows above it in this list.
LAYERS = [
    {"core", "config", "redaction", "threads", "timing", "values"},
    {"errors"},
    {"files", "validation", "yaml_text", "text", "user_code", "sandbox", "distributed", "http_client"},
    {"batch", "recipe", "trackers", "turn_sums"},
    {"policy"},
    {"data"},
    {"environments"},
    {"rollout"},
    {"sources"},
    {"rubric"},
    {"rewards", "run_data", "selfplay"},
    {"run_store"},
    {"remote"},
    {"training"},
    {"methods", "report"},
    {"api", "extend"},
    {"labels"},
    {"web"},
    {"commands"},
    {"cli"},
]
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
OUTSIDE_LAYERS = {"__init__", "__main__", "recipes"}  # the flat public API, `python -m vigneron`, YAML files
NAMES = {"PyYAML": "yaml", "sentence-transformers": "sentence_transformers"}


def module_name(path: Path) -> str:
    parts = ["vigneron", *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCE.rglob("*.py")}


@cache
def imports_of(path: Path) -> list[str]:
    """Every module that a file imports, at its top or inside of a function."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name if name in MODULES else node.module for name in inner]
    return found


def package_of(module: str) -> str:
    return module.split(".")[1]


def test_every_package_has_a_layer() -> None:
    packages = {package_of(name) for name in MODULES if name != "vigneron"} - OUTSIDE_LAYERS
    assert packages == set(LEVEL)


def test_no_import_against_the_layers() -> None:
    wrong = [
        f"{name} imports {target}"
        for name, path in MODULES.items()
        if name != "vigneron" and package_of(name) not in OUTSIDE_LAYERS
        for target in imports_of(path)
        if target in MODULES and target != "vigneron"
        if LEVEL[package_of(target)] > LEVEL[package_of(name)]
    ]
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_no_circle_between_modules() -> None:
    graph = {
        name: {target for target in imports_of(path) if target in MODULES and target != name}
        for name, path in MODULES.items()
        if name != "vigneron"
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None


def test_core_knows_neither_transformers_nor_a_config() -> None:
    for path in (SOURCE / "core").glob("*.py"):
        assert not {
            m for m in imports_of(path) if re.match(r"transformers|peft|torch\.distributed|vigneron\.config", m)
        }


def test_every_imported_package_is_declared() -> None:
    """Triton comes with builds of torch for CUDA, Ray, bitsandbytes, vLLM and verifiers by extras: all are optional."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=]", line)[0] for line in project["dependencies"]}
    declared = {NAMES.get(name, name).lower().replace("-", "_") for name in declared}
    used = {m.split(".")[0] for path in SOURCE.rglob("*.py") for m in imports_of(path)}
    outside = {
        name
        for name in used
        if name not in sys.stdlib_module_names
        and name not in ("vigneron", "pydantic_core", "triton", "ray", "bitsandbytes", "vllm", "verifiers")
    }
    assert {name.lower() for name in outside} <= declared
