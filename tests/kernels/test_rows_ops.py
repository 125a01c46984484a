"""Passes over many rows on the GPU against their float64 oracles; tests/models/test_rows_runs.py compares bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agreement import same_bits
from attention_draw import Run, row_scores_draw, row_values_draw, tile_scores_draw, tile_values_draw
from block_draw import (
    BLOCKS,
    FLOATS_AND_ROWS,
    GQA,
    GROUP_SIZES,
    KERNELS,
    PADDED,
    SHARED,
    embed_draw,
    first_rows,
    images_draw,
    norms_draw,
    number_of,
    pick_draw,
    product_draw,
    runs_of,
    score_draw,
    store_draw,
    stored,
    take_draw,
    taken,
    turn_draw,
    whole_blocks,
    with_kernels,
)
from goldens.gift import log_softmax
from one_draw import TABLE, TOLERANCE, check, normal
from tiers import tiered

from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.families.layer import Latent
from glinfer.gl.context import Device, Limits, open_device
from glinfer.kernels.fused.cached import Heads
from glinfer.kernels.fused.rows import CHOSEN, INVERSE_TEMPERATURE, NOISE, NOISE_KEY, POSITION, TOKEN, WANTED
from glinfer.kernels.fused.sample import best_candidate
from glinfer.kernels.fused.score import log_probabilities
from glinfer.kernels.options import KernelOptions
from glinfer.program.oracle import relative_error

pytestmark = pytest.mark.gl

PLAIN = KERNELS["plain"]

# Outputs and inputs: one of each, less than a quad, whole and ragged blocks of 64, more of one than of the other.
SIZES = [(1, 1), (3, 17), (64, 64), (65, 128), (130, 70), (16, 300), (201, 36), (67, 260)]
FORMS: list[dict[str, Any]] = [
    {},
    {"norm": True, "activation": "gelu_new"},
    {"residual": True},
    {"adds": True, "parts": True},
    {"norms": True},
    {"activation": "gelu", "residual": True},
    {"adds": True},
    {"together": True, "residual": True},
    {"together": True, "norms": True, "activation": "gelu"},
    {"norms": True, "gain": True},
    {"norm": True, "gain": True, "centred": True},
    {"norms": True, "gain": True, "gated": True, "activation": "silu"},
    {"norms": True, "gain": True, "centred": True, "turn": GQA},
    {"norm": True, "turn": PADDED},
    {"norms": True, "centred": True, "gated": True, "activation": "gelu_new"},
]
FORMATS = (*FLOATS_AND_ROWS, *BLOCKS)
POSITIONS = (0, 1, 15, 16, 63, 64, 100)


# gemm


@tiered("place", range(len(FORMATS)), keep=(1, 4, 7, 11, 13, 16, 29))
def test_products_agree_with_float64(device: Device, place: int) -> None:
    """Every format, in turn with kernels, sizes and forms; one row, and as many as there may be."""
    weights, form, name = FORMATS[place], FORMS[4 * place % len(FORMS)], list(KERNELS)[(place + 2) % len(KERNELS)]
    # The mean of one input leaves nothing but the errors of rounding.
    outputs, inputs = SIZES[1 + place % 7] if place < len(FLOATS_AND_ROWS) else GROUP_SIZES[place % len(GROUP_SIZES)]
    inputs = whole_blocks(weights, inputs) if weights in BLOCKS else inputs
    one = product_draw(weights, KERNELS[name], outputs, inputs, 19, **form)
    cases = [first_rows(one, rows) for rows in (1, KERNELS[name].rows_per_draw + 1, 19)]
    check(device, one, *cases, what=f"{weights} {outputs}×{inputs} {form} {name}")


@tiered(
    ("weights", "form"),
    [
        ("q8", {"norm": True, "gain": True, "centred": True}),
        ("bf16", {"norms": True, "gain": True, "gated": True, "activation": "silu"}),
        ("f32", {"residual": True}),
    ],
    keep=(0, 1),
)
def test_two_steps_at_once_give_the_same_bits(device: Device, weights: str, form: dict[str, Any]) -> None:
    """llvmpipe's products add two steps to each sum; with texelFetch they add one."""
    both = [replace(KERNELS["llvmpipe"], lookup_texture=lookup) for lookup in (True, False)]
    draws = [product_draw(weights, kernels, 70, 150, 19, **form) for kernels in both]
    (two,), (one,) = (check(device, draw, first_rows(draw, 19), what=f"{weights} {form}") for draw in draws)
    assert same_bits(two[:19], one[:19])


