"""``python -m qa api``: the public names are those of qa/api.json, and what breaks users is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from qa_commands import run

import glinfer
from glinfer.errors import InputError
from qa import api
from qa.api import REQUIRED, Snapshot, breaking, check, current, deprecate, differences, undue

pytest.importorskip("starlette", reason="starlette is not installed (pip install 'glinfer[server]')")

OLD = {
    "f": "function",
    "f(a)": f"place 0, {REQUIRED}",
    "f(b)": "by name, default 1",
    "glinfer run": "command",
    "glinfer run --fast": "flag",
    "POST /run": "route",
    "POST /run prompt": REQUIRED,
}
NEW = Snapshot("0.1.0", {}, OLD)


@pytest.fixture(scope="module")
def names() -> dict[str, str]:
    return current()


def test_the_public_names_are_those_written_down(names: dict[str, str]) -> None:
    assert check(Snapshot.read(), names) == [], "run 'python -m qa api --update' and say in CHANGELOG.md what changed"


def test_what_users_call_is_there(names: dict[str, str]) -> None:
    for name in (
        *("glinfer.load", "glinfer.load(path)", "glinfer.generate", "glinfer.Device.tensor"),
        *("glinfer.Model.stream(max_tokens)", "glinfer.Session.prefill", "glinfer.TextStream.stats", "Ops.matmul"),
        *("glinfer.KernelOptions.unroll", "HubError", "glinfer generate", "glinfer generate --max-tokens"),
        *("glinfer chat MODEL", "glinfer serve --slots"),
        *("POST /v1/completions prompt", "GET /health"),
    ):
        assert name in names, name
    assert names["glinfer.load(path)"] == f"place 0, {REQUIRED}"
    assert names["POST /v1/completions prompt"] == REQUIRED
    assert (names["glinfer embed --in"], names["glinfer embed -i"]) == (f"path, {REQUIRED}", "as --in")
    assert not any("._" in name or "object at 0x" in how for name, how in names.items())


def test_what_differs_and_what_breaks() -> None:
    named, place = f"by name, {REQUIRED}", f"place 0, {REQUIRED}"
    for change, line, broken in (
        ({"f(b)": None}, "removed: f(b) (by name, default 1)", ["f(b)"]),
        ({"f(c)": "by name, default 2"}, "added: f(c) (by name, default 2)", []),
        ({"f(c)": named}, f"added: f(c) ({named})", ["f(c)"]),
        ({"f(b)": named}, f"changed: f(b) (by name, default 1, now {named})", ["f(b)"]),
        ({"f(b)": "by name, default 3"}, "changed: f(b) (by name, default 1, now by name, default 3)", []),
        ({"f(a)": f"place 1, {REQUIRED}"}, f"changed: f(a) ({place}, now place 1, {REQUIRED})", ["f(a)"]),
        ({"f(a)": named}, f"changed: f(a) ({place}, now {named})", ["f(a)"]),
        ({"glinfer run --fast": None}, "removed: glinfer run --fast (flag)", ["glinfer run --fast"]),
        (
            {"glinfer run FILE": f"path, {REQUIRED}"},
            f"added: glinfer run FILE (path, {REQUIRED})",
            ["glinfer run FILE"],
        ),
        ({"POST /run seed": REQUIRED}, f"added: POST /run seed ({REQUIRED})", ["POST /run seed"]),
        ({"POST /other text": REQUIRED, "POST /other": "route"}, "added: POST /other (route)", []),
        ({"g": "function", "g(x)": place}, "added: g (function)", []),
    ):
        changed = {name: how for name, how in {**OLD, **change}.items() if how is not None}
        assert line in differences(OLD, changed)
        assert breaking(OLD, changed) == broken, line
        assert undue(NEW, changed, "0.1.1") == broken, line


def test_what_was_deprecated_may_go_a_minor_version_later() -> None:
    without = {name: how for name, how in OLD.items() if not name.startswith("f")}
    told = Snapshot("0.2.0", {"f": {"since": "0.2.0", "instead": "g"}}, OLD)
    assert undue(told, without, "0.2.1") == ["f", "f(a)", "f(b)"], "not in the version that said so first"
    assert undue(told, without, "0.3.0") == []
    assert undue(Snapshot("0.2.0", {}, OLD), without, "0.3.0") == ["f", "f(a)", "f(b)"]


def test_deprecated_names_exist() -> None:
    told = deprecate(NEW, ["f(b)"], "nothing: it is always so", "0.2.0")
    assert told.deprecated == {"f(b)": {"since": "0.2.0", "instead": "nothing: it is always so"}}
    assert check(told, OLD) == []
    without = {name: how for name, how in OLD.items() if name != "f(b)"}
    assert check(told, without)[1:] == ["deprecated, but not there: f(b)"]
    with pytest.raises(InputError, match=r"there is no public name 'f\(z\)'"):
        deprecate(NEW, ["f(z)"], "g", "0.2.0")
    with pytest.raises(InputError, match="needs --instead"):
        deprecate(NEW, ["f"], "", "0.2.0")


class TestCommand:
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A checkout with these names, written down."""
        path = tmp_path / "api.json"
        monkeypatch.setattr(api, "SNAPSHOT", path)
        monkeypatch.setattr(api, "current", lambda: OLD)
        assert run(["api", "--update"]) == 0
        return path

    def test_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["api"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "7 public names, as api.json has them; 0 deprecated"

    def test_a_removal(self, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["api", "--released"]) == 0
        before = place.read_text()
        monkeypatch.setattr(api, "current", lambda: {name: how for name, how in OLD.items() if name != "f(b)"})
        assert run(["api"]) == 1
        assert "removed: f(b) (by name, default 1)\n1 differ from api.json" in capsys.readouterr().out
        assert run(["api", "--update"]) == 1
        assert f"would break users of {glinfer.__version__}: f(b); deprecate it first" in capsys.readouterr().err
        assert place.read_text() == before

    def test_a_deprecation(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert run(["api", "--released", "--deprecate", "f(b)", "--instead", "f(a)"]) == 0
        monkeypatch.setattr(api, "current", lambda: {name: how for name, how in OLD.items() if name != "f(b)"})
        assert run(["api", "--update"]) == 1, "still the version that said so"
        monkeypatch.setattr(glinfer, "__version__", "99.0.0")
        assert run(["api", "--update"]) == 0
        found: Any = json.loads(place.read_text())
        assert "f(b)" not in found["names"]
        assert found["deprecated"] == {}
