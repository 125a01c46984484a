"""The model as a user sees it: text or ids in, text, ids, logits or probabilities out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, overload

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import ContextError, InputError
from glinfer.formats import find_model, load_checkpoint
from glinfer.generation.auto_weights import choose_weights
from glinfer.generation.decode import CachedSession, DecodeSession, RecomputeSession
from glinfer.generation.ids import check_tokens, whole_numbers
from glinfer.generation.loop import TokenStream
from glinfer.generation.sampler import SamplingOptions
from glinfer.generation.stream import TextStream
from glinfer.generation.tokenizer import Tokenizer, find_tokenizer
from glinfer.gl.context import Device, Limits, open_device
from glinfer.models.choice import AUTO, DEFAULT_PLAN, DEFAULT_WEIGHTS, check_choice, weights_for
from glinfer.models.choice import plan_for as plan_for
from glinfer.models.gab import LOGITS, PROBS, TOKENS
from glinfer.models.plan import DrawTable, Plan, draw_table
from glinfer.models.session import Session
from glinfer.models.tuning import kernels_for
from glinfer.ops.kernels import Kernels

if TYPE_CHECKING:
    from typing_extensions import Unpack

CHUNK = 8
"""How many tokens :meth:`Model.generate` has the GPU choose before it looks at them."""
END_OF_TURN = "<|end|>"


_CLOSED = "this model was closed; load it again"


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

    Streams, :meth:`logits` and :meth:`probs` share one sequence of tokens: with the fast plan, what the last use left
    in it and the next one begins with is not computed again. :meth:`session` makes sequences of their own.

    Attributes:
        config: the model's shape.
        tokenizer: the tokenizer, or None when there is none and only ids can be used.
        device: the open OpenGL device.
        bound: the plan, bound to the device.
        weights: the format of the weights, such as ``f32``.
        kernels: how the fast plan's passes are shaped; the reference plan has no such choice.
    """

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: Tokenizer | None,
        bound: Session,
        *,
        weights: str,
        kernels: Kernels,
        owns_device: bool,
        no_tokenizer_reason: str,
    ) -> None:
        """Use :func:`load_model`."""
        self.config, self.tokenizer, self.bound = config, tokenizer, bound
        self.weights, self.kernels = weights, kernels
        self.device = bound.device
        self._no_tokenizer_reason = no_tokenizer_reason
        self._owns_device = owns_device
        self._closed = False
        self._own = self._session(bound)

    @property
    def plan(self) -> Plan:
        """What one run draws."""
        return self.bound.plan

    def session(self) -> DecodeSession:
        """A new sequence of tokens over the same weights, empty; close it, or use it in a ``with`` block.

        Raises:
            ContextError: the model was closed.
        """
        self._require_open()
        return self._session(None)

    def _session(self, bound: Session | None) -> DecodeSession:
        """A sequence in the caches of ``bound``, or in caches of its own."""
        if self.plan.name == "fast":
            caches = self.bound.sharer() if bound is None else bound
            return CachedSession(self.config, caches, flush_every=self.kernels.flush_every, owns=bound is None)
        return RecomputeSession(
            self.config, self._whole_logits, self._whole_probs, count_draws=lambda: self.bound.draws_issued
        )

    def _require_open(self) -> None:
        if self._closed:
            raise ContextError(_CLOSED)

    def forward(self, ids: Sequence[int]) -> int:
        """Run one pass of the reference plan over the whole sequence; returns the draw calls issued.

        Raises:
            InputError: ids that the model cannot run, or another plan, which runs token by token.
        """
        self._require_open()
        checked = check_ids(ids, self.config)
        if self.plan.name != "reference":
            raise InputError(
                f"plan {self.plan.name} runs token by token; use logits or session, or load with plan='reference'"
            )
        self.bound.write(TOKENS, np.asarray(checked, dtype=np.int32)[:, None])
        return self.bound.run({"rows": len(checked)})

    def _whole_logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        self.forward(ids)
        return np.array(self.bound.read(LOGITS)[0], dtype=np.float32)

    def _whole_probs(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        self.forward(ids)
        return np.array(self.bound.read(PROBS)[0], dtype=np.float32)

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits [vocab] of the token that follows ``ids``, float32."""
        if self.plan.name == "reference":
            return self._whole_logits(ids)
        self._own.hold(check_ids(ids, self.config))
        return self._own.logits()

    def probs(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Softmax probabilities [vocab] of the token that follows ``ids``, float32."""
        if self.plan.name == "reference":
            return self._whole_probs(ids)
        self._own.hold(check_ids(ids, self.config))
        return self._own.probs()

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
            max_tokens: how many tokens at most. When the context is full the oldest half of its tokens is dropped,
                see ``stats.dropped``, and generation goes on.
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
            self._own,
            check_ids(ids, self.config),
            sampling,
            max_tokens=max_tokens,
            stop_ids=default_stops if stop_ids is None else _check_stop_ids(stop_ids, self.config),
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
            text = self.stream(prompt, **options)
            text.chunk = CHUNK
            return "".join(text)
        ids = self.stream(prompt, **options)
        ids.chunk = CHUNK
        return list(ids)

    def draws(self, tokens: int = 1) -> DrawTable:
        """The passes that the last of ``tokens`` tokens costs, by kind, with ``.total`` draw calls.

        The reference plan runs all of the tokens in them again, the fast plan that one alone.
        """
        return draw_table(self.plan, tokens)

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            InputError: there is none.
        """
        if self.tokenizer is None:
            raise InputError(self._no_tokenizer_reason)
        return self.tokenizer

    def close(self) -> None:
        """Release every GL object, those of its sessions too, and the device if this model opened it.

        Harmless when repeated.
        """
        if not self._closed:
            if not self.device.closed:
                self.device.activate()  # from another thread this fails, and the model stays as it was
            self._closed = True
            self._own.close(_CLOSED)
            self.bound.release()
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
    checked = whole_numbers("the prompt", ids)
    if not checked:
        raise InputError("the prompt is empty; expected at least one token")
    context = config.max_position_embeddings
    if len(checked) > context:
        raise InputError(f"the prompt has {len(checked)} tokens; this model's context holds {context}")
    return check_tokens("the prompt", checked, config)


def _check_stop_ids(stop_ids: Sequence[int], config: ModelConfig) -> list[int]:
    checked = whole_numbers("stop_ids", stop_ids)
    for token in checked:
        if not 0 <= token < config.vocab_size:
            raise InputError(f"stop id {token} can never come; this vocabulary has ids 0 to {config.vocab_size - 1}")
    return checked


def load_model(
    path: str | PathLike[str],
    *,
    tokenizer: str | PathLike[str] | Tokenizer | None = None,
    plan: str = DEFAULT_PLAN,
    weights: str = DEFAULT_WEIGHTS,
    kernels: Kernels | None = None,
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
        plan: ``fast``, each token once, or ``reference``, the published passes over the whole sequence each time.
        weights: how the fast plan keeps its weights: ``f32`` as they are, or in fewer bits, a key of
            :data:`glinfer.models.fold.WEIGHT_FORMATS`; ``auto`` for the fastest whose predictions cost at most 0.1%
            more bits than float32's, measured once for a checkpoint.
        kernels: how its passes are shaped, which changes speed alone; left out, a good choice for the renderer.
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
    check_choice(plan, "f32" if (plan, weights) == ("fast", AUTO) else weights)
    if plan == "reference" and kernels is not None:
        raise InputError("kernels shape the fast plan's passes; leave them out or use the fast plan")
    path = find_model(path)
    checkpoint = load_checkpoint(path)
    checkpoint.check_finite()
    config = checkpoint.config.with_gelu(gelu)
    found, reason = find_tokenizer(path, tokenizer, config)
    opened = device if isinstance(device, Device) else open_device(device, api=api, limits=limits)
    try:
        edge = opened.limits.max_texture_size
        if weights == AUTO:
            shaped = dataclasses.replace(checkpoint, config=config)
            weights = choose_weights(shaped, opened, kernels or kernels_for(opened, config, "f32"))
        kernels = kernels or kernels_for(opened, config, weights)
        bound_plan = plan_for(config, plan, weights=weights, kernels=kernels, max_texture_size=edge)
        arrays = weights_for(checkpoint, plan, weights)
        del checkpoint  # folded weights are a copy, and textures may be a third one in the same memory
        bound = Session(
            bound_plan,
            arrays,
            opened,
            shader_root=shader_root,
            on_upload=None
            if on_upload is None
            else _running_total(bound_plan.texture_bytes(edge, "weight"), on_upload),
        )
    except BaseException:
        if opened is not device:
            opened.close()
        raise
    return Model(
        config,
        found,
        bound,
        weights=weights,
        kernels=kernels,
        owns_device=opened is not device,
        no_tokenizer_reason=reason,
    )


def _running_total(total: int, report: Callable[[int, int], None]) -> Callable[[int], None]:
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        report(min(done, total), total)

    return add
