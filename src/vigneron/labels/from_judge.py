"""Answers of a rubric run for a person to score: the judge's least confident verdicts first."""

from collections.abc import Mapping
from pathlib import Path

from vigneron.errors import UserError
from vigneron.labels.from_run import check_step, open_samples, samples_of_steps
from vigneron.labels.items import answer_record, digest
from vigneron.labels.judged_answer import JudgedAnswer
from vigneron.rubric.read import read_rubric
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import Kind, Sample

KINDS: tuple[Kind, ...] = ("train", "eval")
VERDICT_KEYS = ("score", "confidence", "critique", "reasoning")


def judged_answers_of_run(run: Path, *, step: int | None, seed: int) -> list[JudgedAnswer]:
    """One per answer and item: the least confident verdict. Failed verdicts are left out."""
    folder = RunFolder.open(run)
    descriptions = _descriptions(folder)
    least_sure: dict[str, JudgedAnswer] = {}
    with open_samples(folder.path) as store:
        check_step(store, step)
        for kind in KINDS:
            for sample in samples_of_steps(store, kind, step):
                for each in _judged(sample, descriptions):
                    if each.id not in least_sure or _confidence(each) < _confidence(least_sure[each.id]):
                        least_sure[each.id] = each
    if not least_sure:
        raise UserError(f"'{run}': the samples of this run have no rubric scores: it needs `reward.kind: rubric`")
    return sorted(least_sure.values(), key=lambda each: (_confidence(each), digest(seed, each.id)))


def _confidence(answer: JudgedAnswer) -> float:
    return float(answer.verdict["confidence"])


def _judged(sample: Sample, descriptions: Mapping[tuple[str, str], str]) -> list[JudgedAnswer]:
    rubric = sample.extras.get("rubric")
    if not isinstance(rubric, Mapping) or not isinstance(rubric.get("items"), Mapping) or not sample.prompt:
        return []
    category = str(rubric.get("category"))
    answers = []
    for name, stored in rubric["items"].items():
        if isinstance(stored, Mapping) and isinstance(stored.get("score"), int | float):
            fields = {key: stored[key] for key in VERDICT_KEYS if key in stored}
            words = {"description": descriptions.get((category, str(name)), ""), **answer_record(sample.answer or None)}
            verdict = {"confidence": 0.0, **fields, **words}
            answers.append(JudgedAnswer(sample.prompt, sample.completion, category, str(name), verdict))
    return answers


def _descriptions(folder: RunFolder) -> dict[tuple[str, str], str]:
    """From the run's current rubric; empty if the file is gone."""
    if not folder.rubric.is_file():
        return {}
    rubric = read_rubric(folder.rubric, in_run=True)
    return {
        (name, item.name): item.description for name, category in rubric.categories.items() for item in category.items
    }
