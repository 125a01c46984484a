"""The audit around every test here is itself tested: each kind of mess must fail the test that made it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# One test a mess. The first three are clean; all others must end in an error, whatever the test itself says.
SUITE = """
import pytest

pytestmark = pytest.mark.gl


@pytest.fixture(autouse=True)
def imported():
    # Not before the first suite has run.
    from glinfer.errors import GlinferError, ShaderError
    from glinfer.gl.context import open_device
    from glinfer.gl.layouts.matrix import Layout
    from glinfer.gl.program import Program
    from glinfer.gl.texture import Texture

    globals().update(locals(), LAYOUT=Layout.of((2, 3), "r32f", 64))


def test_clean(device):
    Texture(device, LAYOUT, "t").read()
    Program(device, "copy", {"COLS": 3}, ["x"])


def test_clean_two_devices(device):
    with open_device() as other:
        Texture(other, LAYOUT, "t").read()
        Texture(device, LAYOUT, "t").read()


def test_clean_failed_compile(device):
    with pytest.raises(ShaderError):
        Program(device, "copy", {}, ["x"])


def test_bad_texture(device):
    device.gl.texture((4, 4), 1)


def test_bad_framebuffer(device):
    texture = Texture(device, LAYOUT, "t")
    device.gl.framebuffer([texture.gl])


def test_bad_buffer(device):
    device.gl.buffer(b"1234")


def test_bad_program(device):
    program = Program(device, "copy", {"COLS": 3}, ["x"])
    device.disown(program)


def test_bad_owned(device):
    texture = Texture(device, LAYOUT, "t")
    texture.gl.release()
    texture.release = lambda: None


def test_bad_never_closed():
    open_device()


def test_bad_several_lines():
    with pytest.raises(GlinferError):
        raise GlinferError("one line\\nand another")


def test_bad_error_never_closed():
    open_device().raw.read_buffer(0x1234)


def test_bad_error_pending(device):
    device.raw.read_buffer(0x1234)
"""
FIRST = """
import sys


def test_nothing_is_imported():
    assert not {"moderngl", "glcontext", "glinfer.gl.context"} & set(sys.modules)
"""
UNMARKED = """
def test_bad_unmarked(device):
    pass
"""


def run_suites(folder: Path) -> str:
    """What pytest says of all three with the real conftest.py and its marks, in an otherwise empty folder."""
    (folder / "conftest.py").write_text((ROOT / "conftest.py").read_text("utf-8"), "utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    gl\n", "utf-8")
    for place, suite in enumerate((FIRST, SUITE, UNMARKED)):
        (folder / f"test_{place}.py").write_text(suite, "utf-8")
    places = ROOT, ROOT / "tests", ROOT / "tests" / "helpers", os.environ.get("PYTHONPATH")
    path = os.pathsep.join(str(place) for place in places if place)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=line", "-W", "ignore"]
    done = subprocess.run(
        [*command, str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout


def test_each_mess_is_caught_and_nothing_else(tmp_path: Path) -> None:
    """A device in a test without its mark is one, too."""
    said = run_suites(tmp_path)
    errors = dict(re.findall(r"^ERROR \S+::(test_\w+) - (.*)$", said, re.MULTILINE))
    assert set(errors) == set(re.findall(r"^def (test_bad\w+)", SUITE + UNMARKED, re.MULTILINE)), said
    assert "FAILED" not in said, "a test failed before the audit: it proves nothing"
    expected = {
        "test_bad_unmarked": "a test that is not marked gl",
        "test_bad_texture": "'Texture': [1]",
        "test_bad_framebuffer": "'Framebuffer': [1]",
        "test_bad_buffer": "'Buffer': [1]",
        "test_bad_program": "'Program': [1]",
        "test_bad_owned": "did not release {'texture': 1}",
        "test_bad_several_lines": "one line\\nand another",
        "test_bad_never_closed": "never closed",
        "test_bad_error_never_closed": "GL_INVALID_ENUM pending",
        "test_bad_error_pending": "GL_INVALID_ENUM",
    }
    assert {name for name, words in expected.items() if words not in errors[name]} == set(), errors
