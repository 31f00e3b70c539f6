"""Generates docs/reference/config.md from the config classes: `make docs`, or `python -m vigneron.config.page`."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from vigneron.config import Config
from vigneron.config.keys import Key, Model, discriminator_of, keys_of, kind_of, models_in, one_line

INTRODUCTION = """\
# Config reference

<!-- Generated from the classes in src/vigneron/config by `make docs`. Edit the docstrings there, not this file. -->

A recipe is a YAML file with the keys below. `vigneron validate RECIPE` checks one without loading weights: its keys and
data, your reward on a few rows, the model's name, learning rates and sizes; it shows two rows as the model gets them.
`vigneron train` does the same checks first. Unknown keys, and keys that have no effect in combination with others, are
errors. `vigneron methods NAME` explains the keys of a method.

- **Overrides.** `key=value` on the command line sets any key: `vigneron train grpo-antonyms optimizer.actor_lr=1e-5`.
  Values are YAML: `model.lora={rank: 8}`, `keep_best=null`. A key of text takes it as it is, colons and braces
  included: `"data.template=Copy this: {x}"`.
- **Inheritance.** `base: RECIPE` (a name or a file) takes every top-level key that the recipe does not set from another
  recipe. Sections are replaced as a whole, not merged.
- **Short forms.** `reward: binary` is `reward: {kind: binary}`, `method: grpo` is `method: {name: grpo}`, and
  `model: gpt2` is `model: {name: gpt2}`.
- **Your own code.** `method.name`, `rollout.name`, `curriculum.name` and the `function` of a reward or judge can be
  `module:function`; the current folder is on the import path.
- **Runs.** Where a model or a run is asked for, a run's folder or its name in the folder of runs will do.
- **Units.** Lengths are in tokens, times in seconds (`…_s`), KL and log-probs in nats; shares are between 0 and 1.
- **The resolved config**, with every key, is saved as `config.yaml` in the run's folder.

A step samples `prompts_per_step × group_size` completions. What each method does is in [methods.md](methods.md), the
logged metrics are in [metrics.md](metrics.md), and checkpoints in [reliability.md](reliability.md).
"""


def page() -> str:
    sections = {name: models for name, field in Config.model_fields.items() if (models := models_in(field.annotation))}
    parts = [INTRODUCTION, "## Top level\n", _table(_top_level_keys(sections), {})]
    for name, models in sections.items():
        parts += _section(name, models)
    return "\n".join(parts)


def _top_level_keys(sections: Iterable[str]) -> Iterator[Key]:
    """A section is one row, which links to its table."""
    for key in keys_of(Config):
        if key.name in sections:
            yield replace(key, type=("section",), kinds=(), meaning=f"{key.meaning} {_link(key.name)}".lstrip())
        elif "." not in key.name:
            yield key


def _section(name: str, models: tuple[Model, ...]) -> Iterator[str]:
    """The section of a key: a table, or one for each kind; then the sections of keys in it that have kinds."""
    of_kinds: dict[tuple[Model, ...], str] = {}
    for model in models:
        for key in keys_of(model, f"{name}."):
            if key.kinds:
                of_kinds.setdefault(key.kinds, key.name)
    yield f"## `{name}`\n"
    for model in models:
        if len(models) > 1:
            yield f"### `{name}.{discriminator_of(model)}: {kind_of(model)}`\n"
        yield one_line(model.__doc__ or "") + "\n"
        keys = list(keys_of(model, f"{name}."))
        yield _table(keys, of_kinds) if keys else "No further keys.\n"
    for kinds, key_name in of_kinds.items():
        yield from _section(key_name, kinds)


def _table(keys: Iterable[Key], of_kinds: Mapping[tuple[Model, ...], str]) -> str:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key in keys:
        types = " | ".join(f"`{each}`" for each in key.type)
        default = f"`{key.default}`" if key.default not in ("", "required") else key.default
        meaning = f"{key.meaning} {_link(of_kinds[key.kinds])}" if key.kinds else key.meaning
        cells = (f"`{key.name}`", types, default, meaning)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _link(section: str) -> str:
    return f"See [`{section}`](#{section.replace('.', '')})."


def main(root: Path = Path()) -> None:
    path = root / "docs" / "reference" / "config.md"
    path.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main()
