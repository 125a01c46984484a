"""The base class of reports: frozen dataclasses with a JSON form."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar


class Report:
    """A dataclass with a JSON form: its fields except ``hidden``, and the properties named in ``derived``."""

    hidden: ClassVar[tuple[str, ...]] = ()
    derived: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, see :func:`plain`."""
        fields = [field.name for field in dataclasses.fields(self) if field.name not in self.hidden]  # type: ignore[arg-type]
        return {name: plain(getattr(self, name)) for name in (*fields, *self.derived)}


def plain(value: Any) -> Any:
    """Convert to JSON: reports, dataclasses and named tuples to mappings, tuples to lists, NaN and infinity to None."""
    if isinstance(value, Report):
        return value.to_json()
    if hasattr(value, "to_dict"):  # model configurations leave out defaults
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
