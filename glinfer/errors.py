"""The errors that glinfer raises on purpose.

Every message is one line that says what was found, what was expected and what to do about it.
The command line prints that line and exits with status 2; nothing else is caught there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


class GlinferError(Exception):
    """Base of every error that glinfer raises on purpose."""


class FormatError(GlinferError):
    """A file is not what its format promises: wrong magic, truncated, padded, absurd sizes."""


class ConfigError(GlinferError):
    """A model configuration cannot describe a model (zero heads, a width the heads do not divide, …)."""


class InputError(GlinferError):
    """A request of the user cannot be run: an empty prompt, a token outside the vocabulary, a bad option.

    Attributes:
        public: the message without paths of this machine, for clients of a server.
    """

    def __init__(self, message: str = "", public: str | None = None) -> None:
        """Keep both; without paths they are the same."""
        super().__init__(message)
        self.public = message if public is None else public


class OptionError(InputError, TypeError):
    """A call was given an option that it does not have; a TypeError too, as Python itself raises for such calls."""


class NumbersError(InputError):
    """A model has computed NaN or an infinity where numbers are needed: its weights are broken, or out of range."""


class StructureError(InputError):
    """A text cannot be given the structure that was asked for.

    Attributes:
        text: what there is of the text, where a text was begun and is incomplete; None otherwise.
    """

    def __init__(self, message: str, text: str | None = None) -> None:
        """Keep the incomplete text."""
        super().__init__(message)
        self.text = text


class HubError(GlinferError):
    """A model on a hub cannot be found, may not be read, or did not arrive whole."""


class PlanError(GlinferError):
    """A plan is invalid: shapes that do not fit, a read of nothing, a feedback loop, a limit exceeded."""


class ShaderError(GlinferError):
    """A shader file is missing, or the driver refused it; the message names file and line."""


class ContextError(GlinferError):
    """No usable OpenGL context can be opened on this machine, or it was used after it was closed."""


class GLError(GlinferError):
    """The driver reported an OpenGL error that glinfer did not expect."""


class GlinferWarning(RuntimeWarning):
    """A problem that glinfer can continue after, and that its user should know of."""


def nearest(name: str, names: Iterable[str]) -> str:
    """The names that a mistyped or shortened one may stand for, joined by "or"; empty where none is near."""
    import difflib  # which errors alone need

    # Without the marks of options, which would make every two of them alike.
    bare = {each.lstrip("-/"): each for each in names}
    wanted = name.lstrip("-/").lower()
    begun = [each for each in bare if len(wanted) > 1 and each.startswith(wanted)]
    return " or ".join(bare[each] for each in begun[:3] or difflib.get_close_matches(wanted, bare, n=1))


def install_command(extra: str) -> str:
    """The command that installs one of glinfer's extras: from the checkout, or the place, that glinfer came from."""
    from importlib import metadata  # which is slow to import, and needed by errors alone

    try:
        told = metadata.distribution("glinfer").read_text("direct_url.json")
        origin = json.loads(told or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    if (_PACKAGE.parent / "pyproject.toml").is_file():
        return f"pip install -e '{_PACKAGE.parent}[{extra}]'"
    if url := origin.get("url"):
        kind = origin.get("vcs_info", {}).get("vcs")
        return f"pip install 'glinfer[{extra}] @ {kind + '+' if kind else ''}{url}'"
    return f"pip install 'glinfer[{extra}]'"
