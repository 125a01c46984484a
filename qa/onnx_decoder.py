"""A checkpoint as the ONNX file that transformers.js takes: a decoder with a cache, of Gab's kind or Llama's.

The graph is that of the files people publish for it: ``GroupQueryAttention`` of ONNX Runtime with rotary positions in
it, one product for each matrix, logits of the last token alone. In int8, products are ``MatMulInteger`` with a scale
for each output and inputs rounded as they come, which is ONNX Runtime's dynamic quantisation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.errors import InputError
from glinfer.formats import Checkpoint
from glinfer.kernels.spec import Array

_OPSET, _IR = 20, 10
_CONTRIB = "com.microsoft"


def write_onnx_decoder(checkpoint: Checkpoint, folder: Path, *, weights: str) -> None:
    """Write ``config.json`` and ``onnx/model.onnx``, with weights in float32 (``f32``) or int8 (``q8``).

    Raises:
        InputError: the model is of another kind.
    """
    import onnx

    if checkpoint.config.model_type not in ("gab", "llama"):
        raise InputError(f"found a model of {checkpoint.config.model_type}; expected gab or llama")
    (folder / "onnx").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(_config(checkpoint)))
    onnx.save(_Graph(checkpoint, weights).model(), str(folder / "onnx" / "model.onnx"))


def _config(checkpoint: Checkpoint) -> dict[str, Any]:
    """What transformers.js reads: the class of the model, and the sizes of its cache."""
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    named = {name: getattr(checkpoint.config, name) for name in sizes}
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **named}


class _Graph:
    """The nodes and the weights of one graph; values are named as they are made."""

    def __init__(self, checkpoint: Checkpoint, weights: str) -> None:
        from onnx import helper, numpy_helper

        self._helper, self._from_array = helper, numpy_helper.from_array
        self._checkpoint, self._config, self._weights = checkpoint, checkpoint.config, weights
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._count = 0

    def model(self) -> Any:
        """The whole file."""
        gab = self._config.model_type == "gab"
        hidden = self._embedded() if gab else self._gathered("model.embed_tokens.weight")
        lengths = self._lengths()
        for layer in range(self._config.num_hidden_layers):
            hidden = (self._gab_layer if gab else self._llama_layer)(layer, hidden, lengths)
        last = self._op("Gather", hidden, self._ints("last", [-1]), axis=1)
        if gab:
            product = self._product(self._norm("transformer.ln_f", last), "lm_head.weight")
            logits = self._op("Add", product, self._floats("lm_head.bias"))
        else:
            head = "model.embed_tokens.weight" if self._config.tie_word_embeddings else "lm_head.weight"
            logits = self._product(self._norm("model.norm", last), head)
        self._op("Identity", logits, outputs=["logits"])
        ids = [("input_ids", "rows"), ("attention_mask", "tokens")]
        inputs = [self._value(name, "INT64", ["batch_size", size]) for name, size in ids]
        inputs += self._caches("past_key_values", "past")
        outputs = [self._value("logits", "FLOAT", ["batch_size", 1, self._config.vocab_size])]
        outputs += self._caches("present", "tokens")
        constants = list(self._constants.values())
        graph = self._helper.make_graph(self._nodes, "decoder", inputs, outputs, initializer=constants)
        opsets = [self._helper.make_opsetid("", _OPSET), self._helper.make_opsetid(_CONTRIB, 1)]
        return self._helper.make_model(graph, opset_imports=opsets, ir_version=_IR)

    def _caches(self, prefix: str, length: str) -> list[Any]:
        shape: list[int | str] = ["batch_size", self._config.num_key_value_heads, length, self._config.head_dim]
        layers = range(self._config.num_hidden_layers)
        names = (f"{prefix}.{layer}.{kind}" for layer in layers for kind in ("key", "value"))
        return [self._value(name, "FLOAT", shape) for name in names]

    def _value(self, name: str, kind: str, shape: Sequence[int | str]) -> Any:
        from onnx import TensorProto

        return self._helper.make_tensor_value_info(name, TensorProto.DataType.Value(kind), shape)

    def _op(
        self, kind: str, *inputs: str, outputs: list[str] | None = None, domain: str = "", **attributes: Any
    ) -> str:
        """Add a node; returns its first output."""
        self._count += 1
        made = outputs or [f"v{self._count}"]
        self._nodes.append(self._helper.make_node(kind, list(inputs), made, domain=domain, **attributes))
        return made[0]

    def _constant(self, name: str, array: Array) -> str:
        if name not in self._constants:
            self._constants[name] = self._from_array(np.ascontiguousarray(array), name)
        return name

    def _floats(self, name: str) -> str:
        return self._constant(name, self._checkpoint.floats(name))

    def _ints(self, name: str, values: list[int]) -> str:
        return self._constant(f"ints.{name}", np.array(values, np.int64))

    def _gathered(self, name: str) -> str:
        return self._op("Gather", self._floats(name), "input_ids", axis=0)

    def _embedded(self) -> str:
        """Tokens with their positions, which follow those of the cache."""
        rows = self._op("Gather", self._op("Shape", "input_ids"), self._ints("one", [1]), axis=0)
        every = self._op("Gather", self._op("Shape", "attention_mask"), self._ints("one", [1]), axis=0)
        start = self._op("Sub", every, rows)
        table = self._floats("transformer.wpe.weight")
        positions = self._op("Slice", table, start, every, self._ints("first axis", [0]))
        return self._op("Add", self._gathered("transformer.wte.weight"), positions)

    def _lengths(self) -> tuple[str, str]:
        """The inputs of attention: the last place of each text, and the number of tokens."""
        from onnx import TensorProto

        total = self._op("ReduceSum", "attention_mask", self._ints("one", [1]), keepdims=0)
        last = self._op("Cast", self._op("Sub", total, self._ints("one", [1])), to=TensorProto.INT32)
        second = self._constant("second", np.array(1, np.int64))
        size = self._op("Gather", self._op("Shape", "attention_mask"), second, axis=0)
        return last, self._op("Cast", size, to=TensorProto.INT32)

    def _product(self, x: str, name: str) -> str:
        """x @ weight.T, of a weight [out, in]."""
        if self._weights == "f32":
            return self._op("MatMul", x, self._constant(f"{name}.flat", self._checkpoint.floats(name).T))
        from onnx import TensorProto

        matrix = self._checkpoint.floats(name)
        scale = np.maximum(np.abs(matrix).max(axis=1), 1e-30) / 127
        words = np.rint(matrix / scale[:, None]).astype(np.int8).T
        zero = self._constant("int8 zero", np.array(0, np.int8))
        made = [f"{kind}{self._count}" for kind in ("rounded", "scale", "zero")]
        self._op("DynamicQuantizeLinear", x, outputs=made)
        sums = self._op("MatMulInteger", made[0], self._constant(f"{name}.int8", words), made[2], zero)
        factor = self._op("Mul", made[1], self._constant(f"{name}.scale", scale.astype(np.float32)))
        return self._op("Mul", self._op("Cast", sums, to=TensorProto.FLOAT), factor)

    def _norm(self, name: str, x: str) -> str:
        epsilon = float(self._config.layer_norm_eps)
        if self._config.model_type == "gab":
            gain, bias = self._floats(f"{name}.weight"), self._floats(f"{name}.bias")
            return self._op("LayerNormalization", x, gain, bias, axis=-1, epsilon=epsilon)
        return self._op("SimplifiedLayerNormalization", x, self._floats(f"{name}.weight"), axis=-1, epsilon=epsilon)

    def _attended(self, layer: int, x: str, names: list[str], lengths: tuple[str, str]) -> str:
        """Heads over the cache, which grows; rotary positions where the model has them."""
        config = self._config
        products = [self._product(x, name) for name in names]
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        present = [f"present.{layer}.{kind}" for kind in ("key", "value")]
        rotary = config.model_type == "llama"
        inputs = (*products, *past, *lengths, *(self._angles() if rotary else ()))
        heads = {"num_heads": config.num_attention_heads, "kv_num_heads": config.num_key_value_heads}
        outputs = [f"attended.{layer}", *present]
        how: dict[str, Any] = {"outputs": outputs, "domain": _CONTRIB, "do_rotary": int(rotary), **heads}
        return self._op("GroupQueryAttention", *inputs, **how)

    def _angles(self) -> tuple[str, str]:
        half = self._config.head_dim // 2
        turns = self._config.rope_theta ** -(np.arange(half) / half)
        angles = np.arange(self._config.max_position_embeddings)[:, None] * turns
        cosines, sines = (turned(angles).astype(np.float32) for turned in (np.cos, np.sin))
        return self._constant("cosines", cosines), self._constant("sines", sines)

    def _llama_layer(self, layer: int, x: str, lengths: tuple[str, str]) -> str:
        at = f"model.layers.{layer}"
        names = [f"{at}.self_attn.{letter}_proj.weight" for letter in "qkv"]
        mixed = self._attended(layer, self._norm(f"{at}.input_layernorm", x), names, lengths)
        x = self._op("Add", x, self._product(mixed, f"{at}.self_attn.o_proj.weight"))
        inner = self._norm(f"{at}.post_attention_layernorm", x)
        gate, up = (self._product(inner, f"{at}.mlp.{name}_proj.weight") for name in ("gate", "up"))
        active = self._op("Mul", gate, self._op("Sigmoid", gate))
        return self._op("Add", x, self._product(self._op("Mul", active, up), f"{at}.mlp.down_proj.weight"))

    def _gab_layer(self, layer: int, x: str, lengths: tuple[str, str]) -> str:
        at = f"transformer.h.{layer}"
        names = [f"{at}.attn.{letter}_proj.weight" for letter in "qkv"]
        mixed = self._attended(layer, self._norm(f"{at}.ln_1", x), names, lengths)
        x = self._op("Add", x, self._product(mixed, f"{at}.attn.out_proj.weight"))
        inner = self._product(self._norm(f"{at}.ln_2", x), f"{at}.mlp.fc_in.weight")
        active = self._op("Gelu", self._op("Add", inner, self._floats(f"{at}.mlp.fc_in.bias")), approximate="tanh")
        out = self._op("Add", self._product(active, f"{at}.mlp.fc_out.weight"), self._floats(f"{at}.mlp.fc_out.bias"))
        return self._op("Add", x, out)
