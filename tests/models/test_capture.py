"""Looking into a model and changing what it computes, against float64 and NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tiers import tiered

from glinfer.config import ModelConfig
from glinfer.engine import capture
from glinfer.engine.capture import Seen
from glinfer.engine.loading import prepare
from glinfer.engine.model import Model
from glinfer.errors import ContextError, InputError
from glinfer.formats import Checkpoint, random_checkpoint
from glinfer.gl.context import open_device
from glinfer.inspect.draws import runs
from glinfer.lower.plans import plan_for, weights_for
from glinfer.program.capture import span_of
from glinfer.program.oracle import relative_error, run_plan
from glinfer.program.plan import Plan
from glinfer.program.points import CENTRED, Matrices

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-4  # of a whole plan against float64, relative to the largest value of a tensor
SHAPES = {
    "gab": "blocks=2,heads=4,dim=64,inner=128,vocab=301,context=48",
    "gpt2": "family=gpt2,blocks=2,heads=2,dim=20,vocab=101,context=24",
    "llama": "family=llama,blocks=2,heads=4,kv_heads=2,dim=64,inner=128,vocab=301,context=48",
    "qwen3": "family=qwen3,blocks=1,heads=4,kv_heads=2,dim=24,head_dim=10,inner=28,vocab=101,context=24",
    "gemma": "family=gemma,blocks=1,heads=2,kv_heads=1,dim=24,head_dim=16,inner=28,vocab=101,context=24",
    "gemma3": "family=gemma3_text,blocks=2,heads=2,kv_heads=1,dim=24,head_dim=16,inner=28,vocab=101,context=24",
}
IDS = [3, 100, 7, 7, 55]


def checkpoint(family: str) -> Checkpoint:
    return random_checkpoint(ModelConfig.from_options(SHAPES[family]), seed=3, scale=0.3)


@contextmanager
def opened(made: Checkpoint, plan: str = "fast", weights: str = "file") -> Iterator[Model]:
    with open_device() as device, Model(prepare(made, device, plan, weights).bind(device)) as model:
        yield model


class Written(Matrices):
    """What an oracle has written last, and its caches."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self.caches: dict[str, Array] = {}

    def read(self, tensor: str, first: int, rows: int) -> Array:
        return self.caches.get(tensor, self.arrays.get(tensor, np.empty(0)))[first : first + rows]

    def write(self, tensor: str, rows: Array, cols: Array, elements: Array) -> None:
        raise AssertionError("the oracle is only read")


def by_oracle(made: Checkpoint, plan: Plan) -> dict[str, list[Array]]:
    """Every name of a plan over IDS, in float64, run by run."""
    weights, written = weights_for(made, plan.name), Written()
    sites = [(point, site) for point in plan.points.values() for site in enumerate(point.sites)]
    found: dict[str, list[Array]] = {}
    for inputs, values in runs(plan, IDS):
        for draw, result in run_plan(plan, weights, inputs, values, written.caches):
            parts = result if len(draw.outputs) > 1 else [result]
            written.arrays.update(zip(draw.outputs, parts, strict=True))
            for point, (number, (name, _)) in sites:
                if name == draw.name:
                    array = point.read(written, number, span_of(plan, values))
                    if number:
                        found[point.name][-1] = np.concatenate([found[point.name][-1], array])
                    else:
                        found.setdefault(point.name, []).append(array)
    return found


@pytest.mark.parametrize("plan", ["reference", "fast"])
@tiered("family", SHAPES, keep=(0, 2))
def test_every_name_of_a_plan_holds_what_float64_computes(family: str, plan: str) -> None:
    made = checkpoint(family)
    with opened(made, plan) as model:
        assert model.names() == list(model.plan.points)
        found = model.capture("*", IDS)
        if plan == "reference" and family not in ("gab", "gpt2"):  # bound for fewer tokens than the context
            oracle_plan = model.plan
        else:
            kernels, edge = model.kernels, model.device.limits.max_texture_size
            oracle_plan = plan_for(made.config, plan, kernels=kernels, max_texture_size=edge)
    expected = by_oracle(made, oracle_plan)
    assert list(found) == list(expected) == model.names()
    axes = {name: point.axis for name, point in oracle_plan.points.items()}
    for name, arrays in expected.items():
        if len(arrays) > 1 and name.endswith("scores"):
            for place, array in enumerate(arrays):
                assert relative_error(found[name][:, place : place + 1, : place + 1], array) < TOLERANCE, name
                assert (found[name][:, place, place + 1 :] == np.float32(-1e30)).all()
        else:
            whole = np.concatenate(arrays, axis=axes[name])
            assert found[name].shape == whole.shape
            assert relative_error(found[name], whole) < TOLERANCE, name


