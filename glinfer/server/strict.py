"""The base of everything that a body may have, and how much of it is looked at.

A body of a few million bytes can be millions of values, whose parsing lets no other thread run: they are counted first.

It can also be wrong in many places. Each complaint takes pydantic some hundred bytes and
microseconds, so lists end at their first wrong element, and objects of too many fields are refused before their fields.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAX_FIELDS = 100
"""Fields of an object; none has half as many."""
T = TypeVar("T")
Several = Annotated[list[T], Field(fail_fast=True)]
"""A list whose first wrong element is the only complaint about it."""


def _check_few(value: Any, most: int, noun: str) -> Any:
    if isinstance(value, dict) and len(value) > most:
        raise ValueError(f"expected at most {most} {noun}, found {len(value)}")
    return value


def few(most: int, noun: str) -> BeforeValidator:
    """Refuses an object of more than ``most`` fields, called ``noun``, before it looks at them."""
    return BeforeValidator(lambda value: _check_few(value, most, noun))


class Strict(BaseModel):
    """A body without unknown fields, whose values are of the very type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, value: Any) -> Any:
        return _check_few(value, MAX_FIELDS, "fields")
