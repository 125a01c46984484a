"""Reports of ``verify`` as values: what passes, and that the schema and the code name the same things."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from tiny_models import in_formats, tiny
from verify_documents import validated

from glinfer.config import ModelConfig
from glinfer.engine.textures import TexelDifference, TextureCheck
from glinfer.formats import random_checkpoint
from glinfer.gl.layouts.matrix import FORMATS
from glinfer.inspect.settings import APIS, UnusableRun
from glinfer.inspect.verify.draws import DrawCheck
from glinfer.inspect.verify.greedy import GreedyCheck
from glinfer.inspect.verify.special import SpecialCheck
from glinfer.inspect.verify.state import KINDS, StateFault
from glinfer.inspect.verify.suite import SCHEMA, VERSION, VerifyReport, VerifyRun, every_format
from glinfer.lower.plans import PLANS
from glinfer.program.session import WrongTexture

TEXTURE = TextureCheck(("wte",), 4, 300, "rgba32f", 19200)
TEXEL = TexelDifference(1, 2, 3, None, None, 1, 0)
SPECIAL = SpecialCheck("denormals", True, False)
DRAW = DrawCheck(0, "embed", "embed", 3, 32, 1e-7, 0)
GREEDY = GreedyCheck((1, 2), (1, 2))
FINDING = StateFault("min filter", "wte", "GL_LINEAR", "GL_NEAREST")


def made(**parts: Any) -> VerifyRun:
    whole = {
        "textures": (TEXTURE,),
        "special": (SPECIAL,),
        "draws": (DRAW,),
        "greedy": GREEDY,
        "device": 0,
        "api": "es",
        "max_texture_size": 2048,
        "plan": "fast",
        "weights": "q8",
    }
    return VerifyRun("a renderer", **{**whole, **parts})


def changed(check: Any, **parts: Any) -> Any:
    return type(check)(**{**vars(check), **parts})


BAD = {
    "a texture": {"textures": (TEXTURE, changed(TEXTURE, identical=False, texels=(TEXEL,), max_difference=np.inf))},
    "a packing": {"textures": (TEXTURE, changed(TEXTURE, lossless=False))},
    "another texture": {"wrong_textures": (WrongTexture("fast", "embed", "table", "wpe", "wte"),)},
    "a special value": {"special": (changed(SPECIAL, stored=False),)},
    "an error": {"draws": (DRAW, changed(DRAW, max_relative_error=np.inf))},
    "a little error": {"draws": (changed(DRAW, max_relative_error=1.1e-5),)},
    "an element unwritten": {"draws": (changed(DRAW, unwritten=1),)},
    "a stray": {"draws": (changed(DRAW, strays=1),)},
    "a finding": {"draws": (changed(DRAW, findings=(FINDING,)),)},
    "a token": {"greedy": GreedyCheck((1, 2), (1, 3))},
    "a problem": {"textures": (), "special": (), "draws": (), "greedy": None, "problem": "lost"},
}


def test_a_good_report() -> None:
    report = VerifyReport("model.gab", (made(), made(draws=(), greedy=None, device=None)))
    document = validated(report.to_json())
    assert report.passed
    assert document["version"] == VERSION == 2
    assert [run["passed"] for run in document["runs"]] == [True, True]
    assert document["runs"][0]["problem"] is None


def test_one_thing_that_is_wrong_fails_the_report() -> None:
    for what, parts in BAD.items():
        unusable = (UnusableRun(1, "desktop", None, "no display"),)
        report = VerifyReport("model.gab", (made(), made(**parts)), unusable)
        document = validated(report.to_json())
        assert not report.passed, what
        assert [run["passed"] for run in document["runs"]] == [True, False], what
        bad_draw = document["runs"][1]["first_bad_draw"] == "embed"
        assert bad_draw == ("draws" in parts and what != "a problem"), what


def test_weights_that_are_no_numbers_fail_the_report_unless_they_are_allowed() -> None:
    for allowed in (False, True):
        document = validated(VerifyReport("model.gab", (made(),), (), "a NaN", allowed).to_json())
        assert (document["passed"], document["load_refuses"]) == (allowed, "a NaN")
        assert not VerifyReport("model.gab", (made(**BAD["a token"]),), (), "a NaN", allowed).passed


def test_infinities_are_null() -> None:
    run = validated(VerifyReport("", (made(**BAD["an error"], **BAD["a texture"]),)).to_json())["runs"][0]
    assert run["draws"][1]["max_relative_error"] is None
    assert run["textures"][1]["max_difference"] is None


def test_without_runs_nothing_has_passed() -> None:
    report = VerifyReport("model.gab", (), (UnusableRun(None, None, "f16", "too large"),))
    assert validated(report.to_json())["passed"] is False
    assert report.unusable[0].where == "device auto, weights f16"


def test_the_schema_names_what_the_code_does() -> None:
    parts = json.loads(SCHEMA.read_text())["$defs"]
    assert parts["finding"]["properties"]["kind"]["enum"] == list(KINDS)
    assert parts["format"]["enum"] == list(FORMATS)
    assert tuple(parts["run"]["properties"]["api"]["enum"]) == APIS
    assert tuple(parts["run"]["properties"]["plan"]["enum"]) == PLANS
    for name, part in parts.items():
        if part.get("type") == "object":
            assert part["required"] == list(part["properties"]), name


def test_every_format_is_named_once() -> None:
    """The names of formats, and first the file's own where a matrix is packed."""
    formats = ["f32", "f16", "q16", "q8l", "q8"]
    shape = "vocab=40,dim=32,heads=2,blocks=1,context=8"
    for config in (shape, f"family=llama,{shape}"):
        floats = random_checkpoint(ModelConfig.from_options(config), seed=1)
        assert every_format(floats, "fast") == formats
        assert every_format(floats, "reference") == ["f32"]
    for form in ("Q8_ROW", "F16", "Q4_0"):
        packed = in_formats(tiny("llama", hidden_size=32), form)
        assert every_format(packed, "fast") == ["file", *formats]
        assert every_format(packed, "reference") == ["file", "f32"]
