"""Prompts taken in by chunks: the same numbers as token by token, whatever the chunks, and nothing left behind."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import agree
from goldens import ModelWriter, gab_records
from made_models import IDS as FAMILY_IDS
from made_models import of_family, opened
from scripted_models import random_file
from tiers import tiered
from tiny_models import in_floats, tiny

import glinfer
from glinfer.engine.cached import CachedSession
from glinfer.engine.decode import DecodeSession
from glinfer.engine.model import Model
from glinfer.engine.prefill import MAX_SINGLE_TOKENS
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.errors import PlanError
from glinfer.formats import save_checkpoint
from glinfer.gl.context import Limits, open_device
from glinfer.models.session import Session
from glinfer.models.tuning import default_for
from glinfer.ops.kernels import KernelOptions
from glinfer.quant.formats import WEIGHT_FORMATS

pytestmark = [pytest.mark.gl, pytest.mark.usefixtures("chunk_at_once")]

CONTEXT = 90
ODD = f"vocab=131,dim=30,heads=3,blocks=2,context={CONTEXT}"
WHOLE = 4096
Floats = np.ndarray[Any, Any]


def some_ids(count: int, vocab: int, seed: int = 1) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, vocab, count).tolist()
    return found


IDS = some_ids(CONTEXT, 131)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose every size is odd."""
    return random_file(tmp_path_factory.mktemp("odd") / "odd.gab", ODD, seed=4)


@pytest.fixture
def model(odd: Path) -> Iterator[Model]:
    with with_kernels(odd, chunk=16) as opened:
        yield opened


def with_kernels(path: Path | str, **kernels: Any) -> Model:
    """A model with the device's own kernels, but for some of them."""
    device = open_device()
    try:
        shaped = dataclasses.replace(default_for(device), **kernels)
    finally:
        device.close()
    return glinfer.load(path, kernels=shaped)


def stepped(model: Model, ids: list[int]) -> Floats:
    """The logits after tokens that were run one by one."""
    with model.session() as session:
        for token in ids:
            session.step(token)
        assert isinstance(session, CachedSession)
        assert not session._chunks, "the fast plan alone"
        return session.logits()


def chunked(model: Model, ids: list[int]) -> Floats:
    """The logits after tokens that came as one prompt."""
    with model.session() as session:
        session.prefill(ids)
        assert isinstance(session, CachedSession)
        assert bool(session._chunks) == (len(ids) > MAX_SINGLE_TOKENS)
        return session.logits()


