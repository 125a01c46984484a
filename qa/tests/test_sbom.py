"""``python -m qa sbom``: what the tool writes is looked at before it is taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from qa_commands import run

from qa import sbom
from qa.sbom import check_sbom, with_version
from qa.supply import ROOT, StepError

CORE = ("Jinja2", "click", "glcontext", "moderngl", "numpy", "rich", "safetensors", "tokenizers")
WHEEL = "glinfer-0.1.0-py3-none-any.whl"


def bom(**changes: Any) -> dict[str, Any]:
    main = {"type": "library", "name": "glinfer", "version": "0.1.0"}
    components = [{"name": name, "version": "1"} for name in (*CORE, "mdurl")]
    return {"bomFormat": "CycloneDX", "metadata": {"component": main}, "components": components, **changes}


def test_what_lacks_something_is_not_taken() -> None:
    assert check_sbom(bom(), "0.1.0") == len(CORE) + 1
    for changes, said in (
        ({"components": bom()["components"][1:]}, "does not name jinja2"),
        ({"bomFormat": "SPDX"}, "not glinfer 0.1.0"),
        ({"metadata": {"component": {"name": "glinfer"}}}, "describes glinfer None, not glinfer 0.1.0"),
        ({"metadata": {}}, "describes None"),
    ):
        with pytest.raises(StepError, match=said):
            check_sbom(bom(**changes), "0.1.0")


def test_the_version_is_told_to_the_tool() -> None:
    told = with_version((ROOT / "pyproject.toml").read_text("utf-8"), "1.2")
    assert 'version = "1.2"\n' in told
    assert "dynamic" not in told.partition("[project.scripts]")[0]
    with pytest.raises(StepError, match="has no line"):
        with_version(told, "1.2")


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Tools that write :func:`bom`, and what they were asked."""
    asked: list[tuple[str, ...]] = []

    def ran(*command: str | Path, **options: Any) -> str:
        asked.append(tuple(map(str, command)))
        if "environment" in command:
            Path(command[command.index("-o") + 1]).write_text(json.dumps(bom()))
        return ""

    monkeypatch.setattr(sbom, "run", ran)
    monkeypatch.setattr(sbom, "tool_environment", lambda place, *packages: Path("tools/bin/python"))
    return asked


def test_the_command(tmp_path: Path, tools: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / WHEEL).touch()
    assert run(["sbom", str(tmp_path / WHEEL)]) == 0
    assert json.loads((tmp_path / "glinfer-0.1.0.cdx.json").read_text()) == bom()
    assert capsys.readouterr().out == f"{tmp_path / 'glinfer-0.1.0.cdx.json'}: glinfer and 9 packages\n"
    installed = next(each for each in tools if "install" in each)
    assert installed[-1] == str(tmp_path / WHEEL)
    assert "-c" in installed, "the versions of the lock"


def test_a_tool_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*given: Any) -> Path:
        raise StepError("pip ended with status 1:\nno such index")

    monkeypatch.setattr(sbom, "tool_environment", fail)
    (tmp_path / WHEEL).touch()
    assert run(["sbom", str(tmp_path / WHEEL)]) == 2
    assert "no bill of materials: no such index" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == [WHEEL]
