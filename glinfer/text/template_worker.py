"""Render one chat template in a separate process, since a template is an untrusted program.

:mod:`glinfer.text.templates` runs this script, see :func:`glinfer.text.own_process.answer_of`. It imports nothing of
glinfer, to start quickly. :func:`answer` does the work.

Messages, tools and further variables are plain str, so a template sees them unchanged. The template's own texts are
:class:`Text`, a str that records which characters the template wrote. If jinja2 or Python turns a Text into a plain
str, its characters count as a message's: the template may lose a control token, but no message can forge one.
"""

# ruff: noqa: D102, D105 (methods of str)

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment, Template

_ROLES = ("system", "developer", "user", "assistant", "tool")
_NONE: Mapping[str, str] = MappingProxyType({})
_PERCENT, _BRACES = re.compile(r"%(?:\((\w*)\))?[ds]"), re.compile(r"\{(\w*)\}")


_plain = str.__str__


class Text(str):
    """A text that records which characters the template wrote; its value and length are those of the plain str.

    Args:
        text: the characters.
        own: one byte a character: 1 if the template wrote it, else 0; all 0 by default.
    """

    __slots__ = ("_own",)
    _own: bytes
    __module__ = "builtins"  # for a template's error messages

    def __new__(cls, text: str, own: bytes | None = None) -> Text:
        made = super().__new__(cls, text)
        made._own = bytes(len(text)) if own is None else own
        return made

    def __str__(self) -> str:
        return self

    def __add__(self, other: Any) -> Any:
        return concat((self, other)) if type(other) in (str, Text) else _plain(self) + other

    def __radd__(self, other: Any) -> Any:
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: Any) -> Any:
        return Text(_plain(self) * times, self._own * times)

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> str:
        args = values if isinstance(values, tuple) else (values,)
        return _filled(self, str.__mod__(self, values), _PERCENT, args, values)

    def __getitem__(self, key: Any) -> str:
        text, own = str.__getitem__(self, key), self._own[key]
        return _made(text, own if isinstance(own, bytes) else bytes((own,)))

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))

    def join(self, texts: Iterable[str]) -> str:
        texts = list(texts)
        return _made(str.join(self, texts), self._own.join(map(own_of, texts)))

    def replace(self, old: str, new: str, count: Any = -1) -> str:
        made, kept, at = str.replace(self, old, new, count), list[bytes](), 0
        for length in map(len, str.split(self, old, count) if old else ()):
            kept.append(self._own[at : at + length])
            at += length + len(old)
        return _made(made, own_of(new).join(kept)) if old else made


def own_of(text: str) -> bytes:
    """One byte for each character of a text: 1 if the template wrote it, else 0."""
    return text._own if type(text) is Text else bytes(len(text))


def _made(text: str, own: bytes) -> str:
    return Text(text, own) if 1 in own else text


def _recased(made: str, text: Any) -> str:
    """Keep the origins if a change of case kept the length; some characters become several."""
    return Text(made, text._own) if type(text) is Text and len(made) == len(text) else made


def _kept(name: str) -> Callable[..., Any]:
    """Wrap a method of str, to keep the origins of its results."""

    def method(self: Text, *args: Any, **kwargs: Any) -> Any:
        made = getattr(str, name)(self, *args, **kwargs)
        if name in ("lstrip", "removeprefix"):
            return self[len(self) - len(made) :]
        if name in ("rstrip", "removesuffix"):
            return self[: len(made)]
        if name == "strip":
            return self.lstrip(*args).rstrip(*args)
        if name in ("center", "ljust", "rjust"):
            return Text(made, getattr(bytes, name)(self._own, args[0], b"\0"))
        if not isinstance(made, str):  # parts between separators; no part begins with a separator
            at, found = 0, list[str]()
            between = (args[0] if args else kwargs.get("sep")) if name.endswith("split") else None
            for part in made:
                start = self.find(part, at)
                found.append(self[start : start + len(part)])
                at = start + len(part) + len(between or "")
            return type(made)(found)
        return _recased(made, self)

    return method


for _name in (
    *("lstrip", "removeprefix", "rstrip", "removesuffix", "strip", "center", "ljust", "rjust", "split", "rsplit"),
    *("splitlines", "partition", "rpartition", "capitalize", "casefold", "lower", "swapcase", "title", "upper"),
):
    setattr(Text, _name, _kept(_name))
