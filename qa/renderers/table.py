"""The renderers of the matrix, and how what they found is compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qa.renderers.environments import BOOKWORM, RESOLUTE, SID, TRIXIE, System
from qa.steps import matching

COLUMNS = ("goldens", "bare", "texts", "batch", "draws", "kernels", "bits")
"""Checks in the order of the table: ``bare`` is without extensions, ``bits`` compares with the first renderer."""
TOKENS, FEW_TOKENS = 24, 6
"""Tokens of each text, and on a renderer that takes a second for each."""


@dataclass(frozen=True)
class Renderer:
    """A row of the matrix.

    Attributes:
        name: what selects it, such as ``debian-13/zink/es``.
        title: for people.
        api: ``es``, ``desktop`` or ``webgl2``.
        system: whose packages draw; None for what this machine has.
        variables: environment variables of its process.
        expects: words in the description of the renderer that opens, or it is another one.
        tokens: tokens of each text.
        same_bits: whether its results have the bits of the first renderer's.
        browsers: programs of a browser, the first that is installed is used; empty without one. The kind, such as
            ``firefox``, is the first part of the name.
        packages: Debian's, which have the browser and what it needs.
        flags: of Chromium.
    """

    name: str
    title: str
    api: str
    system: System | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    expects: tuple[str, ...] = ()
    tokens: int = TOKENS
    same_bits: bool = False
    browsers: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def browser(self) -> str:
        """``chromium``, ``firefox`` or ``webkit``, of a browser."""
        return self.name.split("/")[0]


@dataclass(frozen=True)
class Cell:
    """The outcome of one check.

    Attributes:
        check: its name, the column.
        passed: whether it found nothing wrong.
        words: what was found, in a few words.
        bits: digests of results by their names.
        texts: tokens of texts by model.
        seconds: of a processor.
    """

    check: str
    passed: bool
    words: str
    bits: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Row:
    """What one renderer found.

    Attributes:
        name, title, api: those of the renderer.
        renderer: version and name that the driver tells.
        cells: by check.
        problem: why it was not tried; the rest is empty then.
    """

    name: str
    title: str
    api: str
    renderer: str = ""
    cells: Mapping[str, Cell] = field(default_factory=dict)
    problem: str = ""

    @property
    def failed(self) -> list[str]:
        """The checks that found something wrong."""
        return [check for check, cell in self.cells.items() if not cell.passed]

    @property
    def bits(self) -> dict[str, str]:
        """Digests of all its results by their names."""
        return {name: bits for cell in self.cells.values() for name, bits in cell.bits.items()}

    @property
    def texts(self) -> Mapping[str, Sequence[Sequence[int]]]:
        """Tokens of its texts by model; empty where they were not tried."""
        return self.cells["texts"].texts if "texts" in self.cells else {}


_DRIVERS, _APIS = ("llvmpipe", "softpipe", "zink"), ("es", "desktop")


def _mesa(
    system: System, mesa: str, number: str, drivers: Sequence[str] = _DRIVERS, apis: Sequence[str] = _APIS
) -> list[Renderer]:
    made = []
    for driver in drivers:
        for api in apis:
            expects = (f"Mesa {mesa}", driver, *(("llvmpipe",) if driver == "zink" else ()))
            shown = "zink on lavapipe" if driver == "zink" else driver
            tokens = FEW_TOKENS if driver == "softpipe" else TOKENS
            name, whole = f"{number}/{driver}/{api}", f"{system.title}, {shown}"
            same = system is BOOKWORM and driver == "llvmpipe"  # newer compilers add in other orders, see docs
            made.append(Renderer(name, whole, api, system, {"GALLIUM_DRIVER": driver}, expects, tokens, same))
    return made


def _page(
    name: str, title: str, expects: Sequence[str], browsers: Sequence[str], packages: Sequence[str], *flags: str
) -> Renderer:
    """A browser, whose WebGL2 is drawn by llvmpipe if the name says so."""
    same = name.endswith("/llvmpipe")
    variables = {"LIBGL_ALWAYS_SOFTWARE": "1", "GALLIUM_DRIVER": "llvmpipe"} if same else {}
    given = tuple(browsers), tuple(packages), (*flags, *(_ANGLE if flags else ()))
    return Renderer(name, title, "webgl2", None, variables, tuple(expects), TOKENS, same, *given)


_CHROMIUM, _FIREFOX = ("chromium", "chromium-browser", "google-chrome"), ("firefox-esr", "firefox")
_ANGLE = ("--use-gl=angle", "--ignore-gpu-blocklist", "--no-sandbox")
_NVIDIA = {"GLINFER_DEVICE": "auto"}

RENDERERS = (
    *_mesa(BOOKWORM, "22.3", "debian-12"),
    *_mesa(TRIXIE, "25.0", "debian-13"),
    *_mesa(RESOLUTE, "26.0", "ubuntu-26.04", ("llvmpipe", "zink"), ("es",)),
    *_mesa(SID, "", "debian-sid", ("llvmpipe", "zink"), ("es",)),  # whose version moves on
    Renderer("nvidia/es", "NVIDIA", "es", None, _NVIDIA, ("NVIDIA",)),
    Renderer("nvidia/desktop", "NVIDIA", "desktop", None, _NVIDIA, ("NVIDIA",)),
    _page("chromium/swiftshader", "Chromium, ANGLE on SwiftShader", ("ANGLE", "SwiftShader"), _CHROMIUM, ("chromium",),
          "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
    _page("chromium/llvmpipe", "Chromium, ANGLE on llvmpipe", ("ANGLE", "llvmpipe"), _CHROMIUM, ("chromium",),
          "--use-angle=gl-egl"),
    _page("firefox/llvmpipe", "Firefox, llvmpipe", ("llvmpipe",), _FIREFOX, ("firefox-esr", "xvfb")),
    # "Apple GPU" is what WebKit calls every renderer.
    _page("webkit/llvmpipe", "WebKitGTK, llvmpipe", ("Apple GPU",), ("WebKitWebDriver",),
          ("webkit2gtk-driver", "xvfb")),
)  # fmt: skip
"""Every row; the others are compared with the first that runs."""


def chosen(patterns: Sequence[str]) -> list[Renderer]:
    """The renderers whose names match a pattern, see :func:`qa.steps.matching`, with its errors.

    The first renderer is always there, since the others are compared with it.
    """
    wanted = matching(patterns, [each.name for each in RENDERERS], "renderer")
    return [each for each in RENDERERS if each.name in wanted or each is RENDERERS[0]]


def compare_bits(found: Mapping[str, str], first: Mapping[str, str]) -> tuple[bool, str]:
    """Whether results have the bits of the first renderer's, and which do not, in words.

    Single operations are named; kernels and models are counted.
    """
    shared = [name for name in found if name in first]
    if not shared:
        return False, "nothing to compare"
    other = [name for name in shared if found[name] != first[name]]
    if not other:
        return True, f"the same {len(shared)}"
    parts = [", ".join(name for name in other if not name.startswith(("kernel ", "model "))) or "no operation"]
    for kind in ("kernel", "model"):
        own, of = (sum(name.startswith(f"{kind} ") for name in names) for names in (other, shared))
        parts += [f"{own} of {of} {kind}s"] if of else []
    return False, f"other: {'; '.join(parts)}"


def with_bits(renderer: Renderer, row: Row, first: Mapping[str, str]) -> Row:
    """The row with its cell ``bits``, which fails where the same were expected."""
    if not row.bits:
        return row
    same, words = compare_bits(row.bits, first)
    return replace(row, cells={**row.cells, "bits": Cell("bits", same or not renderer.same_bits, words)})


def row_of(document: Mapping[str, Any]) -> Row:
    """A row of a report that was printed as JSON.

    Raises:
        KeyError, TypeError: it is none.
    """
    cells = {name: Cell(**cell) for name, cell in document["cells"].items()}
    if not all(isinstance(each, dict) for cell in cells.values() for each in (cell.bits, cell.texts)):
        raise TypeError(cells)
    return Row(**{**document, "cells": cells})
