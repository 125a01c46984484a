"""Plans over many rows end to end: draw by draw against float64, and to the last bit against a token at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import moderngl
import numpy as np
import pytest
from agreement import agree
from one_draw import STALE, in_turn, poisoned
from rows_draw import KERNELS, promised_norms
from subjects import EVEN, ODD, Subject, gab, of_family
from tiers import tiered

from glinfer.errors import PlanError
from glinfer.gl.context import Device, Limits, open_device
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout
from glinfer.models.fast.parts import delta_layers
from glinfer.models.fast.rows import (
    LOGITS,
    PICKS,
    ROWS,
    SCORES,
    batch_plan,
    chunk_plan,
    drafted_plan,
    slots_for,
)
from glinfer.models.fast.token import HIDDEN, fast_plan, tail_draws
from glinfer.models.fast.token import LOGITS as FAST_LOGITS
from glinfer.models.fast.token import PICKS as FAST_PICKS
from glinfer.models.options import PlanOptions
from glinfer.models.oracle import relative_error, run_plan, written_rows
from glinfer.models.plan import Plan
from glinfer.models.session import Session
from glinfer.ops import DrawSpec
from glinfer.ops.fused.cached import score_slots
from glinfer.ops.fused.rows import (
    BASE,
    INVERSE_TEMPERATURE,
    LAST,
    NOISE,
    NOISE_KEY,
    POSITION,
    TOKEN,
    WANTED,
    fill_choices,
    row_table,
)
from glinfer.ops.fused.sample import best_candidate
from glinfer.ops.fused.score import log_probabilities
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.noise import noise_key
from glinfer.ops.spec import Array, TensorSpec

pytestmark = pytest.mark.gl

Q8 = gab("q8")
IDS = [int(token) for token in np.random.default_rng(4).integers(0, ODD.vocab_size, 70)]
TOLERANCE = 1e-5
# A sum that decoding shares out, it adds up in another order than a chunk does.
EXACT = {name: KERNELS[name] for name in ("plain", "llvmpipe", "one by one", "mantissa, one by one")}


def decoder(device: Device, kernels: KernelOptions, subject: Subject = Q8) -> Session:
    """The fast plan, a token a run."""
    size = device.limits.max_texture_size
    plan = fast_plan(PlanOptions(subject.config, **subject.options, kernels=kernels, max_texture_size=size))
    return Session(plan, subject.folded, device)


def chunks(device: Device, kernels: KernelOptions, rows: int, subject: Subject = Q8, **further: Any) -> Plan:
    """For the caches of the fast plan."""
    size = device.limits.max_texture_size
    options = PlanOptions(subject.config, **subject.options, kernels=kernels, max_texture_size=size)
    slots = 64 * score_slots(subject.config.max_position_embeddings)
    return chunk_plan(options, rows=rows, cache_slots=slots, **further)


def step(session: Session, token: int, position: int, **choice: Any) -> Array:
    session.run({**session.plan.values_for(position + 1), "token": token, **choice})
    return np.array(session.read(FAST_LOGITS)[0])


def table_of(session: Session, ids: Sequence[int], position: int, targets: int) -> tuple[Array, dict[str, int]]:
    """The table and the run values of tokens that follow each other."""
    table, slots = row_table(session.plan.table[ROWS].shape[0]), slots_for(len(ids), targets)
    table[: len(ids), TOKEN] = ids
    table[: len(ids), WANTED] = [*ids[1:], 0]
    table[:, POSITION] = position + np.arange(len(table))
    table[:, LAST] = position + len(ids) - 1
    groups = score_slots(position + slots * targets)
    values = {"rows": len(ids), "row_slots": slots, "score_slots": groups * slots}
    return table, {**values, "score_groups": groups, "strip_first": position, "last_row": len(ids) - 1}


def feed(session: Session, ids: Sequence[int], position: int, targets: int, **hooks: Any) -> None:
    table, values = table_of(session, ids, position, targets)
    session.write(ROWS, table)
    assert session.run(values, **hooks) == len(session.plan.draws)


def caches_of(session: Session) -> dict[str, Array]:
    """What caches keep of every slot: chunks leave out the queries, which nobody reads again."""
    return {tensor.name: kept(session, tensor.name) for tensor in session.plan.of_kind("cache")}


def attention_caches(session: Session) -> list[TensorSpec]:
    return [tensor for tensor in session.plan.of_kind("cache") if tensor.name != PICKS]


def kept(session: Session, name: str) -> Array:
    layout = session.plan.table[name].layout
    assert isinstance(layout, BlockLayout)
    return np.array(session.read(name)[:, : BLOCK_FLOATS * layout.kept_blocks])


def same(found: Array, expected: Array) -> bool:
    bits = (np.ascontiguousarray(part).view(np.uint32) for part in (found, expected))
    return np.array_equal(*bits)


def nearly_same(found: Array, expected: Array) -> bool:
    """Of sums in another order."""
    return agree(found, expected, same_order=False)


class Compare:
    """A hook that compares each draw with what float64 says, and fails at the first that differs."""

    def __init__(self, session: Session, expected: Iterator[tuple[DrawSpec, Array]], inputs: Any, values: Any) -> None:
        self.session, self.expected, self.inputs, self.values = session, expected, inputs, values
        self.targets = sum(name.startswith("row.hidden.a.") for name in session.plan.table)
        self.checked = 0

    def __call__(self, spec: DrawSpec) -> None:
        draw, result = next(self.expected)
        assert draw is spec
        cols = spec.extent(self.values)[1]
        rows = written_rows(spec, {**self.inputs, **dict.fromkeys(spec.reads)} | self.inputs, self.values)
        found = np.stack([self.session.read(name)[rows][:, :cols] for name in spec.outputs])
        found, result = in_turn(found if len(found) > 1 else found[0]), in_turn(result)
        if spec.op == "pick_rows":  # two nearly equal logits may change places
            found, result = (np.sort(part.reshape(-1, 16, 4)[..., 0]) for part in (found, result))
        promised = self.promised(spec, found)
        error = relative_error(found[promised], result[promised])
        assert error <= TOLERANCE, f"{spec.name}: off by {error:.1e}"
        self.checked += 1

    def promised(self, spec: DrawSpec, found: Array) -> Array:
        """Rows that are somebody's, and of a tile's scores the groups of tokens that are not behind all its rows."""
        rows = int(self.values["rows"])
        if spec.op == "row_norms":
            real = np.arange(int(self.values["row_slots"]) * self.targets) < rows
            return promised_norms(real, self.targets, centred=bool(dict(spec.defines)["CENTRED"]))
        if spec.op == "row_scores":  # a row that is nobody's takes the query that its part of the cache keeps
            row = np.arange(len(found)) % len(self.inputs[ROWS])
            return np.broadcast_to((row < rows)[:, None], found.shape)
        if spec.op != "tile_scores":
            return np.broadcast_to((np.arange(len(found)) < rows)[:, None], found.shape)
        count = len(spec.outputs)
        padded = int(self.values["row_slots"]) * count
        row, token = np.arange(len(found)) % padded, np.arange(found.shape[1]) % 64
        tokens = 64 * (np.arange(len(found)) // padded)[:, None] + token[None]
        first = self.inputs[ROWS][row // count * count, POSITION].astype(int)
        group = 16 if dict(spec.defines)["QUAD"] else 4
        return (tokens // group * group < (first + count)[:, None]) & (row < rows)[:, None]


def compared(
    session: Session, folded: Mapping[str, Array], table: Array, values: Mapping[str, int], caches: dict[str, Array]
) -> None:
    """Run once, every draw compared; the oracle goes on with its own caches, so that errors add up."""
    known = table.copy()  # rows that are nobody's may come after the context
    known[:, POSITION] = np.minimum(table[:, POSITION], ODD.max_position_embeddings - 1)
    inputs = {ROWS: known}
    compare = Compare(session, run_plan(session.plan, folded, inputs, values, caches), inputs, values)
    session.write(ROWS, table)
    session.run(values, after=compare)
    assert compare.checked == len(session.plan.draws)


# Right


@tiered(
    ("name", "weights", "gelu", "likelihoods"),
    [
        ("plain", "f32", "erf", True),
        ("llvmpipe", "q8", "tanh", True),
        ("llvmpipe", "q8", "tanh", False),
        ("one by one", "q16", "tanh", True),
        ("mantissa", "q8l", "erf", True),
        ("small points", "f16", "tanh", False),
    ],
    keep=(1,),
)
def test_every_draw_agrees_with_float64(device: Device, name: str, weights: str, gelu: str, likelihoods: bool) -> None:
    every_draw_agrees(device, KERNELS[name], gab(weights, gelu=gelu), likelihoods)


# Every format, heads that share keys or are normalised, windows, gates, experts, means and packed tables; further pairs
# are in the slow tests of the fast plan and in tests/model.
SUBJECTS = [
    ("llvmpipe", "qwen3", "Q8_0"),
    ("one by one", "gpt2", "Q4_0"),
    ("mantissa, one by one", "mistral", "mixed"),
    ("plain", "llama", "BF16"),
    ("llvmpipe", "gemma", "Q5_1"),
    ("one by one", "gift_of_gab", "F16"),
    ("plain", "gpt2", "Q16_ROW"),
    ("llvmpipe", "qwen2", ""),
    ("llvmpipe", "llama", "Q6_K"),
    ("one by one", "llama", "Q4_K"),
    ("plain", "mistral", "Q3_K"),
    ("mantissa, one by one", "qwen3", "Q2_K"),
    ("llvmpipe", "qwen3_moe", "Q8_0"),
    ("one by one", "qwen3_next", ""),
    ("plain", "gpt_oss", "MXFP4"),
]
some_subjects = tiered(("name", "family", "form"), SUBJECTS, keep=0)


@tiered("likelihoods", [True, False])
@some_subjects
def test_every_draw_of_families_agrees_with_float64(
    device: Device, name: str, family: str, form: str, likelihoods: bool
) -> None:
    every_draw_agrees(device, KERNELS[name], of_family(family, form), likelihoods)


def every_draw_agrees(device: Device, kernels: KernelOptions, subject: Subject, likelihoods: bool) -> None:
    plan = chunks(device, kernels, 40, subject, likelihoods=likelihoods)
    session, caches = Session(plan, subject.folded, device), dict[str, Array]()
    for start, end in ((0, 5), (5, 6), (6, 40), (40, 70)):
        table, values = table_of(session, IDS[start:end], start, kernels.rows_per_draw)
        compared(session, subject.folded, table, values, caches)
    for cache, found in caches_of(session).items():
        assert relative_error(found[:70], caches[cache][:70, : found.shape[1]]) <= TOLERANCE
        assert not found[70:].any(), "a row that is nobody's was stored"


@tiered(
    ("name", "family", "form"),
    [
        ("GPU", "mistral", "Q4_0"),
        ("llvmpipe", "gpt2", "Q8_0"),
        ("mantissa", "qwen3", ""),
        ("small points", "llama", ""),
    ],
)
def test_every_draw_of_drafted_rows_agrees_with_float64(device: Device, name: str, family: str, form: str) -> None:
    """With the sums shared out where the kernels share out those of a single row."""
    subject, kernels = of_family(family, form), KERNELS[name]
    options = PlanOptions(
        subject.config, **subject.options, kernels=kernels, max_texture_size=device.limits.max_texture_size
    )
    plan, caches = drafted_plan(options, rows=16, cache_slots=128), dict[str, Array]()
    session = Session(plan, subject.folded, device)
    for start, end in ((0, 4), (4, 20), (20, 36), (36, 52), (52, 66), (66, 69)):
        table, values = table_of(session, IDS[start:end], start, kernels.rows_per_draw)
        fill_choices(table, [(noise_key(3, place), 0.8) if place % 2 else None for place in range(end - start)])
        compared(session, subject.folded, table, values, caches)
    shared_out = [draw.name for draw in plan.draws if draw.instances != 1]
    assert bool(shared_out) == (kernels.split_values or (kernels.part_steps > 0 and kernels.blends))


@tiered(("name", "weights"), list(zip(EXACT, ("f32", "q8", "q16", "q8l"), strict=True)), keep=(1,))
def test_chunks_have_the_bits_of_single_tokens(device: Device, name: str, weights: str) -> None:
    """In whatever pieces they come; and what is decoded after them has, too."""
    if "llvmpipe" not in device.renderer:
        pytest.skip("compilers of other renderers may join a product and a sum in one shader and not in the other")
    chunks_have_the_bits(device, EXACT[name], gab(weights))


@pytest.mark.slow
@some_subjects
def test_chunks_of_families_have_the_bits_of_single_tokens(device: Device, name: str, family: str, form: str) -> None:
    """But for delta rules, whose corrections are solved for all rows of a piece together, in other sums."""
    if "llvmpipe" not in device.renderer:
        pytest.skip("compilers of other renderers may join a product and a sum in one shader and not in the other")
    subject = of_family(family, form)
    chunks_have_the_bits(device, EXACT[name], subject, alike=nearly_same if delta_layers(subject.config) else same)


def chunks_have_the_bits(
    device: Device, kernels: KernelOptions, subject: Subject, alike: Callable[[Array, Array], bool] = same
) -> None:
    single, mixed = decoder(device, kernels, subject), decoder(device, kernels, subject)
    expected = [step(single, token, place) for place, token in enumerate(IDS)]
    chunk = mixed.companion(chunks(device, kernels, 40, subject))
    feed(chunk, IDS[:31], 0, kernels.rows_per_draw)
    step(mixed, IDS[31], 31)
    feed(chunk, IDS[32:58], 32, kernels.rows_per_draw)
    feed(chunk, IDS[58:63], 58, kernels.rows_per_draw)
    feed(chunk, IDS[63:69], 63, kernels.rows_per_draw)
    assert alike(step(mixed, IDS[69], 69), expected[69])
    ours, theirs = caches_of(mixed), caches_of(single)
    for cache in caches_of(chunk):
        assert alike(ours[cache], theirs[cache]), cache


@pytest.mark.slow
@tiered("targets", [2, 4, 8], keep=(2,))
@tiered("lookup", [False, True])
def test_the_end_of_the_cache_may_come_before_that_of_the_last_slot(device: Device, targets: int, lookup: bool) -> None:
    """Rows that are nobody's look back on tokens that the cache has no room for."""
    kernels = KernelOptions(quad=lookup, rows_per_draw=targets, lookup_texture=lookup)
    subject = gab("q8", EVEN)
    single, mixed = (decoder(device, kernels, subject) for _ in range(2))
    for place, token in enumerate(IDS[:64]):
        step(single, token, place)
    chunk = mixed.companion(chunks(device, kernels, 59, subject))
    feed(chunk, IDS[:59], 0, targets)
    for start, end in ((59, 62), (62, 63), (63, 64)):
        feed(chunk, IDS[start:end], start, targets)
    ours, theirs = caches_of(chunk), caches_of(single)
    assert all(agree(ours[name], theirs[name]) for name in ours)


