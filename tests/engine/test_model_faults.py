"""Models on drivers that break: no memory, a lost context, shaders that are refused, small limits, wrong readbacks."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broken_driver import GUILTY, INNOCENT, LOST, NO_NAME, REFUSED, BrokenDriver, mended
from commands import refused
from made_models import of_family, opened
from scripted_models import SMALL
from tiers import tiered

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine import loading
from glinfer.engine.loading import random_weights
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.errors import ContextError, GLError, GlinferError, GlinferWarning, PlanError, ShaderError
from glinfer.formats import Checkpoint, random_checkpoint
from glinfer.gl import memory
from glinfer.gl.context import Device, open_device
from glinfer.gl.layouts.matrix import Layout
from glinfer.gl.program import Program
from glinfer.inspect.settings import RunSetting
from glinfer.inspect.verify.suite import CheckOptions, verify_everywhere
from glinfer.lower.plans import PLANS, plan_for
from glinfer.program import session as session_module
from glinfer.program.session import check_textures_fit
from glinfer.program.tuning import default_for

pytestmark = pytest.mark.gl

SHORT = [5, 6, 7]  # so few that they go one by one
PENALISED = SamplingOptions(repetition_penalty=1.2, seed=2)
IDS = np.random.default_rng(3).integers(0, 300, 64).tolist()

Array = np.ndarray[Any, Any]


def checkpoint_of(family: str) -> Checkpoint:
    """The small Gab with one block, or the small Llama."""
    one_block = SMALL.replace("blocks=2", "blocks=1")
    return of_family(family) if family == "llama" else random_checkpoint(ModelConfig.from_options(one_block), seed=1)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> BrokenDriver:
    return BrokenDriver(monkeypatch)


@pytest.fixture
def device(driver: BrokenDriver) -> Iterator[Device]:
    """A device over the driver that breaks, which works again before the audit looks at it."""
    with open_device(api="es") as made:
        yield mended(driver, made)


# Memory that runs out


def says_what_to_do(error: GlinferError) -> None:
    """What is said when an allocation has failed: which texture, how large, and what to do."""
    said = str(error)
    assert isinstance(error, GLError)
    assert said.startswith(("creating texture ", "creating the framebuffer of "))
    assert "found no memory for " in said
    assert "--context" in said


def each_failed(driver: BrokenDriver, how: Any, act: Callable[[], Any], after: Callable[[int], None]) -> Any:
    """What ``act`` gives when no allocation fails any more, and how many did, each in turn; ``after`` follows each."""
    failures = 0
    while True:
        driver.fail_at(failures + 1, how)
        try:
            return act(), failures
        except GlinferError as error:
            failures += 1
            assert driver.failed
            says_what_to_do(error)
            driver.mend()
            after(failures)


@tiered(
    ("family", "plan", "how"), [("gab", "fast", REFUSED), ("gab", "reference", REFUSED), ("llama", "fast", NO_NAME)]
)
def test_every_allocation_that_fails_while_loading_leaves_nothing(
    driver: BrokenDriver, device: Device, family: str, plan: str, how: str
) -> None:
    checkpoint = checkpoint_of(family)
    with opened(checkpoint, plan, device=device) as model:
        expected, textures = model.logits(SHORT), len(device.owned("texture"))

    def after(_: int) -> None:
        assert not device.live_objects()

    model, failures = each_failed(driver, how, lambda: opened(checkpoint, plan, device=device), after)
    assert failures >= textures
    assert np.array_equal(model.logits(SHORT), expected)
    model.close()


def a_prompt(model: Model) -> Any:
    with model.session() as session:
        session.prefill(IDS[:40])
        return session.logits()


def a_filtered_token(model: Model) -> Any:
    with model.session() as session:
        session.prefill(IDS[:4])
        found = session.generate_ids(2, Sampler(SamplingOptions(top_k=5, seed=1)))
        assert session.logit_reads == 0
        return np.array(found)


def a_draft(model: Model) -> Any:
    with model.session() as session:
        session.prefill(IDS[:4])
        found = [session.accept(IDS[:7], Sampler(options)) for options in (SamplingOptions(seed=1), PENALISED)]
        return np.array([len(session), found[0][0], found[1][0], *session.accept(IDS[:2], Sampler(PENALISED))[:1]])


def a_batch(model: Model) -> Any:
    requests = [BatchRequest(IDS[:5], {"max_tokens": 3, "seed": seed}) for seed in range(3)]
    results = sorted(model.batch(requests, slots=2), key=lambda result: result.request.options["seed"])
    return np.array([result.ids for result in results])


def scores(model: Model) -> Any:
    return model.score([IDS[:9], IDS[9:14]])[0].logprobs


@pytest.mark.usefixtures("chunk_at_once")  # as many textures from the first attempt on
@tiered(
    ("family", "act", "how"),
    [("gab", a_prompt, REFUSED), ("gab", a_draft, REFUSED), ("llama", a_batch, NO_NAME)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_every_allocation_that_fails_later_leaves_the_model_as_it_was(
    driver: BrokenDriver, device: Device, family: str, act: Callable[[Model], Any], how: str
) -> None:
    """While sequences, chunks of prompts, batches and scores are bound."""
    checkpoint = checkpoint_of(family)
    with opened(checkpoint, device=device) as model:
        short, expected = model.logits(SHORT), act(model)
        kept = device.live_objects()  # scratch of prompts and scores stays for the next ones
    with opened(checkpoint, device=device) as model:

        def after(place: int) -> None:
            assert device.live_objects()["texture"] <= kept["texture"]
            if place % 8 == 1:
                assert np.array_equal(model.logits(SHORT), short)

        found, failures = each_failed(driver, how, lambda: act(model), after)
        assert not driver.failed
        assert failures >= 4
        assert np.array_equal(found, expected)
        assert np.array_equal(model.logits(SHORT), short)
        assert device.live_objects() == kept
    assert not device.live_objects()


class TestTooLarge:
    """A model that does not fit the memory is told before anything is made."""

    @pytest.fixture(autouse=True)
    def little(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(memory, "MIN_CHECKED_BYTES", 0)
        monkeypatch.setattr(session_module, "MIN_CHECKED_BYTES", 0)
        monkeypatch.setattr(memory, "available_bytes", lambda: 10_000)

    def test_before_weights_are_folded_or_uploaded(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        if not device.in_main_memory:
            pytest.skip("this GPU has memory of its own, and says itself when it has no more")
        monkeypatch.setattr(loading, "weights_for", None)  # nobody comes so far
        for plan in PLANS:
            with pytest.raises(PlanError) as caught:
                opened(checkpoint_of("gab"), plan, device=device)
            said = str(caught.value)
            assert said.startswith(f"plan {plan} takes ")
            assert "cache " in said or plan == "reference"
            free = "of memory, and 10.0 kB are free here; take a shorter context (--context), fewer bits "
            assert f"{free}(--weights q8, or file for GGUF blocks), a smaller model" in said

    def test_sequences_that_no_longer_fit(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        if not device.in_main_memory:
            pytest.skip("this GPU has memory of its own, and says itself when it has no more")
        monkeypatch.setattr(memory, "available_bytes", lambda: 10_000_000)
        with opened(checkpoint_of("gab"), device=device) as model:
            expected, before = model.logits(SHORT), device.live_objects()
            monkeypatch.setattr(memory, "available_bytes", lambda: 10_000)
            with pytest.raises(PlanError, match=r"^plan fast takes .* \(activation .*cache .*\) of memory"):
                model.session()
            assert device.live_objects() == before
            assert np.array_equal(model.logits(SHORT), expected)


def test_python_without_memory_is_told_too(device: Device, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a limit on address space, where NumPy is refused."""

    def refused(*_: Any) -> Any:
        raise MemoryError("Unable to allocate 9.3 GiB for an array")

    monkeypatch.setattr(Layout, "pack", refused)
    with pytest.raises(GLError, match=r"^packing weight .*: found no memory for .*; close models"):
        glinfer.load(small, device=device, plan="reference")
    monkeypatch.setattr(loading, "weights_for", refused)
    for options in ({"device": device}, {}):
        with pytest.raises(PlanError, match=r"^Python has no memory left for this model \(Unable to allocate 9"):
            glinfer.load(small, **options)
    assert not device.live_objects()


