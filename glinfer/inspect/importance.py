"""Importance of each input of each matrix: its mean square over a text, for packing weights with few bits.

An error of a weight changes a product by that error times the input, so the mean square of an input is the weight of
a squared error. It is collected with the reference plan, or read from an importance matrix of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.engine.capture import Seen
from glinfer.engine.loading import load_model
from glinfer.engine.progress import Progress, no_progress
from glinfer.errors import FormatError, InputError
from glinfer.families.settings import quoted
from glinfer.formats.files import AnyPath, decode_text, shown, unread
from glinfer.formats.gguf.file import is_gguf
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.gguf.write import Importance
from glinfer.formats.tensors import stored_tensors, weight_shapes
from glinfer.gl.context import Device
from glinfer.graph.model import graph_of
from glinfer.graph.nodes import Attention, Convolution, DeltaMixing, ExpertMlps, LatentAttention, Mlp, Nothing, PerLayer

CHUNK = 512
"""Tokens in a chunk; chunks run independently."""
LEAST = np.float32(1e-4)
"""Minimum importance relative to the mean, because an input that is zero in this text may be nonzero in another."""
_SUMS, _COUNTS = ".in_sum2", ".counts"


def importance_of_text(
    model: AnyPath,
    text: str,
    *,
    tokenizer: AnyPath | None = None,
    device: Device | None = None,
    on_progress: Progress = no_progress,
) -> Importance:
    """Run a text through a model, and return the mean square of every input of every matrix of its layers.

    The text is typically tens of thousands of tokens like those that the model will process. The result is float32
    [inputs] by the name of the matrix in memory, without embeddings and the vocabulary matrix. ``on_progress`` receives
    (finished chunks, chunks). InputError if the text has no tokens, or the model has no tokenizer.
    """
    with load_model(model, tokenizer=tokenizer, plan="reference", device=device) as loaded:
        ids = loaded.require_tokenizer().encode(text)
        if not ids:
            raise InputError("the text for the importance of inputs has no tokens; expected thousands")
        step = min(CHUNK, loaded.config.max_position_embeddings)
        inputs = dict(_inputs(loaded.config))
        sums: dict[str, npt.NDArray[np.float64]] = {}

        def collect(seen: Seen) -> None:
            squares = (seen.array.astype(np.float64) ** 2).sum(axis=0)
            sums[seen.name] = sums.get(seen.name, 0.0) + squares

        with loaded.watch(sorted(inputs), collect):
            starts = range(0, len(ids), step)
            for done, start in enumerate(starts, start=1):
                loaded.logits(ids[start : start + step])
                on_progress(done, len(starts))
    means = {name: total / len(ids) for name, total in sums.items()}
    return {matrix: _floored(means[name]) for name, matrices in inputs.items() for matrix in matrices}


def read_importance(path: AnyPath, config: ModelConfig) -> Importance:
    """Read the importance matrix of a model in a GGUF file, as llama.cpp's ``llama-imatrix`` writes it.

    Raises:
        FormatError: the file is damaged, of another kind, or of another model.
        InputError: GGUF has no such model.
    """
    file = read_gguf_file(path)
    kind = file.metadata.get("general.type")
    if kind != "imatrix":
        raise FormatError(
            f"{file.source}: its general.type is {quoted(kind)}; expected 'imatrix', as llama-imatrix has it, or a text"
        )
    if config.family.gguf is None:
        raise InputError(f"{file.source}: importance of a model of the family {config.family.name} cannot be in GGUF")
    shapes, found = weight_shapes(config), {}
    for stored in stored_tensors(config, config.family.in_gguf.names):
        sums = file.tensors.get(f"{stored.name}{_SUMS}")
        counts = file.tensors.get(f"{stored.name}{_COUNTS}")
        if sums is None or counts is None or len(stored.shape) != 2:
            continue
        squares, tokens = (each.data.view("<f4") if each.type == "F32" else None for each in (sums, counts))
        experts, inputs = stored.experts, stored.shape[1]
        if squares is None or tokens is None or len(squares) != experts * inputs or len(tokens) != experts:
            raise FormatError(
                f"{file.source}: tensor {quoted(sums.name)} is {sums.type} {list(sums.shape)}; expected F32 with "
                f"{experts * inputs} numbers and {'a count' if experts == 1 else f'{experts} counts'}; "
                "is it of another model?"
            )
        with np.errstate(invalid="ignore"):  # NaN, which is refused below
            mean = squares.astype(np.float64).reshape(experts, inputs) / np.maximum(1.0, tokens)[:, None]
        if not np.isfinite(mean).all() or (mean < 0).any():
            raise FormatError(f"{file.source}: tensor {quoted(sums.name)} has numbers that are not mean squares")
        for tensor in stored.tensors:
            name, own = tensor.name(config.family.names), mean[int(tensor.letter) if experts > 1 else 0]
            if name in shapes:
                found[name] = _floored(own)
    if not found:
        raise FormatError(f"{file.source}: found no importance of this model's matrices; is it of another model?")
    return found


def importance_from(path: AnyPath, model: AnyPath, config: ModelConfig, **options: object) -> Importance:
    """Read importance from llama.cpp's file, or run a text file; see :func:`importance_of_text`.

    FormatError if the file is neither, or damaged.
    """
    if is_gguf(path):
        return read_importance(path, config)
    try:
        text = decode_text(Path(path).read_bytes(), shown(path), "a text, or an importance matrix in GGUF")
    except OSError as error:
        raise FormatError(unread(path, error)) from None
    return importance_of_text(model, text, **options)  # type: ignore[arg-type]


def _inputs(config: ModelConfig) -> Iterator[tuple[str, list[str]]]:
    """Yield names of captured tensors, each with the matrices whose input it is."""
    graph = graph_of(config)
    if graph.per_layer_in is not None:
        yield "embed", [f"{graph.per_layer_in.name}.weight"]
    for layer in graph.layers:
        block, mlp = f"blocks.{layer.number}", layer.mlp.body
        for branch in layer.mixings:
            node, name = branch.body, f"{block}.{branch.name}"
            if isinstance(node, LatentAttention):
                yield f"{name}.norm", [f"{(node.low or node.q).name}.weight", f"{node.latent.name}.weight"]
                yield from ((f"{name}.low", [f"{node.q.name}.weight"]),) if node.low is not None else ()
                yield f"{name}.latent", [f"{node.kv.name}.weight"]
                yield f"{name}.joined", [f"{node.out.name}.weight"]
                continue
            assert isinstance(node, Attention | Convolution | DeltaMixing)
            first = (node.q, node.k, node.v) if isinstance(node, Attention) else node.into
            value = "joined" if isinstance(node, Attention) else "mixed"
            value = "rounded" if isinstance(node, Attention) and node.out_norm is not None else value
            yield f"{name}.norm", [f"{each.name}.weight" for each in first if each is not None]
            yield f"{name}.{value}", [f"{node.out.name}.weight"]
        if isinstance(mlp, Nothing):
            continue
        # The inputs of down are concatenated over experts without marks, so sizes separate them.
        assert isinstance(mlp, (Mlp, ExpertMlps))
        mlps = mlp.experts if isinstance(mlp, ExpertMlps) else (mlp,)
        if isinstance(mlp, ExpertMlps) and mlp.norms is not None and mlp.shared is not None:
            mlps = (mlp.shared,)  # inputs of the others have their own norm
        yield f"{block}.mlp.norm", [f"{product.name}.weight" for each in mlps for product in each.first]
        if not isinstance(mlp, ExpertMlps):
            yield f"{block}.mlp.{'hidden' if mlp.down_norm is None else 'rounded'}", [f"{mlp.down.name}.weight"]
        if layer.per_layer is not None and isinstance(own := layer.per_layer.body, PerLayer):
            yield f"{block}.resid_mlp", [f"{own.gate.name}.weight"]
            yield f"{block}.per_layer.hidden", [f"{own.out.name}.weight"]


def _floored(mean: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    floats = mean.astype(np.float32)
    return np.maximum(floats, np.float32(LEAST * mean.mean())) if floats.any() else np.ones_like(floats)
