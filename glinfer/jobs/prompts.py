"""The short form of a batch, ``generate --batch``: prompts with their own options become requests to one model.

docs/formats.md describes both files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from glinfer.engine.ids import check_count, integers
from glinfer.engine.model import Model
from glinfer.engine.progress import Progress, no_progress
from glinfer.engine.requests import BatchRequest
from glinfer.engine.sampler import SamplingOptions
from glinfer.errors import InputError
from glinfer.formats.files import AnyPath
from glinfer.formats.jsonl import at_line, short
from glinfer.jobs.lines import Key, LineForm, LineResult, RequestLine, check_keys, hex_of, seed_of, text_of
from glinfer.structured.structure import OPTIONS as STRUCTURES
from glinfer.structured.structure import structure_of
from glinfer.text.assembler import TextAssembler

_SAMPLING = tuple(field.name for field in dataclasses.fields(SamplingOptions))
_OPTIONS = ("max_tokens", *_SAMPLING, "stop", "stop_ids", "keep", *STRUCTURES)
_KEYS = ("prompt", "ids", "id", *_OPTIONS, "lora")


class PromptForm(LineForm):
    """Lines such as ``{"prompt": "Once"}`` or ``{"ids": [13, 132]}``."""

    noun = "prompt"
    example = '{"prompt": "Once upon a time"}'
    twins = "expected ids that differ (a line without one has its number for an id)"
    changed = ", its options or the model have changed"

    def __init__(self, defaults: Mapping[str, Any], made_with: Sequence[object] = ()) -> None:
        """Read lines with these defaults.

        Args:
            defaults: checked defaults of ``max_tokens``, ``stop``, ``stop_ids`` and the fields of SamplingOptions. Line
                n uses ``seed`` + n - 1, so that lines differ and do not depend on each other or on earlier runs.
                Without a seed it uses :func:`seed_of` its id.
            made_with: further values that determine the results.
        """
        self.defaults, self.made_with = defaults, made_with

    def parse(self, number: int, found: dict[str, Any]) -> RequestLine:
        """Check a prompt and its options."""
        check_keys(found, _KEYS, "custom_id", "'glinfer run-batch'")
        if ("prompt" in found) == ("ids" in found):
            raise InputError('expected either "prompt" (text) or "ids" (token ids), and not both')
        prompt = text_of("prompt", found["prompt"]) if "prompt" in found else _ids("ids", found["ids"])
        if not prompt:
            raise InputError("the prompt is empty; expected at least one token")
        key = found.get("id", number)
        if type(key) is not int:
            key = text_of("id", key, "text or an integer")
        named = {"prompt" if isinstance(prompt, str) else "ids": prompt}
        body = {**named, **self._options(number, key, found, isinstance(prompt, str))}
        return RequestLine(number, key, "", body, hex_of({**body, "with": self.made_with})[:16])

    def _options(self, number: int, key: Key, found: Mapping[str, Any], has_text: bool) -> dict[str, Any]:
        own = {name: found[name] for name in _OPTIONS if name in found}
        # A structure in the line replaces the default structure.
        taken = STRUCTURES if own.keys() & {*STRUCTURES} else ()
        options = {**{name: value for name, value in self.defaults.items() if name not in taken}, **own}
        structure_of(options)
        if "lora" in found:
            options["lora"] = text_of("lora", found["lora"])
        if "seed" not in found and self.defaults["seed"] is not None:
            options["seed"] = self.defaults["seed"] + number - 1
        if options["seed"] is None:
            options["seed"] = seed_of(key)
        check_count("max_tokens", options["max_tokens"])
        options.update(dataclasses.asdict(SamplingOptions(**{name: options[name] for name in _SAMPLING})))
        stop = options["stop"]
        options["stop"] = [text_of("stop", text) for text in (stop if isinstance(stop, (list, tuple)) else [stop])]
        TextAssembler(options["stop"])  # checks stop strings
        if options["stop"] and not has_text:
            raise InputError('stop strings need a text prompt; use stop_ids, and "stop": [] where --stop is given')
        if options["stop_ids"] is not None:
            options["stop_ids"] = _ids("stop_ids", options["stop_ids"])
        return options

    def finished(self, found: dict[str, Any]) -> tuple[Key, str] | None:
        """The id and the ``prompt_sha`` of a result."""
        key, digest = found.get("id"), found.get("prompt_sha")
        if not isinstance(key, (str, int)) or isinstance(key, bool) or not isinstance(digest, str):
            return None
        return key, digest


def _ids(name: str, value: object) -> list[int]:
    if not isinstance(value, list):
        raise InputError(f"{name} is {short(value)}; expected a list of token ids")
    return integers(name, value)


def request_of(line: RequestLine) -> BatchRequest:
    """The model's request for a line."""
    prompt = line.body["prompt" if "prompt" in line.body else "ids"]
    return BatchRequest(
        prompt, {name: value for name, value in line.body.items() if name not in ("prompt", "ids")}, key=line
    )


def check_prompts(
    model: Model,
    lines: Iterable[RequestLine],
    count: int,
    source: AnyPath,
    on_progress: Progress = no_progress,
) -> int:
    """Check ``count`` prompts against the model before any of them runs.

    Returns:
        The tokens of the longest sequence, prompt and continuation.

    ``on_progress`` is called with (checked lines, lines).

    Raises:
        InputError: names the line: text without a tokenizer, a prompt longer than the context, or ids outside the
            vocabulary.
    """
    longest = 0
    for done, line in enumerate(lines, start=1):
        with at_line(source, line.number):
            checked = model.checked(request_of(line))
        longest = max(longest, len(checked.prompt) + checked.max_tokens)
        on_progress(done, count)
    return longest


@dataclass(frozen=True)
class PromptRunner:
    """Runs prompts together on one model.

    Attributes:
        slots: concurrent sequences; None for the model's default.
        memory: limit for the texture memory of their caches, in bytes.
        longest: tokens of the longest sequence; None for a whole context.
    """

    model: Model
    slots: int | None = None
    memory: int | None = None
    longest: int | None = None

    def run(self, lines: Iterator[RequestLine]) -> Iterator[LineResult]:
        """Yield the results of checked prompts as they finish."""
        requests = map(request_of, lines)
        return _results(self.model.batch(requests, slots=self.slots, memory=self.memory, longest=self.longest))


def _results(found: Any) -> Iterator[LineResult]:
    """The output lines of the results of a batch, which is closed with this iterator."""
    with closing(found):
        for result in found:
            line, stats = result.request.key, result.stats
            output = {
                "id": line.key,
                "text": result.text,
                "ids": result.ids,
                "finish_reason": stats.finish_reason,
                "prompt_tokens": stats.prompt_tokens,
                "tokens": stats.tokens,
                **({} if stats.complete is None else {"complete": stats.complete}),
                "prompt_sha": line.digest,
            }
            yield LineResult(
                line, output, prompt_tokens=stats.prompt_tokens, tokens=stats.tokens, dropped=stats.dropped
            )
