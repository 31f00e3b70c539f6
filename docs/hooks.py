"""MkDocs hooks: the site's navigation is the list in docs/README.md, and pages outside docs/ are part of the site.

The pages are written for a reader of the repository: links are relative paths of files. Here a link to a page becomes
the link to its place in the site, one to another file a link to a copy of it, and one to a folder plain text.
"""

import json
import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
HOME = "docs/README.md"
OUTSIDE = {
    "README.md": "index.md",
    HOME: "pages.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "src/vigneron/data/task_files/README.md": "reference/task-files.md",
}
"""Pages that are elsewhere in the site than in docs/."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
SHIM = re.compile(r"https://unpkg\.com/iframe-worker/shim")
"""What Material's offline plugin loads from a CDN, so that the search works in a page that was opened from disk."""
WORKER = "assets/javascripts/search-from-disk.js"
FENCED = re.compile(r"(^```.*?^```$)", flags=re.M | re.S)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = navigation((ROOT / HOME).read_text(encoding="utf-8"))
    return config


def navigation(index: str) -> list[Any]:
    """A section for each heading of the index, an entry for each of its links to a page."""
    sections: list[Any] = [{"Home": "index.md"}]
    for section in index.split("\n## ")[1:]:
        heading, _, body = section.partition("\n")
        entries = [{text: site_path(linked(HOME, target))} for _, text, target, _ in LINK.findall(body)]
        sections.append({heading: [entry for entry in entries if next(iter(entry.values())).endswith(".md")]})
    return [*sections, {"All pages": site_path(HOME)}]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.remove(next(file for file in files if file.src_uri == "README.md"))
    for source, place in OUTSIDE.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8")))
    pages = [file for file in files if file.is_documentation_page()]
    for page in pages:
        for name in files_linked(repository_path(page.src_uri), page.content_string):
            if files.get_file_from_path(place := site_path(name)) is None:
                files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = repository_path(page.file.src_uri)
    parts = FENCED.split(markdown)
    return "".join(part if part.startswith("```") else rewritten(part, here) for part in parts)


def rewritten(markdown: str, here: str) -> str:
    def replace(found: re.Match[str]) -> str:
        image, text, target, anchor = found.group(1), found.group(2), found.group(3), found.group(4) or ""
        if not target or re.match(r"\w+:", target):
            return found.group()
        name = linked(here, target)
        if (ROOT / name).is_dir():
            return text
        place = posixpath.relpath(site_path(name), str(PurePosixPath(site_path(here)).parent))
        return f"{image}[{text}]({place}{anchor})"

    return LINK.sub(replace, markdown)


def files_linked(here: str, markdown: str) -> set[str]:
    """Files outside docs/ that a page links to, other than pages."""
    targets = {target for _, _, target, _ in LINK.findall(FENCED.sub("", markdown))}
    names = {linked(here, target) for target in targets if target and not re.match(r"\w+:", target)}
    return {name for name in names if not name.startswith("docs/") and name not in OUTSIDE and (ROOT / name).is_file()}


def linked(here: str, target: str) -> str:
    """The path in the repository that a page's link leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(here), target))


def site_path(name: str) -> str:
    """Where a file of the repository is in the site."""
    if name in OUTSIDE:
        return OUTSIDE[name]
    return name.removeprefix("docs/") if name.startswith("docs/") else f"files/{name}"


def repository_path(place: str) -> str:
    """The inverse, of a page."""
    return next((source for source, page in OUTSIDE.items() if page == place), f"docs/{place}")


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    return SHIM.sub(posixpath.relpath(WORKER, posixpath.dirname(page.url) or "."), output)


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    return SHIM.sub(WORKER, output)  # 404.html


def on_post_build(config: MkDocsConfig) -> None:
    """Instead of the shim: a browser starts no worker from a file on disk, but it does from a text."""
    site = Path(config.site_dir)
    (search,) = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    script = """const source = %s, FromUrl = Worker;
if (location.protocol === "file:")
  window.Worker = class extends FromUrl { constructor() { super(URL.createObjectURL(new Blob([source]))); } };
"""
    (site / WORKER).write_text(script % json.dumps(search.read_text(encoding="utf-8")), encoding="utf-8")
