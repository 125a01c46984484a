"""Run the function ``answer`` of a script in this process, within limits of time and memory.

:func:`glinfer.text.own_process.answer_of` starts it as ``python -I limited.py SCRIPT``, with one JSON object on
standard input and one on standard output. It imports nothing of glinfer, to start quickly.
"""

from __future__ import annotations

import json
import runpy
import sys


def limit(seconds: int, memory: int) -> None:
    """Limit the processor seconds and the memory bytes of this process, if the system can."""
    try:
        import resource
    except ImportError:  # Windows: the parent's time limit is the only one
        return
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):  # write no file
        resource.setrlimit(kind, (0, 0))


if __name__ == "__main__":
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    limit(request["seconds"], request["memory"])
    json.dump(runpy.run_path(sys.argv[1])["answer"](request), sys.stdout)
