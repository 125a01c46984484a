"""A checkpoint as the ONNX file that transformers.js takes: a decoder with a cache, of Gab's kind or Llama's.

It is like those that people publish: ``GroupQueryAttention`` of ONNX Runtime, one product for each matrix, logits of
the last token alone. int8 is ONNX Runtime's dynamic quantisation: ``MatMulInteger`` with a scale for each output.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from glinfer.errors import InputError
from glinfer.formats import Checkpoint
from glinfer.formats.tensors import head_weight
from glinfer.kernels.spec import Array

_OPSET, _IR = 20, 10
_CONTRIB = "com.microsoft"
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")


def write_onnx_decoder(checkpoint: Checkpoint, folder: Path, *, weights: str) -> None:
    """Write ``config.json`` and ``onnx/model.onnx``, with weights in float32 (``f32``) or int8 (``q8``)."""
    if checkpoint.config.model_type not in ("gab", "llama"):
        raise InputError(f"found a model of {checkpoint.config.model_type}; expected gab or llama")
    (folder / "onnx").mkdir(parents=True)
    # What transformers.js reads: the class of the model, and the sizes of its cache.
    sizes = {name: getattr(checkpoint.config, name) for name in _SIZES}
    about = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **sizes}
    (folder / "config.json").write_text(json.dumps(about))
    onnx.save(_Graph(checkpoint, weights).model(), str(folder / "onnx" / "model.onnx"))


class _Graph:
    """The nodes and the weights of one graph; values are named as they are made."""

    def __init__(self, checkpoint: Checkpoint, weights: str) -> None:
        self._checkpoint, self._config, self._weights = checkpoint, checkpoint.config, weights
        self._names, self._gab = checkpoint.config.family.names, checkpoint.config.model_type == "gab"
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._count = 0

    def model(self) -> Any:
        """The whole file."""
        hidden = self._op("Gather", self._floats(f"{self._names.embeddings}.weight"), "input_ids", axis=0)
        if self._gab:
            hidden = self._with_positions(hidden)
        lengths = self._lengths()
        for layer in range(self._config.num_hidden_layers):
            hidden = self._layer(layer, hidden, lengths)
        last = self._norm(self._names.final_norm, self._op("Gather", hidden, self._ints("last", [-1]), axis=1))
        logits = self._linear(last, self._names.head, head_weight(self._config))
        self._op("Identity", logits, outputs=["logits"])
        ids = [("input_ids", "rows"), ("attention_mask", "tokens")]
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch_size", size]) for name, size in ids]
        inputs += self._caches("past_key_values", "past")
        size = ["batch_size", 1, self._config.vocab_size]
        outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, size), *self._caches("present", "tokens")]
        constants = list(self._constants.values())
        graph = helper.make_graph(self._nodes, "decoder", inputs, outputs, initializer=constants)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR)

    def _caches(self, prefix: str, length: str) -> list[Any]:
        shape: list[int | str] = ["batch_size", self._config.num_key_value_heads, length, self._config.head_dim]
        layers = range(self._config.num_hidden_layers)
        names = (f"{prefix}.{layer}.{kind}" for layer in layers for kind in ("key", "value"))
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]

    def _op(self, kind: str, *inputs: str, outputs: Sequence[str] = (), domain: str = "", **attributes: Any) -> str:
        """Add a node; returns its first output."""
        self._count += 1
        made = outputs or [f"v{self._count}"]
        self._nodes.append(helper.make_node(kind, inputs, made, domain=domain, **attributes))
        return made[0]

    def _constant(self, name: str, array: Array) -> str:
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def _floats(self, name: str) -> str:
        return self._constant(name, self._checkpoint.floats(name))

    def _ints(self, name: str, values: list[int]) -> str:
        return self._constant(f"ints.{name}", np.array(values, np.int64))

    def _with_positions(self, tokens: str) -> str:
        """Add the positions of tokens, which follow those of the cache."""
        rows = self._op("Gather", self._op("Shape", "input_ids"), self._ints("one", [1]), axis=0)
        every = self._op("Gather", self._op("Shape", "attention_mask"), self._ints("one", [1]), axis=0)
        table, start = self._floats(f"{self._names.positions}.weight"), self._op("Sub", every, rows)
        return self._op("Add", tokens, self._op("Slice", table, start, every, self._ints("first axis", [0])))

    def _lengths(self) -> tuple[str, str]:
        """The inputs of attention: the last position of each text, and the number of tokens."""
        total = self._op("ReduceSum", "attention_mask", self._ints("one", [1]), keepdims=0)
        last = self._op("Cast", self._op("Sub", total, self._ints("one", [1])), to=TensorProto.INT32)
        second = self._constant("second", np.array(1, np.int64))
        size = self._op("Gather", self._op("Shape", "attention_mask"), second, axis=0)
        return last, self._op("Cast", size, to=TensorProto.INT32)

    def _linear(self, x: str, name: str, weight: str = "") -> str:
        """x @ weight.T of a weight [out, in], plus its bias if there is one."""
        product, bias = self._product(x, weight or f"{name}.weight"), f"{name}.bias"
        return self._op("Add", product, self._floats(bias)) if bias in self._checkpoint.tensors else product

    def _product(self, x: str, name: str) -> str:
        matrix = self._checkpoint.floats(name)
        if self._weights == "f32":
            return self._op("MatMul", x, self._constant(f"{name}.flat", matrix.T))
        scale = np.maximum(np.abs(matrix).max(axis=1), 1e-30) / 127
        words = np.rint(matrix / scale[:, None]).astype(np.int8).T
        zero = self._constant("int8 zero", np.array(0, np.int8))
        made = [f"{kind}{self._count}" for kind in ("rounded", "scale", "zero")]
        self._op("DynamicQuantizeLinear", x, outputs=made)
        sums = self._op("MatMulInteger", made[0], self._constant(f"{name}.int8", words), made[2], zero)
        factor = self._op("Mul", made[1], self._constant(f"{name}.scale", scale.astype(np.float32)))
        return self._op("Mul", self._op("Cast", sums, to=TensorProto.FLOAT), factor)

    def _norm(self, name: str, x: str) -> str:
        kind = "LayerNormalization" if self._gab else "SimplifiedLayerNormalization"
        parts = [self._floats(f"{name}.{part}") for part in (("weight", "bias") if self._gab else ("weight",))]
        return self._op(kind, x, *parts, axis=-1, epsilon=float(self._config.layer_norm_eps))

    def _attended(self, layer: int, x: str, lengths: tuple[str, str]) -> str:
        """Heads over the cache, which grows; rotary positions where the model has them."""
        config = self._config
        products = [self._linear(x, self._names.of("projection", layer, letter)) for letter in "qkv"]
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        outputs = [f"attended.{layer}", *(f"present.{layer}.{kind}" for kind in ("key", "value"))]
        angles = () if self._gab else self._angles()
        heads = {"num_heads": config.num_attention_heads, "kv_num_heads": config.num_key_value_heads}
        how: dict[str, Any] = {"outputs": outputs, "domain": _CONTRIB, "do_rotary": int(not self._gab), **heads}
        return self._op("GroupQueryAttention", *products, *past, *lengths, *angles, **how)

    def _angles(self) -> tuple[str, str]:
        half = self._config.head_dim // 2
        turns = self._config.rope_theta ** -(np.arange(half) / half)
        angles = np.arange(self._config.max_position_embeddings)[:, None] * turns
        cosines, sines = (turned(angles).astype(np.float32) for turned in (np.cos, np.sin))
        return self._constant("cosines", cosines), self._constant("sines", sines)

    def _layer(self, layer: int, x: str, lengths: tuple[str, str]) -> str:
        of = self._names.of
        mixed = self._attended(layer, self._norm(of("attention_norm", layer), x), lengths)
        x = self._op("Add", x, self._linear(mixed, of("output", layer)))
        inner = self._norm(of("mlp_norm", layer), x)
        if self._gab:
            active = self._op("Gelu", self._linear(inner, of("up", layer)), approximate="tanh")
        else:
            gate, up = (self._linear(inner, of(kind, layer)) for kind in ("gate", "up"))
            active = self._op("Mul", self._op("Mul", gate, self._op("Sigmoid", gate)), up)
        return self._op("Add", x, self._linear(active, of("down", layer)))
