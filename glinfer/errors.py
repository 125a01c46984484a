"""The errors that glinfer raises on purpose.

Every message is one line that says what was found, what was expected and what to do.
The command line catches only these errors, prints the line and exits with status 2.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent


class GlinferError(Exception):
    """Base of every error that glinfer raises on purpose."""


class FormatError(GlinferError):
    """A file violates its format: wrong magic, truncated, padded, absurd sizes."""


class ConfigError(GlinferError):
    """A model configuration cannot describe a model (zero heads, a width the heads do not divide, …)."""


class InputError(GlinferError):
    """A request is invalid: an empty prompt, a token outside the vocabulary, a bad option.

    Attributes:
        public: the message for a server's clients, without paths of this machine.
    """

    def __init__(self, message: str = "", public: str | None = None) -> None:
        """Keep both messages; ``public`` defaults to ``message``."""
        super().__init__(message)
        self.public = message if public is None else public


class OptionError(InputError, TypeError):
    """An unknown option of a call, or an operation that an object lacks; also a TypeError, as in Python."""


class NumbersError(InputError):
    """A model computed NaN or an infinity: its weights are broken or out of range."""


class StructureError(InputError):
    """A text cannot match the requested structure.

    Attributes:
        text: the incomplete text; None if generation had not begun.
    """

    def __init__(self, message: str, text: str | None = None) -> None:
        """Keep the incomplete text."""
        super().__init__(message)
        self.text = text


class HubError(GlinferError):
    """A model on a hub was not found, cannot be read, or was downloaded incompletely."""


class PlanError(GlinferError):
    """A plan is invalid: shapes that do not fit, a read of an unwritten tensor, a feedback loop, a limit exceeded."""


class ShaderError(GlinferError):
    """A shader file is missing, or the driver rejected it; the message names file and line."""


class ContextError(GlinferError):
    """This machine has no usable OpenGL context, or an object was used after it was closed."""


class GLError(GlinferError):
    """The driver reported an OpenGL error that glinfer did not expect."""


class GlinferWarning(RuntimeWarning):
    """A problem that does not stop glinfer."""


def nearest(name: str, names: Iterable[str]) -> str:
    """Suggest names for a mistyped or shortened one, joined by "or"; empty if no name is similar."""
    import difflib  # only errors need it

    # Compare without leading dashes and slashes, which would make all options similar.
    bare = {each.lstrip("-/"): each for each in names}
    wanted = name.lstrip("-/").lower()
    begun = [each for each in bare if len(wanted) > 1 and each.startswith(wanted)]
    return " or ".join(bare[each] for each in begun[:3] or difflib.get_close_matches(wanted, bare, n=1))


def counted(count: int, noun: str) -> str:
    """A number of things, in the plural unless it is 1."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def check_flag(name: str, value: object) -> None:
    """Refuse a value that is neither a bool nor NumPy's, whose type is ``bool_`` before NumPy 2, with an InputError."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise InputError(f"{name} is {value!r}; expected True or False")


def pip() -> str:
    """The command of this Python's pip: ``pip`` if a shell finds this one, else by the path of the interpreter."""
    import shlex  # only errors need these
    import shutil

    found, here = shutil.which("pip"), Path(sys.executable)
    return "pip" if found and Path(found).parent == here.parent else f"{shlex.quote(str(here))} -m pip"


def install_command(extra: str) -> str:
    """The command that installs one of glinfer's extras, from the source that glinfer was installed from."""
    import json  # slow to import, as metadata is; only errors need them
    from importlib import metadata

    try:
        text = metadata.distribution("glinfer").read_text("direct_url.json")
        origin = json.loads(text or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    if (_PACKAGE.parent / "pyproject.toml").is_file():
        return f"{pip()} install -e '{_PACKAGE.parent}[{extra}]'"
    if url := origin.get("url"):
        kind = origin.get("vcs_info", {}).get("vcs")
        return f"{pip()} install 'glinfer[{extra}] @ {kind + '+' if kind else ''}{url}'"
    return f"{pip()} install 'glinfer[{extra}]'"


def required(module: str, extra: str, what: str) -> Any:
    """Import a module of an optional package.

    Raises:
        InputError: it is not installed; the message begins with ``what`` and says which extra to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        problem = f"{what} the package {module.partition('.')[0]}, which is not installed"
        raise InputError(f"{problem}; {install_command(extra)}", problem) from None
