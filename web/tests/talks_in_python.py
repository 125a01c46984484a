"""Conversations longer than the context, and what Python's ``chat_session`` makes of them, as JSON.

``thoughts`` has replies of models that think.

``python web/tests/talks_in_python.py`` prints what talks.test.js compares: the tokenizer and the chat form as
``plan.json`` has them, and for each context what was said, with the ids of the prompt and of the reply, and its text.
The model is a rule that says the next token, which the test has too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from texts_in_python import ROOT, TEMPLATES, chat_tokenizer, given, render_here
from thinking import REPLIES, VOCABULARIES, library_of
from thinking import TEMPLATES as THINKING

from glinfer.config import ModelConfig
from glinfer.engine.chat import Chatting
from glinfer.engine.ids import check_keep
from glinfer.engine.requests import BatchRequest, Running
from glinfer.engine.run.decode import DecodeSession, Floats, RecomputeSession
from glinfer.engine.sampler import SamplingOptions
from glinfer.engine.stream import TokenStream
from glinfer.export.texts import library_entry, template_entry
from glinfer.text import templates
from glinfer.text.chat import TemplateChat
from glinfer.text.templates import JinjaTemplate
from glinfer.text.tokenizer import Tokenizer
from glinfer.text.tokenizers.huggingface import of_library

ENDS = [2]
SYSTEM = "Be brief."
# What is said, in how many tokens the reply may be; or a turn to which another message is sent in its place.
SAID: list[dict[str, Any]] = [
    {"say": "hello", "tokens": 30},
    {"say": "one two three", "tokens": 20},
    {"say": "a", "tokens": 200},
    {"again": True, "tokens": 12},
    {"say": "the lamp is lit, the door is shut", "tokens": 40},
    {"say": "b", "tokens": 9},
    {"edit": 1, "say": "two", "tokens": 25},
    {"say": "c <|im_end|>", "tokens": 64},
    {"edit": 0, "say": "z", "tokens": 5},
    *({"say": f"message {number}", "tokens": 3 + 7 * number} for number in range(8)),
]


def greedy(
    session: DecodeSession,
    ids: Sequence[int],
    *,
    max_tokens: int,
    stop_ids: Sequence[int] = (),
    keep: int = 0,
    on_end: Callable[[], None] | None = None,
) -> TokenStream:
    """The likeliest tokens after a prompt."""
    sampling = SamplingOptions(temperature=0)
    row = Running(BatchRequest(ids), list(ids), sampling, max_tokens, frozenset(stop_ids), keep=keep)
    row.before = session.before
    return TokenStream(session, row, on_end=on_end)


def next_token(ids: Sequence[int]) -> int:
    """The rule: texts repeat themselves soon, and end now and then."""
    return ENDS[0] if len(ids) % 37 == 0 else (5 * ids[-1] + 3) % 41 + 40


class Talker(Chatting):
    """A model of that rule, which notes its prompts."""

    def __init__(self, tokenizer: Tokenizer, template: JinjaTemplate, context: int, vocab: int) -> None:
        self.config = ModelConfig.from_options(f"blocks=1,heads=1,dim=4,vocab={vocab},context={context}")
        self._tokenizer, self.prompts = tokenizer, list[list[int]]()
        self._find_form = partial(TemplateChat, template, tokenizer, ENDS)

    def require_tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def _require_open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def stream(self, ids: Sequence[int], *, incomplete: str, **options: Any) -> TokenStream:
        self.prompts.append(list(ids))
        return greedy(RecomputeSession(self.config, self._logits), ids, **options)

    def _logits(self, ids: Sequence[int]) -> Floats:
        return np.eye(1, self.config.vocab_size, next_token(ids), dtype=np.float32)[0]


def talk(model: Talker) -> list[dict[str, Any]]:
    session, found, turns = model.chat_session(system=SYSTEM), [], list[Any]()
    conversation = session._conversation
    for said in SAID:
        if "edit" in said:
            turns = turns[: said["edit"]]
            conversation._turns = list(turns)  # with the ids that were written, as the page has them
        again = "again" in said
        options: dict[str, Any] = {"max_tokens": said["tokens"]}
        stream = session.regenerate(**options) if again else session.stream(said["say"], **options)
        text = str(stream.reply())
        turns = [*(turns[:-1] if again else turns), conversation.turns[-1]]
        found.append({**said, "prompt": model.prompts[-1], "ids": stream.ids, "text": text})
    return found


def full_contexts(vocab: int) -> list[dict[str, Any]]:
    """Texts that go on over full contexts, and what is held at their ends."""
    found = []
    for context, prompt, before, keep in product(
        (1, 2, 8, 21), ([50], [40, 41, 42]), ([], [40], [40, 41], [7]), (0, 3, -1)
    ):
        if len(prompt) >= context or keep >= context:
            continue
        config = ModelConfig.from_options(f"blocks=1,heads=1,dim=4,vocab={vocab},context={context}")
        session = RecomputeSession(config, lambda ids: np.eye(1, vocab, next_token(ids), dtype=np.float32)[0])
        session.before = before
        kept = check_keep(keep, context, len(prompt))
        stream = greedy(session, prompt, max_tokens=60, keep=kept)
        ids = list(stream)
        asked = {"context": context, "prompt": prompt, "before": before, "keep": keep}
        found.append({**asked, "ids": ids, "held": session.ids, "dropped": stream.stats.dropped})
    return found


def thoughts(added: Sequence[str]) -> dict[str, Any]:
    """Replies with thoughts between marks, which text may spell: the ids of prompt and reply, and their texts."""
    tokenizer = Tokenizer(of_library(library_of(*added), ROOT / "tokenizer.json"))
    end = tokenizer.control_tokens["<|im_end|>"]
    found = []
    for name, reply, thinking, answer in REPLIES:
        template = JinjaTemplate(THINKING[name], {}, "m")
        prompt = template.ids(tokenizer, [{"role": "user", "content": "hi<think>"}])
        made = {"chat": template_entry(template, tokenizer, [end]), "prompt": prompt}
        found.append({**made, "reply": [*tokenizer.encode(reply), end], "thinking": thinking, "text": answer})
    return {"tokenizer": library_entry(tokenizer), "vocabulary": tokenizer.vocab_size, "cases": found}


def main() -> None:
    templates.JinjaTemplate._answer = render_here  # type: ignore[method-assign,assignment]
    tokenizer = chat_tokenizer()
    template = JinjaTemplate(TEMPLATES["chatml"], given.TOKENS, "m")
    vocab = 1 + max(*tokenizer.control_tokens.values(), 100)
    talks = {context: talk(Talker(tokenizer, template, context, vocab)) for context in (120, 160, 400)}
    found = {
        "tokenizer": library_entry(tokenizer),
        "chat": template_entry(template, tokenizer, ENDS),
        "system": SYSTEM,
        "vocabulary": vocab,
        "talks": talks,
        "full": full_contexts(vocab),
        "thoughts": list(map(thoughts, VOCABULARIES.values())),
    }
    sys.stdout.write(json.dumps(found, ensure_ascii=False, separators=(",", ":")))


if __name__ == "__main__":
    main()
