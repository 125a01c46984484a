"""The model as a user sees it: text or ids in, text, ids, logits or probabilities out."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, overload

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import ContextError, InputError
from glinfer.formats import Checkpoint, find_model, load_checkpoint
from glinfer.generation.loop import TokenStream
from glinfer.generation.sampler import SamplingOptions
from glinfer.generation.stream import TextStream
from glinfer.generation.tokenizer import Tokenizer, find_tokenizer
from glinfer.gl.context import Device, Limits, open_device
from glinfer.models.gab import LOGITS, PROBS, TOKENS, reference_plan
from glinfer.models.plan import DrawTable, Plan, draw_table
from glinfer.models.session import Session

if TYPE_CHECKING:
    from typing_extensions import Unpack

PLANS: Mapping[str, Callable[..., Plan]] = {"reference": reference_plan}
"""Every plan by the name that ``plan=`` and ``--plan`` take."""
DEFAULT_PLAN = "reference"
END_OF_TURN = "<|end|>"


class StreamOptions(TypedDict, total=False):
    """The options of :meth:`Model.stream` and :meth:`Model.generate`; explained at ``stream``."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int | None
    stop: Sequence[str]
    stop_ids: Sequence[int] | None
    on_end: Callable[[], None] | None


class Model:
    """A checkpoint bound to a device; made by :func:`glinfer.load`.

    Attributes:
        config: the model's shape.
        tokenizer: the tokenizer, or None when there is none and only ids can be used.
        device: the open OpenGL device.
        session: the bound plan.
    """

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: Tokenizer | None,
        session: Session,
        *,
        owns_device: bool,
        no_tokenizer_reason: str,
    ) -> None:
        """Use :func:`load_model`."""
        self.config, self.tokenizer, self.session = config, tokenizer, session
        self.device = session.device
        self._no_tokenizer_reason = no_tokenizer_reason
        self._owns_device = owns_device
        self._closed = False

    def forward(self, ids: Sequence[int]) -> int:
        """Run one pass over the whole sequence; returns the draw calls issued."""
        if self._closed:
            raise ContextError("this model was closed; load it again")
        checked = check_ids(ids, self.config)
        self.session.write(TOKENS, np.asarray(checked, dtype=np.int32)[:, None])
        return self.session.run({"rows": len(checked)})

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits [vocab] of the token that follows ``ids``, float32."""
        self.forward(ids)
        return np.array(self.session.read(LOGITS)[0], dtype=np.float32)

    def probs(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Softmax probabilities [vocab] of the token that follows ``ids``, computed on the GPU, float32."""
        self.forward(ids)
        return np.array(self.session.read(PROBS)[0], dtype=np.float32)

    @overload
    def stream(self, prompt: str, **options: Unpack[StreamOptions]) -> TextStream: ...
    @overload
    def stream(self, prompt: Sequence[int], **options: Unpack[StreamOptions]) -> TokenStream: ...
    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 128,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
        stop_ids: Sequence[int] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> TextStream | TokenStream:
        """Continue a prompt piece by piece: text for a text prompt, ids for a prompt of ids.

        Args:
            prompt: text (needs a tokenizer; control tokens such as ``<|user|>`` are recognised), or ids.
            max_tokens: how many tokens at most; generation also ends when the context is full.
            temperature: 0 takes the likeliest token every time.
            top_k: only the k likeliest tokens (0: all).
            top_p: only the likeliest tokens whose probabilities reach this sum.
            min_p: only tokens at least this fraction as likely as the likeliest.
            repetition_penalty: above 1 makes tokens already in the sequence less likely.
            seed: the same seed gives the same tokens; None draws a new one.
            stop: strings that end a text stream; they are not part of the text.
            stop_ids: ids that end the stream (default: the tokenizer's ``<|end|>`` for text, none for ids).
            on_end: called once when the stream ends.

        A stream that is not read to its end goes on holding what it holds: close it, or use it in a ``with``
        block.

        Raises:
            InputError: a prompt or an option that cannot be run.
        """
        sampling = SamplingOptions(temperature, top_k, top_p, min_p, repetition_penalty, seed)
        is_text = isinstance(prompt, str)
        if isinstance(prompt, str):
            ids: Sequence[int] = self.require_tokenizer().encode(prompt)
            end = self.require_tokenizer().special_id(END_OF_TURN)
            default_stops = () if end is None else (end,)
        else:
            ids, default_stops = prompt, ()
            if stop:
                raise InputError("stop strings need a text prompt; use stop_ids with a prompt of ids")
        tokens = TokenStream(
            self.logits,
            check_ids(ids, self.config),
            sampling,
            max_tokens=max_tokens,
            context=self.config.max_position_embeddings,
            stop_ids=default_stops if stop_ids is None else _check_stop_ids(stop_ids, self.config),
            count_draws=lambda: self.session.draws_issued,
            on_end=on_end,
        )
        return TextStream(tokens, self.require_tokenizer(), stop) if is_text else tokens

    @overload
    def generate(self, prompt: str, **options: Unpack[StreamOptions]) -> str: ...
    @overload
    def generate(self, prompt: Sequence[int], **options: Unpack[StreamOptions]) -> list[int]: ...
    def generate(self, prompt: str | Sequence[int], **options: Unpack[StreamOptions]) -> str | list[int]:
        """The whole continuation at once: a string for text, a list of ids for ids; options as in stream."""
        if isinstance(prompt, str):
            return "".join(self.stream(prompt, **options))
        return list(self.stream(prompt, **options))

    def draws(self, tokens: int = 1) -> DrawTable:
        """The passes of one forward over ``tokens`` tokens, by kind, with ``.total`` draw calls."""
        return draw_table(self.session.plan, tokens)

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            InputError: there is none.
        """
        if self.tokenizer is None:
            raise InputError(self._no_tokenizer_reason)
        return self.tokenizer

    def close(self) -> None:
        """Release every GL object, and the device if this model opened it; harmless when repeated."""
        if not self._closed:
            if not self.device.closed:
                self.device.activate()  # from another thread this fails, and the model stays as it was
            self._closed = True
            self.session.release()
            if self._owns_device:
                self.device.close()

    def __enter__(self) -> Model:
        """Use as a context manager: closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def check_ids(ids: Sequence[int], config: ModelConfig) -> list[int]:
    """The ids as a plain list that a model of this shape can run.

    Raises:
        InputError: none at all, more than the context holds, no whole number, or one outside the vocabulary.
    """
    checked = _whole_numbers("the prompt", ids)
    if not checked:
        raise InputError("the prompt is empty; expected at least one token")
    context, vocab = config.max_position_embeddings, config.vocab_size
    if len(checked) > context:
        raise InputError(f"the prompt has {len(checked)} tokens; this model's context holds {context}")
    for place, token in enumerate(checked):
        if not 0 <= token < vocab:
            raise InputError(f"token {place} of the prompt is {token}; this vocabulary has ids 0 to {vocab - 1}")
    return checked


