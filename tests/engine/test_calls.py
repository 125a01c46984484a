"""How a user calls the Python API: names and types of options, prompts of all kinds, results, and what was closed."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glinfer
from glinfer.engine.chat import ChatReply
from glinfer.engine.model import Model
from glinfer.engine.sampler import NEUTRAL
from glinfer.errors import ContextError, GlinferError, OptionError
from glinfer.gl.context import open_device

pytestmark = pytest.mark.gl

IDS = [[5, 6, 7], [8, 9, 10]]


def test_a_misspelt_option_is_an_error_of_the_call_that_was_made(small: Path, model: Model) -> None:
    chat = model.chat_session()
    gone = "no such file.gab"  # names are checked before anything is loaded
    for name, call, given, meant in (
        ("load", lambda **more: glinfer.load(gone, **more), "wieghts", "weights"),
        ("generate", lambda **more: glinfer.generate(gone, "x", **more), "max_token", "max_tokens"),
        ("stream", lambda **more: glinfer.stream(gone, "x", **more), "contxt", "context"),
        ("generate", lambda **more: model.generate("x", **more), "max_token", "max_tokens"),
        ("generate", lambda **more: model.generate([], **more), "max_token", "max_tokens"),
        ("stream", lambda **more: model.stream("x", **more), "temprature", "temperature"),
        ("chat", lambda **more: model.chat("x", **more), "max_token", "max_tokens"),
        ("stream_chat", lambda **more: model.stream_chat("x", **more), "thinks", "think"),
        ("chat_session", lambda **more: model.chat_session(**more), "sistem", "system"),
        ("send", lambda **more: chat.send("x", **more), "sed", "seed"),
        ("stream", lambda **more: chat.stream("x", **more), "top_", "top_p"),
        ("regenerate", lambda **more: chat.regenerate(**more), "stops", "stop"),
        ("batch", lambda **more: model.batch([], **more), "slot", "slots"),
        ("scheduler", lambda **more: model.scheduler(**more), "longst", "longest"),
        ("score", lambda **more: model.score("x", **more), "strid", "stride"),
        ("session", lambda **more: model.session(**more), "kept", "keep"),
        ("logits", lambda **more: model.logits("x", **more), "lora_", "lora"),
        ("probs", lambda **more: model.probs("x", **more), "lorra", "lora"),
        ("embed", lambda **more: model.embed("x", **more), "normalise", "normalize"),
        ("rerank", lambda **more: model.rerank("x", [], **more), "on_progres", "on_progress"),
    ):
        with pytest.raises(OptionError) as caught:
            call(**{given: 1})  # type: ignore[arg-type]
        assert isinstance(caught.value, TypeError)
        assert str(caught.value) == f"{name}() has no option {given!r}; did you mean {meant!r}?"
    with pytest.raises(OptionError, match=r"\Agenerate\(\) has no option 'zzzz'; expected some of .*, seed, "):
        model.generate("x", zzzz=1)  # type: ignore[call-overload]


def test_values_of_the_wrong_type_are_refused_in_a_line(small: Path, model: Model) -> None:
    text, chat = model.stream("x"), model.chat_session()
    request: Any = glinfer.BatchRequest("x", 5)  # type: ignore[arg-type]
    refused: list[tuple[Callable[[Any], object], object, str]] = [
        (lambda it: setattr(model, "sampling", it), {"temperature": 0}, "sampling is dict; expected options such as "),
        (lambda it: setattr(model, "sampling", it), None, "sampling is NoneType"),
        (model.draws, "reference", "found 'reference' tokens; expected 1 to 64"),
        (model.draws, 1.5, "found 1.5 tokens; expected 1 to 64"),
        (lambda it: glinfer.load(small, weights=it), "int8", r"there is no weight format 'int8'; .* file, auto\Z"),
        (lambda it: glinfer.load(small, kernels=it), {}, "kernels is dict; expected glinfer.KernelOptions"),
        (lambda it: glinfer.load(small, shader_root=it), "shaders", "shader_root is str; expected a pathlib.Path"),
        (lambda it: glinfer.load(small, on_upload=it), 5, "on_upload is int; expected a function"),
        (lambda it: glinfer.load(small, gelu=it), {}, "gelu is {}; expected 'tanh' or 'erf'"),
        (lambda it: model.generate("x", on_end=it), 5, "on_end is int; expected a function"),
        (lambda it: model.generate(["x"], on_end=it), 5, "on_end is int; expected a function"),
        (lambda it: model.chat("x", on_end=it), 5, "on_end is int; expected a function"),
        (lambda it: glinfer.stream(small, "x", on_end=it), 5, "on_end is int; expected a function"),
        (model.score, {"a", "b"}, "the texts are set; expected a list of them"),
        (model.score, {"a": 1}, "the texts are dict; expected a list of them"),
        (lambda it: model.watch("*", it).__enter__(), 5, "hook is int; expected a function"),
        (lambda it: model.patch(it, 1.0).__enter__(), 5, "found 5; expected names such as"),
        (lambda it: list(model.batch(it)), [request], "request 0: the options are int; expected a dict"),
        (
            lambda it: model.batch([glinfer.BatchRequest("x", form=it)]),
            "chat",
            "request 0: form is str; expected what ",
        ),
        (lambda it: model.batch([glinfer.BatchRequest("x", text=it)]), "no", "request 0: text is 'no'; expected True"),
        (model.chat_ids, 5, "messages is int; expected text, or a list of role and content"),
        (lambda it: setattr(text, "chunk", it), 0, "chunk is 0; expected an integer of at least 1"),
        (lambda it: setattr(chat, "system", it), 5, "the system prompt is int; expected text"),
        (lambda it: glinfer.load(small, strict=it), "no", "strict is 'no'; expected True or False"),
        (lambda it: glinfer.load(small, kernels=glinfer.KernelOptions(quad=it)), 0, "quad is 0; expected True or"),
        (lambda it: glinfer.KernelOptions(tiles=it), "8", "tiles is '8'; expected an integer"),
        (lambda it: glinfer.load(small, mmproj=it), 5, "mmproj is int; expected a path"),
        (lambda it: model.require_tokenizer().decode(it), 5, "the tokens are int; expected a list of token ids"),
        (lambda it: model.require_tokenizer().decode(it), b"ab", "the tokens are bytes; expected a list of token ids"),
        (lambda it: model.chat("x", think=it), 1, "think is 1; expected True or False"),
        (lambda it: model.stream_chat("x", continue_final_message=it), "x", "continue_final_message is 'x'; expected"),
        (lambda it: setattr(chat, "think", it), "off", "think is 'off'; expected True or False"),
        (lambda it: model.require_tokenizer().encode("x", allow_special=it), "no", "allow_special is 'no'; expected"),
        (model.generate, b"ab", "found bytes for the prompt; expected text"),
        (model.generate, {"a": 1}, "found dict for the prompt; expected a sequence of integers"),
        (model.generate, {"a", "b"}, "found set for the prompt; expected a sequence of integers"),
        (model.generate, np.array(5), "found ndarray for the prompt; expected a sequence .* or one text"),
        (model.generate, [1, "a"], "found str at index 1 of the prompt; expected a sequence of integers"),
        (model.generate, [[1], [True]], "request 1: found bool at index 0 of the prompt"),
    ]
    for call, given, message in refused:
        with pytest.raises(GlinferError, match=rf"\A{message}"):
            call(given)
    assert model.sampling == NEUTRAL
    assert (chat.system, chat.think) == ("", False)


def test_prompts_of_all_kinds(model: Model) -> None:
    options: dict[str, Any] = {"max_tokens": 3, "temperature": 0}
    alone = [model.generate(ids, **options) for ids in IDS]
    for prompts in (IDS, tuple(IDS), np.array(IDS), [np.array(ids) for ids in IDS], iter(IDS), (ids for ids in IDS)):
        found = model.generate(prompts, **options)
        assert found == alone
        assert all(type(token) is int for ids in found for token in ids)
    for one in (np.array(IDS[0]), range(5, 8), (token for token in IDS[0]), [np.int64(token) for token in IDS[0]]):
        assert model.generate(one, **options) == alone[0]
    texts = [model.generate(text, **options) for text in ("Once", "upon")]
    for several in (["Once", "upon"], np.array(["Once", "upon"]), iter(["Once", "upon"]), map(str, ("Once", "upon"))):
        assert model.generate(several, **options) == texts
    for none in ([], (), np.array([]), iter([])):
        assert model.generate(none, **options) == []
    with model.session() as session:
        session.hold(np.array(IDS[0]))
        session.step(np.int64(3))
        session.rewind(np.int64(1))
        assert session.generate_ids(np.int64(3)) == alone[0]


def test_a_generated_text_knows_how_it_came_to_be(model: Model) -> None:
    made = model.generate("Once", max_tokens=4, temperature=0, stop_ids=[])
    (listed,) = model.generate(["Once"], max_tokens=4, temperature=0, stop_ids=[])
    reply = model.chat("Once", max_tokens=4)
    for text in (made, listed, reply):
        assert (text.tokens, text.finish_reason) == (text.stats.tokens, text.stats.finish_reason)
        assert text.prompt_tokens > 0
        assert json.loads(json.dumps(text)) == text == str(text)
        for again in (pickle.loads(pickle.dumps(text)), copy.copy(text), copy.deepcopy(text)):
            assert (type(again), again, again.stats) == (type(text), text, text.stats)
    assert (made, made.tokens, made.finish_reason) == (listed, 4, "length")
    assert isinstance(reply, (ChatReply, glinfer.GeneratedText))
    assert pickle.loads(pickle.dumps(ChatReply("a", made.stats, "b"))).thinking == "b"


def test_a_model_is_not_copied_to_another_process(model: Model) -> None:
    for take in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(ContextError, match=r"^a model cannot be pickled or copied, .*; load it again"):
            take(model)


def test_what_was_closed_is_not_entered_again(small: Path) -> None:
    with glinfer.load(small) as model:
        ended = model.stream("Once", max_tokens=2, stop_ids=[])
        list(ended)
        ended.close()
        with ended:  # read to its end, which is not the same
            assert ended.stats.finish_reason == "length"
        assert repr(ended) == "<TextStream: 2 tokens, length>"
        made: list[tuple[Any, str]] = [
            (model.session(), "this session was closed"),
            (model.scheduler(), "this scheduler was closed"),
            (model.stream("Once"), "this stream was closed"),
            (model.stream([1]), "this stream was closed"),
            (model.stream_chat("Once"), "this stream was closed"),
            (model.engine.scorer(), "of plan score was released|was closed"),
        ]
        for each, _ in made:
            each.close()
    made.append((model, "this model was closed; load it again"))
    device = open_device()
    device.close()
    made.append((device, "this device was closed"))
    for each, message in made:
        with pytest.raises(ContextError, match=message):
            each.__enter__()
    with pytest.raises(ContextError, match="this model was closed"):
        model.generate([])