@tiered(("cover", "cell", "tiles", "pitch"), [("points", 4, 1, 64), ("quads", 3, 1, 64), ("points", 2, 2, 32)])
def test_hundreds_of_rows_are_all_written(device: Device, cover: str, cell: int, tiles: int, pitch: int) -> None:
    """However large the cells are, and however many slots they have to end with."""
    kernels = KernelOptions(cover=cover, largest_cell=cell, tiles=tiles, pitch=pitch, rows_per_draw=2)
    one = product_draw("q8", kernels, 130, 9, 900, adds=True)
    check(device, one, *[first_rows(one, rows) for rows in (900, 769, 513, 128, 31)], what=f"{cell} {tiles}")


# row_norms


@with_kernels("llvmpipe", "one by one", "mantissa")
def test_norms_agree_with_float64(device: Device, kernels: KernelOptions) -> None:
    """The variance comes of the mean square and the mean, so rows far from zero keep fewer digits."""
    for cols, centred, grouped in ((300, False, False), (15, True, False), (160, True, True)):
        one = norms_draw(kernels, cols, 19, centred=centred, grouped=grouped)
        one.arrays["x"][3], one.arrays["x"][5] = 3 * centred, one.arrays["x"][5] * 1e4
        one.arrays["x"][3, ::2] += centred
        cases = [first_rows(one, rows) for rows in (1, 8, 19)]
        check(device, one, *cases, what=f"{cols}", tolerance=2e-6 if centred else 1e-6)


# turn_heads


# Heads of 6 in 16 floats, and of 64 over blocks, among fewer of keys; some that end in the middle of a block.
TURNED = [(Heads(5, 5, 16), 6), (GQA, 16), (Heads(3, 1, 80), 66), (Heads(2, 1, 64), 64), (Heads(1, 1, 32), 18)]


TURNS = (("one by one, looked up", 19), ("llvmpipe", 0), ("one by one", 0), ("llvmpipe", 19), ("GPU", 19), ("plain", 0))


@tiered("place", range(len(TURNS)), keep=3)
def test_heads_are_normalised_and_turned(device: Device, place: int) -> None:
    """Of many rows, or of one alone, into a cache or not; values stay as they are."""
    (name, rows), (heads, head_dim) = TURNS[place], TURNED[place % len(TURNED)]
    into = {"slots": 70 * (name != "llvmpipe" and not rows), "aside": name == "plain"}
    one = turn_draw(KERNELS[name], heads, head_dim, rows, rotated_first=place % 2 == 1, **into)
    found = check(device, one, *runs_of(one, 1, 19), what=f"{heads} {name}")[-1]
    values, real = slice(heads.kv_floats, 2 * heads.kv_floats), slice(rows or 1)
    assert np.array_equal(found[real, values], one.arrays["x"][real, values])


@tiered(
    ("name", "rows", "low"),
    [("llvmpipe", 19, 21), ("GPU", 19, 0), ("plain", 0, 19), ("llvmpipe", 0, 0), ("one by one", 0, 70)],
)
def test_latents_and_queries_are_divided_by_their_own_means(device: Device, name: str, rows: int, low: int) -> None:
    slots = 70 * (name != "llvmpipe" and not rows)
    one = turn_draw(KERNELS[name], Heads(3, 1, 80), 66, rows, slots=slots, latent=Latent(58, low, 12, 20))
    check(device, one, *runs_of(one, 1, 19), what=f"{low} {name}")


# embed_rows


@tiered(
    ("name", "size", "weights"),
    [("llvmpipe", (37, 11, 70), "f16"), ("one by one", (5, 3, 64), "f32"), ("GPU", (1, 1, 1), "f32")],
)
def test_embeddings_are_the_sums_of_two_rows(
    device: Device, name: str, size: tuple[int, int, int], weights: str
) -> None:
    one = embed_draw(KERNELS[name], *size, 19, weights=weights)
    cases = [first_rows(one, rows) for rows in (1, 8, 19)]
    table, (wte, wpe) = one.arrays[TABLE], (one.arrays[name].astype(np.float32) for name in ("wte", "wpe"))
    for case, found in zip(cases, check(device, one, *cases, what=f"{size}"), strict=True):
        rows = int(case.values["rows"])
        assert same_bits(found[:rows], wte[table[:rows, TOKEN]] + wpe[table[:rows, POSITION]])


