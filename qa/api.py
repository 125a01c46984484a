"""``python -m qa api``: what users of glinfer build on, written down, so that no change of it goes unnoticed.

``qa/api.json`` has every public name of Python with its parameters, every option of the command line, and every route
and field of the server. A test compares it with what there is. docs/contributing.md has the rules of what may change.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import click
from packaging.version import Version

import glinfer
from glinfer import errors
from glinfer.cli.app import Commands, cli
from glinfer.errors import InputError

SNAPSHOT = Path(__file__).with_name("api.json")
REQUIRED = "required"
Api = Mapping[str, str]


class Snapshot(NamedTuple):
    """What is written down: the last released version, deprecated names with version and replacement, and all names."""

    released: str
    deprecated: Mapping[str, Mapping[str, str]]
    names: Api

    @classmethod
    def read(cls) -> Snapshot:
        """Read the file."""
        return cls(**json.loads(SNAPSHOT.read_text("utf-8")))

    def write(self) -> None:
        """Write the file."""
        document = self._replace(names=dict(sorted(self.names.items())))._asdict()
        SNAPSHOT.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")


def current() -> dict[str, str]:
    """All public names of this checkout."""
    return {**dict(_python()), **dict(_commands(cli)), **dict(_routes())}


# Python


def _python() -> Iterator[tuple[str, str]]:
    """What ``glinfer`` has, the classes of what it returns, and the errors that it raises."""
    from glinfer.engine.run.stats import GenerationStats
    from glinfer.tensors.ops import Ops

    for name in glinfer.__all__:
        if name != "__version__":
            yield from _described(f"glinfer.{name}", getattr(glinfer, name))
    for kind in (GenerationStats, Ops):
        yield from _described(kind.__name__, kind)
    for name, found in vars(errors).items():
        if isinstance(found, type) and issubclass(found, (errors.GlinferError, Warning)) and name != "GlinferError":
            yield name, f"error: {found.__base__.__name__ if found.__base__ else ''}"


def _described(name: str, found: Any) -> Iterator[tuple[str, str]]:
    """A function or a class, and below it its parameters and its members."""
    if not isinstance(found, type):
        yield name, "function"
        yield from _parameters(name, found)
        return
    yield name, "class"
    if issubclass(found, Exception):  # of whose members Python has other ones in each version
        return
    if not issubclass(found, dict):  # which is made in many ways
        yield from _parameters(name, found)
    own = {field.name for field in fields(found)} if is_dataclass(found) else set()
    pythons = {member for base in found.__mro__ if base.__module__ == "builtins" for member in vars(base)}
    for member in sorted({*dir(found), *own}):
        if member.startswith("_") or member in pythons:
            continue
        value = inspect.getattr_static(found, member, None)
        value = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if inspect.isfunction(value):
            if value.__module__.startswith("glinfer."):
                yield f"{name}.{member}", "method"
                yield from _parameters(f"{name}.{member}", value)
        else:
            yield f"{name}.{member}", "attribute"


def _parameters(name: str, found: Any) -> Iterator[tuple[str, str]]:
    """``name(parameter)`` and how it is given: its position, or by name alone, and its default."""
    given = [each for each in inspect.signature(found).parameters.values() if each.name not in ("self", "cls")]
    for place, each in enumerate(given):
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            yield f"{name}({'*' if each.kind is each.VAR_POSITIONAL else '**'}{each.name})", "any"
            continue
        how = "by name" if each.kind is each.KEYWORD_ONLY else f"place {place}"
        default = REQUIRED if each.default is each.empty else f"default {_value(each.default)}"
        yield f"{name}({each.name})", f"{how}, {default}"


def _value(value: Any) -> str:
    """A default as text that is the same in every process; of an object its kind alone."""
    plain = isinstance(value, (type(None), bool, int, float, str, tuple)) and not isinstance(value, Enum)
    return repr(value) if plain else type(value).__name__


# The command line, and HTTP


def _commands(group: Commands) -> Iterator[tuple[str, str]]:
    """Every command with its arguments and options."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"glinfer {name}", "command"
        for each in command.params:
            kind = each.type.name
            if isinstance(each.type, click.Choice):
                kind = "|".join(sorted(map(str, each.type.choices)))
            if isinstance(each, click.Option):
                words = "flag" if each.is_flag else kind
                words += ", repeatable" if each.multiple else ""
                default = REQUIRED if each.required else ""
                whole = next((spelling for spelling in each.opts if spelling.startswith("--")), each.opts[0])
                for spelling in (*each.opts, *each.secondary_opts):
                    again = spelling in each.opts and spelling != whole  # so that a further one requires nothing new
                    yield f"glinfer {name} {spelling}", f"as {whole}" if again else f"{words}, {default}".rstrip(", ")
            else:
                how = REQUIRED if each.required else "optional"
                yield f"glinfer {name} {(each.name or '').upper()}", f"{kind}, {how}"


