"""The plans, weight formats and cache formats that users choose by name, and what each choice builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glinfer.config import ModelConfig
from glinfer.errors import InputError, PlanError
from glinfer.formats import Checkpoint
from glinfer.formats.tensors import tensors_per_layer
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Array
from glinfer.lower.fused.encode import fitting_encode_plan
from glinfer.lower.fused.image import image_plan
from glinfer.lower.fused.token import fast_plan
from glinfer.lower.options import ImageInputs, PlanOptions
from glinfer.lower.plain.decoder import reference_decoder_plan
from glinfer.lower.plain.gab import MAX_DRAWS, reference_plan
from glinfer.lower.plain.weights import DecoderWeights, stored_formats
from glinfer.lower.weights.fold import FoldedWeights
from glinfer.lower.weights.low_rank import NO_ADAPTERS, AdapterRanks
from glinfer.lower.weights.recipe import Formats
from glinfer.program.plan import Plan
from glinfer.quant.formats import CACHE_FORMATS, DEFAULT_CACHE, FROM_FILE, GROUP_FORMS, WEIGHT_FORMATS

PLANS = ("fast", "reference")
"""The values of ``plan=`` and ``--plan``."""
DEFAULT_PLAN = "fast"
AUTO = "auto"
WEIGHTS = (*WEIGHT_FORMATS, FROM_FILE, AUTO)
"""The values of ``weights=`` and ``--weights``."""
DEFAULT_WEIGHTS = AUTO
"""The default of ``weights=``: the fast form of the file's format, see :func:`weights_named`."""
CACHES = tuple(CACHE_FORMATS)
"""The values of ``cache=`` and ``--cache``."""
USUAL_TEXTURE_SIZE = 16384
"""Texels a side that nearly every renderer allows; used when plans are only counted."""
USUAL_DRAW_BUFFERS, USUAL_TEXTURE_UNITS = 8, 16
"""Draw buffers and texture units that nearly every renderer has; used when plans are only counted."""
ENCODED_CHUNKS = 2
"""Chunks of a prompt that a run of short texts takes."""
_SHORTEST = 64  # tokens of the first reference plan


def is_published(config: ModelConfig, formats: Formats | None = None) -> bool:
    """Whether the reference plan of a model is the published one, which some families have for floats.

    It has no windows, and as many key heads as heads, which divide the stream.
    """
    packed = formats is not None and any(name != "F32" for name in formats.values())
    heads, width = config.num_attention_heads, config.hidden_size
    usual = (config.num_key_value_heads, config.head_dim * heads, config.sliding_window) == (heads, width, 0)
    return config.family.published and usual and not packed


def same_draws(config: ModelConfig, name: str, formats: Formats | None = None) -> bool:
    """Whether the plan called ``name`` takes equally many draws on every renderer."""
    return name == "fast" or is_published(config, formats)


def check_choice(plan: str, weights: str, cache: str = DEFAULT_CACHE) -> None:
    """Refuse an unknown plan, weight format or cache format, and those that do not go together.

    Raises:
        InputError: naming the choice.
    """
    for what, given, known in (
        ("plan", plan, PLANS),
        ("weight format", weights, WEIGHTS),
        ("cache format", cache, CACHES),
    ):
        if given not in known:
            raise InputError(f"there is no {what} {given!r}; expected one of {', '.join(known)}")
    if plan == "reference" and weights not in ("f32", FROM_FILE, AUTO):
        raise InputError(
            f"the reference plan keeps its weights in f32, found {weights}; leave weights out or use the fast plan"
        )
    if plan == "reference" and cache != DEFAULT_CACHE:
        raise InputError(f"the reference plan has no cache, found {cache}; leave cache out or use the fast plan")


def weights_named(weights: str, formats: Formats | None = None, plan: str = DEFAULT_PLAN) -> str:
    """The weight format that ``weights`` stands for, given the format of each tensor of the file (default: floats).

    In the fast plan ``auto`` is ``q8`` for files with GGML blocks, which are slow to unpack. SmolLM2-135M in Q4_1 on
    llvmpipe, relative to q8: its blocks take 1.7 times as long for a token, 1.1 to 1.4 times for a prompt of 128 tokens
    and 1.3 times for a step of 16 sequences; q16 takes 1.3, 0.9 to 1.2 and 1.2 times as long. q8 costs 0.08% more bits
    per byte, another likeliest token at 4% of the positions, 8 bits a weight in textures, and 0.6 s more to load.

    For other files, and in the reference plan, ``auto`` is ``file``; and ``file`` is ``f32`` for floats alone.
    """
    stored = {"F32"} if formats is None else set(formats.values())
    if weights == AUTO:
        weights = "q8" if plan == "fast" and stored & GROUP_FORMS.keys() else FROM_FILE
    return "f32" if weights == FROM_FILE and stored <= {"F32"} else weights