@tiered(("weights", "name", "positions"), [("Q4_0", "one by one", True), ("Q6_K", "llvmpipe", False)], keep=0)
def test_embeddings_out_of_blocks_are_scaled(device: Device, weights: str, name: str, positions: bool) -> None:
    """With positions and without."""
    shape = {"weights": weights, "positions": positions, "scale": 2.5}
    one = embed_draw(KERNELS[name], 67, 5, whole_blocks(weights, 96), 19, **shape)
    check(device, one, first_rows(one, 19), tolerance=3e-7)


@with_kernels("GPU", "one by one")
def test_embeddings_of_what_the_run_before_chose(device: Device, kernels: KernelOptions) -> None:
    one = embed_draw(kernels, 37, 11, 70, 19, chosen=True)
    (found,), table = check(device, one, first_rows(one, 19)), one.arrays[TABLE]
    assert (table[:19:2, TOKEN] == CHOSEN).all()
    tokens = [
        best_candidate(one.arrays["picks"][row]) if token == CHOSEN else int(token)
        for row, token in enumerate(table[:19, TOKEN])
    ]
    wte, wpe = (one.arrays[name].astype(np.float32) for name in ("wte", "wpe"))
    assert same_bits(found[:19], wte[tokens] + wpe[table[:19, POSITION]])


@tiered(("name", "weights"), [("llvmpipe", "f32"), ("one by one", "f32"), ("GPU", "Q8_0")])
def test_rows_of_images_among_tokens(device: Device, name: str, weights: str) -> None:
    one = embed_draw(KERNELS[name], 64, 11, 96, 19, weights=weights, images=True, positions=False)
    (found,) = check(device, one, first_rows(one, 19))
    assert same_bits(found[:19:3], one.arrays["images"][:19:3])


@tiered("name", ["llvmpipe", "one by one", "GPU"])
def test_rows_of_images_added(device: Device, name: str) -> None:
    one = images_draw(KERNELS[name], 96, 19)
    (found,), x = check(device, one, first_rows(one, 19)), normal(1, len(one.arrays[TABLE]), 96)
    assert same_bits(found[1:19:3], x[1:19:3])
    assert same_bits(found[:19:3], x[:19:3] + one.arrays["images"][:19:3])


@pytest.mark.parametrize("how", ["back", "by_row"])
def test_rows_of_images_turn_by_other_positions(device: Device, how: str) -> None:
    one = turn_draw(KERNELS["llvmpipe"], Heads(4, 2, 16, 0.25), 16, 19, **{how: True})
    check(device, one, first_rows(one, 19))
    assert ("rows" in dict(one.spec.inputs)) == (how == "back")


@pytest.mark.parametrize("table", ["rope", "wpe"])
def test_positions_after_a_table_read_its_last_row(device: Device, table: str) -> None:
    """Padding rows of a prompt have such positions near the end of the context."""
    turns, kernels = table == "rope", KERNELS["llvmpipe"]
    one = turn_draw(kernels, Heads(4, 2, 16), 16, 19) if turns else embed_draw(kernels, 37, 11, 70, 19)
    one.arrays[TABLE][:7, POSITION] = len(one.arrays[table]) + np.arange(7)
    check(device, one, first_rows(one, 19), tolerance=1e-6)


@pytest.mark.slow
def test_tables_in_several_stacks(device: Device) -> None:
    """The embeddings, and the table of rows itself."""
    one = embed_draw(PLAIN, 300, 200, 30, 150, edge=128)
    assert {dict(one.spec.defines)[name] for name in ("WTE_STACK", "WPE_STACK", "ROWS_STACK")} == {128}
    one.arrays[TABLE][[0, 1, 127, 128, 149], TOKEN] = (299, 128, 127, 0, 298)
    check(device, one, first_rows(one, 150), tolerance=1e-7)


# store_rows


