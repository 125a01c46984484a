"""Sequences, options and textures of decoders; what they compute is in test_families.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glinfer
from glinfer.config import ModelConfig
from glinfer.errors import ContextError, GlinferError, InputError
from glinfer.formats import Checkpoint, random_checkpoint, save_checkpoint, write_bpe
from glinfer.formats.families import FAMILIES, weight_shapes
from glinfer.formats.packed import PackedTensor
from glinfer.generation.batch import BatchRequest
from glinfer.generation.loading import Loaded, bind
from glinfer.generation.model import Model
from glinfer.ggml import pack
from glinfer.gl.context import Device, Limits, open_device
from glinfer.gl.layout import FORMATS
from glinfer.models.choice import decoder_plans, weights_for
from glinfer.models.oracle import relative_error, run_draw, written_rows
from glinfer.models.plan import Plan
from glinfer.models.session import Session
from glinfer.ops.kernels import Kernels
from glinfer.ops.spec import DrawSpec
from glinfer.tools.demo import demo_tokenizer
from glinfer.tools.kernel_cases.embedding import random_blocks

Array = np.ndarray[Any, Any]
OF_RANGE = 1e-5  # of the logits' range, between two ways to compute the same
CONTEXT, VOCAB = 40, 301
PLANS = ("fast", "reference")
LLAMA = ModelConfig(
    VOCAB, 36, 4, 2, CONTEXT, 50, hidden_act="silu", model_type="llama", num_key_value_heads=2, head_dim=10
)
IDS = np.random.default_rng(5).integers(0, VOCAB, 200).tolist()


def opened(checkpoint: Checkpoint, plan: str = "fast", weights: str = "file", **options: Any) -> Model:
    """A model of a checkpoint that is in no file; ``options`` are those of open_device, or ``device``, which stays."""
    shared = options.pop("device", None)
    device = shared or open_device(**options)
    try:
        return Model(Loaded(bind(checkpoint, device, plan, weights), None, "none", (), shared is None))
    except BaseException:
        if shared is None:
            device.close()
        raise


def worst(found: Array, expected: Array) -> float:
    """The largest difference, as a part of the range of what was expected."""
    return float(np.abs(found - expected).max() / np.ptp(expected))


def fresh(model: Model, ids: Sequence[int]) -> Array:
    """The logits after some tokens, from empty caches."""
    with model.session() as session:
        session.prefill(ids)
        return session.logits()


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return random_checkpoint(LLAMA, scale=0.2)


@pytest.fixture
def model(checkpoint: Checkpoint) -> Iterator[Model]:
    with opened(checkpoint) as made:
        yield made


@pytest.fixture(scope="module")
def path(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("decoder") / "m.safetensors"
    save_checkpoint(checkpoint, file)
    return file


# Sequences


@pytest.mark.parametrize("plan", PLANS)
def test_steps_chunks_and_both_give_the_same(checkpoint: Checkpoint, plan: str) -> None:
    with opened(checkpoint, plan) as model, model.session() as stepped, model.session() as mixed:
        for token in IDS[:30]:
            stepped.step(token)
        mixed.prefill(IDS[:5])
        mixed.step(IDS[5])
        mixed.prefill(IDS[6:29])
        mixed.step(IDS[29])
        expected = fresh(model, IDS[:30])
        assert worst(stepped.logits(), expected) <= OF_RANGE
        assert worst(mixed.logits(), expected) <= OF_RANGE
        assert worst(fresh(model, IDS[:29]), expected) > 0.01, "the last token does not show"


def test_a_prompt_takes_fewer_draws_in_chunks(model: Model) -> None:
    with model.session() as session:
        session.prefill(IDS[:33])
        session.logits()
        at_once = session.draws_issued
    with model.session() as session:
        for token in IDS[:33]:
            session.step(token)
        session.logits()
        assert session.draws_issued > 4 * at_once
        assert session.draws_issued <= 33 * len(model.plan.draws)


@pytest.mark.parametrize("plan", PLANS)
def test_rewound_it_goes_on_as_if_it_had_never_been(checkpoint: Checkpoint, plan: str) -> None:
    with opened(checkpoint, plan) as model, model.session() as session:
        session.prefill(IDS[:20])
        session.logits()
        session.rewind(12)
        assert session.ids == IDS[:8]
        assert worst(session.logits(), fresh(model, IDS[:8])) <= OF_RANGE
        session.prefill(IDS[40:60])
        assert worst(session.logits(), fresh(model, IDS[:8] + IDS[40:60])) <= OF_RANGE
        session.rewind(28)
        assert len(session) == 0
        with pytest.raises(InputError, match=r"\Athe session holds no tokens; prefill at least one\Z"):
            session.logits()
        session.prefill(IDS[7:9])
        assert worst(session.logits(), fresh(model, IDS[7:9])) <= OF_RANGE


@pytest.mark.parametrize("plan", PLANS)
def test_a_fork_goes_its_own_way(checkpoint: Checkpoint, plan: str) -> None:
    with opened(checkpoint, plan) as model, model.session() as session:
        session.prefill(IDS[:9])
        before = session.logits()
        with session.fork() as fork:
            assert np.array_equal(fork.logits(), before)
            fork.prefill(IDS[20:29])
            session.prefill(IDS[30:35])
            with fork.fork() as again:
                session.close()
                assert worst(fork.logits(), fresh(model, IDS[:9] + IDS[20:29])) <= OF_RANGE
                again.rewind(15)
                assert worst(again.logits(), fresh(model, IDS[:3])) <= OF_RANGE
            assert worst(fork.logits(), fresh(model, IDS[:9] + IDS[20:29])) <= OF_RANGE


def test_holding_runs_only_what_is_new(model: Model) -> None:
    with model.session() as session:
        session.hold(IDS[:20])
        session.logits()
        before = session.draws_issued
        session.hold(IDS[:20])
        session.logits()
        assert session.draws_issued == before
        other = [*IDS[:17], 3, 4]
        session.hold(other)
        found = session.logits()
        assert session.draws_issued - before <= 3 * len(model.plan.draws)
        assert worst(found, fresh(model, other)) <= OF_RANGE
        session.hold(IDS[5:8])
        assert worst(session.logits(), fresh(model, IDS[5:8])) <= OF_RANGE


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("window", [0, 7])
def test_a_full_context_drops_its_oldest_half_and_goes_on(plan: str, window: int) -> None:
    config = dataclasses.replace(LLAMA, max_position_embeddings=21, sliding_window=window)
    with opened(random_checkpoint(config, scale=0.2), plan) as model, model.session() as session:
        for count, token in enumerate(IDS[:46], start=1):
            session.step(token)
            assert session.dropped + len(session) == count
            assert session.ids == IDS[session.dropped : count]
            if count > 20 and count % 11 in (0, 1, 10):
                assert worst(session.logits(), fresh(model, session.ids)) <= OF_RANGE, count
        assert session.dropped == 3 * 11
        assert len(model.generate(IDS[:19], max_tokens=30, temperature=0)) == 30


@pytest.mark.parametrize("plan", PLANS)
def test_one_token_and_a_full_context(checkpoint: Checkpoint, plan: str) -> None:
    with opened(checkpoint, plan) as model:
        for count in (1, CONTEXT - 1, CONTEXT):
            with model.session() as session:
                for token in IDS[:count]:
                    session.step(token)
                assert worst(model.logits(IDS[:count]), session.logits()) <= OF_RANGE
                assert session.dropped == 0
        with pytest.raises(InputError, match=r"\A[^\n]*41[^\n]*40[^\n]*\Z"):
            model.logits(IDS[: CONTEXT + 1])
        with pytest.raises(InputError):
            model.logits([])
        with pytest.raises(InputError):
            model.logits([VOCAB])


def test_a_context_of_one_token() -> None:
    config = dataclasses.replace(LLAMA, max_position_embeddings=1)
    wide = random_checkpoint(LLAMA, scale=0.2)
    for plan in PLANS:
        with opened(dataclasses.replace(wide, config=config), plan) as model, opened(wide, plan) as other:
            assert worst(model.logits([7]), other.logits([7])) <= OF_RANGE
            assert len(model.generate([7], max_tokens=5, temperature=0)) == 5


def test_a_packed_gpt2_of_any_context() -> None:
    """Whose learned positions end within a chunk of the prompt."""
    for context in (1, 40):
        config = ModelConfig(
            VOCAB, 32, 2, 1, context, 64, hidden_act="gelu", model_type="gpt2", tie_word_embeddings=True
        )
        made = packed(random_checkpoint(config, scale=0.2), lambda name: "Q8_0")
        with opened(made) as model, model.session() as stepped:
            for token in IDS[:context]:
                stepped.step(token)
            assert worst(fresh(model, IDS[:context]), stepped.logits()) <= OF_RANGE
            stepped.rewind(max(0, context - 10))
            assert worst(fresh(model, IDS[: len(stepped)]), stepped.logits()) <= OF_RANGE


# Options of glinfer.load


def test_a_smaller_context_is_the_same_model(path: Path) -> None:
    with glinfer.load(path) as whole, glinfer.load(path, context=11) as short:
        assert (whole.config.max_position_embeddings, short.config.max_position_embeddings) == (CONTEXT, 11)
        edge = whole.device.limits.max_texture_size
        caches = [model.plan.texture_bytes(edge, "cache") for model in (whole, short)]
        assert caches[1] < caches[0]
        assert worst(short.logits(IDS[:11]), whole.logits(IDS[:11])) <= OF_RANGE
        with pytest.raises(InputError):
            short.logits(IDS[:12])
        assert len(short.generate(IDS[:5], max_tokens=20, temperature=0)) == 20


@pytest.mark.parametrize("context", [0, -1, CONTEXT + 1, 1 << 40, 2.5, "8"])
def test_a_context_that_the_model_has_not_is_one_line(path: Path, context: Any) -> None:
    with pytest.raises(
        GlinferError,
        match=rf"\Aa context of '?{context}'? was asked for; this model has 1 to {CONTEXT} positions\Z",
    ):
        glinfer.load(path, context=context)


def test_a_long_model_gets_the_usual_context(tmp_path: Path) -> None:
    file = tmp_path / "long.safetensors"
    save_checkpoint(random_checkpoint(dataclasses.replace(LLAMA, max_position_embeddings=131072)), file)
    with glinfer.load(file) as model:
        assert model.config.max_position_embeddings == 4096
    with glinfer.load(file, context=5000) as model:
        assert model.config.max_position_embeddings == 5000


def test_weights_in_fewer_bits_stay_close_and_take_less(path: Path) -> None:
    found: dict[str, tuple[int, Array]] = {}
    for weights in ("file", "f32", "f16", "q16", "q8l", "q8"):
        with glinfer.load(path, weights=weights) as model:
            assert model.weights == weights
            edge = model.device.limits.max_texture_size
            matrices = [each for each in model.plan.of_kind("weight") if each.shape[0] > 1 and each.name != "rope"]
            nbytes = sum(each.layout_within(edge).nbytes for each in matrices)
            found[weights] = nbytes, model.logits(IDS[:3])
    assert np.array_equal(found["file"][1], found["f32"][1])
    for weights, tolerance in (("f16", 2e-3), ("q16", 5e-4), ("q8l", 0.05), ("q8", 0.05)):
        assert 0 < worst(found[weights][1], found["f32"][1]) <= tolerance, weights
    sizes = {weights: nbytes for weights, (nbytes, _) in found.items()}
    assert sizes["f16"] <= 0.55 * sizes["f32"]
    assert sizes["f16"] <= sizes["q16"] <= 0.75 * sizes["f32"]  # a scale takes a whole texel of each row
    assert sizes["q8"] < sizes["q8l"] < sizes["q16"]


def test_what_a_decoder_cannot_be_told_is_one_line(path: Path) -> None:
    with pytest.raises(InputError, match=r"\Aweights 'auto' is for models that are folded [^\n]* this llama\Z"):
        glinfer.load(path, weights="auto")
    with pytest.raises(InputError, match=r"\Athe reference plan keeps its weights in f32, found q8;[^\n]*\Z"):
        glinfer.load(path, weights="q8", plan="reference")
    with glinfer.load(path, plan="reference") as model:
        with pytest.raises(InputError, match=r"\Ascore needs the fast plan;[^\n]*\Z"):
            model.score([IDS[:5]])
        assert model.forward(IDS[:5]) == len(model.plan.draws)
    with glinfer.load(path) as model, pytest.raises(InputError, match=r"\Aplan fast runs token by token;[^\n]*\Z"):
        model.forward(IDS[:5])
    with pytest.raises(ContextError):
        model.logits(IDS[:5])


# Devices


def test_two_models_on_one_device(checkpoint: Checkpoint) -> None:
    gemma = ModelConfig(
        VOCAB, 30, 3, 1, 20, 44, hidden_act="gelu_new", model_type="gemma", num_key_value_heads=1, head_dim=12
    )
    other = random_checkpoint(dataclasses.replace(gemma, tie_word_embeddings=True), scale=0.2)
    with opened(checkpoint) as model:
        alone = fresh(model, IDS[:12])
    with opened(other) as model:
        other_alone = fresh(model, IDS[:12])
    with open_device() as device:
        with opened(checkpoint, device=device) as one, opened(other, device=device) as two:
            with one.session() as first, two.session() as second:
                for token in IDS[:12]:
                    first.step(token)
                    second.step(token)
                assert worst(first.logits(), alone) <= OF_RANGE
                assert worst(second.logits(), other_alone) <= OF_RANGE
            one.close()
            assert worst(two.logits(IDS[:12]), other_alone) <= OF_RANGE
        assert not device.live_objects()


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    "options",
    [
        {"limits": Limits.webgl2_minimum()},
        {"limits": dataclasses.replace(Limits.webgl2_minimum(), max_texture_size=128)},
        pytest.param({"api": "desktop"}, marks=pytest.mark.desktop),
    ],
    ids=["webgl2", "tiny textures", "desktop"],
)
def test_other_renderers_give_the_same(path: Path, plan: str, options: dict[str, Any]) -> None:
    with glinfer.load(path, plan=plan) as model:
        expected = [model.logits(IDS[:count]) for count in (1, 2, 30)]
    with glinfer.load(path, plan=plan, **options) as model:
        for count, logits in zip((1, 2, 30), expected, strict=True):
            assert worst(model.logits(IDS[:count]), logits) <= OF_RANGE, count
        if plan == "fast":
            (scored,) = model.score([IDS[:50]])
            assert np.isfinite(scored.logprobs).all()


# Many prompts, text, and what is left behind


@pytest.mark.parametrize("plan", PLANS)
def test_a_batch_is_its_prompts_one_by_one(checkpoint: Checkpoint, plan: str) -> None:
    prompts = [IDS[:1], IDS[3:20], IDS[30:33]]
    with opened(checkpoint, plan) as model:
        for options in ({"temperature": 0}, {"temperature": 0.8, "top_k": 20, "seed": 4}):
            given: Any = {"max_tokens": 6, **options}
            alone = [model.generate(prompt, **given) for prompt in prompts]
            assert model.generate(prompts, **given) == alone
            results = model.batch([BatchRequest(prompt, given, place) for place, prompt in enumerate(prompts)])
            assert {result.request.key: result.ids for result in results} == dict(enumerate(alone))


def test_text_streams_until_a_stop_token(path: Path, tmp_path: Path) -> None:
    words = tmp_path / "words.bpe"
    write_bpe(demo_tokenizer(VOCAB), words)
    with glinfer.load(path, tokenizer=words) as model:
        assert model.tokenizer is not None
        text = "Once upon a time"
        ids = model.generate(model.tokenizer.encode(text), max_tokens=20, temperature=0)
        whole = model.generate(text, max_tokens=20, temperature=0, stop_ids=[])
        assert "".join(model.stream(text, max_tokens=20, temperature=0, stop_ids=[])) == whole
        at = next(place for place in range(3, 20) if ids[place] not in ids[:place])
        stopped = model.stream(text, max_tokens=20, temperature=0, stop_ids=[ids[at]])
        pieces = "".join(stopped)
        assert whole.startswith(pieces)
        assert len(pieces) < len(whole)
        tokens = model.stream(model.tokenizer.encode(text), max_tokens=20, temperature=0, stop_ids=[ids[at]])
        assert list(tokens) == ids[:at]


@pytest.mark.parametrize("plan", PLANS)
def test_no_object_is_made_for_a_token(checkpoint: Checkpoint, plan: str) -> None:
    with opened(checkpoint, plan) as model:
        for count in (10, CONTEXT):  # plans of each size are made at first use
            model.logits(IDS[:count])
        before = model.device.live_objects()
        assert sum(before.values()) > 20
        for token in model.stream(IDS[20:37], max_tokens=40, temperature=0):
            assert 0 <= token < VOCAB
            assert model.device.live_objects() == before
        model.logits(IDS[:5])
        assert model.device.live_objects() == before


def test_sessions_and_scores_give_back_what_they_took(checkpoint: Checkpoint) -> None:
    with open_device() as device:
        with opened(checkpoint, device=device) as model:
            for count in (10, CONTEXT):  # plans of each size are made at first use
                model.logits(IDS[:count])
            before = device.live_objects()
            for _ in range(3):
                with model.session() as session:
                    session.prefill(IDS[:30])
                    session.logits()
                    with session.fork() as fork:
                        fork.prefill(IDS[30:38])
                        fork.logits()
                    assert device.live_objects() != before
                assert device.live_objects() == before
            model.score([IDS[:30]])
            scored = device.live_objects()
            model.score([IDS[:60], IDS[:2]])
            assert device.live_objects() == scored
            left_open = model.session()
            left_open.prefill(IDS[:20])
        assert not device.live_objects()
        left_open.close()
        assert not device.live_objects()


def test_a_session_that_made_the_first_chunks_may_close_first(model: Model) -> None:
    """The scratch textures of prompts belong to all sessions."""
    expected = fresh(model, IDS[:30])
    assert worst(fresh(model, IDS[:30]), expected) == 0.0
    with model.session() as one, model.session() as two:
        one.prefill(IDS[:20])
        two.prefill(IDS[:15])
        one.prefill(IDS[20:30])
        two.prefill(IDS[15:30])
        assert worst(one.logits(), expected) <= OF_RANGE
        one.close()
        assert worst(two.logits(), expected) <= OF_RANGE


# Weights in their file's blocks


def packed(floats: Checkpoint, choose: Callable[[str], str]) -> Checkpoint:
    """The same model with its matrices, but for positions, in the formats that are chosen by name; "" for floats."""
    made = {}
    for name, tensor in floats.tensors.items():
        form = choose(name) if tensor.ndim == 2 and "wpe" not in name else ""
        if form == "F16":
            made[name] = PackedTensor(form, tensor.astype("<f2").view(np.uint8))
        elif form.endswith("_K"):
            seed = len(made)
            blocks = random_blocks(np.random.default_rng(seed), form, *tensor.shape)
            made[name] = PackedTensor(form, blocks)
        elif form:
            made[name] = PackedTensor(form, pack(tensor, form))
    rest = {name: tensor for name, tensor in floats.tensors.items() if name not in made}
    return Checkpoint(floats.config, rest, "packed", made)


def unpacked(checkpoint: Checkpoint) -> Checkpoint:
    """The same numbers as floats."""
    tensors = {name: checkpoint.floats(name) for name in (*checkpoint.tensors, *checkpoint.packed)}
    return Checkpoint(checkpoint.config, tensors, "unpacked")


def of_family(family: str, width: int = 64) -> Checkpoint:
    gpt2 = family == "gpt2"
    config = ModelConfig(
        VOCAB,
        width,
        4,
        2,
        48,
        2 * width,
        hidden_act="silu" if FAMILIES[family].gated else "gelu_new",
        model_type=family,
        tie_word_embeddings=gpt2,
        num_key_value_heads=4 if gpt2 else 2,
    )
    return random_checkpoint(config, scale=0.6 / np.sqrt(width) + 0.05)


def check_packed(made: Checkpoint, plans: Sequence[str] = ("fast",)) -> None:
    """Over blocks there are the logits of the same numbers as floats, by steps and in a chunk."""
    with opened(unpacked(made)) as model:
        expected = [model.logits(IDS[:count]) for count in (1, 2, 40)]
    for plan in plans:
        with opened(made, plan) as model:
            for count, logits in zip((1, 2, 40), expected, strict=True):
                assert worst(model.logits(IDS[:count]), logits) <= OF_RANGE, (plan, count)


def slow(*values: Any) -> list[Any]:
    """Cases that differ from others in shaders alone, which tests/gl compiles and checks for every format."""
    return [pytest.param(*([value] if isinstance(value, str) else value), marks=pytest.mark.slow) for value in values]


@pytest.mark.parametrize("form", ["F16", "BF16", "Q8_0", *slow("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_ROW", "Q16_ROW")])
def test_blocks_are_the_numbers_that_they_stand_for(form: str) -> None:
    check_packed(packed(of_family("llama"), lambda name: form), PLANS if form == "BF16" else ("fast",))


@pytest.mark.parametrize("form", ["Q8_0", *slow("F16")])
def test_blocks_of_gpt2(form: str) -> None:
    check_packed(packed(of_family("gpt2"), lambda name: form), PLANS)


@pytest.mark.parametrize("form", ["Q4_K", *slow("Q2_K", "Q3_K", "Q5_K", "Q6_K")])
def test_blocks_of_256_are_too(form: str) -> None:
    """Blocks of random bits, which are large numbers: down to the size of weights by the norms in front of them."""
    check_packed(packed(of_family("llama", 256), lambda name: form))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_every_matrix_in_a_format_of_its_own(family: str) -> None:
    """Query, key and value, gate and up, the layers among each other; some of them floats."""
    forms = ["Q4_0", "Q8_0", "", "F16", "Q5_1", "BF16", "Q8_ROW"]
    names = list(weight_shapes(of_family(family).config))
    check_packed(packed(of_family(family), lambda name: forms[names.index(name) % len(forms)]))


@pytest.mark.parametrize(("pattern", "form"), [("v_proj", "Q8_0"), ("up_proj", "F16"), ("embed_tokens", "")])
def test_one_matrix_in_another_format_than_the_rest(pattern: str, form: str) -> None:
    check_packed(packed(of_family("llama"), lambda name: form if pattern in name else "Q4_0"))


def test_blocks_can_be_kept_otherwise() -> None:
    made = packed(of_family("llama"), lambda name: "Q4_0")
    with opened(unpacked(made)) as model:
        expected = model.logits(IDS[:9])
    for weights, tolerance in (("f32", OF_RANGE), ("q8", 0.05)):
        with opened(made, weights=weights) as model:
            assert worst(model.logits(IDS[:9]), expected) <= tolerance, weights


# Every draw against its oracle


def wrong_draws(plan: Plan, weights: Mapping[str, Array], device: Device, runs: list[dict[str, Any]]) -> list[str]:
    """Runs a plan some times, each draw compared with what its oracle makes of what the draw read."""
    session, looked = Session(plan, weights, device), 0
    complaints: list[str] = []
    held: dict[str, Array] = {}

    def before(draw: DrawSpec) -> None:
        held.clear()
        if draw.adds and not draw.clears:
            held.update({name: np.array(session.read(name)) for name in draw.outputs})

    def after(draw: DrawSpec) -> None:
        nonlocal looked
        inputs = {name: session.read(name) for name in draw.reads} | held
        expected = run_draw(draw, inputs, values)
        places = written_rows(draw, inputs, values)
        for name, part in zip(draw.outputs, expected if len(draw.outputs) > 1 else [expected], strict=True):
            found = session.read(name)[places, : part.shape[1]]
            whole = FORMATS[plan.table[name].format].is_integer
            error = float(np.any(found != part)) if whole else relative_error(found, part)
            if not error <= 1e-5:
                complaints.append(f"{draw.name}: {name} is off by {error:.2g}")
        looked += 1

    try:
        for run in runs:
            values = {value.name: run[value.name] for value in plan.run_values}
            for tensor in plan.of_kind("input"):
                session.write(tensor.name, np.asarray(run[tensor.name], np.int32)[:, None])
            session.run(values, before=before, after=after)
    finally:
        session.release()
    assert looked == len(runs) * len(plan.draws)
    return complaints


def runs_for(config: ModelConfig, rows: int, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Runs of so many tokens each, after each other."""
    found, position = [], 0
    for count in sizes:
        tokens = [*IDS[position : position + count], *([0] * (rows - count))]
        found.append(
            {
                "tokens": [token % config.vocab_size for token in tokens],
                "targets": [token % config.vocab_size for token in tokens[::-1]],
                "position": position,
                "rows": count,
                "appended": count * config.num_key_value_heads,
                "last_row": count - 1,
            }
        )
        position += count
    return found


