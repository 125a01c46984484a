"""The commands that a newcomer tries first, from the installed wheel, and what they have to say."""

from __future__ import annotations

import json

import pytest
from installs import Installed, run, succeed

pytestmark = pytest.mark.package

PROMPT = "Before we proceed"
# The likeliest token each time; the second likeliest is 0.11 or more behind, far beyond what rounding moves.
TOKENS = [297, 288, 266, 32, 84, 300, 273, 46, 271, 444, 414, 460, 72, 485, 292, 73]
TEXT = "ing to the Tower.\n\nKING RICHARD II"


@pytest.mark.slow
def test_this_machine_can_run_it(installed: Installed) -> None:
    found = json.loads(installed.glinfer("info", "--json"))
    assert found["extensions"]["GL_EXT_color_buffer_float"] is True
    assert found["renderer"]


def test_the_demo_writes_text(installed: Installed) -> None:
    assert len(installed.glinfer("demo", "--max-tokens", "8").strip()) > 8


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "tokens"), [("fast", TOKENS), ("reference", TOKENS[:5])])
def test_the_same_prompt_gives_the_same_tokens(installed: Installed, plan: str, tokens: list[int]) -> None:
    options = ("--max-tokens", str(len(tokens)), "--temperature", "0", "--plan", plan, "--json")
    done = run(installed.tool("glinfer"), "generate", "shakespeare", PROMPT, *options, cwd=installed.work)
    found = json.loads(succeed(done))
    assert done.stderr == ""
    assert found["ids"] == tokens
    assert TEXT.startswith(found["text"])


def test_every_weight_arrives_in_its_texture(installed: Installed) -> None:
    found = json.loads(installed.glinfer("verify", "shakespeare", "--json"))
    assert found["passed"] is True


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "draws"), [("fast", 39), ("reference", 244)])
def test_draws_are_counted_and_measured(installed: Installed, plan: str, draws: int) -> None:
    found = json.loads(installed.glinfer("draws", "shakespeare", "--plan", plan, "--measure", "--json"))
    assert (found["draws"], found["issued"], found["agrees"]) == (draws, draws, True)
