"""Chat with models that have a Jinja template: conversations to token ids, without a way to forge a control token.

A template only knows text, so the ids come from the text that it renders. What a message spells must not become a
control token there. So, before rendering, a mark (a character that nobody uses) is put around each message, within the
spaces that it begins and ends with, and into each control token that it spells. In the rendered text only what has no
mark in it is a control token. Then the marks are taken out again, and what lies between two control tokens is encoded
as one text, as it would be without all this.

So the ids are those of the whole rendered text, but for two cases. What a message spells is ordinary text, alone and
together with what the template puts beside it. And a template that looks at the first or the last character of a
message sees the mark; one that trims or cuts messages, or looks for something within them, does so as ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from glinfer.errors import InputError
from glinfer.text.templates import JinjaTemplate, Message
from glinfer.text.tokenizer import Tokenizer

_MARKS = range(0xF0000, 0xFFFFE)  # of Unicode's private use: no vocabulary has a meaning for them
_EXAMPLE = ({"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"})


class TemplateEncoder:
    """Conversations to token ids, by a template and a tokenizer.

    Args:
        template: the model's.
        tokenizer: the model's.
    """

    def __init__(self, template: JinjaTemplate, tokenizer: Tokenizer) -> None:
        """Keep the two; nothing is rendered."""
        self._template, self._tokenizer = template, tokenizer

    def ids(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation, and of what opens the reply to it.

        Raises:
            InputError: as :meth:`glinfer.text.templates.JinjaTemplate.render`, or a message has no UTF-8 form.
        """
        mark = self._unused(message["content"] for message in messages)
        marked = _marked_all(messages, mark, self._names)
        rendered = self._template.render(marked, add_generation_prompt=add_generation_prompt)
        pieces = self._names.split(rendered)  # texts, with the name of a control token between each two
        control = self._tokenizer.control_tokens
        return self._tokenizer.encode_mixed(
            control[piece] if place % 2 else piece.replace(mark, "") for place, piece in enumerate(pieces)
        )

    def end_of_reply(self) -> int | None:
        """The control token that the template puts right after a reply, or None where it puts none there."""
        mark = self._unused(())
        try:
            rendered = self._template.render(_marked_all(_EXAMPLE, mark, self._names), add_generation_prompt=False)
        except InputError:  # it may want other messages than these, and says so when it gets the real ones
            return None
        found = self._names.match(rendered.rpartition(mark)[2])
        return None if found is None else self._tokenizer.control_tokens[found[1]]

    @cached_property
    def _names(self) -> re.Pattern[str]:
        """A control token, the longest that is there; one of a single character is told from text by nothing."""
        names = sorted((name for name in self._tokenizer.control_tokens if len(name) > 1), key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, names)) or '(?!)'})")

    def _unused(self, texts: Iterable[str]) -> str:
        used = set(self._template.source).union(*texts)
        return next(chr(code) for code in _MARKS if chr(code) not in used)


def _marked_all(messages: Iterable[Message], mark: str, names: re.Pattern[str]) -> list[Message]:
    return [{**message, "content": _marked(message["content"], mark, names)} for message in messages]


def _marked(text: str, mark: str, names: re.Pattern[str]) -> str:
    """A message with a mark at both ends, inside its outer spaces, and in every control token that it spells."""
    inner = text.strip()
    if not inner:
        return text
    start = text.index(inner)
    # Every place where one begins, those too that lie within another.
    split = re.sub(f"(?=({names.pattern}))(.)", rf"\g<0>{mark}", inner, flags=re.DOTALL)
    return f"{text[:start]}{mark}{split}{mark}{text[start + len(inner) :]}"