def test_the_stream_of_the_last_row_is_handed_over(device: Device) -> None:
    """The fast plan goes on with the last block of that row."""
    kernels = EXACT["llvmpipe"]
    single, mixed = decoder(device, kernels), decoder(device, kernels)
    expected = [step(single, token, place) for place, token in enumerate(IDS[:30])]
    plan = chunks(device, kernels, 40, export_residual=True)
    assert [draw.op for draw in plan.draws[-2:]] == ["store_rows", "take_row"]
    chunk = mixed.companion(plan, names=(HIDDEN,))
    names = [draw.name for draw in mixed.plan.draws]
    assert names[-tail_draws(mixed.plan, ODD)] == "h.1.attn.qkv", "queries are not stored by chunks"
    for end in (9, 30):
        feed(chunk, IDS[:end], 0, kernels.rows_per_draw)
        values = {**mixed.plan.values_for(end), "token": 0}
        mixed.run(values, first=len(names) - tail_draws(mixed.plan, ODD))
        assert agree(mixed.read(FAST_LOGITS)[0], expected[end - 1])


def test_likelihoods_are_those_of_the_logits(device: Device) -> None:
    kernels = EXACT["llvmpipe"]
    single = decoder(device, kernels)
    logits = np.array([step(single, token, place) for place, token in enumerate(IDS)], dtype=np.float64)
    score = single.companion(chunks(device, kernels, 70, likelihoods=True), ("weight",))
    feed(score, IDS, 0, kernels.rows_per_draw)
    parts = np.stack([score.read(f"{SCORES}.{n}") for n in range(kernels.rows_per_draw)])
    likelihoods, likeliest, best = log_probabilities(in_turn(parts)[:69])
    expected = logits[np.arange(69), IDS[1:]] - np.log(np.exp(logits[:69]).sum(axis=1))
    assert np.abs(likelihoods - expected).max() <= 1e-5
    assert np.array_equal(likeliest, logits[:69].argmax(axis=1))
    assert np.abs(best - (logits[:69].max(axis=1) - np.log(np.exp(logits[:69]).sum(axis=1)))).max() <= 1e-5