@tiered("family", SHAPES, keep=(2,))
def test_names_mean_the_same_in_both_plans_and_what_the_field_means_by_them(family: str) -> None:
    made = checkpoint(family)
    with opened(made, "reference") as reference, opened(made, "fast") as fast:
        one, other = reference.capture("*", IDS), fast.capture("*", IDS)
    config, tokens = made.config, len(IDS)
    for name, array in other.items():
        expected = one[name.removesuffix(CENTRED)]
        if name.endswith(CENTRED):
            expected = expected - expected.mean(axis=-1, keepdims=True)
        if name in ("logits", "final_norm"):
            array, expected = array[-1:], expected[-1:]
        assert relative_error(array, expected) < TOLERANCE, name
    shared = config.num_attention_heads // config.num_key_value_heads
    for block in range(config.num_hidden_layers):
        at = f"blocks.{block}"
        q, k, v, scores, probs, mixed = (
            one[f"{at}.attn.{part}"] for part in ("q", "k", "v", "scores", "probs", "mixed")
        )
        assert q.shape == (config.num_attention_heads, tokens, config.head_dim)
        assert k.shape == v.shape == (config.num_key_value_heads, tokens, config.head_dim)
        seen = np.tril(np.ones((tokens, tokens), dtype=bool))
        product = q @ k.repeat(shared, axis=0).transpose(0, 2, 1) / math.sqrt(config.head_dim)
        assert relative_error(np.where(seen, scores, 0), np.where(seen, product, 0)) < TOLERANCE
        assert (scores[:, ~seen] == np.float32(-1e30)).all()
        weights = np.where(seen, np.exp(product - product.max(axis=-1, keepdims=True)), 0)
        assert relative_error(probs, weights / weights.sum(axis=-1, keepdims=True)) < TOLERANCE
        assert relative_error(mixed, probs @ v.repeat(shared, axis=0)) < TOLERANCE
        joined = mixed.transpose(1, 0, 2).reshape(tokens, -1)
        assert np.array_equal(one[f"{at}.attn.joined"], joined)
        if f"{at}.mlp.out" in one:
            assert relative_error(one[f"{at}.resid_mid"] + one[f"{at}.mlp.out"], one[f"{at}.resid_post"]) < TOLERANCE
            before = one["embed"] if block == 0 else one[f"blocks.{block - 1}.resid_post"]
            assert relative_error(before + one[f"{at}.attn.out"], one[f"{at}.resid_mid"]) < TOLERANCE


def test_a_capture_leaves_the_models_own_sequence_alone() -> None:
    with opened(checkpoint("gab")) as model:
        before = model.logits([*IDS, 9])
        draws = model._own.draws_issued
        model.capture("logits", [1, 2])
        assert np.array_equal(model.logits([*IDS, 9]), before)
        assert model._own.draws_issued == draws


@pytest.mark.parametrize(
    ("plan", "messages"),
    [
        (
            "fast",
            {
                "blocks.*.attn.probs": r"has no blocks\.\*\.attn\.probs; .* blocks\.\*\.attn\.scores or",
                "blocks.1.resid_post": r"has no blocks\.1\.resid_post; .* blocks\.1\.resid_post\.centred",
                "probs": r"the nearest they keep is logits; plan='reference'",
            },
        ),
        (
            "reference",
            {
                "blocks.0.attn.prob": r"the nearest names are blocks\.0\.attn\.probs and",
                "blocks.7.attn.probs": "the nearest names are",
            },
        ),
    ],
)
def test_a_name_that_a_plan_has_not_is_answered_with_the_nearest(plan: str, messages: dict[str, str]) -> None:
    with opened(checkpoint("gab"), plan) as model:
        for pattern, message in messages.items():
            with pytest.raises(InputError, match=message):
                model.capture(pattern, IDS)


