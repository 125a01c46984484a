"""Kernels along sequences: causal convolutions, and the gated delta rule with its state."""

from __future__ import annotations

import numpy as np
import pytest
from one_draw import normal
from tiers import tiered

from glinfer.errors import InputError
from glinfer.kernels.flat.delta import MAX_KEY_ELEMENTS, gated_delta
from glinfer.tensors.device import Device
from qa.kernels.cases.convolution import expected as convolved
from qa.kernels.cases.recurrence import expected, inputs

pytestmark = pytest.mark.gl


# Sequences, rows, columns and positions.
@tiered("shape", [(1, 1, 1, 1), (2, 5, 7, 3), (3, 1, 64, 4), (1, 9, 30, 12), (4, 6, 66, 6)], keep=(1,))
def test_each_sequence_begins_with_zeros_before_it(dev: Device, shape: tuple[int, int, int, int]) -> None:
    many, rows, cols, length = shape
    x, taps, bias = normal(1, many, rows, cols), normal(2, length, cols), normal(3, cols)
    tensors = [dev.tensor(array) for array in (x, taps, bias)]
    for given, added in ((tensors[:2], 0.0), (tensors, bias)):
        with dev.ops.causal_conv(*given) as y:
            assert y.shape == x.shape
            assert np.abs(y.numpy() - (convolved(x, taps) + added)).max() < 1e-5


def test_convolutions_that_do_not_fit_are_refused(dev: Device) -> None:
    x, taps = dev.zeros((5, 6)), dev.zeros((3, 6))
    for given, message in (
        (
            (x, dev.zeros((3, 5))),
            r"causal_conv: x is \[5, 6\] and taps is \[3, 5\]; expected \[\.\.\., sequence, D\] and",
        ),
        ((dev.zeros((6,)), taps), r"causal_conv: x is \[6\] and taps is \[3, 6\]"),
        ((x, taps, dev.zeros((5,))), r"causal_conv: bias is \[5\]; expected \[6\]"),
        ((x, dev.zeros((0, 6))), r"taps is \[0, 6\]; expected"),
        ((dev.tensor(np.zeros((5, 6), np.int32)), taps), r"causal_conv: x is \[5, 6\] of int32; expected float32 or"),
    ):
        with pytest.raises(InputError, match=message):
            dev.ops.causal_conv(*given)


# Sequences, tokens, heads, heads of keys, elements of keys and of values.
@tiered("shape", [(1, 1, 1, 1, 1, 1), (2, 9, 4, 2, 5, 7), (3, 20, 6, 2, 16, 12), (1, 70, 3, 3, 30, 33)], keep=(1,))
def test_each_sequence_begins_with_an_empty_state(dev: Device, shape: tuple[int, ...]) -> None:
    many, tokens, heads, key_heads, key, value = shape
    sizes = {"heads": heads, "key_heads": key_heads, "key": key, "value": value}
    arrays = inputs(np.random.default_rng(1), many, tokens, **sizes)
    with dev.ops.gated_delta_rule(*map(dev.tensor, arrays), norm_eps=1e-6) as y:
        assert y.shape == arrays[2].shape
        assert np.abs(y.numpy() - expected(*arrays, norm_eps=1e-6)).max() < 1e-5


def test_keys_of_any_length_are_taken_as_they_are(dev: Device) -> None:
    arrays = inputs(np.random.default_rng(2), 6, heads=2, key_heads=1, key=4, value=4)
    arrays[1] *= 0.3
    with dev.ops.gated_delta_rule(*map(dev.tensor, arrays), scale=2.0) as y:
        assert np.abs(y.numpy() - 2.0 * np.sqrt(4) * expected(*arrays)).max() < 1e-5


@pytest.mark.slow
def test_the_oracle_is_what_transformers_computes() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    module = pytest.importorskip(
        "transformers.models.qwen3_5.modeling_qwen3_5", reason="transformers without Qwen 3.5 is installed"
    )
    arrays = inputs(np.random.default_rng(3), 90, heads=4, key_heads=4, key=16, value=24)
    q, k, v, g, beta = (torch.from_numpy(each.astype(np.float32))[None] for each in arrays)
    wide = [each.astype(np.float64) for each in arrays]
    q_wide, k_wide = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in wide[:2])
    found, state = gated_delta(q_wide / 4.0, k_wide, *wide[2:])
    assert np.abs(found - expected(*arrays, norm_eps=1e-6)).max() < 1e-12
    for rule in (module.torch_recurrent_gated_delta_rule, module.torch_chunk_gated_delta_rule):
        settings = {"g": g, "beta": beta, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
        theirs, last = rule(q, k, v, **settings)
        assert np.abs(theirs[0].numpy() - found).max() < 1e-5
        assert np.abs(last[0].numpy() - state).max() < 1e-5


def test_rules_that_do_not_fit_are_refused(dev: Device) -> None:
    q, v, g = dev.zeros((5, 2, 4)), dev.zeros((5, 4, 6)), dev.zeros((5, 4))
    long = dev.zeros((5, 2, MAX_KEY_ELEMENTS + 1))
    for given, message in (
        ((q, dev.zeros((5, 1, 4)), v, g, g), r"gated_delta_rule: q is \[5, 2, 4\], k \[5, 1, 4\], v \[5, 4, 6\]"),
        ((q, q, v, g, dev.zeros((5, 2))), r"beta \[5, 2\]; expected q and k \[\.\.\., S, G, D_K\]"),
        ((*[dev.zeros((5, 3, 4))] * 2, v, g, g), r"4 value heads and 3 key heads with 4 elements; expected a multi"),
        ((long, long, v, g, g), rf"key heads with {MAX_KEY_ELEMENTS + 1} elements; expected a multiple .* 1 to 256"),
        ((dev.tensor(np.zeros((5, 2, 4), np.int32)), q, v, g, g), r"q is \[5, 2, 4\] of int32; expected float32 or"),
    ):
        with pytest.raises(InputError, match=message):
            dev.ops.gated_delta_rule(*given)
    with pytest.raises(InputError, match="norm_eps is -1; expected a number, at least 0"):
        dev.ops.gated_delta_rule(q, q, v, g, g, norm_eps=-1)