@pytest.mark.slow
def test_several_sequences_are_scored_at_once(device: Device) -> None:
    """Each in whole slots from a multiple of 16 on, as if it were alone."""
    kernels = EXACT["llvmpipe"]
    plan = chunks(device, kernels, 64, likelihoods=True)
    session = Session(plan, Q8.folded, device)
    found, starts = [], (0, 16, 48)
    for runs in ([0], [1], [2], [0, 1, 2]):
        table = row_table(64)
        row = 0
        for number in runs:
            length = (16, 32, 16)[number]
            table[row : row + length, TOKEN] = IDS[starts[number] : starts[number] + length]
            table[row : row + length, POSITION] = np.arange(length)
            table[row : row + length, BASE] = row
            table[row : row + length, LAST] = length - 1
            row += length
        session.write(ROWS, table)
        slots = slots_for(row, 8)
        session.run({"rows": row, "row_slots": slots, "score_slots": slots, "strip_first": 0, "last_row": 0})
        found.append(in_turn(np.stack([session.read(f"{LOGITS}.{n}") for n in range(8)]))[:row])
    assert same(np.concatenate(found[:3]), found[3])


# A batch


PLACES = (62, 5, 0)
SEQUENCES = (IDS, IDS[::-1], IDS[3:40])
CHOICES = ((0, 1.0), (1, 0.8), (1, 1.7))


