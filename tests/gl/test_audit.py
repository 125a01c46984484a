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
import moderngl
import numpy as np
import pytest

from glinfer.errors import ShaderError
from glinfer.gl.context import open_device
from glinfer.gl.layouts.matrix import Layout
from glinfer.gl.program import Program
from glinfer.gl.texture import Texture

LAYOUT = Layout.of((2, 3), "r32f", 64)
pytestmark = pytest.mark.gl


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


def test_bad_error_never_closed():
    open_device().raw.read_buffer(0x1234)


def test_bad_error_pending(device):
    device.raw.read_buffer(0x1234)
"""
UNMARKED = """
import sys

import pytest


def test_nothing_is_imported():
    assert not {"moderngl", "glcontext", "glinfer.gl.context"} & set(sys.modules)


@pytest.mark.gl
def test_marked(device):
    pass


def test_bad_unmarked(device):
    pass
"""


def run_suite(folder: Path, suite: str) -> subprocess.CompletedProcess[str]:
    """Run a suite with the real conftest.py and the marks that it names, in an otherwise empty folder."""
    (folder / "conftest.py").write_text((ROOT / "conftest.py").read_text("utf-8"), "utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    gl\n", "utf-8")
    (folder / "test_suite.py").write_text(suite, "utf-8")
    places = ROOT, ROOT / "tests", ROOT / "tests" / "helpers", os.environ.get("PYTHONPATH")
    path = os.pathsep.join(str(place) for place in places if place)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=line", "-W", "ignore", str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_each_mess_is_caught_and_nothing_else(tmp_path: Path) -> None:
    done = run_suite(tmp_path, SUITE)
    told = dict(re.findall(r"^ERROR \S+::(test_\w+) - (.*)$", done.stdout, re.MULTILINE))
    assert set(told) == set(re.findall(r"^def (test_bad\w+)", SUITE, re.MULTILINE)), done.stdout
    assert "FAILED" not in done.stdout, "a test of the suite failed before the audit: it proves nothing"
    expected = {
        "test_bad_texture": "'Texture': [1]",
        "test_bad_framebuffer": "'Framebuffer': [1]",
        "test_bad_buffer": "'Buffer': [1]",
        "test_bad_program": "'Program': [1]",
        "test_bad_owned": "did not release {'texture': 1}",
        "test_bad_never_closed": "never closed",
        "test_bad_error_never_closed": "GL_INVALID_ENUM pending",
        "test_bad_error_pending": "GL_INVALID_ENUM",
    }
    assert {name for name, words in expected.items() if words not in told[name]} == set(), told


def test_a_device_is_opened_by_tests_that_are_marked_alone_and_no_other_imports_opengl(tmp_path: Path) -> None:
    done = run_suite(tmp_path, UNMARKED)
    told = dict(re.findall(r"^(?:ERROR|FAILED) \S+::(test_\w+) - (.*)$", done.stdout, re.MULTILINE))
    assert set(told) == {"test_bad_unmarked"}, done.stdout
    assert "a test that is not marked gl" in told["test_bad_unmarked"]
