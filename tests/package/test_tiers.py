"""Which cases are generated for a choice of tiers."""

from __future__ import annotations

import pytest
import tiers


@pytest.mark.parametrize(
    ("expression", "cases"),
    [
        ("not slow and not web", ["fast"]),
        ("slow", ["fast", "first slow", "second slow"]),
        ("slow or not slow", ["fast", "first slow", "second slow"]),
        ("web", ["fast"]),
        ("", ["fast", "first slow", "second slow"]),
    ],
)
def test_only_the_cases_that_can_be_selected_are_generated(
    monkeypatch: pytest.MonkeyPatch, expression: str, cases: list[str]
) -> None:
    monkeypatch.setattr(tiers, "_generate_slow", True)
    tiers.choose_tiers(expression)
    made = tiers.tiered("case", ["fast", "first slow", pytest.param("second slow", marks=pytest.mark.slow)])
    assert [case.values[0] for case in made.args[1]] == cases
    assert tiers.tiered("case", ["only"]).args[1][0].values == ("only",), "no test is left without a case"