def test_large_shapes_are_refused_before_random_weights_are_made(
    device: Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**10)
    monkeypatch.setattr(loading, "random_checkpoint", None)  # nobody comes so far
    shape = "heads=16,dim=4096,inner=8192,blocks=30,vocab=16000,context=512"
    for plan in PLANS:
        config = ModelConfig.from_options(shape)
        words = r"^random weights takes [0-9.]+ GB of memory, and 10\.0 GB are free here; take a"
        with pytest.raises(PlanError, match=words):
            random_weights(config, plan)
        if device.in_main_memory:
            with pytest.raises(PlanError, match=rf"^plan {plan} takes .* and 10\.0 GB are free here"):
                check_textures_fit(plan_for(config, plan, kernels=default_for(device)), device)
    for command in (["verify"], ["bench"]):
        said = refused(capsys, *command, "--config", "heads=16,dim=4096,blocks=30,vocab=16000,context=512")
        assert "of memory, and 10.0 GB are free here; take a shorter context (--context)" in said


# A context that is lost


@tiered(
    ("family", "plan", "status", "error"),
    [("gab", "fast", GUILTY, 0), ("gab", "reference", INNOCENT, LOST), ("llama", "fast", 0, LOST)],
)
def test_a_lost_model_is_loaded_again_and_a_session_goes_on_from_its_tokens(
    driver: BrokenDriver, family: str, plan: str, status: int, error: int
) -> None:
    checkpoint, options = checkpoint_of(family), SamplingOptions(seed=5)
    sampler, again = Sampler(options), Sampler(options)
    with open_device(api="es") as device, opened(checkpoint, plan, device=device) as model, model.session() as session:
        session.prefill(IDS[:20])
        written = session.generate_ids(12, sampler)

    device = mended(driver, open_device(api="es"))
    model = opened(checkpoint, plan, device=device)
    session = model.session()
    session.prefill(IDS[:20])
    assert session.generate_ids(4, again) == written[:4]
    driver.lose(status, error)
    with pytest.raises(ContextError, match=r"the graphics context was lost .*session\.prefill\(old_session\.ids\)"):
        session.generate_ids(4, again)
    assert again.step == 4, "nothing was chosen"
    for use in (lambda: model.logits(SHORT), lambda: model.generate(SHORT, max_tokens=1), session.logits):
        with pytest.raises(ContextError, match=r"^the graphics context was lost"):
            use()
    assert session.ids == IDS[:20] + written[:4]
    session.close()
    model.close()
    device.close()
    assert session.ids == IDS[:20] + written[:4]

    with open_device(api="es") as other, opened(checkpoint, plan, device=other) as anew, anew.session() as follower:
        follower.prefill(session.ids)
        with anew.session() as unbroken:
            unbroken.prefill(IDS[:20] + written[:4])
            assert np.array_equal(follower.logits(), unbroken.logits())
        assert follower.generate_ids(8, again) == written[4:]


