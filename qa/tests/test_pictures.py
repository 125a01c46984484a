"""``python -m qa pictures``: it makes every picture that documents show, and its terminal shows what terminals do."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from qa_commands import run

from qa.pictures.command import DOCUMENTS, IMAGES, PICTURES, updated
from qa.pictures.terminal import animated, lines_of, record
from qa.steps import StepError

LARGEST = 200_000  # bytes of a picture
EVENTS = [
    (0.5, "\x1b[?25l\r\x1b[2Kloading 10%"),
    (0.9, "\r\x1b[2Kloading 90%\r\n\x1b[1A\r\x1b[2K"),
    (5.0, "\x1b[38;5;2mone & two\x1b[0m "),
    (5.1, "three\r\n\x1b[2m  quick\x1b[0m\r\n> "),
]


def test_every_picture_of_the_documents_is_made_and_shown() -> None:
    made = {name for _, files in PICTURES.values() for name in files}
    shown = {name for path in DOCUMENTS for name in re.findall(r"images/([\w.-]+)", path.read_text("utf-8"))}
    assert made == shown == {path.name for path in IMAGES.iterdir()}
    assert max(path.stat().st_size for path in IMAGES.iterdir()) <= LARGEST


def test_a_terminal_shows_lines_as_a_terminal_does() -> None:
    assert lines_of(EVENTS, 80) == ["one & two three", "  quick", ">"]
    assert lines_of(EVENTS[2:], 6) == ["one &", "two th", "ree", "  quic", "k", ">"]


def test_an_animation_shows_the_text_in_its_order_and_stands_still_where_asked() -> None:
    drawn = animated("run <it>", EVENTS, 80)
    root = ElementTree.fromstring(drawn)
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["$ run <it>", "one & two", "three", "quick", ">"]
    starts = [float(at) for at in re.findall(r"@keyframes k\d+\{0%\{opacity:0\}([\d.]+)%", drawn)]
    assert starts == sorted(starts)
    assert len(starts) == 2
    assert re.search(r"prefers-reduced-motion:reduce\)\{text\{animation:none!important\}", drawn)
    assert "prefers-color-scheme:dark" in drawn


def test_a_program_is_recorded_and_typed_to(tmp_path: Path) -> None:
    program = "print('hello'); print(f'you said {input(chr(62) + chr(32))}')"
    events = record([sys.executable, "-c", program], ["abc"], tmp_path, 40, {})
    assert lines_of(events, 40) == ["hello", "> abc", "you said abc"]
    with pytest.raises(StepError, match="exit status 3; it printed: no"):
        record([sys.executable, "-c", "print('no'); exit(3)"], [], tmp_path, 40, {})


def test_a_transcript_gets_the_speeds_of_the_run_and_no_other_words() -> None:
    block = "$ glinfer x\nfirst\n…\nthird · 1.00 tok/s · OpenGL ES\n"
    printed = ["first", "second", "third · 2.50 tok/s · OpenGL ES 3.2"]
    assert updated(block, printed, "a.md") == "$ glinfer x\nfirst\n…\nthird · 2.50 tok/s · OpenGL ES 3.2\n"
    with pytest.raises(StepError, match=r"a\.md: the command prints no line 'first' there"):
        updated(block, printed[1:], "a.md")


def test_an_unknown_name_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pictures", "--only", "tour,nothing"]) == 2
    assert capsys.readouterr().err.startswith("python -m qa: --only: found 'nothing'; expected some of draws, diff,")