KERNELS = {
    "plain": Kernels(),
    "many targets": Kernels(targets=8, blends=True, lookup_texture=True, mantissa=True, products="llvmpipe"),
}


@pytest.mark.parametrize(
    ("family", "kernels"),
    [
        ("mistral", "plain"),
        ("qwen3", "many targets"),
        ("gift_of_gab", "plain"),
        ("gpt2", "many targets"),
        *slow(*((family, kernels) for family in ("llama", "gemma") for kernels in KERNELS)),
    ],
)
def test_every_draw_agrees_with_its_oracle(family: str, kernels: str) -> None:
    """At the beginning, in between and at the end of the caches; padded, and not."""
    odd = family in ("mistral", "gift_of_gab")
    config = dataclasses.replace(
        of_family(family).config,
        head_dim=6 if odd else 16,
        hidden_size=60 if odd else 64,
        num_hidden_layers=1,
        vocab_size=37,
        sliding_window=5 if family == "mistral" else 0,
        attention_bias=family == "llama",
        mlp_bias=family in ("llama", "gift_of_gab"),
    )
    form = "Q8_0" if family in ("llama", "gpt2") else "BF16" if family == "gemma" else ""
    made = packed(random_checkpoint(config, scale=0.2), lambda name: form)
    plans = decoder_plans(config, "file", made.formats(), KERNELS[kernels], 512)
    weights = weights_for(made, "fast", "file")
    with open_device() as device:
        for plan, rows, sizes in (
            (plans.fast(), 1, [1, 1, 1]),
            (plans.fast(12), 12, [12, 5, 12, 7, 12]),
            (plans.fast(8, likelihoods=True), 8, [8, 3]),
            (plans.reference(9), 9, [9, 4]),
        ):
            runs = runs_for(config, rows, sizes)
            if rows == 1:
                runs[-1]["position"] = 47
            assert not wrong_draws(plan, weights, device, runs), (plan.name, rows)
