"""The errors that glinfer raises on purpose.

Every message is one line that says what was found, what was expected and what to do about it.
The command line prints that line and exits with status 2; nothing else is caught there.
"""


class GlinferError(Exception):
    """Base of every error that glinfer raises on purpose."""


class FormatError(GlinferError):
    """A file is not what its format promises: wrong magic, truncated, padded, absurd sizes."""


class ConfigError(GlinferError):
    """A model configuration cannot describe a model (zero heads, a width the heads do not divide, …)."""


class InputError(GlinferError):
    """A request of the user cannot be run: an empty prompt, a token outside the vocabulary, a bad option."""


class NumbersError(InputError):
    """A model has computed NaN or an infinity where numbers are needed: its weights are broken, or out of range."""


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
