"""Text streams over fake models: pieces, whole characters, stop strings, and every way to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from token_streams import stream_of

from glinfer.config import ModelConfig
from glinfer.engine.run.decode import RecomputeSession
from glinfer.engine.sampler import SamplingOptions
from glinfer.engine.stream import TextStream
from glinfer.errors import InputError
from glinfer.formats import BpeModel
from glinfer.text.tokenizer import Tokenizer

BYTES = Tokenizer(BpeModel((), tuple(bytes([value]) for value in range(256))))
GREEDY = SamplingOptions(temperature=0)
CONFIG = ModelConfig.from_options("vocab=256,dim=4,heads=1,blocks=1,context=10000")


class Script:
    """A fake model that gives these tokens one after the other, and may fail when they are used up."""

    def __init__(self, data: bytes, error: Exception | None = None) -> None:
        self.data, self.error = data, error
        self.calls = 0

    def __call__(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        if self.error is not None and self.calls == len(self.data):
            raise self.error
        row = np.zeros(256, np.float32)
        row[self.data[self.calls]] = 9.0
        self.calls += 1
        return row


def make(data: bytes, stop: Sequence[str] = (), *, error: Exception | None = None, **options: Any) -> TextStream:
    extra = 0 if error is None else 1
    settings: dict[str, Any] = {"max_tokens": len(data) + extra, **options}
    session = RecomputeSession(CONFIG, Script(data, error))
    return TextStream(stream_of(session, [0], GREEDY, **settings), BYTES, stop)


@pytest.mark.parametrize("text", ["abc", "aé€🚀z", "日本語", "\u0000\u007f\u0080", "e\u0301", "\ufffd", "\ufeffx"])
def test_a_character_is_shown_whole_or_not_at_all(text: str) -> None:
    assert list(make(text.encode())) == list(text)


def test_closing_drops_what_was_held_and_tells_once() -> None:
    ends: list[int] = []
    stream = make(b"xxxx", stop=["xxy"], on_end=lambda: ends.append(1))
    assert next(stream) == "x", "and two more are held, which may become the stop string"
    stream.close()
    stream.close()
    assert list(stream) == []
    assert (stream.stats.finish_reason, ends) == ("closed", [1])


def test_stats_and_ids_are_current_between_pieces() -> None:
    stream = make(b"abc")
    next(stream)
    assert (stream.stats.tokens, stream.ids) == (1, [ord("a")])
    next(stream)
    assert (stream.stats.tokens, stream.ids) == (2, list(b"ab"))


def test_stop_has_to_be_a_string_or_a_list_of_them() -> None:
    for wrong in ("", [""], [3], 3, None, b"x", {"a"}):
        with pytest.raises(InputError, match="stop"):
            make(b"abc", stop=wrong)  # type: ignore[arg-type]