def batch_table(session: Session, turn: int) -> tuple[Array, dict[str, int]]:
    """One more token of each of three sequences, the first chosen greedily."""
    table = row_table(session.plan.table[ROWS].shape[0])
    for row, (start, ids) in enumerate(zip(PLACES, SEQUENCES, strict=True)):
        table[row, [TOKEN, POSITION, BASE]] = ids[start + turn], start + turn, 128 * row
        table[row, NOISE], table[row, NOISE_KEY] = CHOICES[row][0], noise_key(row, turn)
        table[row, INVERSE_TEMPERATURE] = np.float32(CHOICES[row][1]).view(np.uint32)
    groups = score_slots(PLACES[0] + turn + 1)
    return table, {"rows": 3, "score_slots": groups * len(table)}


def batched(device: Device, kernels: KernelOptions, subject: Subject = Q8) -> Session:
    size = device.limits.max_texture_size
    plan = batch_plan(
        PlanOptions(subject.config, **subject.options, kernels=kernels, max_texture_size=size),
        sequences=3,
        capacity=128,
    )
    return Session(plan, subject.folded, device)


def begin(session: Session, alone: Sequence[Session]) -> None:
    """Take over the caches of sequences that were begun alone."""
    for tensor in attention_caches(session):
        whole = np.zeros(tensor.shape, dtype=np.float32)
        for row, (start, each) in enumerate(zip(PLACES, alone, strict=True)):
            held = kept(each, tensor.name)[:start]
            whole[128 * row : 128 * row + start, : held.shape[1]] = held
        session.texture(tensor.name).upload(whole)


