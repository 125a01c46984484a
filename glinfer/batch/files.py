"""Batch files: prompts in one JSON-lines file, results in another, which a later run continues.

docs/formats.md describes both files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from glinfer.engine.ids import check_ids, check_tokens, whole_numbers
from glinfer.engine.model import Model
from glinfer.engine.progress import Progress, no_progress
from glinfer.engine.sampler import SamplingOptions
from glinfer.errors import FormatError, InputError
from glinfer.formats.files import AnyPath, inside, kind_of, opened, reason, shown
from glinfer.formats.huggingface.files import CONFIG
from glinfer.formats.jsonl import at_line, parse_object, read_lines, short
from glinfer.limits import MAX_PROMPT_LINE_BYTES, MAX_RESULT_LINE_BYTES
from glinfer.text.assembler import TextAssembler

if TYPE_CHECKING:
    from glinfer.engine.requests import BatchResult

_SAMPLING = tuple(field.name for field in dataclasses.fields(SamplingOptions))
_OPTIONS = ("max_tokens", *_SAMPLING, "stop", "stop_ids")
_KEYS = ("prompt", "ids", "id", *_OPTIONS)
_EXAMPLE = '{"prompt": "Once upon a time"}'
_RESULT_START = b'{"id": '
_OF_MODELS = (".json", ".safetensors", ".bin")
_CHUNK = 1 << 20

Key = str | int


@dataclass(frozen=True)
class BatchLine:
    """One prompt: its line in the file (from 1), its id, text or token ids, and all options."""

    number: int
    key: Key
    prompt: str | list[int]
    options: Mapping[str, Any]

    def digest(self, made_with: Sequence[object]) -> str:
        """Hash all that determines the result, prompt, options and ``made_with``, to 16 hex digits."""
        named = {"prompt" if isinstance(self.prompt, str) else "ids": self.prompt, **self.options, "with": made_with}
        return hashlib.sha256(json.dumps(named, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class FinishedLines:
    """Results of an earlier run: finished ids, bytes of their lines, and whether a torn line follows.

    ``total`` is the file's size when it was read, in bytes; None where its contents are discarded.
    """

    keys: Collection[Key] = ()
    size: int = 0
    torn: bool = False
    total: int | None = field(default=None, compare=False)


@dataclass
class BatchTotals:
    """Totals of one run so far; ``seconds`` includes the prompts."""

    lines: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    dropped: int = 0
    draws: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens of all lines a second; 0 before the first."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


def read_batch(path: AnyPath, defaults: Mapping[str, Any]) -> list[BatchLine]:
    """Read and check a file of prompts, without a model.

    Args:
        path: the file.
        defaults: checked defaults of ``max_tokens``, ``stop``, ``stop_ids`` and the fields of SamplingOptions. Line n
            takes ``seed`` + n - 1, so that lines differ and are independent of each other and of earlier runs.

    Raises:
        InputError: a line is malformed, longer than MAX_PROMPT_LINE_BYTES, or repeats an id (names the line); or the
            file has no prompt.
        FormatError: the file cannot be read.
    """
    lines: dict[Key, BatchLine] = {}
    with opened(path) as (file, _):
        for number, data in read_lines(file, path, MAX_PROMPT_LINE_BYTES):
            if not data.strip():
                continue
            with at_line(path, number):
                line = _line(number, parse_object(data, _EXAMPLE), defaults)
                if line.key in lines:
                    raise InputError(
                        f"the id {short(line.key)} is that of line {lines[line.key].number} too; expected ids that "
                        "differ (a line without one has its number for an id)"
                    )
            lines[line.key] = line
    if not lines:
        raise InputError(f"{shown(path)}: found no prompt in it; expected a JSON object a line, such as {_EXAMPLE}")
    return list(lines.values())


def _line(number: int, found: Mapping[str, Any], defaults: Mapping[str, Any]) -> BatchLine:
    for key in found:
        if key not in _KEYS:
            raise InputError(f"unknown key {short(key)}; known: {', '.join(_KEYS)}")
    if ("prompt" in found) == ("ids" in found):
        raise InputError('expected either "prompt" (text) or "ids" (token ids) in it, and not both')
    prompt = _text("prompt", found["prompt"]) if "prompt" in found else _ids("ids", found["ids"])
    if not prompt:
        raise InputError("the prompt is empty; expected at least one token")
    key = found.get("id", number)
    if type(key) is not int:
        key = _text("id", key, "text or a whole number")
    options = {**defaults, **{name: found[name] for name in _OPTIONS if name in found}}
    if "seed" not in found and defaults["seed"] is not None:
        options["seed"] = defaults["seed"] + number - 1
    if type(options["max_tokens"]) is not int or options["max_tokens"] < 1:
        raise InputError(f"max_tokens is {short(options['max_tokens'])}; expected a whole number of at least 1")
    options.update(dataclasses.asdict(SamplingOptions(**{name: options[name] for name in _SAMPLING})))
    stop = options["stop"]
    options["stop"] = [_text("stop", text) for text in (stop if isinstance(stop, (list, tuple)) else [stop])]
    TextAssembler(options["stop"])  # checks stop strings
    if options["stop"] and not isinstance(prompt, str):
        raise InputError('stop strings need a text prompt; use stop_ids, and "stop": [] where --stop is given')
    if options["stop_ids"] is not None:
        options["stop_ids"] = _ids("stop_ids", options["stop_ids"])
    return BatchLine(number, key, prompt, options)


def _text(name: str, value: object, expected: str = "text") -> str:
    if not isinstance(value, str):
        raise InputError(f"{name} is {short(value)}; expected {expected}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{name} has half a surrogate pair at character {error.start}; expected Unicode") from None
    return value


def _ids(name: str, value: object) -> list[int]:
    if not isinstance(value, list):
        raise InputError(f"{name} is {short(value)}; expected a list of token ids")
    return whole_numbers(name, value)


def check_out(out: AnyPath, source: AnyPath) -> None:
    """Check that results can be written to ``out``; writes nothing.

    Raises:
        InputError: it is the file of prompts itself.
        FormatError: its folder is missing or not writable, or it is not a regular file.
    """
    target = Path(os.path.realpath(out))
    try:
        if target.exists():
            if target.samefile(source):
                raise InputError(f"{shown(out)}: this is the file of prompts; expected another one for the results")
            if not target.is_file():
                raise FormatError(
                    f"{shown(out)}: found {kind_of(target.stat().st_mode)}; expected a regular file or a new name"
                )
        elif not target.parent.is_dir():
            raise FormatError(f"{shown(out)}: there is no such folder to write it to; make it first")
    except OSError as error:
        raise FormatError(f"{shown(out)}: cannot write it: {reason(error)}; check the path") from None
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise FormatError(f"{shown(out)}: cannot write it: Permission denied; check it and its folder")


def read_finished(
    out: AnyPath, source: AnyPath, lines: Iterable[BatchLine], made_with: Sequence[object]
) -> FinishedLines:
    """Read the results of an earlier run from ``out``, if there was one; changes nothing.

    The last line may be torn where that run was cut off; any other line must be a result of ``lines``.

    Raises:
        InputError: a line is malformed, repeated, or belongs to no prompt or to one that has changed.
        FormatError: the file cannot be read.
    """
    if not Path(out).exists():
        return FinishedLines(total=0)
    prompts = {line.key: line for line in lines}
    keys: set[Key] = set()
    size = 0
    with opened(out) as (file, total):
        for number, data in read_lines(file, out, MAX_RESULT_LINE_BYTES):
            found = _result(data)
            # Only a torn result is dropped: the file may be another one, given by mistake.
            began_as_one = data.startswith(_RESULT_START) or _RESULT_START.startswith(data)
            if found is None and began_as_one and size + len(data) >= total:
                return FinishedLines(keys, size, torn=True, total=total)
            problem = _problem(found, prompts, keys, source, made_with)
            if found is None or problem:
                raise InputError(
                    f"{shown(out)}:{number}: {problem}; give another --out, or --restart to discard it and start over"
                )
            keys.add(found["id"])
            size += len(data)
    return FinishedLines(keys, size, total=size)


def _result(data: bytes) -> dict[str, Any] | None:
    """Parse a whole line; None where it is torn or malformed."""
    try:
        return parse_object(data, _EXAMPLE) if data.endswith(b"\n") else None
    except InputError:
        return None


def _problem(
    found: dict[str, Any] | None,
    prompts: Mapping[Key, BatchLine],
    finished: Collection[Key],
    source: AnyPath,
    made_with: Sequence[object],
) -> str:
    """Describe why this is not the result of a prompt; empty if it is."""
    key, digest = (None, None) if found is None else (found.get("id"), found.get("prompt_sha"))
    if not isinstance(key, (str, int)) or isinstance(key, bool) or not isinstance(digest, str):
        return "this is no result of an earlier run"
    if key not in prompts:
        return f"there is no prompt {short(key)} in {shown(source)}"
    if key in finished:
        return f"prompt {short(key)} has a result before this one"
    if digest != prompts[key].digest(made_with):
        place = f"{shown(source)}:{prompts[key].number}"
        return f"prompt {short(key)} ({place}), its options or the model were others when this was made"
    return ""


def file_digest(path: AnyPath) -> str:
    """Hash a checkpoint to 16 hex digits of SHA-256.

    Of a model's directory, the names and contents of its .json, .safetensors and .bin files count; a config.json, a
    manifest, or a safetensors file beside a config.json stands for its directory.

    Raises:
        FormatError: a file cannot be read.
    """
    digest = hashlib.sha256()
    folder = Path(path)
    stands = folder.suffix == ".json" or (folder.suffix == ".safetensors" and (folder.parent / CONFIG).exists())
    if stands and not folder.is_dir():
        folder = folder.parent
    parts = _parts_of(folder) if folder.is_dir() else []
    for part in parts or [folder]:
        if parts:
            digest.update(os.fsencode(part.name) + b"\0")
        with opened(inside(part) if parts else part) as (file, _):
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()[:16]


def _parts_of(folder: Path) -> list[Path]:
    try:
        return sorted(part for part in folder.iterdir() if part.suffix in _OF_MODELS)
    except OSError as error:
        raise FormatError(f"{shown(folder)}: cannot read it: {reason(error)}; check its permissions") from None


class ResultFile:
    """Appends results to a file, each line whole and at once; use it in a ``with`` block."""

    def __init__(self, path: AnyPath, finished: FinishedLines) -> None:
        """Prepare without touching the file, see :meth:`open`."""
        self._path, self._finished = path, finished
        self._file: FileIO | None = None

    def open(self) -> None:
        """Lock the file, truncate it to the finished lines in place, and open it at its end.

        Raises:
            InputError: another run writes to it, or has written since it was read.
            FormatError: the file cannot be written.
        """
        path, finished = self._path, self._finished
        try:
            # Unbuffered: an interruption loses nothing.
            self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115
            alone = _locked(self._file)  # before its size is looked at
            if not alone or finished.total not in (None, os.fstat(self._file.fileno()).st_size):
                raise InputError(
                    f"{shown(path)}: another run writes to it; wait for its end, or give another --out; "
                    "the same command goes on with what is left"
                )
            self._file.truncate(finished.size)
        except OSError as error:
            raise self._failed(error) from None

    def write(self, result: BatchResult, line: BatchLine, digest: str) -> None:
        """Add the result of ``line``."""
        told = {
            "id": line.key,
            "text": result.text,
            "ids": result.ids,
            "finish_reason": result.stats.finish_reason,
            "prompt_tokens": result.stats.prompt_tokens,
            "tokens": result.stats.tokens,
            "prompt_sha": digest,
        }
        data = json.dumps(told, ensure_ascii=False).encode() + b"\n"
        assert self._file is not None  # opened before
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise self._failed(error) from None

    @property
    def lines(self) -> int:
        """Number of results in the file, counted there, so that it is right after any interruption."""
        if self._file is None:
            return len(self._finished.keys)
        with Path(self._path).open("rb") as file:
            return sum(piece.count(b"\n") for piece in iter(lambda: file.read(_CHUNK), b""))

    def _failed(self, error: OSError) -> FormatError:
        return FormatError(
            f"{shown(self._path)}: cannot write it: {reason(error)}; check the free space and the permissions; "
            "the lines in it stay finished, and the same command goes on with the others"
        )

    def __enter__(self) -> ResultFile:
        """Enter the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _locked(file: FileIO) -> bool:
    """Lock a file against other runs; False where one holds the lock, True where the system has no locks."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return True
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems have no locks
        pass
    return True


def check_prompts(
    model: Model,
    lines: Sequence[BatchLine],
    source: AnyPath,
    on_progress: Progress = no_progress,
) -> None:
    """Check all prompts against the model before the first one runs; ``on_progress`` receives (checked lines, lines).

    Raises:
        InputError: a text without a tokenizer, a prompt longer than the context, or ids outside the vocabulary; names
            the line.
    """
    for done, line in enumerate(lines, start=1):
        with at_line(source, line.number):
            prompt = line.prompt
            check_ids(model.require_tokenizer().encode(prompt) if isinstance(prompt, str) else prompt, model.config)
            check_tokens("stop_ids", line.options["stop_ids"] or (), model.config)
        on_progress(done, len(lines))


def run_batch(
    model: Model,
    lines: Iterable[BatchLine],
    results: ResultFile,
    totals: BatchTotals,
    *,
    made_with: Sequence[object] = (),
    slots: int | None = None,
    memory: int | None = None,
    on_progress: Progress = no_progress,
) -> None:
    """Generate for all ``lines`` together, and write each result when it is finished.

    Args:
        model: the model.
        lines: checked prompts.
        results: the file of results.
        totals: updated with each result.
        made_with: as for :meth:`BatchLine.digest`.
        slots: sequences at a time; default: the model's own choice.
        memory: limit for the texture memory of their caches, in bytes.
        on_progress: receives (lines finished by this run, lines).
    """
    from glinfer.engine.requests import BatchRequest

    started, draws = time.perf_counter(), model.device.draws_issued
    requests = [BatchRequest(line.prompt, line.options, key=line) for line in lines]
    found = model.batch(requests, slots=slots, memory=memory)
    results.open()  # after all checks, so that a refused batch leaves the file unchanged
    try:
        for result in found:
            line = result.request.key
            assert isinstance(line, BatchLine)
            results.write(result, line, line.digest(made_with))
            totals.lines += 1
            totals.prompt_tokens += result.stats.prompt_tokens
            totals.tokens += result.stats.tokens
            totals.dropped += result.stats.dropped
            on_progress(totals.lines, len(requests))
    finally:
        totals.seconds = time.perf_counter() - started
        totals.draws = model.device.draws_issued - draws
        # An unfinished generator would hold its caches until it is collected.
        if callable(close := getattr(found, "close", None)):
            close()
