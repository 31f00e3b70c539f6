"""Check a rubric against the rows of a dataset: each row's category, and the columns that its items need."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vigneron.errors import UserError, did_you_mean
from vigneron.rubric.fences import one_line
from vigneron.rubric.model import Category, CodeItem, Rubric, VerifyItem
from vigneron.rubric.templates import needed_columns

Row = Mapping[str, Any]
MAX_LISTED = 10
"""Bad rows that an error lists; of the rest it gives the number."""


def category_of(rubric: Rubric, row: Row, number: int, where: str) -> str:
    """`number` is the row's, from 1. The only category of a rubric needs no column."""
    column = rubric.category_column
    if column is None:
        return next(iter(rubric.categories))
    name = row.get(column)
    if _is_empty(name):
        if len(rubric.categories) == 1:
            return next(iter(rubric.categories))
        hint = one_line(did_you_mean(column, row)) if row and column not in row else ""
        raise UserError(f"data: {where}, row {number} has no '{column}'{hint}: set its category there")
    if not isinstance(name, str) or name not in rubric.categories:
        known = did_you_mean(str(name), rubric.categories)
        raise UserError(f"data: {where}, row {number}: the rubric has no category '{one_line(str(name))}'{known}")
    return name


def check_rubric_rows(rubric: Rubric, rows: Sequence[Row], where: str) -> None:
    """Every row must have a known category and the columns that its items need."""
    if not rows:
        raise UserError(f"data: {where} has no rows")
    needed = {name: list(_needed(category)) for name, category in rubric.categories.items()}
    errors: list[str] = []
    for number, row in enumerate(rows, start=1):
        try:
            category = category_of(rubric, row, number, where)
        except UserError as error:
            errors.append(str(error))
            continue
        for column, may_be_empty, used_by in needed[category]:
            if (row.get(column) is None) if may_be_empty else _is_empty(row.get(column)):
                hint = one_line(did_you_mean(column, row)) if row and column not in row else ""
                errors.append(f"data: {where}, row {number} has no '{column}'{hint}, which {category}.{used_by} needs")
                break
        errors += [f"data: {where}, row {number}: {error}" for error in _bad_tests(rubric.categories[category], row)]
    if errors:
        more = [f"data: {where}: {len(errors) - MAX_LISTED} more such rows"] if len(errors) > MAX_LISTED else []
        raise UserError("\n".join([*errors[:MAX_LISTED], *more]))


def _needed(category: Category) -> Iterator[tuple[str, bool, str]]:
    """Column, whether it may be empty, and what uses it. The truth and the tests may not be empty."""
    for item in category.items:
        if isinstance(item, VerifyItem):
            yield item.truth, False, f"{item.name}: truth"
        if isinstance(item, CodeItem):
            yield item.tests, False, f"{item.name}: tests"
        for key in ("critique", "score", "reference"):
            template = getattr(item, key, None)
            for column in sorted(needed_columns(template)) if template else ():
                yield column, key != "reference", f"{item.name}: {key}"


def _bad_tests(category: Category, row: Row) -> Iterator[str]:
    for item in category.items:
        tests = row.get(item.tests) if isinstance(item, CodeItem) else None
        for test in tests if isinstance(tests, list) else [] if tests is None else [tests]:
            if not isinstance(test, str):
                yield f"'{item.tests}' is neither a string nor a list of strings"  # type: ignore[union-attr]
                break


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or value == []
