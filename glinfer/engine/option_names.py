"""Refuse unknown options under the name of the call that the user made, whatever it passes its options on to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from inspect import signature
from typing import Any, TypeVar, cast

from glinfer.errors import OptionError

Method = TypeVar("Method", bound=Callable[..., Any])


def check_options(call: str, given: Iterable[str], known: Collection[str]) -> None:
    """Check the names of options.

    Raises:
        OptionError: one is unknown; names the ``call`` and the closest known option.
    """
    for name in given:
        if name not in known:
            import difflib  # which errors alone need

            close = difflib.get_close_matches(str(name), known, n=1)
            expected = f"did you mean {close[0]!r}?" if close else f"expected some of {', '.join(sorted(known))}"
            raise OptionError(f"{call} has no option {name!r}; {expected}")


def named_options(*passed_on: type) -> Callable[[Method], Method]:
    """Check the names of a method's options before it runs: its own, and those of the typed dicts ``passed_on``."""

    def decorated(method: Method) -> Method:
        parameters = signature(method).parameters.values()
        known = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}
        known |= {name for options in passed_on for name in options.__annotations__}

        @functools.wraps(method)
        def called(*given: Any, **options: Any) -> Any:
            check_options(f"{method.__name__}()", options, known)
            return method(*given, **options)

        return cast(Method, called)

    return decorated