def test_bad_captures_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(checkpoint("gab")) as model:
        for patterns in ([], [3], 3, None, "", ["logits", ""]):
            with pytest.raises(InputError, match="expected names such as"):
                model.capture(patterns, IDS)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="301"):
            model.capture("logits", [301])
        with pytest.raises(InputError, match="made without a tokenizer"):
            model.capture("logits", "text")
        monkeypatch.setattr(capture, "MAX_CAPTURE_BYTES", 4 * 301 * len(IDS) - 1)
        with pytest.raises(InputError, match="name fewer or run a shorter prompt"):
            model.capture("logits", IDS)
        model.close()
        with pytest.raises(ContextError, match="closed"):
            model.capture("logits", IDS)


@tiered(("family", "plan"), [("gab", "fast"), ("gab", "reference"), ("llama", "fast")], keep=2)
def test_a_watch_is_told_of_each_token(family: str, plan: str) -> None:
    with opened(checkpoint(family), plan) as model:
        plain = model.generate(IDS, max_tokens=4, temperature=0)
        seen: list[Seen] = []
        with model.watch(["blocks.0.mlp.hidden", "logits"], seen.append):
            assert model.generate(IDS, max_tokens=4, temperature=0) == plain
        assert len(model.generate(IDS, max_tokens=4, temperature=0)) == 4
        hidden = [each for each in seen if each.name == "blocks.0.mlp.hidden"]
        if plan == "fast":
            assert [each.first for each in hidden] == list(range(len(IDS) + 3))
            assert {each.array.shape for each in hidden} == {(1, model.config.intermediate_size)}
        else:
            assert [(each.first, len(each.array)) for each in hidden] == [(0, len(IDS) + more) for more in range(4)]
        logits = [each for each in seen if each.name == "logits"]
        assert [int(each.array[-1].argmax()) for each in logits][-4:] == plain
        assert [each.first for each in logits][-4:] == [len(IDS) - 1 + more for more in range(4)]


def test_what_a_hook_raises_ends_the_run_and_leaves_the_model_whole() -> None:
    with opened(checkpoint("gab")) as model:
        before = model.logits(IDS)

        def refuse(seen: Seen) -> None:
            raise ZeroDivisionError(seen.name)

        with pytest.raises(ZeroDivisionError, match="logits"), model.watch("logits", refuse):
            model.logits(IDS)
        assert not model.bound.observers
        assert np.array_equal(model.logits(IDS), before)


def mlp_of(made: Checkpoint, block: int, hidden: Array, middle: Array) -> Array:
    """The stream behind a block of Gab, float64."""
    weights: Mapping[str, Array] = made.tensors
    weight, bias = (weights[f"transformer.h.{block}.mlp.fc_out.{part}"].astype(float) for part in ("weight", "bias"))
    return middle + hidden @ weight.T + bias


@pytest.mark.parametrize("plan", ["reference", "fast"])
def test_a_patched_array_is_what_the_model_goes_on_with(plan: str) -> None:
    made = checkpoint("gab")
    end = "" if plan == "reference" else CENTRED
    with opened(made, plan) as model:
        plain = model.logits(IDS)
        before = model.capture(["blocks.0.*", "blocks.1.mlp.hidden"], IDS)
        hidden = np.random.default_rng(1).normal(size=(3, 128)).astype(np.float32)  # of the first three tokens alone
        with model.patch("blocks.0.mlp.hidden", hidden):
            after = model.capture(["blocks.0.*", "blocks.1.mlp.hidden"], IDS)
            changed = model.logits(IDS)
        whole = np.concatenate([hidden, before["blocks.0.mlp.hidden"][3:]])
        assert np.array_equal(after["blocks.0.mlp.hidden"], whole)
        expected = mlp_of(made, 0, whole, after[f"blocks.0.resid_mid{end}"])
        if plan == "fast":
            expected -= expected.mean(axis=1, keepdims=True)
        assert relative_error(after[f"blocks.0.resid_post{end}"], expected) < TOLERANCE
        assert np.array_equal(
            after[f"blocks.0.resid_post{end}"][3:], before[f"blocks.0.resid_post{end}"][3:]
        )  # of tokens that were left alone
        assert not np.allclose(after["blocks.1.mlp.hidden"], before["blocks.1.mlp.hidden"], rtol=1e-3)
        assert np.abs(changed - plain).max() > 0.01
        assert np.array_equal(model.logits(IDS), plain)