@pytest.fixture
def chunk_runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(position of the first token, how many tokens) of every run of the plan ``chunk``."""
    seen: list[tuple[int, int]] = []
    run = Session.run

    def spy(self: Session, values: Any, **options: Any) -> int:
        if self.plan.name == "chunk":
            seen.append((values["strip_first"], values["rows"]))
        return run(self, values, **options)

    monkeypatch.setattr(Session, "run", spy)
    return seen


class TestTheSameNumbers:
    @tiered("size", [1, 7, 64, WHOLE], keep=(1,))
    def test_whatever_the_chunks(self, odd: Path, size: int) -> None:
        with with_kernels(odd, chunk=size) as model:
            for tokens in (MAX_SINGLE_TOKENS + 1, 17, CONTEXT):
                assert agree(chunked(model, IDS[:tokens]), stepped(model, IDS[:tokens])), tokens

    @pytest.mark.slow
    def test_every_length_of_a_short_prompt(self, model: Model) -> None:
        for tokens in range(1, 26):
            ids = some_ids(tokens, 131, seed=tokens)
            assert agree(chunked(model, ids), stepped(model, ids)), tokens

    @pytest.mark.slow
    def test_of_the_bundled_model(self) -> None:
        ids = some_ids(70, 400, seed=3)
        expected = None
        for size in (7, 64, WHOLE, 1):
            with with_kernels("shakespeare", chunk=size) as model:
                expected = stepped(model, ids) if expected is None else expected
                assert agree(chunked(model, ids), expected), size

    @pytest.mark.slow
    @tiered(
        "kernels",
        [
            {"rows_per_draw": 4, "blends": False},
            {"rows_per_draw": 1, "chunk": 5},
            {"rows_per_draw": 2, "blends": True},
            {"rows_per_draw": 8, "blends": True, "largest_cell": 1},
            {"rows_per_draw": 8, "blends": True, "largest_cell": 4},
            {"rows_per_draw": 8, "blends": True, "cover": "points", "tiles": 4, "largest_cell": 3},
            {"quad": False, "rows_per_draw": 8, "blends": True},
            {"tiles": 3, "pitch": 96, "lookup_texture": True, "chunk": 9},
        ],
        keep=(0, 6),
        ids=str,
    )
    def test_with_other_kernels(self, odd: Path, kernels: dict[str, Any]) -> None:
        weights = "q8" if kernels.get("rows_per_draw", 4) % 8 else "f32"
        with glinfer.load(odd, kernels=KernelOptions(**kernels), weights=weights) as model:
            for tokens in (6, 41):
                assert agree(chunked(model, IDS[:tokens]), stepped(model, IDS[:tokens])), tokens

    @pytest.mark.slow
    def test_where_the_fast_plan_adds_up_parts_the_sums_are_others(self, odd: Path) -> None:
        """The chunk plan has no parts: its sums have another order, and the last bits may differ."""
        kernels = KernelOptions(rows_per_draw=8, blends=True, part_steps=2, split_values=True)
        with glinfer.load(odd, kernels=kernels) as model:
            expected = stepped(model, IDS[:73])
            np.testing.assert_allclose(chunked(model, IDS[:73]), expected, rtol=0, atol=2e-6)

    @tiered("chunk", [7, 512], keep=0)
    def test_within_the_limits_of_webgl2(self, odd: Path, chunk: int) -> None:
        with glinfer.load(odd, limits=Limits.webgl2_minimum()) as model:
            shaped = dataclasses.replace(model.kernels, chunk=chunk)
            assert (shaped.cover, shaped.rows_per_draw) == ("quads", 4)
        with glinfer.load(odd, limits=Limits.webgl2_minimum(), kernels=shaped) as model:
            for tokens in (5, CONTEXT):
                assert agree(chunked(model, IDS[:tokens]), stepped(model, IDS[:tokens]))

    @tiered("weights", list(WEIGHT_FORMATS), keep=(0, 1))
    def test_in_every_weight_format(self, small: Path, weights: str) -> None:
        ids = some_ids(64, 300)
        with glinfer.load(small, weights=weights) as model:
            assert agree(chunked(model, ids), stepped(model, ids))

    @tiered("family", ["mistral", "qwen3", "gemma", "gift_of_gab", "gpt2"], keep=0)
    @pytest.mark.parametrize("size", [7, 64])
    def test_of_every_family(self, family: str, size: int) -> None:
        made = of_family(family, sliding_window=9 if family == "mistral" else 0)
        with opened(made) as model:
            model.engine._prefill.kernels = dataclasses.replace(model.kernels, chunk=size)  # type: ignore[attr-defined]
            for tokens in (6, 48):
                assert agree(chunked(model, FAMILY_IDS[:tokens]), stepped(model, FAMILY_IDS[:tokens])), tokens

    @tiered(
        "options",
        [
            "vocab=3,dim=1,heads=1,blocks=1,context=5",
            "vocab=20,dim=8,heads=1,blocks=1,context=4",
            "vocab=20,dim=65,heads=5,blocks=3,context=70",
        ],
        keep=0,
    )
    def test_of_other_shapes(self, tmp_path: Path, options: str) -> None:
        with glinfer.load(random_file(tmp_path / "other.gab", options, seed=2)) as model:
            ids = some_ids(model.config.max_position_embeddings, model.config.vocab_size)
            assert agree(chunked(model, ids), stepped(model, ids))


@tiered(("name", "chunk"), [("tiny", 3), ("odd", 3), ("odd", 512), ("full", 512)], keep=(0, 2))
def test_goldens_through_chunks(golden_model: ModelWriter, name: str, chunk: int) -> None:
    longest = 0
    with with_kernels(golden_model(name), chunk=chunk) as model:
        for record in gab_records(name):
            with model.session() as session:
                session.prefill(record["tokens"])
                probs = session.probs()
                assert isinstance(session, CachedSession)
                longest = max(longest, len(record["tokens"]))
                assert bool(session._chunks) == (len(record["tokens"]) > MAX_SINGLE_TOKENS)
            assert int(probs.argmax()) == record["argmax"]
            for key in ("webgl_probs", "cpu_probs"):
                if key in record:
                    assert np.abs(probs - np.array(record[key])).max() <= 5e-6
    assert longest > MAX_SINGLE_TOKENS


@pytest.mark.slow
def test_a_context_beyond_any_edge_of_a_texture(tmp_path: Path) -> None:
    """4,500 tokens: more than 2048 or 4096 texels in a line, and more scores than fit a texture in one chunk."""
    path = random_file(tmp_path / "long.gab", "vocab=40,dim=16,heads=2,blocks=2,context=4500")
    ids, found = some_ids(4400, 40), []
    for limits in (None, Limits.webgl2_minimum()):
        with glinfer.load(path, limits=limits) as model:
            found.append(chunked(model, ids))
            assert np.isfinite(found[-1]).all()
            rows = model.engine._prefill.plan().max_rows
            assert rows == (512 if limits is None else 256), "or this test shows nothing of smaller chunks"
            assert model.generate([ids, ids[:9]], max_tokens=3, temperature=0)[0] == model.generate(
                ids, max_tokens=3, temperature=0
            )
            assert len(model.score([ids])[0].logprobs) == 4399
    assert agree(found[0], found[1])
    with with_kernels(path, chunk=700) as model:
        assert agree(chunked(model, ids), found[0])


class TestSessions:
    """All with chunks of 16 tokens."""

    @tiered("tokens", [4, 16, 17], keep=(2,))
    @tiered(
        "options",
        [SamplingOptions(temperature=0), SamplingOptions(seed=5), SamplingOptions(top_k=9, seed=6)],
        ids=str,
        keep=(2,),
    )
    def test_what_is_chosen_after_a_prompt(self, model: Model, tokens: int, options: SamplingOptions) -> None:
        with model.session() as session, model.session() as other:
            session.prefill(IDS[:tokens])
            for token in IDS[:tokens]:
                other.step(token)
            assert session.generate_ids(20, Sampler(options)) == other.generate_ids(20, Sampler(options))
            assert agree(session.logits(), other.logits())

    def test_only_what_is_new_is_run(self, model: Model, chunk_runs: list[tuple[int, int]]) -> None:
        with model.session() as session:
            session.hold(IDS[:50])
            assert chunk_runs == [(0, 16), (16, 16), (32, 16), (48, 2)]
            chunk_runs.clear()
            ids = [*IDS[:20], *some_ids(30, 131, seed=2)]
            session.hold(ids)
            assert chunk_runs == [(20, 16), (36, 14)]
            assert agree(session.logits(), stepped(model, ids))
            chunk_runs.clear()
            session.hold([*ids, 7, 8, 9])
            assert chunk_runs == [], "two are run, one by one, and the last one waits"
            session.hold([*ids, 7, 8, 9, 10, 11, 12, 13])
            assert chunk_runs == [(52, 5)]
            assert agree(session.logits(), stepped(model, [*ids, 7, 8, 9, 10, 11, 12, 13]))

    def test_the_model_itself_keeps_what_prompts_share(self, model: Model, chunk_runs: list[tuple[int, int]]) -> None:
        model.generate(IDS[:40], max_tokens=3)
        chunk_runs.clear()
        model.generate([*IDS[:30], *IDS[:20]], max_tokens=1)
        assert chunk_runs == [(30, 16), (46, 4)]

    @tiered("chunk", [7, WHOLE])
    @tiered("tokens", [CONTEXT, CONTEXT + 1, 3 * CONTEXT], keep=(2,))
    def test_more_than_the_context_holds(self, odd: Path, chunk: int, tokens: int) -> None:
        ids = some_ids(tokens, 131, seed=tokens)
        with with_kernels(odd, chunk=chunk) as model, model.session() as session, model.session() as other:
            session.prefill(ids)
            for token in ids:
                other.step(token)
            assert (session.ids, session.dropped) == (other.ids, other.dropped)
            assert (session.dropped > 0) == (tokens > CONTEXT)
            assert agree(session.logits(), other.logits())
            assert session.generate_ids(9) == other.generate_ids(9)

    def test_a_prompt_of_exactly_the_context(self, model: Model) -> None:
        with model.session() as session:
            session.prefill(IDS)
            assert (len(session), session.dropped, session.room) == (CONTEXT, 0, 1)
            expected = stepped(model, IDS)
            assert session.generate_ids(1) == [int(expected.argmax())]
            assert session.dropped == 0
            session.generate_ids(1)
            assert session.dropped == CONTEXT // 2

    @tiered("count", [1, 13, 16, 39], keep=(2,))
    def test_a_rewind_into_a_chunk(self, model: Model, count: int) -> None:
        with model.session() as session:
            session.prefill(IDS[:40])
            session.rewind(count)
            assert agree(session.logits(), stepped(model, IDS[: 40 - count]))
            new = some_ids(20, 131, seed=count)
            session.prefill(new)
            assert agree(session.logits(), stepped(model, [*IDS[: 40 - count], *new]))

    def test_an_interrupt_between_chunks_leaves_what_is_true(
        self, model: Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = stepped(model, IDS[:60])
        run = Session.run
        for fatal in range(4):
            left = [fatal]

            def interrupted(self: Session, *given: Any, _left: list[int] = left, **named: Any) -> int:
                if _left[0] == 0:
                    raise KeyboardInterrupt
                _left[0] -= 1
                return run(self, *given, **named)

            with model.session() as session:
                monkeypatch.setattr(Session, "run", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    session.prefill(IDS[:60])
                monkeypatch.setattr(Session, "run", run)
                session.hold(IDS[:60])
                assert agree(session.logits(), expected)

    @pytest.mark.slow
    def test_two_models_on_one_device(self, odd: Path, small: Path) -> None:
        other_ids = some_ids(60, 300)
        with open_device() as device:
            with glinfer.load(odd, device=device) as one, glinfer.load(small, device=device) as two:
                expected = stepped(one, IDS[:60]), stepped(two, other_ids)
                with one.session() as first, two.session() as second:
                    for start in range(0, 60, 20):
                        first.prefill(IDS[start : start + 20])
                        second.prefill(other_ids[start : start + 20])
                    assert agree(second.logits(), expected[1])
                    two.close()
                    assert agree(first.logits(), expected[0])
                    first.prefill(some_ids(10, 131))
                    first.logits()
            assert sum(device.live_objects().values()) == 0


class TestSharing:
    """The chunk plan's scratch textures serve all sequences of a model; the first one that needed them may go."""

    @pytest.mark.parametrize("own", [False, True], ids=["made by the fork", "made by the model before"])
    def test_forks_close_in_any_order(self, model: Model, own: bool) -> None:
        if own:
            model.logits(IDS[:20])
        for order in itertools.permutations(range(3)):
            first = model.session()
            first.prefill(IDS[:20])
            second = first.fork()
            second.prefill(IDS[20:40])
            sessions = [first, second, second.fork()]
            sessions[2].prefill(IDS[:10])
            for place in order:
                sessions[place].close()
                for number, session in enumerate(sessions):
                    if not session.closed:
                        held = session.ids
                        new = some_ids(5, 131, seed=number)
                        session.prefill(new)
                        assert agree(session.logits(), stepped(model, [*held, *new]))
        assert agree(model.logits(IDS[:33]), stepped(model, IDS[:33])), "the model itself goes on"

    def test_sequences_that_come_and_go_leave_nothing(self, model: Model) -> None:
        def use() -> None:
            with model.session() as session:
                session.prefill(IDS[:30])
                with session.fork() as other:
                    other.prefill(IDS[:30])
                    session.logits()

        use()  # makes what is made once: programs and scratch textures
        alive, sharers = model.device.live_objects(), len(model.bound._sharers)
        for _ in range(3):
            use()
        assert model.device.live_objects() == alive
        assert len(model.bound._sharers) == sharers

    def test_a_session_without_a_prompt_makes_no_chunk_plan(self, model: Model) -> None:
        with model.session() as session:
            before = model.device.live_objects()
            session.prefill(IDS[:MAX_SINGLE_TOKENS])
            session.logits()
            assert model.device.live_objects() == before
            session.hold(IDS[40:50])
            assert model.device.live_objects() != before

    def test_after_the_model_is_closed(self, odd: Path) -> None:
        uses: list[Callable[[DecodeSession], Any]] = [lambda one: one.prefill(IDS[:9]), lambda one: one.hold(IDS[30:])]
        with open_device() as device:
            model = glinfer.load(odd, device=device)
            used, unused = model.session(), model.session()
            used.prefill(IDS[:20])
            model.close()
            assert sum(device.live_objects().values()) == 0
            for session, use in itertools.product((used, unused), uses):
                with pytest.raises(PlanError, match="was released; bind the plan again"):
                    use(session)
            used.close()
            unused.close()


