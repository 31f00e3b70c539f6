"""A rubric run's judgements for a person to score: those that the judge was least sure of first."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vigneron.errors import UserError
from vigneron.labels.from_run import open_samples, refuse_unknown_step, samples_of_steps
from vigneron.labels.items import digest
from vigneron.labels.judgements import Judgement
from vigneron.rubric.read import read_rubric
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import Kind

KINDS: tuple[Kind, ...] = ("train", "eval")
SAID = ("score", "confidence", "critique", "reasoning")


def judgements_of_run(run: Path, *, step: int | None, seed: int) -> list[Judgement]:
    """Of several judgements of one answer under one item, the least sure. What failed cannot be compared."""
    folder = RunFolder.open(run)
    described = _descriptions(folder)
    found: dict[str, Judgement] = {}
    with open_samples(folder.path) as store:
        refuse_unknown_step(store, step)
        for kind in KINDS:
            for sample in samples_of_steps(store, kind, step):
                for each in _judgements(sample.prompt, sample.completion, sample.extras.get("rubric"), described):
                    if each.id not in found or _sure(each) < _sure(found[each.id]):
                        found[each.id] = each
    if not found:
        raise UserError(f"'{run}': its samples were not scored by a rubric (reward.kind: rubric)")
    return sorted(found.values(), key=lambda each: (_sure(each), digest(seed, each.id)))


def _sure(judgement: Judgement) -> float:
    return float(judgement.said["confidence"])


def _judgements(prompt: str, completion: str, rubric: Any, described: Mapping[tuple[str, str], str]) -> list[Judgement]:
    if not isinstance(rubric, Mapping) or not isinstance(rubric.get("items"), Mapping) or not prompt:
        return []
    category = str(rubric.get("category"))
    found = []
    for name, said in rubric["items"].items():
        if isinstance(said, Mapping) and isinstance(said.get("score"), int | float):
            words = {key: said[key] for key in SAID if key in said}
            told = {"confidence": 0.0, **words, "description": described.get((category, str(name)), "")}
            found.append(Judgement(prompt, completion, category, str(name), told))
    return found


def _descriptions(folder: RunFolder) -> dict[tuple[str, str], str]:
    """As the run's own rubric says now; none where it is gone."""
    if not folder.rubric.is_file():
        return {}
    rubric = read_rubric(folder.rubric)
    return {
        (name, item.name): item.description for name, category in rubric.categories.items() for item in category.items
    }
