"""Detection of regular expressions that can take exponential time, by their form.

The library backtracks, so a repeated group that can match the same text in several ways takes exponential time. All
such groups and all back-references are refused; tokenizers need neither.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from glinfer.limits import MAX_EXPRESSION_CHARACTERS, MAX_EXPRESSION_DEPTH

_COUNTED = re.compile(r"\{(\d{0,9})(?:(,)(\d{0,9}))?\}")
_OPENING = re.compile(r"\?(?:[imx\-]*:|=|!|>|<=|<!|<[A-Za-z_]\w*>)")
_FLAGS = re.compile(r"\?[im\-]+\)")
_REFERENCE = re.compile(r"\\[kg1-9]")


@dataclass
class _Group:
    """A group, and whether it can match the same text in several ways."""

    ambiguous: bool = False


def problem_of(pattern: str) -> str:
    """The reason why an expression may take exponential time, as the end of a sentence; "" if it cannot.

    Only forms of Oniguruma's Ruby syntax are checked; the library itself refuses all others.
    """
    if len(pattern) > MAX_EXPRESSION_CHARACTERS:
        return f"which has {len(pattern)} characters"
    groups = [_Group()]
    before: _Group | None = None  # the item that a quantifier here would repeat
    at = 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            if _REFERENCE.match(pattern, at):
                return "which refers back to one of its groups"
            # The braces of \p{L} and \x{10FFFF} are not quantifiers.
            braces = re.compile(r"\\[pPxuk]\{[^}]*\}").match(pattern, at)
            before, at = _Group(), braces.end() if braces else at + 2
        elif letter == "[":
            before, at = _Group(), _end_of_class(pattern, at)
        elif letter == "(":
            if flags := _FLAGS.match(pattern, at + 1):
                before, at = None, flags.end()
                continue
            opening = _OPENING.match(pattern, at + 1)
            if pattern.startswith("(?", at) and (opening is None or "x" in opening[0].split("<")[0]):
                return "which has a group of a kind that tokenizers do not need"
            groups.append(_Group())
            if len(groups) > MAX_EXPRESSION_DEPTH:
                return f"which has more than {MAX_EXPRESSION_DEPTH} nested groups"
            before, at = None, opening.end() if opening else at + 1
        elif letter == ")":
            if len(groups) == 1:
                return ""  # the library reports the missing bracket
            before = groups.pop()
            groups[-1].ambiguous |= before.ambiguous
            at += 1
        elif letter == "|":
            groups[-1].ambiguous = True
            before, at = None, at + 1
        elif (found := _quantifier(pattern, at)) is not None:
            end, least, most = found
            repeats = most is None or most > 1
            if repeats and before is not None and before.ambiguous:
                return "which repeats a part that can match in several ways"
            variable = least != most
            groups[-1].ambiguous |= variable
            before, at = _Group(ambiguous=variable or (before is not None and before.ambiguous)), end
        else:
            before, at = _Group(), at + 1
    return ""


def _end_of_class(pattern: str, start: int) -> int:
    """The index after the bracket that closes a character class, which may be nested."""
    at, depth = start + 1, 1
    while at < len(pattern) and depth:
        depth += {"[": 1, "]": -1}.get(pattern[at], 0)
        at += 2 if pattern[at] == "\\" else 1
    return at


def _quantifier(pattern: str, at: int) -> tuple[int, int, int | None] | None:
    """The end of a quantifier and its minimum and maximum count (None: unlimited); None without a quantifier."""
    if pattern[at] in "*+?":
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[pattern[at]]
        end = at + 1
        # A second sign makes it lazy or possessive; a third would repeat the whole.
        return (end + 1 if pattern[end : end + 1] in ("?", "+") else end), least, most
    counted = _COUNTED.match(pattern, at)
    if counted is None or not (counted[1] or counted[3]):
        return None
    least = int(counted[1] or 0)
    most = least if counted[2] is None else int(counted[3]) if counted[3] else None
    end = counted.end()
    return (end + 1 if pattern[end : end + 1] == "?" else end), least, most
