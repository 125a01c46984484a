"""``model.verifyTextures`` in a real browser: every bit of every bound weight, and no false alarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripted_models import SMALL
from test_chromium import LLAMA, Drive

from glinfer.config import ModelConfig
from glinfer.export.site import ExportedSite, export_web
from glinfer.formats import random_checkpoint, save_checkpoint

pytestmark = [pytest.mark.web]

GAB = ModelConfig.from_options(SMALL)
CASES = {
    "gab, f16": (GAB, "float32", {"weights": "f16"}),
    "gab, q8": (GAB, "float32", {"weights": "q8"}),
    "llama, q8_0": (LLAMA, "q8_0", {"weights": "file"}),
    "llama, reference": (LLAMA, "q5_1", {"plan": "reference"}),
}
PROMPT = [1, 2, 3, 250]


def exported(folder: Path, config: ModelConfig, dtype: str = "float32", **options: str) -> ExportedSite:
    blocks = dtype.startswith("q")
    path = folder / ("model.gguf" if blocks else "model.gab" if config.model_type == "gab" else "model.safetensors")
    save_checkpoint(random_checkpoint(config, seed=8), path, dtype=dtype)
    return export_web(path, folder / "site", **options)


def weights_of(made: ExportedSite) -> list[dict[str, Any]]:
    return [texture for texture in made.plan["textures"] if texture["kind"] == "weight"]


def in_all(made: ExportedSite) -> dict[str, int]:
    """What a whole check counts."""
    bytes_of = {"r32f": 4, "rgba32f": 16, "rgba16f": 8, "rgba32ui": 16, "rgba32i": 16}
    texels = [texture["width"] * texture["height"] for texture in weights_of(made)]
    size = sum(count * bytes_of[texture["format"]] for count, texture in zip(texels, weights_of(made), strict=True))
    return {"textures": len(texels), "texels": sum(texels), "bytes": size}


@pytest.mark.parametrize("case", CASES)
def test_flipped_bits_in_each_weight_are_found_and_named(run_site: Drive, tmp_path: Path, case: str) -> None:
    """Before and after them all are identical, and what the model computes is the same."""
    config, dtype, options = CASES[case]
    made = exported(tmp_path, config, dtype, **options)
    run = {"kind": "greedy", "ids": PROMPT, "count": 8, "logits": 8}
    jobs = [
        run,
        {"kind": "verify"},
        {"kind": "flip", "times": 1, "seed": 1},
        {"kind": "verify"},
        {**run, "verify": True},
    ]
    first, clean, flipped, after, again = run_site(made.folder, jobs)["results"]
    for found in (clean, after):
        assert found["reports"] == [{"ok": True, "share": 1, "checked": in_all(made), "different": []}]
    assert again["report"]["ok"]
    assert (again["ids"], again["logits"]) == (first["ids"], first["logits"]), "a check does not disturb a run"
    assert [flip["name"] for flip in flipped["flips"]] == [each["name"] for each in weights_of(made)]
    for flip in flipped["flips"]:
        assert flip["ok"] is False
        (different,) = flip["different"]
        assert (different["name"], different["count"], different["why"]) == (flip["name"], 1, None)
        (texel,) = different["texels"]
        assert {key: texel[key] for key in ("x", "y", "channel")} == {key: flip[key] for key in ("x", "y", "channel")}
        assert [int(texel[key], 16) for key in ("found", "expected")] == [flip["now"], flip["was"]]


def test_rows_of_the_embedding_that_no_token_reads_are_compared(run_site: Drive, tmp_path: Path) -> None:
    made = exported(tmp_path, GAB)
    spoil = {"kind": "overwrite", "texture": "wte", "y": 2, "lines": 1}
    run = {"kind": "greedy", "ids": [9], "count": 1}
    *_, found = run_site(made.folder, [run, spoil, {"kind": "verify"}])["results"]
    ((different,),) = [report["different"] for report in found["reports"]]
    assert different["name"] == "wte"
    assert {texel["y"] for texel in different["texels"]} == {2}
    assert all(int(texel["found"], 16) == 0 for texel in different["texels"])
    assert {texel["row"] for texel in different["texels"]} == {2}


def test_a_draw_that_samples_another_texture_or_unit_is_found(run_site: Drive, tmp_path: Path) -> None:
    made = exported(tmp_path, GAB)
    names = [texture["name"] for texture in made.plan["textures"]]
    draws = {draw["name"]: [names[index] for index in draw["inputs"]] for draw in made.plan["draws"]}
    of_first, of_second = "h.0.attn.out_proj.weight", "h.1.attn.out_proj.weight"
    at = draws["h.0.attn.out_proj"].index(of_first)
    stream = draws["h.0.attn.out_proj"].index(next(name for name in draws["h.0.attn.out_proj"] if "weight" not in name))
    rebind = {"kind": "rebind", "draw": "h.0.attn.out_proj"}
    (head,) = [draw for draw in made.plan["draws"] if draw["name"] == "lm_head"]
    unit = made.plan["programs"][head["program"]]["samplers"].index("weight")
    aim = {"kind": "aim", "draw": "lm_head", "sampler": "weight"}
    jobs = [
        {**rebind, "unit": at, "texture": of_second},  # of the same shape
        {"kind": "verify"},
        {"kind": "verify", "share": 0.05, "calls": 20},
        {**rebind, "unit": at, "texture": "wpe"},  # of another
        {"kind": "verify", "share": 0.01},
        {**rebind, "unit": at, "texture": of_first},
        {**rebind, "unit": stream, "texture": "wpe"},  # in the place of an activation
        {"kind": "verify", "share": 0.01},
        {**rebind, "unit": stream, "texture": draws["h.0.attn.out_proj"][stream]},
        {**aim, "unit": unit + 1},
        {"kind": "verify"},
        {**aim, "unit": unit},
        {"kind": "verify"},
    ]
    results = run_site(made.folder, jobs)["results"]
    twin, sampled, other, activation, wrong, right = (each["reports"] for each in results if "reports" in each)
    where = {"name": of_first, "draw": "h.0.attn.out_proj", "sampler": "weight"}
    (found,) = twin[0]["different"]
    assert found["count"] > 500
    assert found.items() >= where.items()
    assert any(each.items() >= where.items() for report in sampled for each in report["different"])
    assert [each["why"] for each in other[0]["different"]] == ["the draw samples wpe instead"]
    assert [each["why"] for each in activation[0]["different"]] == ["the draw samples wpe instead"]
    (found,) = wrong[0]["different"]
    assert (found["name"], found["draw"], found["sampler"]) == ("lm_head.weight", "lm_head", "weight")
    assert found["why"] == f"the sampler reads texture unit {unit + 1}; expected {unit}"
    assert right[0]["ok"]


def test_sampled_checks_see_everything_in_turn(run_site: Drive, tmp_path: Path) -> None:
    made, share, calls = exported(tmp_path, LLAMA, "q8_0", weights="file"), 0.15, 7
    spoil = {"kind": "overwrite", "texture": "h.1.mlp.fc_in.weight", "y": 3, "lines": 1}
    verify = {"kind": "verify", "share": share, "calls": calls}
    clean, _, spoiled = run_site(made.folder, [verify, spoil, verify])["results"]
    assert all(report["ok"] for report in clean["reports"])
    total = in_all(made)
    assert sum(report["checked"]["texels"] for report in clean["reports"]) >= total["texels"]
    assert all(report["checked"]["bytes"] < total["bytes"] for report in clean["reports"])
    found = [each for report in spoiled["reports"] for each in report["different"]]
    assert {each["name"] for each in found} == {"h.1.mlp.fc_in.weight"}
    assert {texel["y"] for each in found for texel in each["texels"]} == {3}


def test_files_that_were_changed_are_told(run_site: Drive, tmp_path: Path) -> None:
    made = exported(tmp_path, GAB)
    whole = (made.folder / "weights.safetensors").read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    header = int.from_bytes(whole[:8], "little")
    renamed = whole[:8] + whole[8 : 8 + header].replace(b'"wpe"', b'"wqe"') + whole[8 + header :]
    others = {
        "changed.js": (bytes(changed), "the weights have changed since they were loaded: line"),
        "cut.js": (whole[:9000], "the weights have changed since they were loaded: it ends after 9000 bytes"),
        "renamed.js": (renamed, "the weights have changed since they were loaded: it has nothing for wpe"),
        "else.js": (b"nothing of the kind", "the weights cannot be read"),
    }
    check, spoil = {"kind": "verify"}, {"kind": "overwrite", "texture": "lm_head.weight", "y": 0, "lines": 1}
    sampled = {**check, "share": 0.999}
    jobs: list[dict[str, Any]] = []
    for name, (content, _) in others.items():
        (made.folder / "glinfer" / name).write_bytes(content)
        jobs += [{"kind": "reread", "path": f"glinfer/{name}"}, check]
    found = run_site(made.folder, [sampled, *jobs, spoil, sampled])["results"]
    assert found[0]["reports"][0]["ok"]  # needs no file
    for (_, message), result in zip(others.values(), found[2::2], strict=False):
        (report,) = result["reports"]
        assert message in report["error"]
        assert report["name"] == "GlinferError"
    (different,) = found[-1]["reports"][0]["different"]
    assert (different["name"], different["count"]) == ("lm_head.weight", None)
    assert different["why"].startswith("the checksum of line 0 differs, and no more can be said: the weights cannot be")
