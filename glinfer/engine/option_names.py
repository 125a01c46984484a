"""Refuse unknown options with a message that names the user's call, even if it passes its options on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar, cast

from glinfer.errors import OptionError

Method = TypeVar("Method", bound=Callable[..., Any])


def check_options(call: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse unknown names with an OptionError that names the ``call`` and the closest known option."""
    for name in given:
        if name not in known:
            import difflib  # only errors need it

            close = difflib.get_close_matches(str(name), known, n=1)
            expected = f"did you mean {close[0]!r}?" if close else f"expected some of {', '.join(sorted(known))}"
            raise OptionError(f"{call} has no option {name!r}; {expected}")


def named_options(*passed_on: type, call: str = "") -> Callable[[Method], Method]:
    """Decorate a method to check option names: its parameters and the keys of the typed dicts ``passed_on``.

    Errors name the ``call``, by default the method.
    """

    def decorated(method: Method) -> Method:
        from inspect import signature  # slow to import; the package itself needs only check_options

        parameters = signature(method).parameters.values()
        known = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD} - {"self"}
        known |= {name for options in passed_on for name in options.__annotations__}

        @functools.wraps(method)
        def called(*given: Any, **options: Any) -> Any:
            check_options(call or f"{method.__name__}()", options, known)
            return method(*given, **options)

        return cast(Method, called)

    return decorated
