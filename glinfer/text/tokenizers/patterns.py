"""Detection of regular expressions that can take exponential time, by their form.

The library searches by trying, one way after the other. What makes the ways too many is a repeated group whose inside
can match the same text in several ways: one with a repetition of its own, or with alternatives. Tokenizers cut text
with alternatives of plain repetitions, so such groups, and what refers back to a group, are refused altogether.
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
    """A group, and whether its inside can match one text in several ways."""

    ambiguous: bool = False


def problem_of(pattern: str) -> str:
    """The reason why an expression may take exponential time, as the end of a sentence; empty if it cannot.

    Only forms are looked at that Oniguruma's Ruby syntax has; what is none of them, the library refuses itself.
    """
    if len(pattern) > MAX_EXPRESSION_CHARACTERS:
        return f"which has {len(pattern)} characters"
    groups = [_Group()]
    before: _Group | None = None  # what a quantifier here would repeat
    at = 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            if _REFERENCE.match(pattern, at):
                return "which refers to a group of its own"
            # The braces of \p{L} and \x{10FFFF} are no quantifier.
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
                return f"which has more than {MAX_EXPRESSION_DEPTH} groups in each other"
            before, at = None, opening.end() if opening else at + 1
        elif letter == ")":
            if len(groups) == 1:
                return ""  # no expression, which the library says
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
                return "which repeats what can match in several ways"
            variable = least != most
            groups[-1].ambiguous |= variable
            before, at = _Group(ambiguous=variable or (before is not None and before.ambiguous)), end
        else:
            before, at = _Group(), at + 1
    return ""


def _end_of_class(pattern: str, start: int) -> int:
    """The place after the bracket that ends a class of characters, which may be nested."""
    at, depth = start + 1, 1
    while at < len(pattern) and depth:
        depth += {"[": 1, "]": -1}.get(pattern[at], 0)
        at += 2 if pattern[at] == "\\" else 1
    return at


def _quantifier(pattern: str, at: int) -> tuple[int, int, int | None] | None:
    """The end of a quantifier, and its least and greatest count (None: any); None if there is no quantifier."""
    if pattern[at] in "*+?":
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[pattern[at]]
        end = at + 1
        # Lazy and possessive ones; a third sign would repeat the whole.
        return (end + 1 if pattern[end : end + 1] in ("?", "+") else end), least, most
    counted = _COUNTED.match(pattern, at)
    if counted is None or not (counted[1] or counted[3]):
        return None
    least = int(counted[1] or 0)
    most = least if counted[2] is None else int(counted[3]) if counted[3] else None
    end = counted.end()
    return (end + 1 if pattern[end : end + 1] == "?" else end), least, most