def begun(device: Device, kernels: KernelOptions, subject: Subject = Q8) -> list[Session]:
    first = decoder(device, kernels, subject)
    sessions = [first, first.sharer(), first.sharer()]
    for session, start, ids in zip(sessions, PLACES, SEQUENCES, strict=True):
        for place, token in enumerate(ids[:start]):
            step(session, token, place)
    return sessions


@tiered(
    ("name", "weights"),
    [("plain", "f32"), ("llvmpipe", "q8"), ("GPU", "q8l"), ("one by one", "q16"), ("small points", "q8")],
    keep=(1,),
)
def test_a_batch_agrees_with_float64_and_has_the_bits_of_sequences_alone(
    device: Device, name: str, weights: str
) -> None:
    """With quads and with sums that are shared out, too; the first grows into a second group of 64 tokens."""
    batch_is_right(device, KERNELS[name], gab(weights))


@pytest.mark.slow
@some_subjects
def test_a_batch_of_families_has_the_bits_of_sequences_alone(device: Device, name: str, family: str, form: str) -> None:
    batch_is_right(device, KERNELS[name], of_family(family, form))


def batch_is_right(device: Device, kernels: KernelOptions, subject: Subject) -> None:
    alone, session = begun(device, kernels, subject), batched(device, kernels, subject)
    begin(session, alone)
    same_order = not kernels.split_values  # a sequence alone shares values out, a batch does not
    caches = {
        tensor.name: np.array(session.read(tensor.name), dtype=np.float64) for tensor in session.plan.of_kind("cache")
    }
    for turn in range(4):
        table, values = batch_table(session, turn)
        compared(session, subject.folded, table, values, caches)
        logits = in_turn(np.stack([session.read(f"{LOGITS}.{n}") for n in range(kernels.rows_per_draw)]))
        picks = session.read(PICKS)
        for row, (each, start, ids) in enumerate(zip(alone, PLACES, SEQUENCES, strict=True)):
            noise, inverse = CHOICES[row]
            choice = {"noise": float(noise), "inverse_temperature": inverse, "noise_key": noise_key(row, turn)}
            expected = step(each, ids[start + turn], start + turn, **choice)
            assert agree(logits[row], expected, same_order=same_order), f"row {row}, turn {turn}"
            expected = each.read_rows(FAST_PICKS, start + turn)[0]
            assert best_candidate(picks[row]) == best_candidate(expected)
    for tensor in attention_caches(session):
        for row, (each, start) in enumerate(zip(alone, PLACES, strict=True)):
            found = kept(session, tensor.name)[128 * row : 128 * row + 128]
            assert agree(found[: start + 4], kept(each, tensor.name)[: start + 4], same_order=same_order)
            assert not found[start + 4 :].any(), "nothing else was stored"


