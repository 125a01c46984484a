"""Faults of the driver and the system: lost contexts, exhausted texture memory, forked processes.

A driver resets a context when the GPU hangs or is removed. With robustness (GL_KHR_robustness, GL_EXT_robustness,
and EGL_EXT_create_context_robustness to request it) the driver reports the reset. Everything in the context is then
gone, and results read back are invalid.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Collection
from ctypes import c_void_p
from functools import lru_cache

from glinfer.errors import ContextError, GLError

CONTEXT_LOST = "GL_CONTEXT_LOST"
OUT_OF_MEMORY = "GL_OUT_OF_MEMORY"
RESETS = {0x8253: "guilty", 0x8254: "innocent"}
"""Whether the context itself caused a reset or another one did, by the reset status."""
RESET_STATUS = {
    "es": {
        "GL_KHR_robustness": "glGetGraphicsResetStatusKHR",
        "GL_EXT_robustness": "glGetGraphicsResetStatusEXT",
    },
    "desktop": {
        "GL_KHR_robustness": "glGetGraphicsResetStatus",
        "GL_ARB_robustness": "glGetGraphicsResetStatusARB",
    },
}
"""Functions that return the reset status since their last call, 0 for none, by API and extension."""
SOFTPIPE_VERTICES = 4092
"""Limit for the vertices of one call on softpipe, whose gl_VertexID restarts after 4096; a multiple of a quad's 6."""
_OVERTAKING = re.compile(r"Mesa 2[3-5]\.")
"""Mesa versions whose zink may reorder uploads: 25.0 does, 22.3 and 26.0 do not, the others are untested."""
_SOFTWARE = ("llvmpipe", "softpipe", "swiftshader", "software rasterizer")
_ADVICE = "load the model again: a new session continues with session.prefill(old_session.ids)"

_started_in: int | None = None


class ContextLostError(ContextError, GLError):
    """The driver reset the context; everything in it is gone."""


def most_vertices(renderer: str) -> int | None:
    """Limit for the vertices of one call, beyond which gl_VertexID is wrong; None for no limit."""
    return SOFTPIPE_VERTICES if "softpipe" in renderer.lower() else None


def uploads_overtake(renderer: str, version: str) -> bool:
    """Whether an upload may overwrite texels before earlier draws have read them.

    zink of Mesa 25.0 writes them at once, while the draws still wait in the queue of its driver thread.
    """
    return renderer.startswith("zink") and _OVERTAKING.search(version) is not None


def lost(doing: str, kind: str, renderer: str, errors: Collection[str]) -> ContextLostError:
    """The error of the call that finds the context lost."""
    said = f"{renderer} reported {CONTEXT_LOST}: " if CONTEXT_LOST in errors else ""
    return ContextLostError(f"{doing}: {said}the graphics context was lost ({kind} reset); {_ADVICE}")


def lost_before(doing: str, kind: str) -> ContextLostError:
    """The error of every call after the loss was found."""
    return ContextLostError(f"the graphics context was lost ({kind} reset) while {doing}; {_ADVICE}")


def no_room(nbytes: int) -> str:
    """The message of a failed texture allocation; ``nbytes`` is 0 if the size is unknown."""
    size = f" for {bytes_text(nbytes)}" if nbytes else ""
    return (
        f"found no memory{size}; close models and sessions that are not needed, or take a shorter context "
        "(--context), fewer bits (--weights q8, or file for GGUF blocks) or another device (--device)"
    )


def bytes_text(count: int) -> str:
    """A readable size, such as ``1.2 GB``."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"


def in_main_memory(renderer: str) -> bool:
    """Whether a renderer is software, with its textures in main memory."""
    return any(name in renderer.lower() for name in _SOFTWARE)


def note_start() -> None:
    """Remember the process that starts OpenGL, before its first context; ContextError in a process forked from it."""
    global _started_in
    if _started_in not in (None, os.getpid()):
        raise ContextError(
            f"this process was forked from process {_started_in} after OpenGL was started there, and drivers do not "
            "survive a fork; start processes with multiprocessing's 'spawn', or fork before a device is opened"
        )
    _started_in = os.getpid()


@lru_cache(maxsize=1)
def guard_forks() -> None:
    """Make processes forked from this one skip the exit handlers of C libraries.

    In a forked process NVIDIA's handlers free driver objects of the parent, which then dies at its next readback.
    Mesa's handlers wait for threads that a forked process does not have. Python's own exit work runs first. Without
    ``on_exit``, which only the GNU C library has, nothing changes; multiprocessing skips these handlers anyway.
    """
    if not hasattr(os, "register_at_fork"):
        return
    library = ctypes.CDLL(None)
    if not hasattr(library, "on_exit"):
        return
    library.on_exit.argtypes = [c_void_p, c_void_p]
    leave = ctypes.cast(library._exit, c_void_p)  # called with the exit status, like a handler
    os.register_at_fork(after_in_child=lambda: library.on_exit(leave, None))


def forked(process: int) -> ContextError:
    """The error of a device in a process that was forked from the one that opened it."""
    return ContextError(
        f"this device was opened in process {process}, from which this one was forked, and drivers do not survive a "
        "fork; start processes with multiprocessing's 'spawn', and load the model in each of them"
    )
