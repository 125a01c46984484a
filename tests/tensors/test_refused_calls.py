"""What kernels, tensors and devices refuse: each call, and its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from glinfer.errors import InputError
from glinfer.kernels.flat.delta import MAX_KEY_ELEMENTS
from glinfer.kernels.flat.product import Strategy
from glinfer.tensors.device import Device

pytestmark = pytest.mark.gl

GONE = "this tensor [4] was released; make it again, or release it later"
KNOWN = "none, gelu_new, gelu, silu, tanh, relu2"
EXACT = "int32 cannot hold that exactly"
FLOATS = "expected float32 or float16"
FINITE = "expected a finite number that float32 holds"
PACKED = "x is [2, 32] of Q8_ROW, whose elements are packed in blocks; dequantize it first"
ROUNDS = "which textures cannot hold; pass dtype='float32' to round it"
TAKEN = "is read or written by this call already; give it another tensor"
TYPES = "expected one of float32, float16, int32"
WRITE = "x[index] = value"
DYNAMIC = {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 4}
PAIRS = "expected an even rotary_dim"
REFUSED = {
    # Making tensors: of zeros f, h and i (float32, float16 and int32), q in Q8_ROW
    "dev.tensor(np.zeros(3))": f"tensor: found an array of float64, {ROUNDS}",
    "dev.tensor([2**31])": f"tensor: found int64 from 2147483648 to 2147483648; {EXACT}",
    "dev.tensor(np.array([2**64 - 1], np.uint64))": f"tensor: found uint64 from 18446744073709551615 to …; {EXACT}",
    "dev.tensor([1.0], 'int32')": f"tensor: found float64 from 1.0 to 1.0; {EXACT}",
    "dev.tensor([2**70])": "tensor: found an array of object; expected numbers: float32, float16, int32",
    "dev.tensor(np.zeros((0, 32)), 'Q8_0')": "tensor: found an array [0, 32] without elements; … at least one block…",
    "dev.tensor([[1, 2], [3]])": "tensor: found no rectangle of numbers (…); expected an array, or lists of one length",
    "dev.tensor('text')": "tensor: found an array of <U4; expected numbers: …",
    "dev.tensor(['1.5'], 'float32')": "tensor: found an array of <U3; expected numbers: …",
    "dev.tensor([True, False])": "tensor: found an array of bool; expected numbers: …",
    "dev.tensor(np.zeros((2, 32), np.complex64), 'Q8_0')": "tensor: found an array of complex64; expected numbers: …",
    "dev.tensor([1.0], 'float64')": f"tensor: dtype is float64; {TYPES}, BF16, …",
    "dev.tensor([1], 5)": "tensor: dtype is 5; expected one of float32, …",
    "dev.tensor(1.0, 'Q8_0')": "tensor: found an array [] for Q8_0; expected rows of weights",
    "dev.tensor(np.zeros((2, 33)), 'Q8_0')": "tensor: a row of 33 weights is not a whole number of Q8_0 blocks of 32",
    "dev.tensor(np.zeros((2, 33), np.uint8), 'Q8_0')": "tensor: a row of 33 bytes is not … of Q8_0 blocks of 34 bytes",
    "dev.tensor(x)": "tensor: found a tensor; use it directly, or on another device its copy: tensor.numpy()",
    "dev.zeros((2, -1))": "zeros: found the shape (2, -1); expected integers of at least 0",
    "dev.zeros(2.5)": "zeros: found the shape 2.5; expected integers of at least 0",
    "dev.zeros('35')": "zeros: found the shape '35'; expected integers of at least 0",
    "dev.zeros((2, 32), 'Q8_0')": f"zeros: dtype is 'Q8_0'; {TYPES}",
    "dev.full((2,), [1, 2])": "full: found the value [2]; expected one number",
    "dev.full((2,), 1.5, 'int32')": f"full: found float64 from 1.5 to 1.5; {EXACT}",
    # Shapes
    **{
        f"f(4, 6).reshape({to})": f"reshape: a tensor [4, 6] of 24 elements cannot become {to}"
        for to in ([5, 5], [-1, 5], [-1, -1], [-2, 12], [-2, -12], [0, -1], [])
    },
    **{
        f"f(4, 6).reshape({bad})": f"reshape: found the shape {bad}; expected integers, one of which may be -1"
        for bad in ((4.0, 6), ("4", 6), (None,))
    },
    "f(3, 0).reshape(2, -1, 0)": "reshape: a tensor [3, 0] of 0 elements cannot become [2, -1, 0]",
    "f(3, 0).storage.texture()": "a tensor without elements has no texture",
    "x[:, 5]": "x[index]: x is [2, 3] and the index [:, 5]; 5 is not a slice, and no integer from -3 to 2",
    "f(3, 0)[0, 0]": "x[index]: x is [3, 0] and the index [0, 0]; 0 is not a slice, and the axis has no elements",
    # Tensors that are released, of another device, or written twice
    "gone.numpy()": f"numpy: {GONE}",
    "gone.reshape(1, 4)": f"reshape: {GONE}",
    "gone.reshape(2, 2)": f"reshape: {GONE}",
    "gone.layout": GONE,
    "gone.nbytes": GONE,
    "ops.silu(gone)": f"silu: {GONE}",
    "ops.silu(f(4), out=gone)": f"silu: {GONE}",
    "ops.softmax(empty)": "softmax: this tensor [3, 0] was released; make it again, or release it later",
    "ops.softmax(theirs[:0])": "softmax: x is a tensor of another device; make it on this one",
    "ops.softmax(theirs)": "softmax: x is a tensor of another device; make it on this one",
    "ops.matmul(x, theirs[0])": "matmul: y is a tensor of another device; …",
    "ops.matmul(x, theirs)": "matmul: y is a tensor of another device; …",
    "ops.dot(theirs, f(3))": "dot: x is a tensor of another device; …",
    "ops.attention_scores(f(1, 2, 3), theirs.reshape(1, 3, 3))": "attention_scores: k is a tensor of another device; …",
    "ops.lookup(i(4), theirs)": "lookup: table is a tensor of another device; …",
    "ops.gather_rows(theirs, i(4))": "gather_rows: x is a tensor of another device; …",
    "ops.embedding_backward(i(3), f(3, 3), into=theirs)": "embedding_backward: into is a tensor of another device; …",
    "ops.silu(x, out=f(3, 2))": "silu: out is [3, 2] of float32; the result is [2, 3] of float32",
    "ops.silu(x, out=f(6))": "silu: out is [6] of float32; the result is [2, 3] of float32",
    "ops.silu(x, out=h(2, 3))": "silu: out is [2, 3] of float16; the result is [2, 3] of float32",
    "ops.silu(x, out=i(2, 3))": "silu: out is [2, 3] of int32; the result is [2, 3] of float32",
    "ops.silu(x, out=x)": f"silu: out {TAKEN}",
    "ops.silu(x, out=x.reshape(2, 1, 3).reshape(2, 3))": f"silu: out {TAKEN}",
    "ops.silu(x, out=np.zeros(3))": "silu: out is ndarray; make a tensor of it with device.tensor(out)",
    "ops.sum(x, keepdims='no')": "sum: keepdims is 'no'; expected True or False",
    "ops.silu_gate(x, gate_first=0)": "silu_gate: gate_first is 0; expected True or False",
    "ops.scale(f(3, 0), 1.0, out=f(3, 1))": "scale: out is [3, 1] of float32; the result is [3, 0] of float32",
    "ops.add(x, x, out=x, dtype='float16')": "add: out is [2, 3] of float32; the result is [2, 3] of float16",
    "ops.softmax(f(3, 0), dtype='int32')": "softmax: dtype is int32; expected one of float32, float16",
    "ops.add(x, x, dtype='float64')": "add: dtype is float64; expected one of float32, float16",
    "ops.add(x, x, dtype='Q8_ROW')": "add: dtype is 'Q8_ROW'; expected one of float32, float16",
    "ops.add(x, x, dtype=None)": "add: dtype is None; expected one of float32, float16",
    # Assignment
    "x[2] = 0": f"{WRITE}: x is [2, 3] and the index [2]; 2 is not a slice, and no integer from -2 to 1",
    "x[0, 0, 0] = 0": f"{WRITE}: … index [0, 0, 0]; expected at most 2 numbers and slices, and one Ellipsis",
    "x[0] = [1.0, 2.0]": f"{WRITE}: the part is [3] and the value [2], which does not broadcast to it",
    "x[0] = f(2, 3)": f"{WRITE}: the part is [3] and the value [2, 3], which does not broadcast to it",
    "i(3)[0] = f()": f"{WRITE}: x is of int32 and value of float32; expected int32",
    "i(3)[0] = 1.5": f"{WRITE}: found float64 from 1.5 to 1.5; {EXACT}",
    "q(2)[0] = 1": f"{WRITE}: x is [2, 32] of Q8_ROW, which is packed; make a new tensor",
    "x[0] = q(2)": f"{WRITE}: value is [2, 32] of Q8_ROW; dequantize it first",
    "x[0] = theirs[0]": f"{WRITE}: value is a tensor of another device; …",
    "gone[0] = 1": f"{WRITE}: {GONE}",
    "f(*[3] * 7)[::2, ::2, ::2, ::2, ::2, ::2] = 1": f"{WRITE}: x is …: … 6 axes …; assign in two steps",
    "ops.assign(np.zeros(3), 0, 1)": "assign: x is ndarray; make a tensor of it with device.tensor(x)",
    # Arithmetic
    "x + np.zeros(6, np.float32)": "add: [2, 3] and [6] do not broadcast; expected equal edges …, or edges of 1",
    "x @ x": "matmul: x is [2, 3] and y is [2, 3]; they sum over 3 and 2 elements",
    "i(2, 3) + 1": f"add: x is [2, 3] of int32; {FLOATS}",
    "1 - i(2, 3)": f"subtract: y is [2, 3] of int32; {FLOATS}",
    "-i(2, 3)": f"scale: x is [2, 3] of int32; {FLOATS}",
    "x * np.zeros(3)": f"tensor: found an array of float64, {ROUNDS}",
    "x * q(2)": f"multiply: y is [2, 32] of Q8_ROW; {FLOATS}; dequantize it first",
    "ops.add(f(2, 1, 2, 1, 2, 1, 5), f(1, 2, 1, 2, 1, 2, 5))": "add: … broadcast along 6 leading axes … at most 5 …",
    "ops.multiply(x, i(2, 3))": f"multiply: y is [2, 3] of int32; {FLOATS}",
    "ops.add(x, f(3, 2))": "add: [2, 3] and [3, 2] do not broadcast; …",
    "ops.add_bias(x, f(3, 2))": "add_bias: x is [2, 3] and bias is [3, 2]; expected [..., D] and [D]",
    "ops.residual_add(x, f(3, 2))": "residual_add: x is [2, 3] and residual is [3, 2]; expected one shape",
    "ops.scale(x, np.inf)": f"scale: factor is inf; {FINITE}",
    "ops.scale(x, np.nan)": f"scale: factor is nan; {FINITE}",
    **{f"ops.scale(x, {factor!r})": f"scale: factor is {factor!r}; {FINITE}" for factor in (1e39, True, "2", None)},
    # Activations
    "ops.gate(x, x, activation='relu')": f"gate: there is no activation 'relu'; known: {KNOWN}",
    "ops.activate(x, 'relu')": f"activate: there is no activation 'relu'; known: {KNOWN}",
    "ops.silu_gate(x, f(3, 2))": "silu_gate: x is [2, 3] and up is [3, 2]; expected one shape",
    "ops.silu_gate(x, i(2, 3))": f"silu_gate: up is [2, 3] of int32; {FLOATS}",
    "ops.silu(i(2, 3))": f"silu: x is [2, 3] of int32; {FLOATS}",
    "ops.gelu_gate(x)": "gelu_gate: x is [2, 3]; without up expected [..., 2·N], the gate and the gated values",
    "ops.gelu_new_gate(f(3, 2), out=x)": "gelu_new_gate: out is [2, 3] of float32; the result is [3, 1] of float32",
    # Products
    "ops.matmul(x, m, strategy='f')": "matmul: there is no strategy 'f'; known: packed, small, split_k, reduce, matvec",
    "ops.matmul(x, m, strategy='matvec')": "matmul: strategy matvec cannot compute 1 products of 2×3 and 3×5 here; …",
    "ops.matmul(x, m, strategy=EIGHT)": "matmul: draw matmul: 8 targets need as many rows; found matrices of 2",
    "ops.matmul(x, m, activation='relu')": f"matmul: there is no activation 'relu'; known: {KNOWN}",
    "ops.matmul(x, m, bias=x)": "matmul: bias is [2, 3]; expected [5]",
    "ops.matmul(x, m, residual=x)": "matmul: residual is [2, 3]; expected [2, 5], like the result",
    "ops.matmul(x, i(3))": f"matmul: y is [3] of int32; {FLOATS}",
    "ops.matmul(f(2, 3, 4), f(3, 4, 5))": "matmul: x is … and y is [3, 4, 5]; their leading axes do not broadcast",
    "ops.matmul(f(3, 0), f(3, 0))": "matmul: x is [3, 0] and y is [3, 0]; they sum over 0 and 3 elements",
    "ops.matmul(f(), x)": "matmul: x is [] and y is [2, 3]; both need an axis to sum over",
    "ops.matmul(f(3, 0), f(0, 2), bias=f(3))": "matmul: bias is [3]; expected [2]",
    "ops.linear(x, f(4, 5))": "linear: x is [2, 3] and weight is [4, 5]; they sum over 3 and 5 elements",
    "ops.dot(x, x)": "dot: x is [2, 3] and y is [2, 3]; they sum over 3 and 2 elements",
    "ops.dot(x, f(), out=f(3))": "dot: out is [3] of float32; the result is [2, 3] of float32",
    "ops.explain(x, x)": "explain: x is [2, 3] and y is [2, 3]; they sum over 3 and 2 elements",
    # Attention and sequences
    "ops.attention_scores(f(4, 3, 8), f(3, 5, 8))": "attention_scores: found [4, 3, 8] and [3, 5, 8]; expected [..., …",
    "ops.attention_scores(f(4, 3, 8), f(2, 5, 6))": "…: q is [4, 3, 8] and k is [2, 5, 6]; their last axes differ",
    "ops.attention_values(f(4, 3, 8), f(2, 5, 6))": "…: probs is [4, 3, 8] and v is [2, 5, 6]; they differ in the keys",
    "ops.attention(f(4, 3, 8), f(3, 5, 8), f(3, 5, 8))": "attention: found [4, 3, 8] and [3, 5, 8]; expected …",
    "ops.attention(x, x, x, causal=True, offset=-1)": "…: offset is -1; expected … keys before that of query 0…",
    "ops.attention(*[f(3, 0)] * 3)": "attention: q is [3, 0], without columns to set the scale; give a scale",
    "ops.causal_conv(f(5, 6), f(3, 5))": "causal_conv: x is [5, 6] and taps is [3, 5]; expected [..., sequence, D] …",
    "ops.causal_conv(f(6), f(3, 6))": "causal_conv: x is [6] and taps is [3, 6]; expected …",
    "ops.causal_conv(f(5, 6), f(0, 6))": "causal_conv: x is [5, 6] and taps is [0, 6]; expected …",
    "ops.causal_conv(f(5, 6), f(3, 6), f(5))": "causal_conv: bias is [5]; expected [6]",
    "ops.causal_conv(i(5, 6), f(3, 6))": f"causal_conv: x is [5, 6] of int32; {FLOATS}",
    "rule(k=f(5, 1, 4))": "gated_delta_rule: q is [5, 2, 4], k [5, 1, 4], v [5, 4, 6], …",
    "rule(beta=f(5, 2))": "gated_delta_rule: …beta [5, 2]; expected q and k [..., S, G, D_K], …",
    "rule(q=f(5, 3, 4), k=f(5, 3, 4))": "…: 4 value heads and 3 key heads with 4 elements; expected a multiple …",
    "rule(q=f(5, 2, MOST + 1), k=f(5, 2, MOST + 1))": f"…key heads with {MAX_KEY_ELEMENTS + 1} elements; … 1 to 256 …",
    "rule(q=i(5, 2, 4))": f"gated_delta_rule: q is [5, 2, 4] of int32; {FLOATS}",
    "rule(norm_eps=-1)": "gated_delta_rule: norm_eps is -1; expected a number, at least 0",
    # Norms
    "ops.softmax(f())": "softmax: x is a single number, without axes; expected at least one axis",
    "ops.log_softmax(f())": "log_softmax: x is a single number, without axes; expected at least one axis",
    "ops.log_softmax(i(2))": f"log_softmax: x is [2] of int32; {FLOATS}",
    "ops.layer_norm(x, f(7))": "layer_norm: x is [2, 3] and weight is [7]; expected [3]",
    "ops.layer_norm(x, bias=x)": "layer_norm: x is [2, 3] and bias is [2, 3]; expected [3]",
    "ops.layer_norm(x, eps=-1)": "layer_norm: eps is -1; expected a number that is at least 0",
    "ops.rms_norm(x, eps=np.nan)": "rms_norm: eps is nan; expected a number that is at least 0",
    "ops.rms_norm(x, eps='1')": "rms_norm: eps is '1'; expected a number that is at least 0",
    "ops.rms_norm(x, offset=np.inf)": "rms_norm: offset is inf; expected a number",
    "ops.rms_norm(x, offset=1.0)": "rms_norm: offset is 1.0 and there is no weight to add it to; …",
    "ops.add_rms_norm(x, f(7))": "add_rms_norm: x is [2, 3] and residual is [7]; expected one shape",
    # Sums and orders
    "ops.sum(f())": "sum: x is a single number, without axes; expected at least one axis",
    "ops.max(i(2))": f"max: x is [2] of int32; {FLOATS}",
    "ops.max(f(3, 0))": "max: x is [3, 0], whose rows have no elements and so no largest one",
    "ops.argmax(f(3, 0))": "argmax: x is [3, 0], whose rows have no elements and so no largest one",
    "ops.argmax(h((1 << 24) + 1))": "argmax: x is [16777217]; expected at most 16777216 columns, …",
    "ops.cross_entropy(f(3, 7), i(4))": "…: logits is [3, 7] and targets [4] of int32; expected targets [3] of int32",
    "ops.cross_entropy(f(3, 7), f(3))": "…: logits is [3, 7] and targets [3] of float32; expected targets [3] of int32",
    **{
        f"ops.top_k(x, {k!r})": f"top_k: k is {k} and x is [2, 3]; expected k from 1 to 3"
        for k in (0, -1, 4, True, 2.0)
    },
    "ops.top_k(x, None)": "top_k: k is None and x is [2, 3]; expected k from 1 to 3",
    "ops.top_k(f(3, 0), 1)": "top_k: k is 1 and x is [3, 0]; expected k from 1 to 0",
    "ops.top_k(i(3), 1)": f"top_k: x is [3] of int32; {FLOATS}",
    "ops.top_k(f(), 1)": "top_k: x is a single number, without axes; expected at least one axis",
    # Moves
    "ops.transpose(x, (0, 0))": "transpose: x is [2, 3] and the axes are [0, 0]; expected each of [0, 1] once",
    "ops.transpose(f(), [0])": "transpose: x is [], which has no axes",
    "ops.transpose(f(*[2] * 7))": "tr…: a copy over 6 axes of rows and 1 of columns that no stride joins; at most 5 …",
    "ops.split_heads(x, 2)": "split_heads: x is [2, 3]; expected [..., rows, a multiple of 2 columns]",
    "ops.merge_heads(x)": "merge_heads: x is [2, 3]; expected [..., heads, rows, columns of a head]",
    "ops.split_qkv(x, 2, 2)": "split_qkv: x is [2, 3]; expected [..., rows, a multiple of (2 + 2·2) columns]",
    "ops.split_qkv(x, 2, 1, 3)": "split_qkv: x is [2, 3]; expected [..., rows, (2 + 2·1)·3 columns]",
    "ops.concat([])": "concat: found no tensors; expected at least one",
    "ops.concat([x, f(2, 4)], 0)": "concat: found [2, 3] and [2, 4]; expected one shape but for axis 0",
    "ops.concat([x, h(2, 3)])": "concat: … and [2, 3] of float16; expected one type: use astype first",
    "ops.slice(x, 2)": "slice: x is [2, 3] and the index [2]; 2 is not a slice, and no integer from -2 to 1",
    "ops.slice(x, 0, 0, 0)": "slice: …index [0, 0, 0]; expected at most 2 numbers and slices, and one Ellipsis",
    "ops.slice(x, slice(0, 2, 0))": "slice: … [0:2:0]; 0:2:0 is not a slice of …: slice step cannot be zero",
    "ops.expand(x, (3, 8))": "expand: x is [2, 3], which does not broadcast to [3, 8]",
    "ops.repack(x, (2, 4))": "repack: x is [2, 3] of 6 elements, which cannot become [2, 4]",
    "ops.repack(x, 4.8)": "repack: found the shape 4.8; expected integers of at least 0",
    "ops.astype(x, 'int32')": "astype: dtype is int32; expected one of float32, float16",
    "ops.transpose(q(2))": f"transpose: {PACKED}",
    "ops.concat([q(2), q(2)])": f"concat: {PACKED}",
    "ops.repack(q(2), (64,))": f"repack: {PACKED}",
    "ops.split_qkv(q(2), 2)": f"split_qkv: {PACKED}",
    # Tables
    "ops.lookup(x, x)": "lookup: ids is [2, 3] of float32; expected int32",
    "ops.lookup(i(1, 2), f(5))": "lookup: table is [5] of float32; expected [V, D] of float32, …",
    "ops.lookup(i(1, 2), x, out=f(5))": "lookup: out is [5] of float32; the result is [1, 2, 3] of float32",
    "ops.gather_rows(q(3), i(2))": "gather_rows: … of Q8_ROW; expected [R, D] …; look its rows up instead",
    "ops.gather_rows(x, x)": "gather_rows: ids is [2, 3] of float32; expected int32",
    "ops.dequantize(x)": "dequantize: table is [2, 3] of float32; expected a packed tensor",
    "ops.add_positions(q(3), x)": "add_positions: x is [3, 32] of Q8_ROW; …; dequantize it first",
    "ops.add_positions(x, i(1, 2))": f"add_positions: table is [1, 2] of int32; {FLOATS}",
    "ops.add_positions(x, f(5))": "add_positions: x is [2, 3] and table is [5]; expected [..., S, D] and [P, D]",
    "ops.add_positions(x, x, offset=1)": "add_positions: offset is 1 for 2 rows; table has 2 positions, …",
    "ops.add_positions(f(4, 3), x)": "add_positions: x has 4 rows; table has only 2 positions",
    # Angles
    "ops.rope(f(8))": "rope: x is [8]; expected [..., sequence, 1 heads × their elements]",
    "ops.rope(f(3, 8), heads=3)": "rope: x is [3, 8]; expected [..., sequence, 3 heads × their elements]",
    "ops.rope(f(3, 8), heads=0)": "rope: heads is 0; expected an integer of at least 1",
    "ops.rope(f(3, 7))": f"rope: 7 elements of each head of x [3, 7] cannot form pairs; {PAIRS} …",
    "ops.rope(f(3, 8), rotary_dim=10)": f"rope: 10 elements of each head …; {PAIRS} from 2 to 8",
    "ops.rope(f(3, 8), offset=-1)": "rope: offset is -1; expected an integer of at least 0",
    "ops.rope(f(3, 8), offset=7, length=9)": "rope: x has positions 7 to 9; expected them from 0 to 8, below length",
    "ops.rope(f(3, 8), theta=1.0)": "rope: theta is 1.0; expected a number above 1, such as 10000.0",
    "ops.rope(f(3, 2), scaling=DYNAMIC)": "…'dynamic' needs rotary_dim of at least 4; found 2",
    "ops.rope(f(3, 8), positions=i(2))": "rope: positions is [2] of int32, with offset 0; expected [3] of int32, …",
    "ops.rope(f(3, 8), positions=f(3))": "rope: positions is [3] of float32, with offset 0; expected [3] of int32, …",
    "ops.rope(f(3, 8), positions=i(3), offset=2)": "rope: positions is [3] of int32, with offset 2; … and no offset",
    "ops.rope(f(3, 8), positions=dev.tensor([0, -1, 2]))": "rope: x has positions -1 to 2; expected them from 0 on",
    "ops.rope(i(2, 2))": f"rope: x is [2, 2] of int32; {FLOATS}",
    # Gradients
    "back(i(2), f(3, 4))": "…: ids is [2] of int32 and grad is [3, 4]; expected ids [...] of int32 and grad [..., D]",
    "back(f(2), f(2, 4))": "…: ids is [2] of float32 and grad is [2, 4]; expected …",
    "back(i(1, 2), f(2, 4))": "…: ids is [1, 2] of int32 and grad is [2, 4]; expected …",
    "back(i(), f())": "…: ids is [] of int32 and grad is []; expected …",
    "back(i(2), f(2, 4), 0)": "embedding_backward: vocab is 0; expected the number of rows of the table",
    "back(i(2), f(2, 4), 2.0)": "embedding_backward: vocab is 2.0; expected the number of rows of the table",
    "back(i(2), f(2, 4), None)": "embedding_backward: vocab is None; expected the number of rows of the table",
    "back(i(2), f(2, 4), None, into=f(20))": "…: vocab is None; expected the number of rows of the table",
    "back(i(2), f(2, 4), method='sort')": "embedding_backward: there is no method 'sort'; known: scatter, gather",
    **{
        f"back(i(2), y, {more}, method={method!r})": f"embedding_backward: {said}"
        for method in ("scatter", "gather")
        for more, said in (
            ("None, into=f(5, 3)", "into is [5, 3] of float32; expected [5, 4] of float32"),
            ("6, into=f(5, 4)", "into is [5, 4] of float32; expected [6, 4] of float32"),
            ("None, into=h(5, 4)", "into is [5, 4] of float16; expected [5, 4] of float32"),
            ("None, into=y", f"into {TAKEN}"),
        )
    },
}
"""The lines by the calls; … stands for any words."""


@pytest.fixture
def theirs() -> Iterator[Any]:
    """A tensor of another device."""
    with Device() as other:
        yield other.zeros((3, 3))


def test_each_is_one_line_and_leaves_nothing(dev: Device, theirs: Any) -> None:
    def rule(**changes: Any) -> None:
        given = {"q": dev.zeros((5, 2, 4)), "k": dev.zeros((5, 2, 4)), "v": dev.zeros((5, 4, 6))}
        dev.ops.gated_delta_rule(**{**given, **dict.fromkeys(("g", "beta"), dev.zeros((5, 4))), **changes})

    def back(ids: Any, grad: Any, vocab: Any = 5, **more: Any) -> None:
        dev.ops.embedding_backward(ids, grad, vocab, **more)

    names: dict[str, Any] = {"dev": dev, "ops": dev.ops, "np": np, "theirs": theirs, "rule": rule, "back": back}
    names |= {"EIGHT": Strategy("packed", targets=8), "MOST": MAX_KEY_ELEMENTS, "DYNAMIC": DYNAMIC}
    names |= {"f": lambda *shape: dev.zeros(shape), "h": lambda *shape: dev.zeros(shape, "float16")}
    names |= {"i": lambda *shape: dev.zeros(shape, "int32")}
    names |= {"q": lambda rows: dev.tensor(np.zeros((rows, 32), np.float32), "Q8_ROW")}
    names |= {"x": dev.zeros((2, 3)), "y": dev.zeros((2, 4)), "m": dev.zeros((3, 5))}
    names |= {"gone": dev.zeros(4), "empty": dev.zeros((3, 0))}
    for name in ("gone", "empty"):
        names[name].release()
    before = dev.memory().tensors
    for call, message in REFUSED.items():
        with pytest.raises(InputError) as caught:
            exec(call, names)
        said = str(caught.value)
        assert re.fullmatch(".*".join(map(re.escape, message.split("…"))), said), f"{call}: {said}"
        del caught
        assert dev.memory().tensors == before, call
    assert not names["x"].numpy().any()
