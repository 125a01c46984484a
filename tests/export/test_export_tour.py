"""The page of ``glinfer tour``: which fast draw replaces which, and weights that are stored once for both plans."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import refused
from scripted_models import SMALL, random_file

from glinfer.cli.app import run
from glinfer.config import ModelConfig
from glinfer.errors import InputError, PlanError
from glinfer.export.tour import export_tour, replaced_by
from glinfer.lower.plans import plan_for

LARGEST = 15_000_000
LONG = "family=llama,blocks=2,heads=8,kv_heads=2,dim=64,inner=128,vocab=300,context=8192"


def embedded(page: str, name: str) -> bool:
    return f'data-file="{name}"' in page


@pytest.mark.parametrize("options", ["gab", "family=llama,blocks=2,heads=4,kv_heads=2,dim=64,inner=128,vocab=300"])
def test_every_draw_of_the_reference_plan_is_replaced_by_one_of_the_fast_plan(options: str) -> None:
    config = ModelConfig.from_options(options)
    reference, fast = plan_for(config, "reference"), plan_for(config, "fast")
    found = replaced_by(reference, fast)
    assert len(found) == len(reference.draws)
    assert sorted(set(found)) == list(range(len(fast.draws)))
    by_name = {draw.name: fast.draws[owner].name for draw, owner in zip(reference.draws, found, strict=True)}
    if options != "gab":
        return
    assert by_name["h.2.ln_1"] == by_name["h.2.attn.v_proj"] == "h.2.attn.qkv"
    assert by_name["h.2.attn.head.3.scores"] == "h.2.attn.scores"
    assert by_name["h.2.attn.head.3.probs"] == by_name["h.2.attn.head.3.joined"] == "h.2.attn.values"
    assert (by_name["ln_f"], by_name["probs"]) == ("lm_head", "pick")


def test_the_bundled_model_fits_fifteen_megabytes_with_both_plans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tour", "shakespeare", "To be", "--out", str(tmp_path / "tour.html")]) == 0
    assert "plan reference with 244 draws, plan fast with 39 draws" in capsys.readouterr().out
    page = (tmp_path / "tour.html").read_text("utf-8")
    assert len(page) <= LARGEST
    assert all(embedded(page, name) for name in ("reference.json", "fast.json", "tour.json", "weights.bin"))
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", page.partition("<body>")[2])


def test_a_random_model_is_written_too_and_replaces_only_its_own_page(tmp_path: Path) -> None:
    path = random_file(tmp_path / "model.gab", SMALL, 1)
    made = export_tour(path, tmp_path / "tour.html", "1 2 3")
    assert made.plan["plans"]["fast"] == 15
    export_tour(path, tmp_path / "tour.html")
    (tmp_path / "other.html").write_text("<p>mine</p>")
    with pytest.raises(InputError, match="not an earlier export"):
        export_tour(path, tmp_path / "other.html")


def test_a_long_context_is_cut_to_one_whose_scores_fit(tmp_path: Path) -> None:
    path = random_file(tmp_path / "model.safetensors", LONG, 1)
    assert export_tour(path, tmp_path / "tour.html", "1 2 3").plan["plans"]["fast"] == 15
    with pytest.raises(PlanError, match="scores"):
        export_tour(path, tmp_path / "whole.html", "1 2 3", context=4096)


def test_two_tours_in_a_folder_link_to_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tour"
    for _ in range(2):  # the second export replaces the first
        assert run(["tour", "tiny", "1 2", "--small", "tiny", "--out", str(out)]) == 0
    assert "glinfer serve-web" in capsys.readouterr().out
    assert sorted(each.name for each in out.iterdir()) == ["choose.js", "index.html", "small.html", "tour.html"]


def test_another_ending_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    swapped = refused(capsys, "tour", "tiny", "--small", "shakespeare", "--out", tmp_path / "tour")
    assert "the tour of shakespeare has " in swapped
    assert not (tmp_path / "tour").exists()
    assert "name it with --out" in refused(capsys, "tour", "tiny", "--small", "tiny", "--out", tmp_path / "tour.html")
    assert "name a page, such as tour.html" in refused(capsys, "tour", "shakespeare", "--out", tmp_path / "tour.txt")


def test_a_text_that_the_page_cannot_run_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, path = tmp_path / "tour.html", random_file(tmp_path / "model.gab", SMALL, 1)
    assert "has 129 tokens; this model's context holds 128" in refused(capsys, "tour", "tiny", "x" * 129, "--out", page)
    assert "expected token ids" in refused(capsys, "tour", path, "one, two", "--out", page)
    assert "ids 0 to" in refused(capsys, "tour", path, "1,2 9999", "--out", page)
    assert not page.exists()


@pytest.mark.parametrize("opens", [True, False])
def test_without_a_browser_it_says_what_to_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, opens: bool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("webbrowser.open", lambda address: opens)
    assert run(["tour", "tiny"]) == 0
    assert ("\nopen " in capsys.readouterr().out) is not opens
