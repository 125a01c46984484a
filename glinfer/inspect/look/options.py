"""Options of ``glinfer look``: kinds of pictures, layers, and the tokens to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from glinfer.config import ModelConfig
from glinfer.engine.engine import EMBEDS
from glinfer.engine.ids import check_ids
from glinfer.engine.model import Model
from glinfer.errors import InputError
from glinfer.limits import MAX_LOOK_TOKENS

ATTENTION, HIDDEN, LENS, WEIGHTS = KINDS = ("attention", "hidden", "lens", "weights")
"""Kinds of pictures."""
DEFAULT_TOP = 8
"""Default number of likeliest tokens to list."""


@dataclass(frozen=True)
class LookOptions:
    """Selection of pictures: some of :data:`KINDS`, of some blocks, and the number of likeliest tokens to list."""

    what: tuple[str, ...]
    layers: tuple[int, ...]
    top: int = DEFAULT_TOP

    @classmethod
    def of(
        cls, config: ModelConfig, what: str | None = None, layers: str | None = None, top: int = DEFAULT_TOP
    ) -> LookOptions:
        """Parse command-line values: kinds by comma, and blocks as numbers, ranges or patterns, ``0,3-5,1*``.

        By default all kinds that the blocks have. InputError if a kind or block does not exist, ``top`` is less than
        1, or the model embeds texts.
        """
        if config.embeds:
            raise InputError(EMBEDS)
        kinds = [part.strip() for part in (what or ",".join(KINDS)).split(",") if part.strip()]
        for kind in kinds:
            if kind not in KINDS:
                raise InputError(f"found an unknown kind of picture {kind!r}; expected some of {','.join(KINDS)}")
        if top < 1:
            raise InputError(f"the number of likeliest tokens is {top}; expected at least 1")
        blocks = _layers(layers, config.num_hidden_layers)
        if ATTENTION in kinds and not any(config.layer(block).attends for block in blocks):
            if what:
                raise InputError("found no attention in these blocks; leave attention out of the pictures")
            kinds.remove(ATTENTION)
        chosen = tuple(kind for kind in KINDS if kind in kinds)
        if not chosen:
            raise InputError(f"found no kind of picture; expected some of {','.join(KINDS)}")
        return cls(chosen, blocks, min(top, config.vocab_size))

    @property
    def runs(self) -> bool:
        """Whether the model must run, which requires a text."""
        return self.what != (WEIGHTS,)


def _layers(text: str | None, count: int) -> tuple[int, ...]:
    chosen: set[int] = set()
    for part in filter(None, map(str.strip, ("*" if text is None else text).split(","))):
        first, dash, last = part.partition("-")
        if first.isdecimal() and last.isdecimal() and dash and "[" not in part:
            found = set(range(max(0, int(first)), min(count, int(last) + 1)))
        else:
            found = {number for number in range(count) if fnmatchcase(str(number), part)}
        if not found:
            raise InputError(f"found no block {part!r}; this model has blocks 0 to {count - 1}")
        chosen |= found
    if not chosen:
        raise InputError(f"found no block in the list; this model has blocks 0 to {count - 1}")
    return tuple(sorted(chosen))


def prompt_ids(model: Model, prompt: str | Sequence[int]) -> list[int]:
    """Tokenize and check a prompt; InputError without a tokenizer, or with more than MAX_LOOK_TOKENS."""
    ids = list(model.require_tokenizer().encode(prompt) if isinstance(prompt, str) else prompt)
    if len(ids) > MAX_LOOK_TOKENS:
        raise InputError(
            f"the text has {len(ids)} tokens; 'glinfer look' draws up to {MAX_LOOK_TOKENS}; give a shorter one"
        )
    return check_ids(ids, model.config)
