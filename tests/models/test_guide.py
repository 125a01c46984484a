"""Where the reference plan departs from the published guide: docs/shaders.md has the table, and says why."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from glinfer.config import ModelConfig
from glinfer.gl.program import load_source
from glinfer.lower.plain.gab import reference_plan
from glinfer.program.plan import Plan

DOC = Path(__file__).resolve().parents[2] / "docs" / "shaders.md"
GAB = ModelConfig.from_options("")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return reference_plan(GAB)


def table() -> dict[str, str]:
    """The column *here* of the table, by its first column."""
    text = DOC.read_text("utf-8").partition("## Departures from the published guide")[2]
    rows = [line.strip("|").split(" | ") for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return {row[0].strip(): row[2] for row in rows}


def test_the_vocabulary_is_not_padded(plan: Plan) -> None:
    shapes = {tensor.name: tensor.shape for tensor in plan.tensors}
    for name in ("transformer.wte.weight", "lm_head.weight"):
        assert shapes[name] == (5256, 512)
    assert shapes["logits"] == shapes["probs"] == (1, 5256)
    assert table()["rows of the vocabulary"].startswith("5,256")
    assert f"{(8192 - 5256) * 512 * 4 / 1e6:.1f} MB of zeros in each of two tables" in DOC.read_text("utf-8")


def test_working_textures(plan: Plan) -> None:
    sizes = {tensor.name: 4 * math.prod(tensor.shape) for tensor in plan.tensors if tensor.kind != "weight"}
    assert sizes["attn.scores"] == sizes["attn.probs"] == sizes["mlp.inner"] == 16_777_216
    assert sorted(sizes.values()).count(4_194_304) == 8
    assert sizes["attn.mixed"] == 524_288
    assert table()["working textures"] == f"{len(sizes)}, {sum(sizes.values()) / 1e6:.1f} MB at 2,048 tokens"


def test_weight_textures(plan: Plan) -> None:
    weights, edge = plan.of_kind("weight"), 8192
    assert table()["weight textures"] == f"{len(weights)}, {plan.texture_bytes(edge, 'weight') / 1e6:.1f} MB"
    assert len(weights) == 2 + 6 * 12 + 2 + 2
    padded = plan.texture_bytes(edge, "weight") + 2 * (8192 - 5256) * 512 * 4
    assert f"With the guide's padding it would be {padded / 1e6:.1f} MB" in DOC.read_text("utf-8")
    assert table()["all textures"] == f"{plan.texture_bytes(edge) / 1e6:.1f} MB at 2,048 tokens"


def test_precisions(plan: Plan) -> None:
    for shader in sorted({draw.shader for draw in plan.draws}):
        text = load_source(f"{shader}.frag", {}, api="es").text
        for kind in ("float", "int", "sampler2D"):
            assert f"\nprecision highp {kind};\n" in text.partition("uniform ")[0], shader
    assert table()["precision of samplers"].startswith("`precision highp sampler2D;` too")