PLACES: dict[str, list[tuple[int, int]]] = {
    "one": [(0, 0)],
    "the last": [(64, 63)],
    "after each other": [(0, position) for position in range(5, 24)],
    "to the end": [(16, position) for position in range(93, 112)],
    "two sequences": [*((0, position) for position in range(16)), *((16, position) for position in range(3))],
}
APART = [(64 * (row % 2), 7 * row % 64) for row in range(19)]


@with_kernels("llvmpipe", "one by one", "small points")
def test_rows_that_follow_each_other_are_stored_as_a_strip(device: Device, kernels: KernelOptions) -> None:
    """That nothing beside them changes is asked of every run."""
    cols = (1, 64, 150)[number_of(kernels) % 3]
    one = store_draw(kernels, cols, 19, 128, together=True)
    assert (one.spec.cover, one.spec.vertex) == ("strip", "")
    cases = [stored(one, places) for places in PLACES.values()]
    check(device, one, *cases, tolerance=0)


@with_kernels("one by one", "llvmpipe", "GPU")
def test_rows_are_stored_wherever_they_belong(device: Device, kernels: KernelOptions) -> None:
    one = store_draw(kernels, 150, 19, 128, together=False)
    assert (one.spec.cover, one.spec.vertex) == (kernels.cover, "common/rows.vert")
    check(device, one, *[stored(one, places) for places in (*PLACES.values(), APART)], tolerance=0)


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True])
def test_rows_are_stored_in_a_cache_of_several_lines(device: Device, together: bool) -> None:
    """Where no strip can be drawn the rows are looked up one by one."""
    one = store_draw(KERNELS["mantissa, one by one"], 150, 19, 128, together=together, edge=128)
    assert one.spec.vertex == "common/rows.vert"
    check(device, one, *[stored(one, places) for places in PLACES.values()], tolerance=0)


@with_kernels("llvmpipe", "one by one")
def test_queries_are_kept_once_for_each_sequence(device: Device, kernels: KernelOptions) -> None:
    """A strip leaves them out; rows of a batch put each into its sequence's slot, and change no other's."""
    strip = store_draw(kernels, 150, 19, 128, together=True, aside=2, every=128)
    assert strip.spec.extent({"rows": 19})[1] == 64
    check(device, strip, *[stored(strip, PLACES[name]) for name in ("one", "after each other")], tolerance=0)
    batch = store_draw(kernels, 150, 3, 128, together=False, aside=2, every=32)
    assert batch.spec.extent({"rows": 3})[1] == 150
    check(device, batch, *[stored(batch, [(0, at), (96, 31), (32, 0)]) for at in (0, 5, 31)], tolerance=0)


# take_row


@with_kernels("mantissa", "one by one", "llvmpipe")
def test_a_row_is_taken_by_itself(device: Device, kernels: KernelOptions) -> None:
    one = take_draw(kernels, (150, 16, 1)[number_of(kernels) % 3], 19)
    rows = (0, 1, kernels.rows_per_draw, 18)
    for row, found in zip(rows, one.run(device, *[taken(one, row) for row in rows]), strict=True):
        assert same_bits(found[0], one.arrays["x"][row])
        assert np.array_equal(one.expected(taken(one, row))[0], one.arrays["x"][row])


# Attention


TILES = Run(64, 55, 12), Run(0, 0, 3), Run(32, 14, 4)


def sequences(kernels: KernelOptions) -> list[tuple[Run, ...]]:
    """Runs of one sequence from many positions on, and of several whose keys begin at multiples of 16."""
    alone = [(Run(base, position, 9),) for position in POSITIONS for base in (0, 16, 64) if base + position <= 110]
    return [
        *alone[number_of(kernels) % 3 :: 3],
        (Run(0, 0, 16), Run(16, 0, 16), Run(32, 0, 9)),
        (Run(64, 63, 8), Run(0, 3, 5), Run(16, 16, 1), Run(48, 1, 2)),
        (Run(0, 100, 1),),
    ]


both_tiles = pytest.mark.parametrize("make", [tile_scores_draw, tile_values_draw], ids=["scores", "values"])