def test_short_prompts_of_experts_have_a_plan_of_their_own(tmp_path: Path) -> None:
    """Each row by itself there, and rows of one expert together in the other: the same bits on llvmpipe."""
    config = tiny("qwen3_moe", hidden_size=96, intermediate_size=96, max_position_embeddings=128)
    save_checkpoint(in_floats(config), tmp_path / "model.safetensors")
    ids = some_ids(100, config.vocab_size)
    with with_kernels(tmp_path / "model.safetensors", product_table="llvmpipe", rows_per_draw=4) as model:
        prefill = model.engine._prefill
        few = prefill.rows_for(1)
        assert 9 < few < 100, "or this test shows nothing"
        assert [prefill.rows_for(tokens) for tokens in (few, few + 1)] == [few, 128]
        for tokens, rows in ((9, few), (100, 128)):
            together = any(draw.op == "expert_gemm" for draw in prefill.plan(rows).draws)
            assert together == (rows == 128)
            with model.session() as session, model.session() as alone:
                session.prefill(ids[:tokens])
                found = session.logits()
                assert set(session._chunks) == {rows}
                for token in ids[:tokens]:
                    alone.step(token)
                assert agree(found, alone.logits())
        assert model.generate([ids, ids[:9]], max_tokens=3, temperature=0) == [
            model.generate(each, max_tokens=3, temperature=0) for each in (ids, ids[:9])
        ]