def _routes() -> Iterator[tuple[str, str]]:
    """Every route of the server, and the fields of its body."""
    from glinfer.server.routes import ROUTES

    for route in ROUTES:
        name = f"{route.method} {route.path}"
        yield name, "route"
        if route.body is not None:
            for field, about in route.body.model_fields.items():
                yield f"{name} {field}", REQUIRED if about.is_required() else "optional"


# What differs


def differences(old: Api, new: Api) -> list[str]:
    """A line for each name that was added, removed or changed."""
    lines = [f"removed: {name} ({old[name]})" for name in sorted(old.keys() - new.keys())]
    lines += [f"added: {name} ({new[name]})" for name in sorted(new.keys() - old.keys())]
    both = sorted(old.keys() & new.keys())
    return lines + [f"changed: {name} ({old[name]}, now {new[name]})" for name in both if old[name] != new[name]]


def breaking(old: Api, new: Api) -> list[str]:
    """Names whose users a change would break: what is gone, and what has to be given and did not."""
    found = [name for name in old if name not in new]
    for name, how in new.items():
        owner = name.partition("(")[0] if "(" in name else name.rpartition(" ")[0]
        was = old.get(name, "optional" if owner in old else how)
        moved = "place " in was and was.partition(",")[0] != how.partition(",")[0]
        if (how.endswith(REQUIRED) and not was.endswith(REQUIRED)) or (name in old and moved):
            found.append(name)
    return sorted(found)


def undue(snapshot: Snapshot, new: Api, version: str) -> list[str]:
    """Breaking changes that the rules do not allow in this version.

    What is deprecated, or belongs to what is, may go one minor version after that which first said so.
    """

    def minor(number: str) -> tuple[int, ...]:
        return Version(number).release[:2]

    allowed = [name for name, about in snapshot.deprecated.items() if minor(about["since"]) < minor(version)]
    below = tuple(f"{name}{end}" for name in allowed for end in ".( ")
    return [name for name in breaking(snapshot.names, new) if name not in allowed and not name.startswith(below)]


def check(snapshot: Snapshot, new: Api) -> list[str]:
    """What is not as it is written down, and deprecated names that there are not; nothing if all is well."""
    gone = [f"deprecated, but not there: {name}" for name in snapshot.deprecated if name not in new]
    return differences(snapshot.names, new) + gone


def deprecate(snapshot: Snapshot, names: Sequence[str], instead: str, version: str) -> Snapshot:
    """Write down that names are deprecated; InputError without such a name or a replacement."""
    for name in names:
        if name not in snapshot.names:
            raise InputError(f"there is no public name {name!r}; 'python -m qa api --list' has them all")
    if names and not instead:
        raise InputError("--deprecate needs --instead TEXT, what to use in its place")
    added = {name: {"since": version, "instead": instead} for name in names}
    return snapshot._replace(deprecated=dict(sorted({**snapshot.deprecated, **added}.items())))


@click.command("api")
@click.option("--update", is_flag=True, help="Record the current names.")
@click.option("--deprecate", "names", multiple=True, metavar="NAME", help="Mark a name as deprecated. Repeatable.")
@click.option("--instead", default="", help="Replacement for the deprecated name.")
@click.option("--released", is_flag=True, help="Mark this version as released; its names must then be kept.")
@click.option("--list", "listed", is_flag=True, help="Print all public names.")
def api(update: bool, names: tuple[str, ...], instead: str, released: bool, listed: bool) -> int:
    """Compare the public names, parameters, options and routes with those recorded in qa/api.json.

    The exit status is 1 if they differ. --update records them; a change that would break users of the last release is
    refused, unless the removed names were deprecated in an earlier minor version.

    \b
    python -m qa api
    python -m qa api --update
    python -m qa api --deprecate 'glinfer.load(gelu)' --instead 'a file setting'
    """
    snapshot, new = Snapshot.read() if SNAPSHOT.exists() else Snapshot("", {}, {}), current()
    if listed:
        click.echo("\n".join(f"{name}: {how}" for name, how in sorted(new.items())))
        return 0
    if names or instead:
        snapshot = deprecate(snapshot, names, instead, glinfer.__version__)
    if update:
        if refused := undue(snapshot, new, glinfer.__version__):
            for name in refused:
                click.echo(f"would break users of {snapshot.released}: {name}; deprecate it first", err=True)
            return 1
        for line in differences(snapshot.names, new):
            click.echo(line)
        kept = {name: about for name, about in snapshot.deprecated.items() if name in new}
        snapshot = snapshot._replace(deprecated=kept, names=new)
    if released:
        snapshot = snapshot._replace(released=glinfer.__version__)
    if names or update or released:
        snapshot.write()
    if found := check(snapshot, new):
        click.echo("\n".join([*found, f"{len(found)} differ from {SNAPSHOT.name}; run 'python -m qa api --update'"]))
        return 1
    click.echo(f"{len(new)} public names, as {SNAPSHOT.name} has them; {len(snapshot.deprecated)} deprecated")
    return 0
