"""A callable class for ``ray.data.Dataset.map_batches``: rows of prompts in, rows with answers out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from glinfer.errors import InputError
from glinfer.formats.jsonl import short
from glinfer.jobs.claims import RESTART_SECONDS, claim_device
from glinfer.jobs.lines import LineResult, RequestLine
from glinfer.jobs.local import LocalRunner, LocalSetup
from glinfer.jobs.requests import URLS

_NAME = "model"
Answer = Mapping[str, Any]


def _scores(answer: Answer) -> dict[str, Any]:
    (score,) = answer["data"]
    return {"logprob": score["total"], "perplexity": score["perplexity"]}


class _Task(NamedTuple):
    """The route and field of a task's requests, and the columns of an answer."""

    url: str
    field: str
    found: Callable[[Answer], dict[str, Any]]
    columns: tuple[str, ...] = ("generated_text",)


TASKS = {
    "generate": _Task("/v1/completions", "prompt", lambda answer: {"generated_text": answer["choices"][0]["text"]}),
    "chat": _Task(
        "/v1/chat/completions",
        "messages",
        lambda answer: {"generated_text": answer["choices"][0]["message"]["content"]},
    ),
    "score": _Task("/v1/score", "input", _scores, ("logprob", "perplexity")),
    "embed": _Task(
        "/v1/embeddings", "input", lambda answer: {"embedding": answer["data"][0]["embedding"]}, ("embedding",)
    ),
}
"""The tasks of a Generator, by name."""


class Generator:
    """Answers batches of rows with one model on one device; an actor class for ``map_batches``.

    ``dataset.map_batches(Generator, fn_constructor_args=("model.gguf",), concurrency=4, resources={"GL": 1})``

    A batch is a dict of NumPy arrays, a pandas DataFrame or an Arrow table. The result has the same type and further
    columns: ``generated_text`` (generate, chat), ``logprob`` and ``perplexity`` (score) or ``embedding`` (embed), and
    ``error``, which is None for an answered row. A row's seed comes from its ``seed`` column, its ``key``, or else the
    prompt, so the result does not depend on batch or actor.
    """

    def __init__(
        self,
        model: str,
        *,
        task: str = "generate",
        column: str | None = None,
        key: str | None = None,
        body: Mapping[str, Any] | None = None,
        slots: int | None = None,
        memory: int | None = None,
        device: str | int | None = None,
        **options: Any,
    ) -> None:
        """Load the model on a device of this machine.

        Args:
            model: a file or a directory that every machine has at this path, or the name of a bundled model.
            task: ``generate``, ``chat``, ``score`` or ``embed``.
            column: the column of the prompts, messages (a list, or its JSON) or texts; default: ``prompt``,
                ``messages`` or ``text``.
            key: a column with a name for each row.
            body: further fields of every request, such as ``{"max_tokens": 64, "temperature": 0}``. A column with the
                name of a field of the route overrides it for each row, unless its value is None.
            slots: concurrent sequences; default 32.
            memory: bytes of texture memory for their caches; default 1 GiB.
            device: an EGL device; default: see :func:`glinfer.jobs.claims.claim_device`.
            options: of :func:`glinfer.engine.loading.load_model`, such as ``weights="q8"``.

        Raises:
            InputError: the task is unknown, or the model cannot be loaded.
            ContextError: no device is free.
        """
        if task not in TASKS or TASKS[task].url not in URLS:
            known = ", ".join(name for name, each in TASKS.items() if each.url in URLS)
            raise InputError(f"there is no task {short(task)}; expected {known}")
        self.task = TASKS[task]
        usual = "text" if self.task.field == "input" else self.task.field
        self.column, self.key, self.body = usual if column is None else column, key, dict(body or {})
        self._fields = set(URLS[self.task.url].model_fields) - {"model", self.task.field, "stream", "stream_options"}
        self._open = ExitStack()
        if device is None:
            claim = claim_device(wait=RESTART_SECONDS)
            self._open.callback(claim.release)
            device = claim.index
        setup = LocalSetup([(_NAME, model, options)], {"slots": slots, "memory": memory}, device)
        self._runner = self._open.enter_context(LocalRunner(setup))

    def __call__(self, batch: Any) -> Any:
        """Answer the rows of a batch."""
        rows = _rows(batch)
        if rows and self.column not in rows[0]:
            raise InputError(f"there is no column {self.column!r}; found {', '.join(map(str, rows[0]))}")
        lines = (self._line(number, row) for number, row in enumerate(rows))
        made: list[dict[str, Any]] = [{} for _ in rows]
        for result in self._runner.run(lines):
            made[result.line.number] = self._found(result)
        columns = {name: [each.get(name) for each in made] for name in (*self.task.columns, "error")}
        return _with_columns(batch, columns)

    def _line(self, number: int, row: Mapping[str, Any]) -> RequestLine:
        given = _plain(row[self.column])
        if self.task.field == "messages" and isinstance(given, str):
            given = json.loads(given)
        own = {name: _plain(row[name]) for name in row if name in self._fields and name not in (self.column, self.key)}
        fields = {**self.body, **{name: value for name, value in own.items() if value is not None}}
        key = json.dumps(given, sort_keys=True) if self.key is None else str(_plain(row[self.key]))
        return RequestLine(number, key, self.task.url, {"model": _NAME, self.task.field: given, **fields})

    def _found(self, result: LineResult) -> dict[str, Any]:
        body = result.data["response"]["body"]
        return {"error": body["error"]["message"]} if result.failed else {**self.task.found(body), "error": None}

    def close(self) -> None:
        """Close the model and release the device; calling it again does nothing."""
        self._open.close()


def _plain(value: Any) -> Any:
    """A value of a batch as a JSON value."""
    if isinstance(value, np.ndarray):
        return [_plain(each) for each in value.tolist()]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and value != value else value


def _rows(batch: Any) -> list[dict[str, Any]]:
    """The rows of a batch of any form."""
    if isinstance(batch, Mapping):
        names = list(batch)
        return [dict(zip(names, values, strict=True)) for values in zip(*batch.values(), strict=True)]
    if hasattr(batch, "to_pylist"):
        return list(batch.to_pylist())
    return list(batch.to_dict("records"))


def _with_columns(batch: Any, columns: Mapping[str, list[Any]]) -> Any:
    """Add columns to a batch of any form."""
    if isinstance(batch, Mapping):
        return {**batch, **{name: _array(values) for name, values in columns.items()}}
    if hasattr(batch, "to_pylist"):
        pyarrow = import_module("pyarrow")
        text, number = pyarrow.string(), pyarrow.float64()
        types = {"generated_text": text, "error": text, "embedding": pyarrow.list_(number)}
        for name, values in columns.items():
            batch = batch.append_column(name, pyarrow.array(values, types.get(name, number)))
        return batch
    series = import_module("pandas").Series
    return batch.assign(**{name: series(_array(values), batch.index, dtype=object) for name, values in columns.items()})


def _array(values: list[Any]) -> Any:
    """An array of objects, which keeps lists as lists and texts unpadded."""
    made = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        made[index] = value
    return made