@tiered(("family", "plan"), [("gab", "fast"), ("gab", "reference"), ("llama", "fast")])
def test_what_was_captured_changes_nothing_where_it_is_patched_in(family: str, plan: str) -> None:
    with opened(checkpoint(family), plan) as model:
        captured = model.capture("*", IDS)
        for name, array in captured.items():
            with model.patch(name, array):
                again = model.capture(["blocks.1.*", "logits"], IDS)
            for each, found in again.items():
                assert np.array_equal(found, captured[each]), (name, each)


@tiered("family", ["gab", "llama"])
def test_patched_attention_mixes_as_it_says(family: str) -> None:
    """In Gab's reference plan, where one head follows the other in the same texture, and where all lie together."""
    made = checkpoint(family)
    shared = made.config.num_attention_heads // made.config.num_key_value_heads
    with opened(made, "reference") as model:
        v = model.capture("blocks.0.attn.v", IDS)["blocks.0.attn.v"].repeat(shared, axis=0)
        uniform = np.random.default_rng(2).random((len(v), len(IDS), len(IDS)), dtype=np.float32)
        with model.patch("blocks.0.attn.probs", uniform):
            found = model.capture("blocks.0.attn.*", IDS)
        assert np.array_equal(found["blocks.0.attn.probs"], uniform)
        assert relative_error(found["blocks.0.attn.mixed"], uniform @ v) < TOLERANCE
        heads: list[tuple[int, int]] = []

        def silence_head_1(seen: Seen) -> Array:
            heads.append((seen.head, len(seen.array)))
            seen.array[max(0, 1 - seen.head) : max(0, 2 - seen.head)] = 0
            return seen.array

        with model.patch("blocks.0.attn.mixed", silence_head_1):
            found = model.capture("blocks.0.attn.joined", IDS)
        by_head = found["blocks.0.attn.joined"].reshape(len(IDS), len(v), -1)
        assert not by_head[:, 1].any()
        assert all(by_head[:, head].any() for head in range(len(v)) if head != 1)
        assert heads == ([(head, 1) for head in range(4)] if family == "gab" else [(0, len(v))])


