"""Compiling of one structure in a process of its own, since it may take any time and memory, or end the process.

Run as a script by :mod:`glinfer.structured.compiler`, see :func:`glinfer.text.own_process.answer_of`. Nothing of
glinfer is imported here, so that the process starts quickly.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any


def limit(seconds: int, memory: int) -> None:
    """Limit the processor seconds and the memory of this process, if the system can."""
    try:
        import resource
    except ImportError:  # not on Windows, where the time limit of the parent is all there is
        return
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file can be written to
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def answer(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the library's error about a request's grammar, or an empty one."""
    from llguidance import LLMatcher

    is_error, messages = LLMatcher.validate_grammar_with_warnings(request["grammar"])
    return {"error": messages[0] if is_error else ""}


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    limit(request["seconds"], request["memory"])
    json.dump(answer(request), sys.stdout)


if __name__ == "__main__":
    main()
