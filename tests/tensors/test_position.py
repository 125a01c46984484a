"""rope: every way to pair and place, angles of far positions, scalings as the field computes them, and its tables."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from flat_draw import FlatPlan, drawn, padding
from rope_tables import rope_table
from tiers import tiered

from glinfer.errors import InputError
from glinfer.kernels.flat.rotate import rotate
from glinfer.kernels.rotary import rope_frequencies
from glinfer.kernels.spec import Pass
from glinfer.tensors.device import Device
from qa.kernels.cases.case import normal
from qa.kernels.cases.position import expected

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]


def rope(device: Device, x: Array, **options: Any) -> Array:
    """rope of an array, with nothing left behind but the tables."""
    with device.tensor(x) as tensor, device.ops.rope(tensor, **options) as y:
        assert (y.shape, y.dtype) == (x.shape, "float32")
        return y.numpy()


def test_far_positions_keep_their_digits(dev: Device) -> None:
    x = normal(np.random.default_rng(2), 4, 32)
    found = rope(dev, x, offset=100_000, length=100_004)
    assert np.abs(found - expected(x, 100_000 + np.arange(4), 32)).max() < 5e-7


def test_nan_and_infinities_stay_in_their_pairs(dev: Device) -> None:
    x = np.ones((3, 6), np.float32)
    x[0, 1], x[1, 2], x[2, 0] = np.nan, np.inf, -np.inf
    with dev.tensor(x) as tensor, dev.ops.rope(tensor) as y:
        found = np.isfinite(y.numpy()).tolist()
        assert found == [[True, False, True] * 2, [True, True, False] * 2, [False, True, True] * 2]
        assert not padding(y).any()


def test_a_table_is_kept_grown_and_let_go(dev: Device) -> None:
    x = dev.tensor(normal(np.random.default_rng(5), 6, 64))

    def after(**options: Any) -> tuple[int, int]:
        dev.ops.rope(x, **options).release()
        memory = dev.memory()
        return memory.tensors - 1, memory.bytes - x.nbytes

    first = after()
    assert first[0] == 1
    assert after(offset=5) == first, "the same table"
    grown = after(offset=5000)
    assert grown[0] == 1, "the table that was too small is released"
    assert grown[1] == 8192 * 64 * 4
    assert after() == grown
    assert [after(theta=100.0 * step)[0] for step in range(1, 10)] == [2, 3, 4, 5, 6, 7, 8, 8, 8]
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 4}
    assert after(scaling=dynamic)[0] == 8


def test_a_table_that_fits_no_texture(small: Device) -> None:
    with small.tensor(np.zeros((1, 64), np.float32)) as x:
        with pytest.raises(InputError, match=r"rope: the angles of 258 positions do not fit: a tensor \[258, 64\]"):
            small.ops.rope(x, offset=257)
        assert small.memory().tensors == 1


# What transformers 5.23 gives (modeling_rope_utils.py), pairs 0, 1, 9, 16 and 31 of 32, rounded to float32.
SHOWN = [0, 1, 9, 16, 31]
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}
MSCALE = {"factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.8}
GPT_OSS = {"factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1, "truncate": False}
DYNAMIC = {"factor": 4.0, "original_max_position_embeddings": 2048}
REFERENCE = [
    ("linear", 1e4, {"factor": 4.0}, 10, 1.0, [0.25, 0.187473552, 0.0187473552, 0.0025, 3.33380358e-05]),
    ("dynamic", 1e4, DYNAMIC, 2048, 1.0, [1.0, 0.749894209, 0.0749894209, 0.01, 0.000133352143]),
    ("dynamic", 1e4, DYNAMIC, 5000, 1.0, [1.0, 0.705043436, 0.0430469971, 0.00372781277, 1.97102475e-05]),
    ("llama3", 5e5, LLAMA3, 10, 1.0, [1.0, 0.663601238, 0.0249554087, 0.000524846161, 3.76732269e-07]),
    ("yarn", 1e6, YARN, 10, 1.138629436, [1.0, 0.649381632, 0.0205352503, 0.000583333333, 3.84981632e-07]),
    ("yarn", 1e4, MSCALE, 10, 1.056966256, [1.0, 0.749894209, 0.0749894209, 0.0055, 3.33380358e-06]),
    ("yarn", 1.5e5, GPT_OSS, 10, 1.346573590, [1.0, 0.689044306, 0.0317056962, 0.000456483919, 3.02351143e-07]),
]


def test_scalings_as_the_field_has_them() -> None:
    for kind, theta, settings, length, attention, angles in REFERENCE:
        found, factor = rope_frequencies(length, 64, theta, {"rope_type": kind, **settings})
        np.testing.assert_allclose(found[SHOWN], angles, rtol=1e-6, err_msg=f"{kind} {settings}")
        assert math.isclose(factor, attention, rel_tol=1e-8), (kind, settings)


def test_longrope_takes_its_factors_by_the_length() -> None:
    short, long = np.linspace(1.0, 2.0, 32), np.linspace(4.0, 40.0, 32)
    settings = {"type": "longrope", "short_factor": short, "long_factor": list(long), "factor": 32.0}
    settings["original_max_position_embeddings"] = 4096
    plain, one = rope_frequencies(1, 64, 1e4, None)
    assert one == 1.0
    near, factor = rope_frequencies(4096, 64, 1e4, settings)
    far, same = rope_frequencies(4097, 64, 1e4, settings)
    np.testing.assert_allclose(near * short, plain, rtol=1e-12)
    np.testing.assert_allclose(far * long, plain, rtol=1e-12)
    assert factor == same
    assert math.isclose(factor, 1.1902380714238083, rel_tol=1e-12)
    del settings["factor"]
    settings["max_position_embeddings"] = 131072
    assert rope_frequencies(1, 64, 1e4, settings)[1] == factor


def test_a_scaling_reaches_the_elements(dev: Device) -> None:
    x = normal(np.random.default_rng(7), 9, 64)
    scaling = {"rope_type": "yarn", **YARN}
    frequencies, factor = rope_frequencies(9, 64, 1e6, scaling)
    table, same = rope_table(9, 64, 1e6, scaling)
    assert (table.dtype, table.shape, same) == (np.dtype(np.float32), (9, 64), factor)
    rotated = (x[:, :32] + 1j * x[:, 32:]) * np.exp(1j * np.arange(9)[:, None] * frequencies) * factor
    found = rope(dev, x, theta=1e6, scaling=scaling)
    assert np.abs(found - np.concatenate([rotated.real, rotated.imag], axis=1)).max() < 1e-6
    dynamic = {"rope_type": "dynamic", **DYNAMIC}
    longer, _ = rope_frequencies(5000, 64, 1e4, dynamic)
    rotated = (x[:, :32] + 1j * x[:, 32:]) * np.exp(1j * (4991 + np.arange(9))[:, None] * longer)
    found = rope(dev, x, offset=4991, scaling=dynamic)
    assert np.abs(found - np.concatenate([rotated.real, rotated.imag], axis=1)).max() < 1e-6


def test_scalings_that_differ_by_their_factor_alone_have_tables_of_their_own(dev: Device) -> None:
    x = normal(np.random.default_rng(5), 3, 8)
    found = [rope(dev, x, scaling={"type": "yarn", **YARN, "attention_factor": factor}) for factor in (1.0, 2.0)]
    np.testing.assert_allclose(found[1], 2 * found[0], rtol=1e-6)


def test_bad_scalings_are_refused() -> None:
    ones = {"short_factor": [1.0] * 4, "long_factor": [1.0] * 4}
    linear = "rope scaling of type 'linear' has"
    for scaling, message in (
        ({"rope_type": "ntk"}, "there is no scaling of type 'ntk'; known: default, linear, dynamic, llama3, yarn,"),
        ({"type": "linear"}, f"{linear} no 'factor'; add it to the settings"),
        ({"type": "linear", "factor": -2}, f"{linear} factor -2; expected a number above 0"),
        ({"type": "linear", "factor": True}, f"{linear} factor True; expected a number above 0"),
        ({"type": "linear", "factor": 10**400}, "expected a number above 0"),
        ({"type": "dynamic", "factor": 2}, "'dynamic' has no 'original_max_position_embeddings'; add it"),
        ({"type": "llama3", **LLAMA3, "low_freq_factor": 4}, "low_freq_factor 4 and high_freq_factor 4; expected the"),
        (
            {"type": "longrope", **YARN, "short_factor": [1.0, 2.0]},
            "short_factor needs 4 numbers above 0, one per pair",
        ),
        (
            {"type": "longrope", "factor": 2, "original_max_position_embeddings": 1, **ones},
            "rope scaling of type 'longrope': its settings give no numbers; expected those of the model",
        ),
        ({"rope_theta": 5e5}, "rope: theta is 10000.0 and the scaling has rope_theta 500000.0; expected one theta"),
        ("linear", "rope: scaling is 'linear'; expected settings such as {'rope_type': 'linear', 'factor': 2}"),
    ):
        with pytest.raises(InputError) as refused:
            rope_table(4, 8, 10000.0, scaling)
        assert message in str(refused.value)


@tiered(("dim", "rotary", "interleaved"), [(10, 4, False), (16, 16, True), (16, 16, False), (10, 4, True)])
def test_a_draw_agrees_with_its_oracle(dev: Device, dim: int, rotary: int, interleaved: bool) -> None:
    x, table = normal(np.random.default_rng(8), 6, 3 * dim), rope_table(50, rotary)[0]
    for at in (0, 44):
        options: dict[str, Any] = {"heads": 3, "interleaved": interleaved, "position": at}
        build = lambda x, table, out, given=options: rotate(Pass("r", dev.kernels), x, table, out, **given)  # noqa: E731
        found, wanted = drawn(dev, build, {"x": x, "table": table}, x.shape)
        assert np.abs(found - wanted).max() < 1e-6
        rotated = expected(x.reshape(6, 3, dim).swapaxes(0, 1), at + np.arange(6), rotary, interleaved=interleaved)
        assert np.abs(wanted - rotated.swapaxes(0, 1).reshape(6, -1)).max() < 1e-6


def test_draws_that_do_not_fit_are_refused(dev: Device) -> None:
    for message, x, table, options in (
        (r"x is \[4, 9\]; expected \[any, 8\]", (4, 9), (10, 4), {"heads": 2}),
        ("cannot rotate 6 of 4 elements of a head in pairs", (4, 8), (10, 6), {"heads": 2}),
        ("4 rows are not a whole number of sequences of 3", (4, 8), (10, 8), {"sequence": 3}),
        ("position 10 is not in a table of 10 positions", (4, 8), (10, 8), {"position": 10}),
    ):
        plan = FlatPlan(dev.context)
        given = (plan.flat("input", "rgba32f", name, *size) for name, size in (("x", x), ("table", table)))
        rotated = partial(rotate, Pass("d", dev.kernels), *given, plan.scratch("y", *x), **options)
        plan.refuses(rotated, f"draw d: {message}")
