"""The matrix of renderers: its rows, what it compares, and how a row becomes "not tried"."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qa_commands import run

from glinfer.errors import InputError
from glinfer.gl.context import open_device
from qa.kernels.measure import all_cases
from qa.renderers import command, environments
from qa.renderers.browsers import Found
from qa.renderers.cells import CHECKS, Asked, check_texts
from qa.renderers.command import first_row, run_all, run_one
from qa.renderers.environments import BOOKWORM, MissingError, System, make
from qa.renderers.operations import COUNT, OPERATIONS, browser_jobs, digest, draw_all
from qa.renderers.table import COLUMNS, RENDERERS, Cell, Renderer, Row, chosen, compare_bits, row_of, with_bits
from qa.steps import StepError

FIRST = RENDERERS[0]
GL = {name: name for name in ("exp", "kernel silu", "kernel gelu", "model llama")}


def cell(check: str, passed: bool = True, **more: Any) -> Cell:
    return Cell(check, passed, "found", **more)


def finished(renderer: Renderer = FIRST, bits: dict[str, str] = GL) -> Row:
    texts = {"shakespeare": [[1, 2], [3, 4]]}
    cells = {"goldens": cell("goldens", bits=bits), "texts": cell("texts", texts=texts)}
    return Row(renderer.name, renderer.title, renderer.api, "Mesa · llvmpipe", cells)


def silent(*_: object) -> None:
    """Progress that nobody sees."""


# Rows


def test_names_are_unique_and_the_first_is_what_others_are_compared_with() -> None:
    names = [each.name for each in RENDERERS]
    assert len(set(names)) == len(names)
    assert names[0] == "debian-12/llvmpipe/es"
    assert FIRST.same_bits
    assert all(each.expects for each in RENDERERS), "a row that takes any renderer proves nothing of its own"


def test_rows_are_chosen_by_pattern_with_the_first_always_among_them() -> None:
    assert chosen([]) == list(RENDERERS)
    found = [each.name for each in chosen(["*zink/desktop", "firefox/*"])]
    assert found == [FIRST.name, "debian-12/zink/desktop", "debian-13/zink/desktop", "firefox/llvmpipe"]
    with pytest.raises(InputError, match=r"there is no renderer 'mesa'; known: debian-12/llvmpipe/es, "):
        chosen(["mesa"])


# Texts


@pytest.mark.slow
@pytest.mark.gl
def test_texts_are_those_of_the_first_renderer() -> None:
    first = check_texts(Asked("es", tokens=5))
    assert (first.passed, first.words) == (True, "6 of 6")
    assert [[len(text) for text in each] for each in first.texts.values()] == [[5, 5]] * 3
    greedy, drawn = first.texts["llama"]
    other = {**first.texts, "llama": [greedy, [*drawn[:3], drawn[3] + 1, drawn[4] + 1]]}
    found = check_texts(Asked("es", tokens=5, texts=other))
    assert (found.passed, found.words) == (False, "5 of 6; llama at token 3")


# Bits


def test_what_has_other_bits_is_named() -> None:
    for changed, words in (
        ([], "the same 4"),
        (["exp"], "other: exp; 0 of 2 kernels; 0 of 1 models"),
        (["kernel gelu"], "other: no operation; 1 of 2 kernels; 0 of 1 models"),
        (list(GL), "other: exp; 2 of 2 kernels; 1 of 1 models"),
    ):
        found = {name: "other" if name in changed else bits for name, bits in GL.items()}
        assert compare_bits(found, GL) == (not changed, words)
    assert compare_bits({"exp": "exp"}, GL) == (True, "the same 1"), "only what both have is compared"
    assert compare_bits({"cosh": "1"}, GL) == (False, "nothing to compare")


def test_other_bits_fail_only_where_the_same_are_expected() -> None:
    for same_bits in (True, False):
        renderer = Renderer("a/b", "A", "es", same_bits=same_bits)
        row = with_bits(renderer, finished(renderer, {**GL, "exp": "other"}), GL)
        assert (row.failed == ["bits"]) is same_bits
        assert with_bits(renderer, finished(renderer), GL).failed == []
        problem = Row("a/b", "A", "es", problem="not tried: no reason")
        assert with_bits(renderer, problem, GL) == problem


def test_operations_are_drawn_and_have_an_exact_twin() -> None:
    for operation in OPERATIONS.values():
        given = operation.inputs()
        exact = operation.exact(*(each.astype(np.float64) for each in given.values()))
        assert exact.shape == (COUNT,)
        assert operation.error(exact.astype(np.float32)) <= 0.5
    jobs = browser_jobs()
    assert [set(job["inputs"]) for job in jobs] == [set(each.reads) for each in OPERATIONS.values()]
    assert digest(np.float32([0.0])) != digest(np.float32([-0.0]))


@pytest.mark.slow
@pytest.mark.gl
def test_operations_on_a_device_are_what_float64_says() -> None:
    with open_device(api="es") as device:
        found = draw_all(device)
    for name in ("x + y", "x · y"):
        assert OPERATIONS[name].error(found[name]) <= 0.5, name
    others = [name for name in OPERATIONS if not name.startswith("subnormal")]
    assert max(OPERATIONS[name].error(found[name]) for name in others) < 1e4
    assert len({digest(numbers) for numbers in found.values()}) == len(found)


# Browsers


def test_a_browser_that_writes_other_tokens_without_extensions_fails() -> None:
    report = {"reports": [{"ok": True, "checked": {"textures": 3}}]}
    jobs = [{"kind": "stream", "count": 2, "expected": [1, 2]}]
    for bare, logits, words in (([1, 2, 9], 5, "2 of 2"), ([1, 3], 6, "1 of 2")):
        found = Found(goldens=[0.1], bare=[0.2])
        found.add("llama", jobs, [{"ids": [1, 2], "logits": 5}, report])
        found.add_bare("llama", jobs, [{"ids": bare, "logits": logits}], [{"ids": [1, 2], "logits": 5}, report])
        cells = {each.check: each for each in found.cells()}
        assert (cells["texts"].passed, cells["texts"].words.split(";")[0]) == (words == "2 of 2", words)
        assert ("other bits than with float targets: llama" in cells["bare"].words) is (logits == 6)
        assert cells["draws"].words == "3 textures by the page, 1 of 1 models"
    found.goldens.append(1.5)
    assert [each.passed for each in found.cells() if each.check == "goldens"] == [False]


# Reports


def test_a_report_gives_its_first_row_that_ran() -> None:
    rows = [asdict(Row("a", "A", "es", problem="not tried: no reason")), asdict(finished())]
    assert first_row(json.dumps({"rows": rows})) == finished()
    assert row_of(asdict(finished())) == finished()
    for text in ("", "[]", "{}", '{"rows": []}', '{"rows": [{"problem": ""}]}', '{"rows": 1}'):
        with pytest.raises(InputError, match="this is not a report to compare with"):
            first_row(text)


# Rows that are not tried, and rows that fail


def test_another_renderer_than_the_rows_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_process", lambda *_: iter([{"renderer": "softpipe"}, asdict(cell("goldens"))]))
    row = run_one(Renderer("a/b", "A", "es", expects=("llvmpipe",)), {}, silent)
    assert (row.problem, row.cells) == ("not tried: softpipe opens instead", {})


def test_the_others_get_the_texts_of_the_first_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    renderers, given = [Renderer(name, name, "es") for name in "abc"], {}

    def told(renderer: Renderer, texts: Any, _: object) -> Row:
        given[renderer.name] = texts
        return Row("a", "A", "es", problem="not tried: no reason") if renderer.name == "a" else finished(renderer)

    monkeypatch.setattr(command, "run_one", told)
    rows = list(run_all(renderers, None, silent))
    assert given == {"a": {}, "b": {}, "c": {"shakespeare": [[1, 2], [3, 4]]}}
    assert [set(row.cells) for row in rows] == [set(), {"goldens", "texts", "bits"}, {"goldens", "texts", "bits"}]


def test_the_table_and_the_exit_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = False

    def told(renderer: Renderer, *_: object) -> Row:
        row = finished(renderer)
        cells = {**row.cells, **({"draws": cell("draws", passed=False)} if wrong and renderer != FIRST else {})}
        return Row(row.name, row.title, row.api, row.renderer, cells)

    monkeypatch.setattr(command, "run_one", told)
    for wrong in (False, True):
        assert run(["renderers", "--row", "debian-13/llvmpipe/es"]) == int(wrong)
        said = capsys.readouterr().out
        assert said.endswith(f"2 of 2 renderers tried, {'1 WRONG' if wrong else 'all as expected'}\n")
        assert ("WRONG: found" in said) is wrong
        assert run(["renderers", "--row", "debian-13/llvmpipe/es", "--json"]) == int(wrong)
        assert json.loads(capsys.readouterr().out)["passed"] is not wrong


def test_what_cannot_be_had_is_told_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        command, "run_one", lambda each, *_: Row(each.name, each.title, each.api, problem="not tried: x")
    )
    assert run(["renderers"]) == 0
    assert capsys.readouterr().out.endswith(f"0 of {len(RENDERERS)} renderers tried, all as expected\n")


# Environments


def test_what_is_missing_for_an_environment_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "CACHE", tmp_path)
    unsigned = System("new", "Newer", "sid", "main", "no-such-keyring.gpg")
    monkeypatch.setattr(environments.shutil, "which", lambda tool: f"/usr/bin/{tool}")
    with pytest.raises(
        MissingError, match="the keys of Newer are missing; install them with: sudo apt-get install no-"
    ):
        make(unsigned)
    monkeypatch.setattr(environments.shutil, "which", lambda _: None)
    with pytest.raises(MissingError, match="apt-get is missing, which unpacks Debian 12; use Debian or Ubuntu"):
        make(BOOKWORM)
    row = run_one(Renderer("a/b", "A", "es", BOOKWORM), {}, silent)
    assert row.problem == "not tried: apt-get is missing, which unpacks Debian 12; use Debian or Ubuntu"
    assert [*tmp_path.iterdir()] == []

    def refused(*_: object) -> str:
        raise StepError("'apt-get update …' ended with exit status 100: E: no such release")

    monkeypatch.setattr(environments.shutil, "which", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setattr(environments, "run", refused)
    monkeypatch.setattr(environments, "_keys", lambda _: Path("keys.gpg"))
    row = run_one(Renderer("a/b", "A", "es", BOOKWORM), {}, silent)
    assert row.problem.startswith("not tried: 'apt-get update …' ended with exit status 100: E: no such release; it n")


def test_the_matrix_in_the_docs_counts_every_kernel() -> None:
    text = (environments.ROOT / "docs" / "reliability.md").read_text("utf-8")
    assert set(re.findall(r"of (\d+) kernels", text)) == {str(len(all_cases()))}, "run python -m qa renderers again"


def test_every_column_is_a_check() -> None:
    names = [check.__name__.removeprefix("check_") for check in CHECKS]
    assert set(names) == {*COLUMNS, "operations"} - {"bits"}