def _check_stop_ids(stop_ids: Sequence[int], config: ModelConfig) -> list[int]:
    checked = _whole_numbers("stop_ids", stop_ids)
    for token in checked:
        if not 0 <= token < config.vocab_size:
            raise InputError(f"stop id {token} can never come; this vocabulary has ids 0 to {config.vocab_size - 1}")
    return checked


def _whole_numbers(what: str, values: Sequence[int]) -> list[int]:
    # Bytes and booleans pass for whole numbers in Python, and are surely a mistake here.
    if isinstance(values, (bytes, bytearray)):
        raise InputError(f"{what} is {type(values).__name__}; expected text (a str) or token ids")
    numbers = []
    try:
        for value in values:
            if isinstance(value, (bool, np.bool_)):
                raise TypeError
            numbers.append(operator.index(value))
    except TypeError:
        raise InputError(f"{what} is no sequence of whole numbers; expected token ids") from None
    return numbers


def plan_for(config: ModelConfig, name: str, *, all_rows: bool = False) -> Plan:
    """The plan called ``name`` for a model of this shape; ``all_rows`` for the logits after every position.

    Raises:
        InputError: there is no such plan.
        PlanError: it would have absurdly many draws.
    """
    if name not in PLANS:
        raise InputError(f"there is no plan {name!r}; expected one of {', '.join(PLANS)}")
    return PLANS[name](config, all_rows=all_rows)


def load_model(
    path: str | PathLike[str],
    *,
    tokenizer: str | PathLike[str] | Tokenizer | None = None,
    plan: str = DEFAULT_PLAN,
    gelu: str | None = None,
    device: Device | str | int | None = None,
    api: str | None = None,
    limits: Limits | None = None,
    shader_root: Path | None = None,
    on_upload: Callable[[int, int], None] | None = None,
) -> Model:
    """Read a checkpoint, open a device, bind the plan.

    Args:
        path: a ``.gab`` or ``.safetensors`` checkpoint, or the name of a bundled model such as ``shakespeare``.
        tokenizer: a ``.bpe`` file or a Tokenizer. Left out, ``<checkpoint>.bpe`` or ``model.bpe`` beside the
            checkpoint is used when there is one that fits the model.
        plan: the name of a plan; see :data:`PLANS`.
        gelu: ``tanh`` or ``erf`` to override the checkpoint's own form.
        device: an open Device to share (it stays open, and has its own ``api`` and ``limits``), or what
            :func:`glinfer.gl.context.open_device` takes.
        api: ``es`` or ``desktop``; see open_device.
        limits: pretend that the renderer allows no more, for example ``Limits.webgl2_minimum()``.
        shader_root: another folder of shader files, for trying out changed shaders.
        on_upload: told (bytes uploaded so far, bytes in all) while weights go to the GPU.

    Raises:
        GlinferError: one of its children for a bad file, bad weights, a tokenizer that does not fit, a
            missing context, or a model too large for the renderer.
    """
    if isinstance(device, Device) and (api is not None or limits is not None):
        raise InputError("api and limits belong to opening a device; an open Device has its own, so leave them out")
    path = find_model(path)
    checkpoint = load_checkpoint(path)
    checkpoint.check_finite()
    config = checkpoint.config.with_gelu(gelu)
    bound_plan = plan_for(config, plan)
    found, reason = find_tokenizer(path, tokenizer, config)
    opened = device if isinstance(device, Device) else open_device(device, api=api, limits=limits)
    try:
        session = Session(
            bound_plan,
            checkpoint.tensors,
            opened,
            shader_root=shader_root,
            on_upload=None if on_upload is None else _running_total(checkpoint, on_upload),
        )
    except BaseException:
        if opened is not device:
            opened.close()
        raise
    return Model(config, found, session, owns_device=opened is not device, no_tokenizer_reason=reason)


def _running_total(checkpoint: Checkpoint, report: Callable[[int, int], None]) -> Callable[[int], None]:
    total = sum(array.nbytes for array in checkpoint.tensors.values())
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        report(min(done, total), total)

    return add
