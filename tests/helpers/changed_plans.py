"""Plans with one draw changed, for tests of what is refused; a draw is named, or all of its sampler and tensor."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import pytest

from glinfer.errors import PlanError
from glinfer.kernels import DrawSpec
from glinfer.program.plan import Plan


def spec(name: str, plan: Plan) -> DrawSpec:
    """The draw of a name."""
    return next(draw for draw in plan.draws if draw.name == name)


def with_draw(name: str, plan: Plan, **changes: Any) -> Plan:
    """The plan with one draw changed."""
    changed = dataclasses.replace(spec(name, plan), **changes)
    return dataclasses.replace(plan, draws=tuple(changed if draw.name == name else draw for draw in plan.draws))


def rebound(name: str, sampler: str, tensor: str, plan: Plan) -> Plan:
    """The plan with one sampler of one draw bound to another tensor."""
    inputs = tuple((each, tensor if each == sampler else found) for each, found in spec(name, plan).inputs)
    return with_draw(name, plan, inputs=inputs)


def redefined(name: str, plan: Plan, **values: Any) -> Plan:
    """The plan with some defines of one draw changed, or taken away where the value is None."""
    defines = {**dict(spec(name, plan).defines), **values}
    return with_draw(name, plan, defines=tuple((key, value) for key, value in defines.items() if value is not None))


def refused(message: str) -> Any:
    """Expect a PlanError of one line that is exactly this pattern."""
    return pytest.raises(PlanError, match=rf"\A{message}\Z")


def all_refused(plans: Mapping[str, Plan]) -> None:
    """Check that plans are refused by what they are listed with, where ``...`` is any text."""
    for message, plan in plans.items():
        with refused(re.escape(message).replace(r"\.\.\.", ".*")):
            plan.validate()