Text.__name__ = "str"


def _filled(form: Text, made: str, fields: re.Pattern[str], args: Sequence[Any], names: Any) -> str:
    """The result of a format string, with origins if all its fields are plain ones."""
    pieces, at, left = list[Any](), 0, iter(args)
    try:
        for found in fields.finditer(form):
            pieces += (form[at : found.start()], names[found[1]] if found[1] else next(left))
            at = found.end()
    except (LookupError, StopIteration, TypeError):
        return made
    pieces.append(form[at:])
    whole, others = concat(pieces), {"%"} if fields is _PERCENT else {"{", "}"}
    return made if whole != made or others & set("".join(pieces[::2])) else whole


@lru_cache(1 << 10)
def _constant(text: str) -> Text:
    return Text(text, b"\1" * len(text))


def own(value: Any) -> Any:
    """Convert the texts of a template's constant to :class:`Text`."""
    if type(value) in (list, tuple):
        return type(value)(map(own, value))
    if type(value) is dict:
        return {own(key): own(each) for key, each in value.items()}
    return _constant(value) if type(value) is str else value


def tracked(value: Any) -> Any:
    """Convert a text or number to :class:`Text`, other values unchanged; numbers count as the template's own."""
    if type(value) is str:
        return Text(value)
    return _constant(str(value)) if value is None or type(value) in (bool, int, float) else value


def concat(values: Iterable[Any]) -> str:
    """Join values as texts, with their origins."""
    texts = [str(tracked(value)) for value in values]
    return _made("".join(texts), b"".join(map(own_of, texts)))


@lru_cache(1)
def _sandbox() -> type[Environment]:
    """The class of environments in which constants become Texts, and which follow texts through formats."""
    from jinja2.compiler import CodeGenerator, Frame
    from jinja2.nodes import Concat
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class OwnConstants(CodeGenerator):
        def visit_Const(self, *args: Any) -> None:  # noqa: N802 (jinja2 has it so)
            self.write("environment.own(")
            super().visit_Const(*args)
            self.write(")")

        def _output_const_repr(self, group: Iterable[Any]) -> str:
            return f"environment.own({super()._output_const_repr(group)})"

        def visit_Concat(self, node: Concat, frame: Frame) -> None:  # noqa: N802
            if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
                super().visit_Concat(node, frame)
                return
            self.write("concat((")
            for each in node.nodes:
                self.visit(each, frame)
                self.write(", ")
            self.write("))")

    class Sandbox(ImmutableSandboxedEnvironment):
        code_generator_class = OwnConstants
        concat = staticmethod(concat)
        own = staticmethod(own)

        def getattr(self, obj: Any, attribute: str) -> Any:
            mixes = type(obj) is str and attribute in ("join", "replace")
            return super().getattr(tracked(obj) if mixes else obj, attribute)

        def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
            plain = super().wrap_str_format(value)
            if plain is None or type(value.__self__) is not Text:
                return plain

            @wraps(plain)
            def wrapper(*args: Any, **kwargs: Any) -> str:
                made, named = plain(*args, **kwargs), {str(index): each for index, each in enumerate(args)}
                names = args[0] if value.__name__ == "format_map" else named | kwargs
                return _filled(value.__self__, made, _BRACES, args, names)

            return wrapper

    return Sandbox