@dataclass(frozen=True)
class ReferencePlans:
    """The reference plans of a model without a published one, by the length of their sequences.

    Raises:
        InputError: the model embeds texts.
        PlanError: there are absurdly many layers.
    """

    options: PlanOptions

    def __post_init__(self) -> None:
        """Refuse models without reference plans."""
        if self.options.config.embeds:
            raise InputError("a model that embeds texts has no reference plan; leave plan out, and verify its draws")
        check_layers(self.options.config, 2 * tensors_per_layer(self.options.config))

    def of(self, rows: int) -> Plan:
        """The plan for sequences of up to ``rows`` tokens, see :mod:`glinfer.lower.plain.decoder`."""
        return reference_decoder_plan(self.options, rows=rows)

    def rows_for(self, tokens: int) -> int:
        """The length of the plan for a sequence of ``tokens`` tokens: 64, 256, 1,024 …, or the context."""
        rows = _SHORTEST
        while rows < tokens:
            rows *= 4
        return min(rows, self.options.config.max_position_embeddings)


def check_layers(config: ModelConfig, draws: int) -> None:
    """Refuse absurdly many layers, of ``draws`` draws each, before a plan is built.

    Raises:
        PlanError: the plan would have more than :data:`MAX_DRAWS` draws.
    """
    if config.num_hidden_layers > MAX_DRAWS // draws:
        raise PlanError(f"{config.num_hidden_layers} layers need more than {MAX_DRAWS} draws; expected fewer")


def plan_for(
    config: ModelConfig,
    name: str,
    *,
    weights: str = DEFAULT_WEIGHTS,
    cache: str = DEFAULT_CACHE,
    formats: Formats | None = None,
    kernels: KernelOptions | None = None,
    max_texture_size: int = USUAL_TEXTURE_SIZE,
    tokens: int | None = None,
    adapters: AdapterRanks = NO_ADAPTERS,
    images: ImageInputs | None = None,
) -> Plan:
    """The plan called ``name`` for a model of this shape.

    Args:
        config, formats, max_texture_size, adapters, images: as in :class:`glinfer.lower.options.PlanOptions`.
        name: one of :data:`PLANS`.
        weights: one of :data:`WEIGHTS`.
        cache: one of :data:`CACHES`.
        kernels: how passes are shaped, which changes no count of draws of fast plans; the plainest by default.
        tokens: the sequence to run; reference plans of decoders have a length. Left out, a whole context.

    Raises:
        InputError: there is no such plan or format, or they do not go together.
        PlanError: it does not fit such textures, or would have absurdly many draws.
    """
    kernels = kernels or KernelOptions()
    check_choice(name, weights, cache)
    weights = weights_named(weights, formats, name)
    if adapters.names and (name != "fast" or config.embeds):
        raise InputError(
            "adapters run next to the fast plan of a model that continues texts; merge them into the weights instead: "
            "glinfer convert MODEL OUT --lora ADAPTER"
        )
    options = PlanOptions(config, weights, kernels, max_texture_size, formats, cache, adapters, images)
    if name == "fast":
        check_layers(config, 6)  # a layer takes at least six
        if config.patch_floats:
            return image_plan(options)
        if config.embeds:
            return fitting_encode_plan(options, rows=ENCODED_CHUNKS * kernels.chunk)
        return fast_plan(options)
    if is_published(config, formats):
        return reference_plan(config)
    plans = ReferencePlans(options)
    return plans.of(config.max_position_embeddings if tokens is None else plans.rows_for(tokens))


def weights_for(checkpoint: Checkpoint, name: str, weights: str = DEFAULT_WEIGHTS) -> Mapping[str, Array]:
    """The arrays that :func:`plan_for` with the same name and format uploads, by tensor name.

    Raises:
        PlanError: a weight is missing, or beyond the range of the format.
    """
    config, formats = checkpoint.config, checkpoint.formats()
    weights = weights_named(weights, formats, name)
    if name == "fast":
        return FoldedWeights(checkpoint, weights)
    if is_published(config, formats):
        return checkpoint.tensors
    return DecoderWeights(checkpoint, stored_formats(config, weights, formats))
