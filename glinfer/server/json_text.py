"""JSON that comes and goes: the values of bodies are counted before they are parsed, and answers written by parts.

Python's parser and writer of JSON let no other thread run: a few million values would keep every client waiting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from starlette.responses import Response

from glinfer.formats.json_files import is_unicode
from glinfer.server.limits import LIMITS

_SLICE = 1 << 14


def parsed_json(data: bytes, most: int) -> Any:
    """The value of JSON in UTF-8; brackets and commas outside of its texts are counted before it is parsed.

    Raises:
        ValueError: it is none, has NaN, an infinity or half a surrogate pair, more than ``most`` values, or more of
            them within each other than the limit.
    """
    bare = np.frombuffer(data.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    bare = bare[np.cumsum(bare == ord('"'), dtype=np.uint8) % 2 == 0]  # it wraps around, and stays even or odd
    opened = (bare == ord("[")) | (bare == ord("{"))
    closed = (bare == ord("]")) | (bare == ord("}"))
    names = np.count_nonzero(bare == ord(":"))  # which take longest, and count as four more
    if (values := np.count_nonzero(opened) + np.count_nonzero(bare == ord(",")) + 4 * names) > most:
        raise ValueError(f"found some {values} values, expected at most {most}")
    if np.cumsum(opened.astype(np.int8) - closed, dtype=np.int32).max(initial=0) > LIMITS.body_depth:
        raise ValueError(f"found more than {LIMITS.body_depth} lists and objects within each other")
    found = json.loads(data.decode("utf-8-sig"), parse_constant=_no_constant)
    if b"\\ud" in data.lower() and not is_unicode(_text(found)):
        raise ValueError("found half a surrogate pair, which UTF-8 cannot express")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"found {name}")


def json_bytes(value: Any) -> bytes:
    """JSON in UTF-8, written an element or a slice of numbers at a time."""
    return _parts(value).encode("utf-8", errors="replace")


def _parts(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{','.join(f'{_text(name)}:{_parts(part)}' for name, part in value.items())}}}"
    if not isinstance(value, list) or not value:
        return _text(value)
    if isinstance(value[0], (list, dict)):
        return f"[{','.join(map(_parts, value))}]"
    return f"[{','.join(_text(value[start : start + _SLICE])[1:-1] for start in range(0, len(value), _SLICE))}]"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer of JSON."""
    return Response(json_bytes(value), status, headers, media_type="application/json")
