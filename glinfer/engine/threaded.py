"""A model on its own thread: any thread or event loop may call it, and concurrent texts share runs."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, aclosing, suppress
from copy import copy
from inspect import signature
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, SupportsIndex, TypeVar

from glinfer.engine.chat import ChatReply, Chatting, TalkOptions
from glinfer.engine.ids import Ids, check_callback, check_count
from glinfer.engine.loading import load_model
from glinfer.engine.model import Model, StreamOptions
from glinfer.engine.option_names import check_options, named_options
from glinfer.engine.requests import BatchRequest, Running
from glinfer.engine.run.alone import Alone
from glinfer.engine.run.stats import GenerationStats
from glinfer.engine.scheduler import Scheduler
from glinfer.engine.stream import CHUNK, GeneratedText, TextStream, TokenStream, read_whole
from glinfer.errors import ContextError, InputError
from glinfer.formats.files import AnyPath
from glinfer.structured.structure import ERROR
from glinfer.text.templates import Message
from glinfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
T = TypeVar("T")
News = tuple[list[int], GenerationStats] | BaseException
"""New ids and the counts so far, or the error that ended a text."""
_CLOSED = "this model was closed; open another ThreadedModel"


class RowStream(TokenStream):
    """The ids of a text that the model's thread computes; read them on one thread or one event loop."""

    def __init__(self, owner: ThreadedModel, row: Running, on_end: Callable[[], None] | None, *, whole: bool) -> None:
        """Prepare; nothing runs before the first ``next()``."""
        self._follow(row, copy(row.stats), on_end, whole=whole)  # a copy, since the thread updates ``row.stats``
        self._owner, self._news, self._begun = owner, queue.SimpleQueue[News](), False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived = asyncio.Event()

    def put(self, news: News) -> None:
        """Deliver news; called on the model's thread."""
        self._news.put(news)
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed, so nothing waits
                self._loop.call_soon_threadsafe(self._arrived.set)

    def _compute(self) -> None:
        """Wait for news; on an event loop, raise BlockingIOError if there is none."""
        if not self._begun:
            self._begun = True
            self._owner._submit(self._owner._insert, self._row, self.put)
        while not self._waiting and self.stats.finish_reason is None:
            try:
                news = self._news.get(block=self._loop is None)
            except queue.Empty:
                raise BlockingIOError from None
            if isinstance(news, BaseException):
                raise news
            self._waiting.extend(news[0])
            self.stats = news[1]

    async def pieces(self, stream: Iterator[T]) -> AsyncGenerator[T]:
        """The pieces of a stream over these ids; leaving the loop ends it."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    piece = next(stream, None)
                except BlockingIOError:
                    await self._arrived.wait()
                    self._arrived.clear()
                    continue
                if piece is None:
                    return
                yield piece
        finally:
            self.close()

    def _stop(self, reason: str) -> None:
        """Free the row of the text."""
        self._waiting.clear()
        self.stats.finish_reason = reason
        with suppress(ContextError):  # the model is closed
            self._owner._submit(self._owner._leave, self._row)


class ThreadedModel(Chatting):
    """A model on its own thread, for programs with many threads and for asyncio.

    Any thread may call its methods. Concurrent texts run together; each is the same as alone with the same seed. It has
    all attributes and methods of :class:`glinfer.engine.model.Model`; methods run on the model's thread, between two
    tokens of the texts. Close it, from any thread.
    """

    def __init__(
        self, path: AnyPath, *, slots: SupportsIndex | None = None, memory: SupportsIndex | None = None, **options: Any
    ) -> None:
        """Load a model on a new thread, with the options and errors of :func:`glinfer.load`.

        Args:
            path, options: as :func:`glinfer.load`.
            slots: limit for concurrent texts, by default 32; further texts wait. With 1, texts run as those of a Model.
            memory: bytes of texture memory for their caches; by default 1 GiB.
        """
        given = {"slots": slots, "memory": memory}
        check_options("ThreadedModel()", options, {**signature(load_model).parameters, **given})
        self._bounds = {name: check_count(name, number) for name, number in given.items() if number is not None}
        self._rows: dict[Running, Callable[[News], None]] = {}
        self._scheduler: Scheduler | None = None
        self._closed, self._stepping, self._closing = False, False, threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="glinfer-model")
        try:
            self._thread = self._pool.submit(threading.get_ident).result()
            self._model = self._submit(load_model, path, **options).result()
        except BaseException:
            self._pool.shutdown(wait=False)
            raise
        self._find_form = self._model._find_form

    def call(self, function: Callable[Concatenate[Model, P], T], *given: P.args, **options: P.kwargs) -> T:
        """Call a function of the model on its thread: ``model.call(lambda model: model.score(text))``.

        Raises ContextError if the model was closed, or this is its thread.
        """
        return self._submit(function, self._model, *given, **options).result()

    def __getattr__(self, name: str) -> Any:
        """An attribute of the model; methods run on its thread."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = getattr(self._model, name)
        if getattr(found, "__self__", None) is not self._model:
            return found

        def called(*given: Any, **options: Any) -> Any:
            result = self._submit(found, *given, **options).result()
            if isinstance(result, (AbstractContextManager, Iterator)):
                raise InputError(f"the result of {name}() belongs to the model's thread; use it in call()")
            return result

        return called

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute of the model, such as ``sampling``."""
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._model, name, value)

    def __repr__(self) -> str:
        """The model's repr."""
        return f"<ThreadedModel: {self._model!r}>"

    @named_options(StreamOptions)
    def stream(self, prompt: str | Ids, **options: Unpack[StreamOptions]) -> Any:
        """Continue a prompt piece by piece, as :meth:`glinfer.engine.model.Model.stream` does.

        ``speculate`` and ``draft`` are refused. A ``sampler`` is called on the model's thread.
        """
        self._require_open()
        given: dict[str, Any] = dict(options)
        on_end, is_text = given.pop("on_end", None), isinstance(prompt, str)
        check_callback("on_end", on_end)
        row, whole = self._model.checked(BatchRequest(prompt, given)), given.get("incomplete", ERROR) == ERROR
        ids = RowStream(self, row, on_end, whole=whole and not is_text)
        return TextStream(ids, self.require_tokenizer(), given.get("stop", ()), whole=whole) if is_text else ids

    @named_options(StreamOptions)
    def generate(self, prompt: str | Ids, **options: Unpack[StreamOptions]) -> Any:
        """Continue a prompt; see :meth:`stream`. For many prompts, use several threads, or ``agenerate`` in tasks."""
        return read_whole(self.stream(prompt, **options))

    @named_options(StreamOptions)
    def astream(self, prompt: str | Ids, **options: Unpack[StreamOptions]) -> AsyncGenerator[Any]:
        """:meth:`stream` for ``async for``. Cancelling the task, or ``aclose()``, frees its slot."""
        return _pieces(self.stream, prompt, options)

    @named_options(StreamOptions)
    async def agenerate(self, prompt: str | Ids, **options: Unpack[StreamOptions]) -> Any:
        """:meth:`generate`, awaited."""
        stream = await asyncio.to_thread(self.stream, prompt, **options)
        stream.chunk = CHUNK
        found: list[Any] = [piece async for piece in _row_of(stream).pieces(stream)]
        return GeneratedText("".join(found), stream.stats) if isinstance(stream, TextStream) else found

    @named_options(TalkOptions)
    def astream_chat(
        self, messages: str | Sequence[Message], *, think: bool = False, **options: Unpack[TalkOptions]
    ) -> AsyncGenerator[str]:
        """:meth:`stream_chat` for ``async for``; see :meth:`astream`."""
        return _pieces(self.stream_chat, messages, {"think": think, **options})

    @named_options(TalkOptions)
    async def achat(
        self, messages: str | Sequence[Message], *, think: bool = False, **options: Unpack[TalkOptions]
    ) -> ChatReply:
        """:meth:`chat`, awaited."""
        stream = await asyncio.to_thread(self.stream_chat, messages, think=think, **options)
        async for _ in _row_of(stream).pieces(stream):
            pass
        return stream.reply()

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer; errors as in :meth:`glinfer.engine.model.Model.require_tokenizer`."""
        return self._model.require_tokenizer()

    def _require_open(self) -> None:
        if self._closed:
            raise ContextError(_CLOSED)

    def close(self) -> None:
        """End all texts, close the model and end its thread; call this on another thread."""
        with self._closing:
            if self._closed:
                return
            ended = self._submit(self._end_all)
            self._closed = True
            self._pool.shutdown(wait=False)
        ended.result()

    def _submit(self, work: Callable[P, T], *given: P.args, **options: P.kwargs) -> Future[T]:
        if threading.get_ident() == self._thread:
            raise ContextError("this is the model's thread, which cannot wait for itself; use the argument of call()")
        self._require_open()
        try:
            return self._pool.submit(work, *given, **options)
        except RuntimeError:
            raise ContextError(_CLOSED) from None

    # On the thread

    def _insert(self, row: Running, put: Callable[[News], None]) -> None:
        try:
            if self._scheduler is None:
                self._scheduler = self._new_scheduler()
            self._scheduler.add(row)
        except BaseException as error:
            put(error)
            return
        self._rows[row] = put
        if not self._stepping:
            self._stepping = True
            self._pool.submit(self._step)

    def _new_scheduler(self) -> Scheduler:
        model = self._model
        if self._bounds.get("slots") == 1:  # the plan of one sequence takes fewer draws for each token
            return Scheduler(Alone(model._own), model.checked, model._require_open)
        return model.scheduler(**self._bounds)

    def _leave(self, row: Running) -> None:
        if self._rows.pop(row, None) is not None and self._scheduler is not None:
            self._scheduler.cancel(row)

    def _step(self) -> None:
        """Run one step of all texts, and queue the next one after other pending calls."""
        try:
            for event in () if self._scheduler is None or not self._rows else self._scheduler.next():
                row = event.sequence
                if (put := self._rows.get(row)) is not None:
                    put((event.ids, copy(row.stats)) if row.error is None else row.error)
                if event.result is not None:
                    self._rows.pop(row, None)
        except BaseException as error:  # the scheduler has closed itself
            self._scheduler = None
            self._fail(error)
        self._stepping = bool(self._rows)
        if self._stepping:
            with suppress(RuntimeError):  # the thread ends
                self._pool.submit(self._step)

    def _fail(self, error: BaseException) -> None:
        rows, self._rows = self._rows, {}
        for put in rows.values():
            put(error)

    def _end_all(self) -> None:
        self._fail(ContextError(_CLOSED))
        if self._scheduler is not None:
            self._scheduler.close()
        self._model.close()


async def _pieces(make: Callable[..., Any], prompt: Any, options: Mapping[str, Any]) -> AsyncGenerator[Any]:
    stream = await asyncio.to_thread(make, prompt, **options)  # encodes the prompt and compiles a structure
    async with aclosing(_row_of(stream).pieces(stream)) as pieces:
        async for piece in pieces:
            yield piece


def _row_of(stream: Any) -> RowStream:
    found: RowStream = stream if isinstance(stream, RowStream) else stream._tokens
    return found