ATTENTION: list[tuple[str, dict[str, int]]] = [
    ("llvmpipe", {"heads": 3, "head_dim": 15}),
    ("one by one", SHARED[0]),
    ("GPU", {"heads": 2, "head_dim": 64}),
    ("mantissa", SHARED[3]),
    ("small points", SHARED[1]),
    ("one by one, looked up", {"heads": 1, "head_dim": 80}),
]
"""Heads apart from each other and shared in windows, in kernel options of all kinds."""


@tiered(("name", "shape"), ATTENTION, keep=2)
@both_tiles
def test_attention_of_tiles_is_right(device: Device, name: str, shape: dict[str, int], make: Any) -> None:
    kernels = KERNELS[name]
    made = make(kernels, rows=64, **shape)
    cases = [made.case(*runs) for runs in (TILES, *sequences(kernels))]
    check(device, made.one, *cases, what=f"{shape}")


@pytest.mark.slow
@both_tiles
def test_caches_in_several_lines_agree_with_float64(device: Device, make: Any) -> None:
    kernels = KERNELS["llvmpipe"]
    made = make(kernels, 2, 17, 24, edge=256)
    check(device, made.one, *[made.case(*runs) for runs in sequences(kernels) if len(runs) == 1])


BOTH = [(name, run) for name in ("one by one", "llvmpipe", "GPU") for run in (Run(0, 69), Run(16, 69, 8))]


@tiered(("name", "run"), BOTH, keep=2)
def test_one_enormous_score_takes_it_all_wherever_it_is(device: Device, name: str, run: Run) -> None:
    """Of one row alone, and of many."""
    make = tile_values_draw if run.rows > 1 else row_values_draw
    made, cases, tokens = make(KERNELS[name], 2, 16, run.rows - 1), [], (0, 1, 3, 6, 63, 64, 69)
    for token in tokens:
        scores = np.clip(made.random_scores(), -5, 5) - np.float32(token * 1e7)
        scores[:, :, token] = 1e4 - token * 1e7
        cases.append(made.case(run, scores=scores))
    for token, found in zip(tokens, made.one.run(device, *cases), strict=True):
        exact = made.cache[run.base + token, made.heads.kv_floats : 2 * made.heads.kv_floats]
        assert np.abs(found - exact).max() <= 1e-6, f"token {token}"


BATCHES = [
    (Run(0, 0), Run(64, 0), Run(128, 0)),
    (Run(128, 63), Run(0, 100), Run(128, 15)),
    (Run(64, 1), Run(0, 16), Run(128, 62)),
    (Run(64, 127), Run(0, 62), Run(0, 63)),
]
"""Sequences may overlap: which one's last token a row sees is its own."""
OWN_PARTS = [
    (Run(0, 0), Run(64, 0), Run(128, 0)),
    (Run(128, 63), Run(0, 40), Run(64, 15)),
    (Run(64, 1), Run(0, 36), Run(128, 62)),
]
"""Each sequence within its own part of the cache, as those are that keep one query each."""


@tiered(("name", "shape"), ATTENTION, keep=(1,))
@pytest.mark.parametrize("make", [row_scores_draw, row_values_draw])
def test_attention_of_a_row_of_each_sequence(device: Device, name: str, shape: dict[str, int], make: Any) -> None:
    shared = shape in SHARED
    kept = {"every": 64} if shared and make is row_scores_draw and KERNELS[name].quad else {}
    made = make(KERNELS[name], rows=3, **shape, **kept)
    check(device, made.one, *[made.case(*runs) for runs in (OWN_PARTS if shared else BATCHES)], what=f"{made.heads}")


@tiered(
    ("name", "window", "make", "runs"),
    [
        ("one by one", 20, tile_values_draw, [TILES]),
        ("llvmpipe", 0, tile_values_draw, [TILES]),
        ("one by one", 20, row_values_draw, OWN_PARTS),
    ],
)
def test_sinks_of_many_rows(device: Device, name: str, window: int, make: Any, runs: list[tuple[Run, ...]]) -> None:
    rows = 3 if make is row_values_draw else 48
    made = make(KERNELS[name], 4, 17, rows, kv=2, window=window, sinks=normal(9, 1, 4, scale=5))
    check(device, made.one, *[made.case(*each) for each in runs])


# score_rows


