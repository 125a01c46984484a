"""Numbers that may depend on a run, as expressions of its run values; no GL."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

Value = float | str | tuple[str, Any, Any]
"""A number, the name of a run value, or an operation and its two operands.

The operations are those of :data:`OPERATIONS` on two expressions, and ``steps``, whose operands are pairs of numbers in
order and an expression: it gives the second number of the last pair whose first number the expression reaches.
"""
OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "multiply": operator.mul,
    "ceildiv": lambda number, divisor: -(-number // divisor),
    "min": min,
}


def compiled(value: Value) -> Callable[[Mapping[str, Any]], Any]:
    """A function that gives the number of an expression from the run values."""
    if isinstance(value, str):
        return operator.itemgetter(value)
    if not isinstance(value, tuple):
        return lambda numbers: value
    operation, left, right = value
    second = compiled(right)
    if operation == "steps":
        return lambda numbers: _reached(left, second(numbers))
    first, function = compiled(left), OPERATIONS[operation]
    return lambda numbers: function(first(numbers), second(numbers))


def _reached(steps: Any, number: Any) -> Any:
    return next(given for start, given in reversed(steps) if start <= number)


def calculated(operation: str, left: Value, right: Value) -> Value:
    """An operation on two expressions in its shortest form, such as a number if both are numbers."""
    if right == {"add": 0, "multiply": 1, "ceildiv": 1}.get(operation):
        return left
    if isinstance(left, str | tuple) or isinstance(right, str | tuple):
        return operation, left, right
    return compiled((operation, left, right))({})  # type: ignore[no-any-return]
