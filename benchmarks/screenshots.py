"""Screenshots of the pages for the docs, light and dark: python -m benchmarks.screenshots

Two short real runs are made with the bundled model, unless --runs names a folder that has them already. Curves are
those of the study of docs/results/pgsrm.md. Another page is one more `Shot`.
"""

import argparse
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Literal

from PIL import Image
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route

from benchmarks.browser import chromium, reason_to_skip, served
from vigneron.commands.label import LabelOptions, open_session
from vigneron.report.html import write_report
from vigneron.run_store.archive import unpacked
from vigneron.web.label import label_app
from vigneron.web.view import view_app

ROOT = Path(__file__).parent.parent
STUDY = ROOT / "docs" / "results" / "logs" / "pgsrm-study.tar.xz"
IMAGES = ROOT / "docs" / "images"
LARGEST = 100_000
"""Maximum bytes of a screenshot."""
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

MADE = {
    "demo": ("steps=24", "eval_every=8", "save_every=0"),
    "grape-study": ("steps=4", "prompts_per_step=4", "group_size=2", "eval_every=0", "save_every=0"),
}
"""Recipes with changes that let a laptop train them in minutes; the run has the recipe's name."""


@dataclass(frozen=True)
class Shot:
    """A page of an app, taken once a selector is visible."""

    name: str
    app: Callable[[Path], Starlette]
    """Of the folder with the runs that were made."""
    path: str
    ready: str
    """A selector."""
    act: Callable[[Any], None] = lambda page: None
    height: int = 850


def _view(runs: Path) -> Starlette:
    return view_app([runs, study()])


@cache
def study() -> Path:
    """Its logs, in a folder that is forgotten."""
    with unpacked(STUDY) as folder:
        return Path(shutil.copytree(folder, Path(mkdtemp()) / folder.name))


def _label(**asked: Any) -> Callable[[Path], Starlette]:
    """Label the rubric run into a temporary folder."""

    def app(runs: Path) -> Starlette:
        out = Path(mkdtemp()) / ("people.csv" if asked.get("scores") else "pairs.jsonl")
        what = LabelOptions(runs / "grape-study", out, labeller="ann", **asked)
        return label_app(open_session(what, print), what.kind)

    return app


def _report(runs: Path) -> Starlette:
    """The page that `vigneron report` writes, served for the browser."""
    page = write_report([runs / "demo"], Path(mkdtemp()) / "report.html").read_text(encoding="utf-8")
    return Starlette(routes=[Route("/", lambda request: HTMLResponse(page))])


def _two_scores(page: Any) -> None:
    for key in "64":
        page.keyboard.press(key)
        page.wait_for_timeout(300)


def _curves(page: Any) -> None:
    page.wait_for_timeout(500)
    page.mouse.move(0, 0)


OVERLAID = "&".join(f"run={name}" for name in ("pgsrm-colors-seed-0", "binary-colors-seed-0", "sft-colors-seed-0"))
SHOTS = (
    Shot(
        "view-runs", _view, "/?search=colors&pinned=sft-colors-seed-0&pinned=pgsrm-colors-whole", "#runs tr", height=560
    ),
    Shot("view-curves", _view, f"/curves?{OVERLAID}", ".chart:nth-child(7) .main-svg", _curves, 1000),
    Shot("view-samples", _view, "/samples?run=demo&sort=-reward", ".sample"),
    Shot(
        "view-rubric",
        _view,
        "/samples?run=grape-study&step=3&category=explanations&sort=-reward",
        ".judged",
        height=1000,
    ),
    Shot("view-history", _view, "/history?run=demo&kind=eval&step=24&sample=1", "#plot .point", height=700),
    Shot("report", _report, "/", "svg", height=1000),
    Shot("label-pairs", _label(seed=1), "/", "#completions .text", height=560),
    Shot("label-best", _label(best=True), "/", "#completions .text", height=700),
    Shot("label-scores", _label(scores=True), "/", "#completion:not(:empty)", _two_scores, height=700),
)


def make_runs(runs: Path) -> None:
    from vigneron import api

    for recipe, overrides in MADE.items():
        if not (runs / recipe).exists():
            print(f"training {recipe} {' '.join(overrides)}")
            api.train(recipe, *overrides, name=recipe, runs=runs)


def take(shots: Sequence[Shot], runs: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for shot in shots:
            with served(shot.app(runs)) as address:
                for scheme in SCHEMES:
                    _take(browser, shot, address, scheme, out / f"{shot.name}-{scheme}.png")


def _take(browser: Any, shot: Shot, address: str, scheme: Literal["light", "dark"], file: Path) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": shot.height}, color_scheme=scheme)
    page = context.new_page()
    head, _, token = address.partition("/?")
    page.goto(f"{head}{shot.path}{'&' if '?' in shot.path else '?'}{token}")
    page.wait_for_selector(shot.ready)
    shot.act(page)
    page.screenshot(path=file)
    context.close()
    quantize(file)
    size = file.stat().st_size
    print(f"wrote {file.name}: {size // 1000} KB")
    if size > LARGEST:
        raise SystemExit(f"{file.name} is larger than {LARGEST // 1000} KB")


def quantize(file: Path) -> None:
    """A palette of 256 colours instead of 16 million: a third of the bytes, with no difference that can be seen."""
    with Image.open(file) as image:
        few = image.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
    few.save(file, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder for the runs, which are kept")
    parser.add_argument("--out", type=Path, default=IMAGES)
    parser.add_argument("--only", default="", help="only screenshots whose names begin with this")
    given = parser.parse_args()
    if reason := reason_to_skip():
        raise SystemExit(reason)
    with TemporaryDirectory() as temporary:
        runs = given.runs or Path(temporary)
        make_runs(runs)
        take([shot for shot in SHOTS if shot.name.startswith(given.only)], runs, given.out)


if __name__ == "__main__":
    main()
