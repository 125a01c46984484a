"""Refuse unknown options with a message that names the user's call, and flags other than True and False."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar, cast

from glinfer.errors import OptionError, check_flag

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

    Errors name the ``call``, by default the method. Options of type ``bool`` are checked too; they are given by name.
    """

    def decorated(method: Method) -> Method:
        from inspect import signature  # slow to import; the package itself needs only check_options

        parameters = signature(method).parameters.values()
        known = {each.name: each.annotation for each in parameters if each.kind is not each.VAR_KEYWORD}
        known.pop("self", None)
        for options in passed_on:
            known |= {name: each.__forward_arg__ for name, each in options.__annotations__.items()}
        flags = [name for name, kind in known.items() if kind in ("bool", "bool | None")]

        @functools.wraps(method)
        def called(*given: Any, **options: Any) -> Any:
            check_options(call or f"{method.__name__}()", options, known)
            for name in flags:
                if options.get(name) is not None:
                    check_flag(name, options[name])
            return method(*given, **options)

        return cast(Method, called)

    return decorated
