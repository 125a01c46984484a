"""Compile one structure in a separate process, since it may take any time and memory, or crash.

:mod:`glinfer.structured.compiler` runs this script; see :func:`glinfer.text.own_process.answer_of`. It imports nothing
of glinfer, to start quickly.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any


def limit(seconds: int, memory: int) -> None:
    """Limit the processor seconds and the memory bytes of this process, if the system can."""
    try:
        import resource
    except ImportError:  # Windows: the parent's time limit is the only one
        return
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # write no file
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def answer(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the library's error about a request's grammar, or an empty text."""
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