def _environment() -> Environment:
    """The jinja2 environment of transformers, in which constants become Texts."""
    import jinja2.ext
    from jinja2 import filters, pass_eval_context
    from jinja2.nodes import EvalContext, Node, Scope
    from jinja2.parser import Parser
    from markupsafe import soft_str

    class Generation(jinja2.ext.Extension):
        """``{% generation %}…{% endgeneration %}`` marks text for training; here it has no effect."""

        tags = {"generation"}  # noqa: RUF012 (jinja2 has it so)

        def parse(self, parser: Parser) -> Node:
            line = next(parser.stream).lineno
            return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)

    def raise_exception(message: object) -> None:
        raise jinja2.TemplateError(str(message))

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Sequence[str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        pair = None if separators is None else (separators[0], separators[1])
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=pair, sort_keys=sort_keys)

    @pass_eval_context
    def join(context: EvalContext, value: Any, d: Any = "", attribute: Any = None) -> str:
        values = map(tracked, value) if attribute is None else value
        made: str = filters.do_join(context, values, tracked(d), attribute)
        return made

    @pass_eval_context
    def replace(context: EvalContext, s: Any, old: Any, new: Any, count: Any = None) -> str:
        made: str = filters.do_replace(context, tracked(s), old, new, count)
        return made

    def indent(s: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
        made: str = filters.do_indent(s, width, first, blank)
        if type(s) is not Text:
            return made
        step = width if isinstance(width, str) else " " * width
        lines = enumerate((s + "\n").splitlines())
        whole = own("\n").join(step * bool((line or blank) if index else first) + line for index, line in lines)
        return whole if whole == made else made

    environment = _sandbox()(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols], finalize=tracked
    )
    environment.filters |= {"tojson": tojson, "join": join, "replace": replace, "indent": indent}
    environment.filters["string"] = lambda value: soft_str(tracked(value))
    environment.filters["title"] = lambda value: _recased(filters.do_title(value), value)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def compiled(source: str) -> Template:
    """Compile a template with the settings, tests and functions of transformers."""
    return _environment().from_string(source)


def text_of(template: Template, variables: Mapping[str, Any], most: int, tokens: Mapping[str, str] = _NONE) -> str:
    """Run a compiled template; the arguments are those of :func:`render`."""
    given = {**own(dict(tokens)), **variables}
    if isinstance(messages := given.get("messages"), list):
        given["messages"] = list(map(_with_own_role, messages))
    pieces, length = [], 0
    for piece in template.generate(**given):
        pieces.append(piece)
        length += len(piece)
        if length > most:
            raise OverflowError(f"its text has more than {most} characters")
    return concat(pieces)


def _with_own_role(message: Any) -> Any:
    """Count a usual role as the template's own text: some templates make control tokens such as ``<|user|>`` of it."""
    usual = isinstance(message, dict) and message.get("role") in _ROLES
    return {**message, "role": Text(message["role"], b"\1" * len(message["role"]))} if usual else message


def render(source: str, variables: Mapping[str, Any], most: int, tokens: Mapping[str, str] = _NONE) -> str:
    """Render a template with the settings, tests and functions of transformers, to ``most`` characters.

    ``variables``, such as ``messages`` and ``tools``, are untrusted. ``tokens``, such as ``bos_token``, are variables
    that count as the template's own text.
    """
    return text_of(compiled(source), variables, most, tokens)


def arguments_of(source: str, tokens: Iterable[str]) -> list[str]:
    """The variables that a template uses and glinfer does not set, without special tokens."""
    from jinja2.meta import find_undeclared_variables

    environment = compiled(source).environment
    given = {*environment.globals, *tokens, "messages", "add_generation_prompt", "tools", "documents"}
    return sorted(
        name for name in find_undeclared_variables(environment.parse(source)) - given if not name.endswith("_token")
    )


def parts_of(text: str, names: Iterable[str]) -> list[str]:
    """Cut the result of :func:`render` at the control tokens that the template wrote, the longest of ``names`` first.

    Texts are at even indices, control tokens at odd ones.
    """
    plain, parts, at = _plain(text), list[str](), 0
    runs = [found.span() for found in re.finditer(b"\1+", own_of(text))]
    together = "\0".join(plain[start:end] for start, end in runs)
    spelled = sorted((name for name in names if name and name in together), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, spelled)) or "(?!)")
    for found in (found for run in runs for found in pattern.finditer(plain, *run)):
        parts += (plain[at : found.start()], found[0])
        at = found.end()
    return [*parts, plain[at:]]


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rendered parts of a request's template, or its error in one line."""
    try:
        known = arguments_of(request["source"], request["tokens"]) if request.get("kwargs") else []
        if not {*request.get("kwargs", ())} <= {*known}:
            return {"known": known}
        text = render(request["source"], request["variables"], request["most"], request["tokens"])
        return {"parts": parts_of(text, request["names"])}
    except MemoryError:
        return {"error": "it takes too much memory"}
    except RecursionError:
        return {"error": "it calls itself endlessly, or is nested too deep"}
    except Exception as error:
        line = getattr(error, "lineno", None)
        return {"error": (str(error) or type(error).__name__) + (f" (line {line})" if line else "")}