@tiered("vocab", [300, 1, 63, 65])
def test_likelihoods_are_those_of_a_softmax(device: Device, vocab: int) -> None:
    one = score_draw(KERNELS[("plain", "llvmpipe", "one by one", "small points")[vocab % 4]], vocab, 19)
    wanted = one.arrays[TABLE][:, WANTED].astype(int)
    for level in (1.0, 30.0):
        logits = one.arrays["x"] * np.float32(level)
        cases = [first_rows(one, rows, x=logits) for rows in (1, 19)]
        for case, found in zip(cases, check(device, one, *cases, what=f"{vocab}"), strict=True):
            rows = int(case.values["rows"])
            likelihoods, likeliest, best = log_probabilities(found[:rows])
            expected = log_softmax(logits[:rows].astype(np.float64))
            assert np.abs(likelihoods - expected[np.arange(rows), wanted[:rows]]).max() <= 1e-5 * level
            assert np.array_equal(likeliest, logits[:rows].argmax(axis=1))
            assert np.abs(best - expected.max(axis=1)).max() <= 1e-5 * level


def test_every_token_may_be_the_wanted_one_and_the_likeliest(device: Device) -> None:
    """Also where the logits are far from zero, or far from each other, or equal."""
    one = score_draw(KERNELS["llvmpipe"], 130, 130)
    wanted = one.arrays[TABLE].copy()
    wanted[:130, WANTED] = np.arange(130)
    some, peak = one.arrays["x"], np.zeros_like(one.arrays["x"])
    peak[np.arange(130), np.arange(130)] = 1e4
    for logits in (some, some + np.float32(1e3), some - np.float32(1e3), peak, -peak, np.zeros_like(some)):
        case = first_rows(one, 130, x=logits, **{TABLE: wanted})
        likelihoods, likeliest, best = log_probabilities(check(device, one, case)[0][:130])
        expected = log_softmax(logits[:130].astype(np.float64))
        assert relative_error(likelihoods, expected[np.arange(130), np.arange(130)]) <= TOLERANCE
        assert np.array_equal(likeliest, logits[:130].argmax(axis=1)), "of equal ones the lowest id"
        assert relative_error(best, expected.max(axis=1)) <= TOLERANCE


# pick_rows


@with_kernels("plain", "one by one", "llvmpipe")
def test_choices_are_the_samplers(device: Device, kernels: KernelOptions) -> None:
    """Rows with noise and without in one run, each with a temperature and a seed of its own."""
    vocab = (300, 65, 1, 300, 3)[number_of(kernels) % 5]
    one = pick_draw(kernels, vocab, 11)
    options = [
        SamplingOptions(temperature=(0.0, 0.7, 1.0, 1.9)[row % 4], seed=row) for row in range(len(one.arrays["x"]))
    ]
    for row, option in enumerate(options):
        words = one.arrays[TABLE][row]
        words[NOISE], words[NOISE_KEY] = not option.greedy, Sampler(option).noise_key()
        words[INVERSE_TEMPERATURE] = np.float32(option.inverse_temperature).view(np.uint32)
    cases = [first_rows(one, rows) for rows in (1, 11)]
    for case, found in zip(cases, check(device, one, *cases, tolerance=1e-6), strict=True):
        for row in range(int(case.values["rows"])):
            assert best_candidate(found[row]) == Sampler(options[row]).sample(one.arrays["x"][row])
    if vocab == 300:
        assert len({best_candidate(row) for row in found}) > 5


# Limits and OpenGLs


def everything(device: Device, kernels: KernelOptions, weights: str) -> None:
    """A product, a strip, and attention."""
    one = product_draw(weights, kernels, 70, 130, 11, norms=True, residual=True)
    check(device, one, first_rows(one, 11))
    one = store_draw(kernels, 70, 19, 128, together=True)
    check(device, one, stored(one, PLACES["after each other"]), tolerance=0)
    tiles = tile_values_draw(kernels, 2, 17, 16)
    check(device, tiles.one, tiles.case(Run(16, 60, 9)))


def test_everything_runs_within_what_webgl2_guarantees() -> None:
    with open_device(limits=Limits.webgl2_minimum()) as device:
        everything(device, KernelOptions(tiles=2, rows_per_draw=4, largest_cell=4), "q16")


@pytest.mark.slow
@pytest.mark.desktop
def test_desktop_opengl_gives_the_same() -> None:
    with open_device(api="desktop") as device:
        everything(device, KERNELS["one by one"], "f32")