def test_a_batch_goes_on_where_chunks_left_off(device: Device) -> None:
    """Both over one cache, each sequence's prompt at its own base."""
    kernels = EXACT["llvmpipe"]
    session, alone = batched(device, kernels), begun(device, kernels)
    size = device.limits.max_texture_size
    chunk = session.companion(
        chunk_plan(
            PlanOptions(ODD, weights="q8", kernels=kernels, max_texture_size=size), rows=70, cache_slots=384, every=128
        )
    )
    for row in (0, 1):
        table, values = table_of(chunk, SEQUENCES[row][: PLACES[row]], 0, kernels.rows_per_draw)
        table[:, BASE] = 128 * row
        chunk.write(ROWS, table)
        chunk.run({**values, "strip_first": 128 * row})
    table, values = batch_table(session, 0)
    session.write(ROWS, table)
    session.run(values)
    logits = in_turn(np.stack([session.read(f"{LOGITS}.{n}") for n in range(kernels.rows_per_draw)]))
    for row, (each, start, ids) in enumerate(zip(alone, PLACES, SEQUENCES, strict=True)):
        assert agree(logits[row], step(each, ids[start], start)), f"row {row}"


# What earlier runs left


@tiered("name", ["plain", "llvmpipe", "one by one"], keep=(1,))
def test_what_earlier_runs_left_changes_nothing(device: Device, name: str) -> None:
    """Activations full of NaN, and huge numbers in the caches after the last token."""
    kernels = KERNELS[name]
    session = Session(chunks(device, kernels, 40), Q8.folded, device)
    found = []
    for stale in (0.0, STALE):
        for tensor in session.plan.of_kind("cache"):
            texture = session.texture(tensor.name)
            texture.gl.write(poisoned(texture.layout, np.full(tensor.shape, stale, dtype=np.float32)))
        for tensor in session.plan.of_kind("activation"):
            session.texture(tensor.name).fill(np.nan if stale else 1.0)
        feed(session, IDS[:29], 0, kernels.rows_per_draw)
        feed(session, IDS[29:66], 29, kernels.rows_per_draw)
        found.append({name: cache[:66] for name, cache in caches_of(session).items()})
    assert all(same(found[0][name], found[1][name]) for name in found[0])


def test_other_tokens_give_other_results(device: Device) -> None:
    kernels = KERNELS["llvmpipe"]
    session = Session(chunks(device, kernels, 70), Q8.folded, device)
    feed(session, IDS, 0, kernels.rows_per_draw)
    first = caches_of(session)["h.1.attn.cache"]
    for place in (0, 7, 15, 16, 63, 64, 69):
        changed = [*IDS[:place], (IDS[place] + 1) % ODD.vocab_size, *IDS[place + 1 :]]
        feed(session, changed, 0, kernels.rows_per_draw)
        found = caches_of(session)["h.1.attn.cache"]
        assert same(found[:place], first[:place]), f"token {place} is seen by those before it"
        assert all(not same(found[row], first[row]) for row in range(place, 70)), f"token {place} is not seen"


# What is shared


