"""Plans over many rows end to end: draw by draw against float64, and to the last bit against a token at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from agreement import agree, same_bits
from block_draw import KERNELS as FORMS
from block_draw import promised_norms
from one_draw import in_turn
from subjects import ODD, Subject, gab, of_family
from tiers import tiered

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout
from glinfer.kernels import DrawSpec
from glinfer.kernels.fused.cached import score_slots
from glinfer.kernels.fused.rows import (
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
from glinfer.kernels.fused.sample import best_candidate
from glinfer.kernels.noise import noise_key
from glinfer.kernels.options import KernelOptions, default_kernels
from glinfer.kernels.spec import Array, TensorSpec
from glinfer.lower.fused.caches import delta_layers
from glinfer.lower.fused.rows import LOGITS, PICKS, ROWS, batch_plan, chunk_plan, drafted_plan, slots_for
from glinfer.lower.fused.token import LOGITS as FAST_LOGITS
from glinfer.lower.fused.token import PICKS as FAST_PICKS
from glinfer.lower.fused.token import fast_plan
from glinfer.program.oracle import relative_error, run_plan, written_rows
from glinfer.program.plan import Plan
from glinfer.program.session import Session

pytestmark = pytest.mark.gl

KERNELS = {"default": default_kernels("llvmpipe", 255.0), **FORMS}
DEFAULT = KERNELS["default"]
FLOATS = gab("f32", ModelConfig(37, 64, 4, 2, 70, 128))
"""Whose programs are those of other models with four heads."""
IDS = [int(token) for token in np.random.default_rng(4).integers(0, ODD.vocab_size, 70)]
TOLERANCE = 1e-5
# A sum that decoding shares out, it adds up in another order than a chunk does.
EXACT = {name: KERNELS[name] for name in ("default", "llvmpipe", "one by one", "mantissa, one by one")}


def decoder(device: Device, kernels: KernelOptions, subject: Subject = FLOATS) -> Session:
    """The fast plan, a token a run."""
    return Session(fast_plan(subject.options(kernels, device)), subject.folded, device)


def chunks(device: Device, kernels: KernelOptions, rows: int, subject: Subject = FLOATS, **further: Any) -> Plan:
    """For the caches of the fast plan."""
    slots = 64 * score_slots(subject.config.max_position_embeddings)
    return chunk_plan(subject.options(kernels, device), rows=rows, cache_slots=slots, **further)


def step(session: Session, token: int, position: int, **choice: Any) -> Array:
    session.run({**session.plan.values_for(position + 1), "token": token, **choice})
    return np.array(session.read(FAST_LOGITS)[0])


def table_of(session: Session, ids: Sequence[int], position: int, targets: int) -> tuple[Array, Mapping[str, float]]:
    """The table and the run values of tokens that follow each other."""
    table, slots = row_table(session.plan.table[ROWS].shape[0]), slots_for(len(ids), targets)
    table[: len(ids), TOKEN] = ids
    table[: len(ids), WANTED] = [*ids[1:], 0]
    table[:, POSITION] = position + np.arange(len(table))
    table[:, LAST] = position + len(ids) - 1
    inputs = {"rows": len(ids), "longest": position + slots * targets, "strip_first": position}
    return table, session.plan.values(inputs)


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
        if spec.op == "delta_fold":
            return np.ones(found.shape, bool)
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
    ("name", "subject", "likelihoods"),
    [
        ("default", FLOATS, True),
        ("llvmpipe", gab("q8"), False),
        ("one by one", gab("q16"), True),
        ("mantissa", gab("q8l", gelu="erf"), True),
        ("small points", gab("f16"), False),
        # Heads that share keys or are normalised, windows, gates, experts, delta rules, means and packed tables.
        ("llvmpipe", of_family("qwen3", "Q8_0"), True),
        ("one by one", of_family("gpt2", "Q4_0"), False),
        ("mantissa, one by one", of_family("mistral", "mixed"), True),
        ("llvmpipe", of_family("gemma", "Q5_1"), False),
        ("one by one", of_family("llama", "Q4_K"), True),
        ("default", of_family("qwen3_next", ""), True),
        ("plain", of_family("gpt_oss", "MXFP4"), True),
    ],
    ids=lambda value: f"{value.config.model_type}-{value.weights}" if isinstance(value, Subject) else str(value),
)
def test_every_draw_agrees_with_float64(device: Device, name: str, subject: Subject, likelihoods: bool) -> None:
    kernels = KERNELS[name]
    plan = chunks(device, kernels, 32, subject, likelihoods=likelihoods)
    session, caches = Session(plan, subject.folded, device), dict[str, Array]()
    for start, end in ((0, 5), (5, 6), (6, 38), (38, 70)):
        table, values = table_of(session, IDS[start:end], start, kernels.rows_per_draw)
        compared(session, subject.folded, table, values, caches)
    for cache, found in caches_of(session).items():
        assert relative_error(found[:70], caches[cache][:70, : found.shape[1]]) <= TOLERANCE
        assert not found[70:].any(), "a row that is nobody's was stored"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "family", "form"), [("GPU", "mistral", "Q4_0"), ("mantissa", "qwen3", "")])
def test_every_draw_of_drafted_rows_agrees_with_float64(device: Device, name: str, family: str, form: str) -> None:
    """With the sums shared out where the kernels share out those of a single row."""
    subject, kernels = of_family(family, form), KERNELS[name]
    plan, caches = drafted_plan(subject.options(kernels, device), rows=16, cache_slots=128), dict[str, Array]()
    session = Session(plan, subject.folded, device)
    for start, end in ((0, 4), (4, 20), (20, 36), (36, 52), (52, 66), (66, 69)):
        table, values = table_of(session, IDS[start:end], start, kernels.rows_per_draw)
        fill_choices(table, [(noise_key(3, place), 0.8) if place % 2 else None for place in range(end - start)])
        compared(session, subject.folded, table, values, caches)
    shared_out = [draw.name for draw in plan.draws if draw.instances != 1]
    assert bool(shared_out) == (kernels.split_values or (kernels.part_steps > 0 and kernels.blends))


@tiered(
    ("name", "subject"),
    [
        ("default", FLOATS),
        ("llvmpipe", gab("q8")),
        ("one by one", of_family("gpt2", "Q4_0")),
        ("mantissa, one by one", of_family("mistral", "mixed")),
        ("default", of_family("qwen3_next", "")),
    ],
    ids=["default", "llvmpipe", "gpt2", "mistral", "qwen3_next"],
)
def test_chunks_have_the_bits_of_single_tokens(device: Device, name: str, subject: Subject) -> None:
    """In whatever pieces they come; and what is decoded after them has, too.

    But for delta rules, whose corrections are solved for all rows of a piece together, in other sums.
    """
    if "llvmpipe" not in device.renderer:
        pytest.skip("compilers of other renderers may join a product and a sum in one shader and not in the other")
    kernels, alike = EXACT[name], nearly_same if delta_layers(subject.config) else same_bits
    single, mixed = decoder(device, kernels, subject), decoder(device, kernels, subject)
    expected = [step(single, token, place) for place, token in enumerate(IDS)]
    chunk = mixed.companion(chunks(device, kernels, 32, subject))
    feed(chunk, IDS[:31], 0, kernels.rows_per_draw)
    step(mixed, IDS[31], 31)
    feed(chunk, IDS[32:58], 32, kernels.rows_per_draw)
    feed(chunk, IDS[58:63], 58, kernels.rows_per_draw)
    feed(chunk, IDS[63:69], 63, kernels.rows_per_draw)
    assert alike(step(mixed, IDS[69], 69), expected[69])
    ours, theirs = caches_of(mixed), caches_of(single)
    for cache in caches_of(chunk):
        assert alike(ours[cache], theirs[cache]), cache


# A batch


PLACES = (62, 5, 0)
SEQUENCES = (IDS, IDS[::-1], IDS[3:40])
CHOICES = ((0, 1.0), (1, 0.8), (1, 1.7))


def batch_table(session: Session, turn: int) -> tuple[Array, Mapping[str, float]]:
    """One more token of each of three sequences, the first chosen greedily."""
    table = row_table(session.plan.table[ROWS].shape[0])
    for row, (start, ids) in enumerate(zip(PLACES, SEQUENCES, strict=True)):
        table[row, [TOKEN, POSITION, BASE]] = ids[start + turn], start + turn, 128 * row
        table[row, NOISE], table[row, NOISE_KEY] = CHOICES[row][0], noise_key(row, turn)
        table[row, INVERSE_TEMPERATURE] = np.float32(CHOICES[row][1]).view(np.uint32)
    return table, session.plan.values({"rows": 3, "longest": PLACES[0] + turn + 1})


def batched(device: Device, kernels: KernelOptions, subject: Subject) -> Session:
    plan = batch_plan(subject.options(kernels, device), sequences=3, capacity=128)
    return Session(plan, subject.folded, device)


def begin(session: Session, alone: Sequence[Session]) -> None:
    """Take over the caches of sequences that were begun alone."""
    for tensor in attention_caches(session):
        whole = np.zeros(tensor.shape, dtype=np.float32)
        for row, (start, each) in enumerate(zip(PLACES, alone, strict=True)):
            held = kept(each, tensor.name)[:start]
            whole[128 * row : 128 * row + start, : held.shape[1]] = held
        session.texture(tensor.name).upload(whole)


def begun(device: Device, kernels: KernelOptions, subject: Subject) -> list[Session]:
    first = decoder(device, kernels, subject)
    sessions = [first, first.sharer(), first.sharer()]
    for session, start, ids in zip(sessions, PLACES, SEQUENCES, strict=True):
        for place, token in enumerate(ids[:start]):
            step(session, token, place)
    return sessions


@tiered(
    ("name", "subject"),
    [
        ("default", FLOATS),
        ("GPU", gab("q8l")),
        ("one by one", gab("q16")),
        ("llvmpipe", of_family("qwen3", "Q8_0")),
        ("plain", of_family("gpt_oss", "MXFP4")),
    ],
    ids=["default", "GPU", "one by one", "qwen3", "gpt_oss"],
)
def test_a_batch_agrees_with_float64_and_has_the_bits_of_sequences_alone(
    device: Device, name: str, subject: Subject
) -> None:
    """With quads and with sums that are shared out, too; the first grows into a second group of 64 tokens."""
    kernels = KERNELS[name]
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


# What is shared


def test_a_companion_shares_weights_caches_and_programs(device: Device) -> None:
    kernels = DEFAULT
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
    assert all(same_bits(cache, expected[name]) for name, cache in caches_of(fast).items() if name in expected)
    step(fast, IDS[20], 20)
    assert np.isfinite(fast.read(FAST_LOGITS)).all()
    fast.release()
    assert not device.live_objects()


def test_what_is_laid_out_otherwise_is_not_shared(device: Device) -> None:
    fast = decoder(device, DEFAULT)
    plan = chunk_plan(FLOATS.options(DEFAULT, device), rows=40, cache_slots=64)
    alive = device.live_objects()
    message = r"^tensor h\.0\.attn\.cache of plan chunk is laid out otherwise where it is lent$"
    with pytest.raises(PlanError, match=message):
        fast.companion(plan)
    assert device.live_objects() == alive
    fast.companion(plan, ("weight",))
    with pytest.raises(PlanError, match=r"^tensor wte of plan chunk is laid out otherwise where it is lent$"):
        fast.companion(chunks(device, DEFAULT, 40, gab("q8", FLOATS.config)))
