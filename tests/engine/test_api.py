"""The Python API as a user meets it: text, ids, streams, closing, several models at once, the short forms."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_models import BYTES, FAST_SMALL_DRAWS, FAST_TAIL_DRAWS, SMALL, SMALL_DRAWS, random_file, saying
from tiers import tiered

import glinfer
from glinfer.engine.model import Model
from glinfer.engine.random_model import demo_tokenizer
from glinfer.errors import ContextError, FormatError, InputError, PlanError
from glinfer.formats import save_checkpoint, write_bpe
from glinfer.gl.context import Limits, open_device
from glinfer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.gl

PROMPT = [13, 132, 251, 70]


def speaker(path: Path, data: bytes | list[int], *, after: int, **shape: Any) -> Path:
    """Write a model that says exactly ``data`` after ``after`` tokens, with the tokenizer of bytes beside it."""
    save_checkpoint(saying(list(data), after=after, **shape), path)
    write_bpe(BYTES, path.with_suffix(".bpe"))
    return path


class TestGenerating:
    def test_text_gives_text_and_ids_give_ids(self, small: Path) -> None:
        with glinfer.load(small) as model:
            assert model.tokenizer is not None
            text = model.generate("Once upon", max_tokens=8, temperature=0, stop_ids=[])
            ids = model.generate(model.tokenizer.encode("Once upon"), max_tokens=8, temperature=0)
            assert isinstance(text, str)
            assert text == model.tokenizer.decode(ids)
            assert all(type(token) is int for token in ids)

    def test_the_pieces_of_a_stream_join_to_what_generate_gives(self, small: Path) -> None:
        with glinfer.load(small) as model:
            for seed in range(3):
                whole = model.generate("Once upon", max_tokens=12, seed=seed)
                pieces = list(model.stream("Once upon", max_tokens=12, seed=seed))
                assert "".join(pieces) == whole
                assert "" not in pieces

    def test_equal_seeds_give_equal_tokens_and_others_others(self, small: Path) -> None:
        with glinfer.load(small) as model:
            runs = [tuple(model.generate(PROMPT, max_tokens=12, seed=seed)) for seed in (1, 1, 2, 3)]
            assert runs[0] == runs[1]
            assert len(set(runs)) == 3

    def test_a_seed_gives_the_same_after_loading_again(self, small: Path) -> None:
        runs = set()
        for _ in range(2):
            with glinfer.load(small) as model:
                model.generate([5], max_tokens=2)
                runs.add(tuple(model.generate(PROMPT, max_tokens=12, seed=7)))
        assert len(runs) == 1

    def test_no_seed_is_a_new_one_each_time(self, small: Path) -> None:
        with glinfer.load(small) as model:
            assert len({tuple(model.generate(PROMPT, max_tokens=12)) for _ in range(4)}) > 1

    def test_greedy_takes_the_argmax_and_needs_no_seed(self, small: Path) -> None:
        with glinfer.load(small) as model:
            sequence = list(PROMPT)
            for _ in range(6):
                sequence.append(int(model.logits(sequence).argmax()))
            for seed in (None, 1, 2):
                assert model.generate(PROMPT, max_tokens=6, temperature=0, seed=seed) == sequence[4:]
            assert model.generate(PROMPT, max_tokens=6, top_k=1, seed=3) == sequence[4:]

    def test_probabilities_are_the_softmax_of_the_logits(self, small: Path) -> None:
        with glinfer.load(small) as model:
            logits, probs = model.logits(PROMPT).astype(np.float64), model.probs(PROMPT)
        expected = np.exp(logits - logits.max())
        np.testing.assert_allclose(probs, expected / expected.sum(), rtol=1e-5)
        assert abs(float(probs.sum()) - 1) < 1e-5

    def test_results_are_copies_that_later_runs_do_not_change(self, small: Path) -> None:
        with glinfer.load(small) as model:
            first = model.logits([5])
            kept = first.copy()
            first_probs = model.probs([5])
            model.logits([6, 7, 8])
            assert np.array_equal(first, kept)
            first[:] = 0
            assert np.array_equal(model.logits([5]), kept)
            assert np.array_equal(model.probs([5]), first_probs)

    def test_what_a_longer_sequence_left_does_not_reach_a_shorter_one(self, small: Path) -> None:
        with glinfer.load(small) as model:
            fresh = model.logits(PROMPT)
            model.logits(list(range(100, 164)))
            assert np.array_equal(model.logits(PROMPT), fresh)

    @tiered(("options", "draws"), [(SMALL, SMALL_DRAWS), ("", 244)])
    def test_draws_by_formula_by_plan_and_issued(self, small: Path, full_file: Path, options: str, draws: int) -> None:
        with glinfer.load(full_file if options == "" else small, plan="reference") as model:
            shape = model.config
            assert shape.num_hidden_layers * (8 + 4 * shape.num_attention_heads) + 4 == draws
            assert model.draws().total == int(model.draws(5)) == draws
            assert sum(row.count for row in model.draws().rows) == draws
            assert model.forward(PROMPT) == draws
            stream = model.stream(PROMPT, max_tokens=2)
            list(stream)
            assert stream.stats.draws_per_token == draws
            assert stream.stats.prompt_draws == 0

    @pytest.mark.usefixtures("chunk_at_once")
    @tiered(("options", "draws"), [(SMALL, FAST_SMALL_DRAWS), ("", 39)])
    def test_draws_of_the_fast_plan(self, small: Path, full_file: Path, options: str, draws: int) -> None:
        with glinfer.load(full_file if options == "" else small) as model:
            assert 6 * model.config.num_hidden_layers + 3 == draws
            chunk_draws = 9 * model.config.num_hidden_layers - 4
            assert model.draws().total == int(model.draws(5)) == draws
            assert sum(row.count for row in model.draws().rows) == draws
            for max_tokens in (1, 4):
                stream = model.stream([*PROMPT, max_tokens], max_tokens=max_tokens)
                before = model.device.draws_issued
                list(stream)
                if max_tokens == 1:
                    # The prompt was a chunk, its last token too as far as a chunk goes: the rest of that one is left.
                    assert (stream.stats.draws, stream.stats.prompt_draws) == (FAST_TAIL_DRAWS, chunk_draws)
                else:
                    assert stream.stats.draws_per_token == draws
                issued = model.device.draws_issued - before
                assert issued == stream.stats.draws + stream.stats.prompt_draws
            # Of the second prompt only the last token was new: it counts as the first one generated.
            assert stream.stats.prompt_draws == 0
            context = model.config.max_position_embeddings
            if context <= 64:
                list(stream := model.stream([7] * context, max_tokens=context))
                # The prompt is one chunk, and so is the newer half, each time it runs again: no part of a token, but
                # each leaves only the rest of its last one.
                assert stream.stats.draws == (context - 3) * draws + 3 * FAST_TAIL_DRAWS
                assert context < model.kernels.chunk
                assert stream.stats.dropped == 2 * (context // 2)
                assert stream.stats.prompt_draws == 3 * chunk_draws
            list(stream := model.stream([9, 8, 7], max_tokens=1))
            assert stream.stats.prompt_draws == 2 * (draws - 2), (
                "no logits and no choice behind a prompt's inner tokens"
            )

    def test_the_whole_sequence_at_once_is_for_the_reference_plan(self, small: Path) -> None:
        with glinfer.load(small) as model, pytest.raises(InputError, match="plan fast runs token by token; use logits"):
            model.forward(PROMPT)

    @pytest.mark.parametrize("options", [{}, {"top_k": 5, "repetition_penalty": 1.2}])
    def test_what_is_held_already_is_not_run_again(self, small: Path, options: dict[str, Any]) -> None:
        with glinfer.load(small) as model:
            reply = model.generate(PROMPT, max_tokens=5, seed=1, **options)
            before = model.bound.runs
            model.logits([*PROMPT, *reply, 9, 8])
            assert model.bound.runs - before <= 3, "the last of the reply, and the two new ones"
            before = model.bound.runs
            model.logits([*PROMPT, *reply])
            model.logits([*PROMPT, *reply])
            model.probs([*PROMPT, *reply])
            assert model.bound.runs - before == 1, "the last token again, and its logits kept"
            before = model.bound.runs
            model.logits([*PROMPT[:2], 5])
            assert model.bound.runs - before == 1

    @pytest.mark.parametrize("tokens", [0, -1, 65])
    def test_draws_of_an_impossible_length_are_refused(self, small: Path, tokens: int) -> None:
        with glinfer.load(small) as model, pytest.raises(PlanError, match="expected 1 to 64"):
            model.draws(tokens)


class TestText:
    """Models that say exactly what the test wrote, byte by byte."""

    def test_a_character_split_over_tokens_is_never_shown_broken(self, tmp_path: Path) -> None:
        text = "é€🚀 日本!"
        with glinfer.load(speaker(tmp_path / "m.gab", text.encode(), after=2)) as model:
            pieces = list(model.stream("ab", max_tokens=len(text.encode())))
        assert pieces == list(text)

    @pytest.mark.parametrize("cut", [1, 2, 3])
    def test_a_character_cut_by_max_tokens_is_replaced(self, tmp_path: Path, cut: int) -> None:
        with glinfer.load(speaker(tmp_path / "m.gab", "a🚀".encode(), after=2)) as model:
            assert model.generate("ab", max_tokens=1 + cut) == "a\ufffd"

    def test_a_character_that_begins_in_the_prompt(self, tmp_path: Path) -> None:
        """The prompt is given as ids, the rest of its last character is generated: ids come out, untouched."""
        rest = list("€".encode())[1:]
        with glinfer.load(speaker(tmp_path / "m.gab", rest, after=2)) as model:
            assert model.generate([97, "€".encode()[0]], max_tokens=2) == rest

    def test_stop_strings_end_the_text_and_the_work(self, tmp_path: Path) -> None:
        with glinfer.load(speaker(tmp_path / "m.gab", b"one two three", after=2)) as model:
            stream = model.stream("ab", max_tokens=40, stop=["two"])
            assert "".join(stream) == "one "
            assert (stream.stats.finish_reason, stream.stats.tokens) == ("stop", 7)
            assert model.bound.runs == 1 + 7
            assert model.generate("ab", max_tokens=13, stop=["absent"]) == "one two three"
            assert model.generate("ab", max_tokens=40, stop=("e t", "two")) == "on"

    def test_stop_ids_end_text_and_ids(self, tmp_path: Path) -> None:
        with glinfer.load(speaker(tmp_path / "m.gab", b"abc!def", after=2)) as model:
            assert model.generate("ab", max_tokens=7, stop_ids=[ord("!")]) == "abc"
            assert model.generate([97, 98], max_tokens=7, stop_ids=[np.int64(ord("!"))]) == list(b"abc")
            assert model.generate([97, 98], max_tokens=7) == list(b"abc!def")

    def test_the_end_token_stops_text_but_not_ids_unless_asked(self, tmp_path: Path) -> None:
        words = Tokenizer(demo_tokenizer(300))
        end = words.control_tokens["<|end|>"]
        save_checkpoint(saying([*b"yes", end, *b"no"], after=2, vocab=300), tmp_path / "m.gab")
        with glinfer.load(tmp_path / "m.gab", tokenizer=words) as model:
            assert model.generate("zq", max_tokens=6) == "yes"
            assert model.generate("zq", max_tokens=6, stop_ids=[]) == "yes<|end|>no"
            assert model.generate([97, 98], max_tokens=6) == [*b"yes", end, *b"no"]

    def test_a_stop_string_may_spell_the_end_token(self, tmp_path: Path) -> None:
        words = Tokenizer(demo_tokenizer(300))
        save_checkpoint(saying(list(b"yes<|end|>no"), after=2, vocab=300), tmp_path / "m.gab")
        with glinfer.load(tmp_path / "m.gab", tokenizer=words) as model:
            assert model.generate("zq", max_tokens=12, stop=["<|end|>"]) == "yes"


class TestClosing:
    def test_closing_twice_is_harmless(self, small: Path) -> None:
        model = glinfer.load(small)
        model.close()
        model.close()
        assert model.device.closed

    def test_a_closed_model_says_so(self, small: Path) -> None:
        model = glinfer.load(small)
        stream = model.stream(PROMPT)
        next(stream)
        model.close()
        for use in (model.generate, model.logits, model.probs, model.forward):
            with pytest.raises(ContextError, match="this model was closed; load it again"):
                use(PROMPT)
        with pytest.raises(ContextError, match="closed"):
            next(stream)
        assert list(stream) == []
        with pytest.raises(ContextError, match="this model was closed; load it again"):
            model.session()
        assert model.draws().total == FAST_SMALL_DRAWS, "the plan needs no device"

    def test_a_with_block_closes_also_after_an_error(self, small: Path) -> None:
        with pytest.raises(ZeroDivisionError), glinfer.load(small) as model:
            1 / 0  # noqa: B018
        assert model.device.closed

    def test_a_stream_left_half_way_leaves_the_model_usable(self, small: Path) -> None:
        with glinfer.load(small) as model:
            expected = model.generate("Once", max_tokens=6, seed=4)
            for _ in range(3):
                stream = model.stream("Once", max_tokens=50, seed=4)
                next(stream)
                next(stream)
            assert model.generate("Once", max_tokens=6, seed=4) == expected

    def test_a_model_does_not_work_in_another_thread(self, small: Path) -> None:
        caught: list[BaseException] = []

        def use() -> None:
            try:
                model.logits(PROMPT)
            except BaseException as error:
                caught.append(error)

        with glinfer.load(small) as model:
            thread = threading.Thread(target=use)
            thread.start()
            thread.join()
            assert len(model.logits(PROMPT)) == 300
        assert isinstance(caught[0], ContextError)
        assert "thread" in str(caught[0])


class TestSeveralModels:
    @pytest.mark.slow
    def test_two_models_side_by_side_do_as_each_alone(self, small: Path, tmp_path: Path) -> None:
        other = random_file(tmp_path / "other.gab", "vocab=77,dim=24,heads=3,blocks=3,context=40", seed=9)
        alone = []
        for path in (small, other):
            with glinfer.load(path) as model:
                alone.append((model.generate([5, 6], max_tokens=8, seed=1), model.logits([1, 2, 3])))
        with glinfer.load(small) as first, glinfer.load(other) as second:
            streams = [model.stream([5, 6], max_tokens=8, seed=1) for model in (first, second)]
            together: list[list[int]] = [[], []]
            for _ in range(8):
                for ids, stream in zip(together, streams, strict=True):
                    ids.append(next(stream))
            assert together == [alone[0][0], alone[1][0]]
            assert np.array_equal(second.logits([1, 2, 3]), alone[1][1])
            second.close()
            assert np.array_equal(first.logits([1, 2, 3]), alone[0][1]), "closing one leaves the other"

    @pytest.mark.usefixtures("chunk_at_once")
    def test_two_streams_of_one_model_do_not_mix(self, small: Path) -> None:
        with glinfer.load(small) as model:
            alone = [model.generate(prompt, max_tokens=6, seed=2) for prompt in ([5, 6], [7, 8, 9])]
            streams = [model.stream(prompt, max_tokens=6, seed=2) for prompt in ([5, 6], [7, 8, 9])]
            pairs = list(zip(*streams, strict=True))
            assert [list(ids) for ids in zip(*pairs, strict=True)] == alone
            # Each takes the model from the other, and has to have all its tokens run again: up to three one by one,
            # more as a chunk, which leaves only the rest of the last one.
            whole, rest = FAST_SMALL_DRAWS, FAST_TAIL_DRAWS
            assert [stream.stats.draws for stream in streams] == [2 * whole + 4 * rest, whole + 5 * rest]

    def test_two_models_share_a_device(self, small: Path, tmp_path: Path) -> None:
        other = random_file(tmp_path / "other.gab", "vocab=77,dim=24,heads=3,blocks=1,context=40", seed=9)
        with glinfer.load(other) as model:
            alone = model.logits([1, 2, 3])
        with open_device() as device:
            with glinfer.load(small, device=device) as first, glinfer.load(other, device=device) as second:
                assert first.device is second.device is device
                expected = first.logits(PROMPT)
                assert np.array_equal(second.logits([1, 2, 3]), alone)
                assert np.array_equal(first.logits(PROMPT), expected)
                stream = first.stream(PROMPT, max_tokens=2, temperature=0)
                next(stream)
                second.logits([1])
                next(stream)
                assert stream.stats.draws == 2 * FAST_SMALL_DRAWS, "the other model's draws are not counted here"
                first.close()
                assert np.array_equal(second.logits([1, 2, 3]), alone)
            assert not device.closed, "a shared device stays open"
            assert sum(device.live_objects().values()) == 0

    def test_closing_a_shared_device_first_is_harmless(self, small: Path) -> None:
        device = open_device()
        model = glinfer.load(small, device=device)
        device.close()
        with pytest.raises(ContextError, match="closed"):
            model.logits(PROMPT)
        model.close()

    def test_a_shared_device_has_its_own_limits(self, small: Path) -> None:
        with open_device() as device:
            with pytest.raises(InputError, match="leave them out"):
                glinfer.load(small, device=device, limits=Limits.webgl2_minimum())
            with pytest.raises(InputError, match="leave them out"):
                glinfer.load(small, device=device, api="es")

    def test_a_closed_device_cannot_be_shared(self, small: Path) -> None:
        device = open_device()
        device.close()
        with pytest.raises(ContextError, match="closed"):
            glinfer.load(small, device=device)

    def test_loading_again_and_again_leaves_nothing_behind(self, small: Path) -> None:
        with open_device() as device:
            for _ in range(5):
                with glinfer.load(small, device=device) as model:
                    model.logits(PROMPT)
                assert sum(device.live_objects().values()) == 0


class TestShortForms:
    @pytest.fixture
    def opened(self, monkeypatch: pytest.MonkeyPatch) -> list[Model]:
        """Every model that glinfer.load opens."""
        models: list[Model] = []
        load = glinfer.load
        monkeypatch.setattr(glinfer, "load", lambda *given, **named: models.append(load(*given, **named)) or models[-1])
        return models

    def test_generate_is_load_and_generate_and_close(self, small: Path, opened: list[Model]) -> None:
        text = glinfer.generate(small, "Once", max_tokens=5, seed=1)
        ids = glinfer.generate(small, PROMPT, max_tokens=5, seed=1)
        assert all(model.device.closed for model in opened)
        with glinfer.load(small) as model:
            assert (text, ids) == (
                model.generate("Once", max_tokens=5, seed=1),
                model.generate(PROMPT, max_tokens=5, seed=1),
            )

    def test_generate_closes_after_an_error(self, small: Path, opened: list[Model]) -> None:
        with pytest.raises(InputError, match="the prompt is empty"):
            glinfer.generate(small, "")
        assert opened[0].device.closed

    def test_options_of_loading_go_to_loading(self, bare: Path, small: Path, opened: list[Model]) -> None:
        words = small.with_suffix(".bpe")
        expected = glinfer.generate(small, "Once", max_tokens=5, seed=1)
        assert glinfer.generate(bare, "Once", tokenizer=words, max_tokens=5, seed=1, limits=None) == expected
        assert "".join(glinfer.stream(bare, "Once", tokenizer=words, gelu="tanh", max_tokens=5, seed=1)) == expected
        assert all(model.device.closed for model in opened)

    def test_stream_closes_the_model_at_its_end(self, small: Path, opened: list[Model]) -> None:
        stream = glinfer.stream(small, "Once", max_tokens=3, seed=1)
        next(stream)
        assert not opened[0].device.closed
        list(stream)
        assert opened[0].device.closed

    @pytest.mark.parametrize("prompt", ["Once", PROMPT])
    def test_stream_closes_the_model_when_it_is_closed_early(
        self, small: Path, opened: list[Model], prompt: Any
    ) -> None:
        stream = glinfer.stream(small, prompt, max_tokens=30, seed=1)
        next(stream)
        stream.close()
        assert opened[0].device.closed
        assert list(stream) == []
        with glinfer.stream(small, prompt, max_tokens=30, seed=1) as stream:
            next(stream)
        assert opened[1].device.closed

    def test_stream_closes_the_model_when_the_prompt_is_bad(self, small: Path, opened: list[Model]) -> None:
        for bad in ("", [300], 5):
            with pytest.raises(InputError):
                glinfer.stream(small, bad)
        with pytest.raises(TypeError, match="temprature"):
            glinfer.stream(small, "Once", temprature=1)
        assert [model.device.closed for model in opened] == [True] * 4

    def test_stream_tells_the_callers_own_on_end_too(self, small: Path, opened: list[Model]) -> None:
        closed: list[bool] = []
        list(glinfer.stream(small, PROMPT, max_tokens=2, on_end=lambda: closed.append(opened[0].device.closed)))
        assert closed == [True]

    def test_a_missing_file_is_one_line(self) -> None:
        for use in (glinfer.generate, glinfer.stream):
            with pytest.raises(FormatError, match=r"/nowhere/model\.gab: cannot read it"):
                use("/nowhere/model.gab", "Once")


def test_importing_loads_no_opengl_and_creates_no_context() -> None:
    code = (
        "import sys, glinfer, glinfer.config, glinfer.errors, glinfer.formats\n"
        "loaded = {'moderngl', 'glcontext'} & set(sys.modules)\n"
        "maps = open('/proc/self/maps').read()\n"
        "print(loaded, [name for name in ('libEGL', 'libGL', 'libgallium', 'swrast') if name in maps])\n"
        "import glinfer.cli\n"
        "maps = open('/proc/self/maps').read()\n"
        "print([name for name in ('libEGL', 'libgallium', 'swrast') if name in maps])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["set() []", "[]"]


def test_closing_in_another_thread_fails_and_can_be_repeated_in_the_right_one(bare: Path) -> None:
    model, caught = glinfer.load(bare), []

    def close() -> None:
        try:
            model.close()
        except ContextError as error:
            caught.append(str(error))

    other = threading.Thread(target=close)
    other.start()
    other.join()
    assert len(caught) == 1
    assert "belongs to the thread that opened it" in caught[0]
    assert model.logits([1]).shape == (300,)
    model.close()
    assert model.device.closed