def test_a_companion_shares_weights_caches_and_programs(device: Device) -> None:
    kernels = KERNELS["llvmpipe"]
    fast = decoder(device, kernels)
    plan = chunks(device, kernels, 40)
    chunk = fast.companion(plan)
    for tensor in plan.tensors:
        shared = tensor.kind in ("weight", "cache")
        assert (tensor.name in fast.plan.table and chunk.texture(tensor.name) is fast.texture(tensor.name)) is shared
    before = device.live_objects()
    again = fast.companion(plan, scratch=chunk)
    left = device.live_objects()
    assert (left["texture"], left["program"]) == (before["texture"], before["program"]), "nothing new but framebuffers"
    feed(again, IDS[:20], 0, kernels.rows_per_draw)
    expected = caches_of(chunk)
    again.release()
    chunk.release()
    assert all(same(cache, expected[name]) for name, cache in caches_of(fast).items() if name in expected)
    step(fast, IDS[20], 20)
    assert np.isfinite(fast.read(FAST_LOGITS)).all()
    fast.release()
    assert not device.live_objects()


def test_releasing_the_owner_releases_its_companions(device: Device) -> None:
    fast = decoder(device, KERNELS["plain"])
    chunk = fast.companion(chunks(device, KERNELS["plain"], 40))
    fast.release()
    assert not device.live_objects()
    with pytest.raises(PlanError, match=r"^this session of plan chunk was released; bind the plan again$"):
        chunk.read(ROWS)
    with pytest.raises(PlanError, match=r"^this session of plan fast was released; bind the plan again$"):
        fast.companion(chunks(device, KERNELS["plain"], 40))


def test_what_is_laid_out_otherwise_is_not_shared(device: Device) -> None:
    fast = decoder(device, KERNELS["plain"])
    plan = chunk_plan(
        PlanOptions(ODD, weights="q8", kernels=KernelOptions(), max_texture_size=2048), rows=40, cache_slots=64
    )
    alive = device.live_objects()
    message = r"^tensor h\.0\.attn\.cache of plan chunk is laid out otherwise where it is lent$"
    with pytest.raises(PlanError, match=message):
        fast.companion(plan)
    assert device.live_objects() == alive
    fast.companion(plan, ("weight",))
    with pytest.raises(PlanError, match=r"^tensor wte of plan chunk is laid out otherwise where it is lent$"):
        fast.companion(chunks(device, KernelOptions(), 40, gab("f32")))


MAKERS = ("texture", "framebuffer", "program", "vertex_array", "buffer", "simple_framebuffer", "renderbuffer")


def test_a_run_makes_nothing(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = KERNELS["llvmpipe"]
    chunk = Session(chunks(device, kernels, 40), Q8.folded, device)
    batch = batched(device, kernels)
    issued, alive = device.draws_issued, device.live_objects()

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a GL object was made, or a shader compiled, for a run")

    for maker in MAKERS:
        monkeypatch.setattr(moderngl.Context, maker, refuse)
    feed(chunk, IDS[:40], 0, kernels.rows_per_draw)
    feed(chunk, IDS[40:], 40, kernels.rows_per_draw)
    table, values = batch_table(batch, 0)
    batch.write(ROWS, table)
    batch.run(values)
    assert device.draws_issued - issued == 2 * (9 * 2 - 6 + 1) + 7 * 2 + 3
    assert device.live_objects() == alive


def test_within_what_webgl2_guarantees() -> None:
    """Four targets, no points larger than one pixel, no texture larger than 2048 texels."""
    with open_device(limits=Limits.webgl2_minimum()) as small:
        kernels = KernelOptions(rows_per_draw=4, largest_cell=4)
        folded, plan = Q8.folded, chunks(small, kernels, 40)
        session, caches = Session(plan, folded, small), dict[str, Array]()
        for start, end in ((0, 33), (33, 70)):
            table, values = table_of(session, IDS[start:end], start, 4)
            compared(session, folded, table, values, caches)


def test_points_larger_than_the_renderers_are_refused_before_anything_is_made() -> None:
    with open_device(limits=Limits.webgl2_minimum()) as device:
        kernels = KernelOptions(cover="points", largest_cell=4)
        with pytest.raises(PlanError, match=r"^draw embed draws points of 16×16 pixels; this renderer allows 1$"):
            Session(chunks(device, kernels, 40), Q8.folded, device)
        assert not device.live_objects()