# Shaders that the driver refuses


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Have a shader refused, or only those forms of it whose defines have such values; gives what was refused."""
    init = Program.__init__

    def refuse(shader: str, **values: int) -> list[str]:
        refused: list[str] = []

        def refusing(
            program: Program, device: Device, name: str, defines: Mapping[str, Any], *more: Any, **named: Any
        ) -> None:
            if name == shader and all(defines.get(key) == value for key, value in values.items()):
                refused.append(name)
                raise ShaderError(f"{name}.frag:7: 0:7(1): error: too clever")
            init(program, device, name, defines, *more, **named)

        monkeypatch.setattr(Program, "__init__", refusing)
        return refused

    return refuse


def short_logits(model: Model) -> Any:
    return model.logits(SHORT)


@lru_cache
def usually(family: str, plan: str, act: Callable[[Model], Any]) -> Array:
    """What a model does where no shader is refused."""
    with open_device(api="es") as device, opened(checkpoint_of(family), plan, device=device) as model:
        return np.asarray(act(model))


@tiered(
    ("family", "plan", "shader", "values", "acts"),
    [
        ("gab", "fast", "choice_list", {"LOOKUP_TEXTURE": 1}, [a_filtered_token]),
        ("gab", "fast", "gemm", {"ROWS": 8}, [short_logits, a_prompt, a_batch, scores]),
        ("llama", "fast", "gemm", {"ROPE": 1, "QUAD": 1, "ALONE": 1}, [short_logits, a_prompt]),
        ("llama", "reference", "gate", {"LOOKUP_TEXTURE": 1}, [short_logits]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refused_shader_is_replaced_by_a_plainer_one_with_one_warning(
    device: Device,
    refuse: Callable[..., list[str]],
    family: str,
    plan: str,
    shader: str,
    values: dict[str, int],
    acts: list[Callable[[Model], Any]],
) -> None:
    """At once, or when the plan that has it is bound first: of prompts, batches and scores."""
    if "llvmpipe" not in device.renderer:
        pytest.skip("these are forms that llvmpipe's kernels have")
    expected = [usually(family, plan, act) for act in acts]
    refused = refuse(shader, **values)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with opened(checkpoint_of(family), plan, device=device) as model:
            for act, numbers in zip([*acts, acts[0]], [*expected, expected[0]], strict=True):
                np.testing.assert_allclose(act(model), numbers, atol=1e-4)
    assert refused
    assert [warning.category for warning in caught] == [GlinferWarning]
    said = str(caught[0].message)
    assert f"{shader}.frag:7" in said
    assert "lookup_texture=False" in said
    assert not device.live_objects()


@pytest.mark.slow
def test_a_shader_that_is_refused_in_every_form_is_an_error_with_its_line(
    device: Device, refuse: Callable[..., list[str]]
) -> None:
    refused = refuse("pick")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ShaderError, match=r"^pick\.frag:7: "):
            opened(checkpoint_of("gab"), device=device)
    assert len(refused) == 2, "the chosen one, and the plainest"
    assert not device.live_objects()


@pytest.mark.slow
def test_later_plans_that_are_refused_in_every_form_leave_the_model_as_it_was(
    device: Device, refuse: Callable[..., list[str]]
) -> None:
    with opened(checkpoint_of("gab"), device=device) as model:
        expected, before = model.logits(SHORT), device.live_objects()
        refuse("gemm", ALONE=0)
        for act in (a_prompt, a_draft, a_batch, scores):
            with pytest.raises(ShaderError, match=r"^gemm\.frag:7: "):
                act(model)
            assert device.live_objects()["texture"] == before["texture"]
        assert np.array_equal(model.logits(SHORT), expected)


def test_kernels_that_were_asked_for_are_not_replaced(
    device: Device, refuse: Callable[..., list[str]], small: Path, tmp_path: Path
) -> None:
    kernels = default_for(device)
    refuse("gemm", QUAD=1, ALONE=1)
    with pytest.raises(ShaderError, match=r"^gemm\.frag:7"):
        opened(checkpoint_of("gab"), kernels=kernels, device=device)
    refuse("gemm", ROWS=kernels.rows_per_draw)
    with (
        opened(checkpoint_of("gab"), kernels=kernels, device=device) as model,
        pytest.raises(ShaderError, match=r"^gemm"),
    ):
        a_prompt(model)
    with pytest.raises(ShaderError, match="no shader file"):
        glinfer.load(small, device=device, shader_root=tmp_path)


# Drivers that give back something else than they were given

LIES: dict[str, tuple[str, str, Callable[[Array], Array]]] = {
    # Plan and weights, and what becomes of the numbers that are read back.
    "floats kept as halves": ("reference", "f32", lambda numbers: numbers.astype(np.float16).astype(np.float32)),
    "the last bits lost": ("fast", "f32", lambda numbers: (numbers.view(np.uint32) & ~np.uint32(3)).view(np.float32)),
    "red read as zero": ("reference", "f32", np.zeros_like),
    "words clamped to 31 bits": ("fast", "q8", lambda words: np.minimum(words, np.uint32(0x7FFFFFFF))),
}
_CHANNELS = {0x1903: 1, 0x8D94: 1, 0x1908: 4, 0x8D99: 4}


def lie(driver: BrokenDriver, change: Callable[[Array], Array], dtype: Any) -> None:
    def after_read(address: int, gl_format: int, size: tuple[int, int]) -> None:
        count = size[0] * size[1] * _CHANNELS[gl_format]
        integers = gl_format in (0x8D94, 0x8D99)
        if integers is (dtype == np.uint32):
            held = np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(address)).view(dtype)
            with np.errstate(over="ignore", invalid="ignore"):
                held[:] = change(held.copy())

    driver.after_read = after_read


@pytest.mark.slow
def test_verify_catches_a_driver_that_lies_about_a_format(driver: BrokenDriver) -> None:
    for name, (plan, weights, change) in LIES.items():
        lie(driver, change, np.uint32 if weights == "q8" else np.float32)
        report = verify_everywhere(checkpoint_of("gab"), [RunSetting(plan=plan, weights=weights)], CheckOptions())
        bad = {check.name for check in report.runs[0].bad_textures}
        assert not report.passed, name
        embedding = "transformer.wte.weight" if plan == "reference" else "h.0.mlp.fc_in.weight"
        assert {embedding, "lm_head.weight"} <= bad, name
