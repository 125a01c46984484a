"""Read texts to embed: lines, JSON objects, or rows of a CSV or Parquet file."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from glinfer.errors import InputError, counted, required
from glinfer.families.settings import quoted
from glinfer.formats.files import AnyPath, decode_text, ending_found, opened, shown, words_of
from glinfer.formats.jsonl import at_line, is_blank, parse_object, read_lines, short
from glinfer.limits import MAX_PROMPT_LINE_BYTES

_EXAMPLE = '{"text": "Once upon a time"}'
_ROWS = 1024  # rows of a Parquet file to read at once


def read_texts(path: AnyPath, column: str | None = None) -> Iterator[str]:
    """Yield the texts of a file, whose suffix decides its form.

    Args:
        path: ``.txt`` has a text a line, ``.jsonl`` an object a line, ``.csv`` and ``.parquet`` rows.
        column: the key or the column of the text; by default ``text``, or the only column.
    """
    kind = Path(path).suffix.lower()
    if kind not in _READERS:
        raise InputError(f"{shown(path)}: {ending_found(path)}; expected one of {', '.join(_READERS)}")
    if kind == ".txt" and column is not None:
        raise InputError(f"{shown(path)}: a text file has no columns; leave --column out")
    return _READERS[kind](path, column)


def _numbered(path: AnyPath) -> Iterator[tuple[int, bytes]]:
    with opened(path) as (file, _):
        yield from read_lines(file, path, MAX_PROMPT_LINE_BYTES)


def _lines(path: AnyPath, column: str | None) -> Iterator[str]:
    for number, data in _numbered(path):
        yield decode_text(data, f"{shown(path)}:{number}").rstrip("\r\n")


def _objects(path: AnyPath, column: str | None) -> Iterator[str]:
    key = column
    for number, data in _numbered(path):
        if is_blank(data):
            continue
        with at_line(path, number):
            found = parse_object(data, _EXAMPLE)
            key = key or (next(iter(found)) if len(found) == 1 else "text")
            if key not in found:
                raise InputError(_missing("keys", list(found), key))
            if not isinstance(found[key], str):
                raise InputError(f"{short(key)} is {short(found[key])}; expected a text, as in {_EXAMPLE}")
        yield found[key]


def _csv_rows(path: AnyPath, column: str | None) -> Iterator[str]:
    # newline="" lets csv find the bare CRs of old Mac files.
    texts = (io.StringIO(decode_text(data, f"{shown(path)}:{at}"), newline="") for at, data in _numbered(path))
    rows = csv.reader(itertools.chain.from_iterable(texts), strict=True)
    try:
        names = next(rows, [])
        index = _column(names, column, path)
        for row in filter(None, rows):
            if len(row) != len(names):
                found = f"{shown(path)}:{rows.line_num}: found {counted(len(row), 'column')}"
                raise InputError(f"{found}; expected {counted(len(names), 'column')}; quote texts with commas")
            yield row[index]
    except csv.Error as error:
        raise InputError(f"{shown(path)}:{rows.line_num + 1}: this is not a CSV: {words_of(error)}") from None


def _parquet_rows(path: AnyPath, column: str | None) -> Iterator[str]:
    arrow, parquet = arrow_modules()
    with opened(path):
        pass  # the file exists and is readable
    try:
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        index = _column(names, column, path)
        first = 0
        for batch in file.iter_batches(batch_size=_ROWS, columns=[names[index]]):
            for number, text in enumerate(batch.column(0).to_pylist(), first):
                if not isinstance(text, str):
                    where = f"the column {short(names[index])} has {short(text)} in row {number}"
                    raise InputError(f"{shown(path)}: {where}; expected texts")
                yield text
            first += batch.num_rows
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise InputError(f"{shown(path)}: this is not a Parquet file: {words_of(error)}") from None


def arrow_modules() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet."""
    need = "Parquet files need"
    return required("pyarrow", "parquet", need), required("pyarrow.parquet", "parquet", need)


def _column(names: list[str], column: str | None, path: AnyPath) -> int:
    """The index of a column."""
    wanted = "text" if column is None else column
    if wanted in names:
        return names.index(wanted)
    if column is None and len(names) == 1:
        return 0
    raise InputError(f"{shown(path)}: {_missing('columns', names, wanted)}")


def _missing(what: str, names: list[str], wanted: str) -> str:
    return f"found the {what} {quoted(names)}, and no {wanted!r} among them; name one with --column"


_READERS: dict[str, Callable[[AnyPath, str | None], Iterator[str]]] = {
    ".txt": _lines,
    ".jsonl": _objects,
    ".csv": _csv_rows,
    ".parquet": _parquet_rows,
}
