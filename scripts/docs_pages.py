"""Hooks of mkdocs.yml that make a site of pages all over the repository.

A page has the same path in the site as in the repository, so that a relative link works in both. A link to a source
file opens a page with its text. The reference of the Python API is made from docstrings.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
API = {
    "models": ("load", "generate", "stream", "Model", "ModelConfig", "Session", "ThreadedModel"),
    "text": (
        *("GeneratedText", "TextStream", "TokenStream", "engine.stream.GenerationStats", "SamplingOptions", "Sampler"),
        *("ChatSession", "ChatReply", "ChatStream", "Tokenizer", "Scheduler", "BatchRequest", "BatchResult"),
    ),
    "tensors": ("Device", "Tensor", "tensors.ops.Ops", "KernelOptions", "Limits"),
    "inspection": ("Captured", "Seen", "TextScore", "DrawTable", "TexturesReport", "Tour", "TourDraw"),
    "errors": ("errors\n    options: {filters: ['!^_', '!^[a-z]'], show_root_heading: false}",),
}
TITLES = {"text": "Text, chat and batches", "tensors": "Tensors and kernels"}
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
NAMES = {name.rpartition(".")[2]: f"glinfer.{name}" for names in API.values() for name in names}
ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>~?([\w.]+)</code>")


def on_files(files: Files, config: Any) -> Files:
    """Put every page at its path in the repository, with the images and source files that it links to."""
    for each in [each for each in files if each.src_dir == config.docs_dir]:
        files.remove(each)

    def add(name: str, inclusion: InclusionLevel = InclusionLevel.UNDEFINED, **source: Any) -> None:
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, inclusion=inclusion, **source))

    for name, names in API.items():
        blocks = "\n\n".join(f"::: glinfer.{each}" for each in names)
        add(f"api/{name}.md", content=f"# {TITLES.get(name, name.title())}\n\n{blocks}\n")
    notes = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/notes/*.md"))]
    config.nav += [{"Notes": notes}] if notes else []
    pages = {ROOT / name for name in re.findall(r"[\w./-]+\.md", str(config.nav)) if (ROOT / name).exists()}
    for path in sorted(pages.union(ROOT.glob("docs/**/*.md"))):

        def target(link: re.Match[str], page: Path = path) -> str:
            place = (page.parent / link[1]).resolve()
            if place.is_dir():
                return f"{link[1].rstrip('/')}/README.md"
            if not place.is_file() or place.suffix == ".md" or ROOT not in place.parents:
                return link[1]
            name = place.relative_to(ROOT).as_posix()
            if place.suffix in (".png", ".svg"):
                add(name, abs_src_path=str(place))
                return link[1]
            fenced = f"``````{place.suffix[1:]}\n{place.read_text('utf-8')}``````"
            source = f"---\nsearch: {{exclude: true}}\n---\n# {name}\n\n{fenced}\n"
            add(f"{name}.md", InclusionLevel.NOT_IN_NAV, content=source)
            return f"{link[1]}.md"

        add(path.relative_to(ROOT).as_posix(), content=LINK.sub(target, path.read_text("utf-8")))
    for path in (ROOT / "docs" / "images").iterdir():
        add(path.relative_to(ROOT).as_posix(), abs_src_path=str(path))
    return files


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Make links of the roles of docstrings, such as ``:class:``, and of the documents that docstrings name."""
    if page.file.src_uri.startswith("api/"):
        html = re.sub(r"\bdocs/([\w-]+)\.md\b", r'<a href="../docs/\1.html">docs/\1.md</a>', html)

    def link(role: re.Match[str]) -> str:
        return f'<autoref identifier="{NAMES.get(role[1], role[1])}" optional><code>{role[1]}</code></autoref>'

    return ROLE.sub(link, html)