@pytest.mark.parametrize("plan", ["reference", "fast"])
def test_patched_queries_meet_the_keys(plan: str) -> None:
    """Those of the last token lie in texels of the cache that all tokens share."""
    with opened(checkpoint("llama"), plan) as model:
        before = model.capture(["blocks.0.attn.q", "blocks.0.attn.k"], IDS)
        queries = np.random.default_rng(2).normal(size=before["blocks.0.attn.q"].shape).astype(np.float32)
        with model.patch("blocks.0.attn.q", queries):
            after = model.capture(["blocks.0.attn.q", "blocks.0.attn.k", "blocks.0.attn.scores"], IDS)
        assert np.array_equal(after["blocks.0.attn.q"], queries)
        assert np.array_equal(after["blocks.0.attn.k"], before["blocks.0.attn.k"])
        keys = before["blocks.0.attn.k"].repeat(len(queries) // len(before["blocks.0.attn.k"]), axis=0)
        scores = np.einsum("hqd,hkd->hqk", queries, keys) * queries.shape[-1] ** -0.5
        seen = np.tri(len(IDS), dtype=bool)
        found = np.where(seen, after["blocks.0.attn.scores"], 0)
        assert relative_error(found, np.where(seen, scores, 0)) < TOLERANCE


@tiered("family", ["llama", "gab"])
def test_patched_keys_are_met_by_later_queries(family: str) -> None:
    with opened(checkpoint(family)) as model:
        before = model.capture(["blocks.0.attn.k", "logits"], IDS)
        keys = before["blocks.0.attn.k"][:, :2] + 3
        with model.patch("blocks.0.attn.k", keys):
            after = model.capture(["blocks.0.attn.k", "logits"], IDS)
            with model.session() as session:
                session.prefill(IDS)
                assert np.array_equal(session.logits(), after["logits"][-1])
        assert np.array_equal(after["blocks.0.attn.k"][:, :2], keys)
        assert np.array_equal(after["blocks.0.attn.k"][:, 2:], before["blocks.0.attn.k"][:, 2:])
        assert np.abs(after["logits"][-1] - before["logits"][-1]).max() > 1e-3


def test_a_patch_reaches_what_was_computed_before_it() -> None:
    """The model's own sequence keeps keys and values, and a prompt's last token is half done in a chunk."""
    with opened(checkpoint("gab")) as model, model.session() as session:
        plain = model.logits(IDS)
        session.prefill(IDS)  # through a chunk: what is left of the last token are the last block's passes
        with model.patch("blocks.0.mlp.hidden", lambda seen: 2 * seen.array):
            assert np.abs(model.logits(IDS) - plain).max() > 0.01
            last = session.logits()
        assert np.abs(last - plain).max() > 1e-3
        assert np.array_equal(model.logits(IDS), plain)


def test_bad_patches_are_refused_in_one_line() -> None:
    cases: list[tuple[str, Any, str]] = [
        ("blocks.0.mlp.hidden", np.zeros((2, 127)), r"is \[2, 127\]; expected \[tokens, 128\]"),
        ("blocks.0.mlp.hidden", "text", "expected an array or a function"),
        ("blocks.0.attn.scores", np.zeros((2, 3, 4)), r"expected \[4, tokens, tokens\]"),
        ("blocks.0.mlp.hidden", lambda seen: np.zeros(3), r"gave an array \[3\]; expected \[1, 128\]"),
        ("blocks.0.mlp.hidden", lambda seen: None, r"gave None instead of an array; expected \[1, 128\]"),
        ("blocks.0.mlp.hidden", lambda seen: "x", r"gave 'x' instead of an array; expected \[1, 128\]"),
        ("blocks.0.mlp.hidden", lambda seen: [[1], [2, 3]], r"gave \[\[1\], \[2, 3\]\] instead of an array"),
        ("blocks.0.mlp.hidden", lambda seen: seen, r"gave Seen\(.* instead of an array"),
        ("blocks.*.mlp.hidden", np.zeros((1, 128)), "a pattern of 2; expected one name, such as blocks.0.mlp.hidden"),
        ("blocks.9.mlp.hidden", np.zeros((1, 128)), "has no "),
        ("blocks.0.attn.probs", np.zeros((1, 128)), "the nearest they keep"),
    ]
    with opened(checkpoint("gab")) as model:
        plain = model.logits(IDS)
        for name, change, message in cases:
            with pytest.raises(InputError, match=message), model.patch(name, change):
                model.logits(IDS)
            assert np.array_equal(model.logits(IDS), plain)


def test_a_function_that_runs_its_own_model_is_refused() -> None:
    with opened(checkpoint("gab")) as model:
        plain = model.logits(IDS)

        def again(seen: Seen) -> Any:
            return model.logits(IDS[:2])

        for block in (model.watch, model.patch):
            entered = block("blocks.0.mlp.hidden", again)
            with pytest.raises(InputError, match="calls the model during a run"), entered:
                model.logits(IDS)
            assert np.array_equal(model.logits(IDS), plain)


def test_what_runs_several_sequences_at_once_is_refused_within_a_block() -> None:
    with opened(checkpoint("gab")) as model:
        with model.watch("logits", lambda seen: None):
            for run in (lambda: model.score([IDS]), lambda: model.generate([IDS, IDS], max_tokens=2)):
                with pytest.raises(InputError, match="leave the block of watch or patch first"):
                    run()
        assert not model.bound.observers
