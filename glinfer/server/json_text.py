"""JSON of requests and answers; the values of a request are counted before it is parsed.

Python's JSON parser holds the GIL, so a few million values would block every client.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from starlette.responses import Response

from glinfer.formats.json_files import is_unicode
from glinfer.server.limits import LIMITS

_VALUE = TypeAdapter[Any](Any)


def parsed_json(data: bytes, most: int) -> Any:
    """Parse JSON in UTF-8, after counting the brackets and commas outside its strings.

    Raises:
        ValueError: it is not JSON; has NaN, an infinity or half a surrogate pair; has more than ``most`` values; or is
            nested too deep.
    """
    if 5 * len(data) > most or data.count(b"[") + data.count(b"{") > LIMITS.body_depth:  # others are within the limits
        _count(data, most)
    found = json.loads(data.decode("utf-8-sig"), parse_constant=_no_constant)
    if b"\\ud" in data.lower() and not is_unicode(_text(found)):
        raise ValueError("found half a surrogate pair, which has no UTF-8 form")
    return found


def _count(data: bytes, most: int) -> None:
    """Count the values of JSON; errors as in :func:`parsed_json`."""
    bare = np.frombuffer(data.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    bare = bare[np.cumsum(bare == ord('"'), dtype=np.uint8) % 2 == 0]  # wrapping around keeps the parity
    opened = (bare == ord("[")) | (bare == ord("{"))
    closed = (bare == ord("]")) | (bare == ord("}"))
    names = np.count_nonzero(bare == ord(":"))  # names are slowest to parse, and count as four values more
    if (values := np.count_nonzero(opened) + np.count_nonzero(bare == ord(",")) + 4 * names) > most:
        raise ValueError(f"found some {values} values, expected at most {most}")
    if np.cumsum(opened.astype(np.int8) - closed, dtype=np.int32).max(initial=0) > LIMITS.body_depth:
        raise ValueError(f"found more than {LIMITS.body_depth} nested lists and objects")


def _no_constant(name: str) -> None:
    raise ValueError(f"found {name}")


def json_bytes(value: Any) -> bytes:
    """JSON in UTF-8. Numbers that JSON lacks become null, half surrogate pairs become question marks."""
    try:
        return _VALUE.dump_json(value)
    except ValueError:
        return _text(value).encode("utf-8", errors="replace")


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer with a JSON body."""
    return Response(json_bytes(value), status, headers, media_type="application/json")
