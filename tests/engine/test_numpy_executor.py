"""The executor ``numpy``: logits and tokens of a plan without OpenGL; unmarked tests fail where a device opens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import in_floats, tiny

import glinfer
from glinfer.cli.app import run
from glinfer.engine.loading import prepare
from glinfer.engine.model import Model
from glinfer.engine.run.oracle import NumpyDevice
from glinfer.errors import ContextError, InputError
from glinfer.gl.context import Device, Limits
from glinfer.program.oracle import relative_error

IDS = [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.gl
@pytest.mark.parametrize("plan", ["fast", "reference"])
def test_logits_and_choices_are_the_renderers(small: Path, plan: str) -> None:
    with glinfer.load(small, plan=plan) as model, glinfer.load(small, plan=plan, executor="numpy") as oracle:
        assert relative_error(oracle.logits(IDS), model.logits(IDS)) < 1e-5
        assert oracle.logits(IDS).dtype == np.float32
        assert relative_error(oracle.probs(IDS), model.probs(IDS)) < 1e-5
        for options in ({"temperature": 0}, {"seed": 3, "top_p": 0.9, "temperature": 1.5}):
            assert oracle.generate("Once", max_tokens=6, **options) == model.generate("Once", max_tokens=6, **options)
        assert oracle.draws() == model.draws()
        assert "float64 NumPy" in repr(oracle)


def logits_of(config: Any, plan: str, device: Device, ids: list[int]) -> Any:
    engine = prepare(in_floats(config), device, plan).bind(device)
    try:
        with engine.session() as session:
            session.prefill(ids)
            return session.logits()
    finally:
        engine.bound.release()


@pytest.mark.gl
@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text", "lfm2", "qwen3_moe", "qwen3_5_text", "gpt_oss"])
def test_every_kind_of_layer(device: Device, family: str) -> None:
    for plan in ("fast", "reference"):
        found = logits_of(tiny(family), plan, NumpyDevice(), IDS)
        assert relative_error(found, logits_of(tiny(family), plan, device, IDS)) < 1e-4, plan


def test_a_sequence_goes_on_is_cut_and_copied(small: Path) -> None:
    """Whatever the newest sequence left in the caches, logits are those of the tokens alone."""
    with glinfer.load(small, executor="numpy") as model:
        alone = {tuple(ids): model.logits(ids) for ids in ([1], [1, 2, 3], [1, 2, 3, 4], [1, 2, 9], [5, 6])}
        with model.session() as session:
            session.prefill([1, 2, 3])
            assert np.array_equal(session.logits(), alone[1, 2, 3])
            with session.fork() as other:
                session.step(4)
                assert np.array_equal(session.logits(), alone[1, 2, 3, 4])
                other.rewind(1)
                other.step(9)
                assert np.array_equal(other.logits(), alone[1, 2, 9])
                other.rewind(2)
                assert np.array_equal(other.logits(), alone[1,])
        assert np.array_equal(model.logits([5, 6]), alone[5, 6])


NEEDS: list[Callable[[Model], object]] = [
    lambda model: model.capture("*", [1]),
    lambda model: next(iter(model.attention_steps(0, [1]))),
    lambda model: model.watch("*", print).__enter__(),
    lambda model: model.verify_textures(),
    lambda model: model.verify_textures(0.1),
    lambda model: model.score("Once upon"),
    lambda model: model.generate(["a", "b"]),
    lambda model: model.scheduler(),
    lambda model: model.forward([1]),
    lambda model: model.bound.texture("logits"),
    lambda model: model.bound.run({}),
    lambda model: model.engine.sessions_for(1),
    lambda model: model.device.gl,
]


@pytest.mark.parametrize("plan", ["fast", "reference"])
def test_what_needs_a_renderer_is_refused_in_one_line(small: Path, plan: str) -> None:
    with glinfer.load(small, plan=plan, executor="numpy") as model:
        for number, use in enumerate(NEEDS):
            with pytest.raises(InputError) as raised:
                use(model)
            said = str(raised.value)
            own = said.startswith("the numpy executor only computes logits and tokens of one sequence at a time;")
            assert own or (plan == "reference" and "fast plan" in said), (number, said)
        assert len(model.generate("Once", max_tokens=2, seed=1)) > 0, "and it still runs"
        session = model.session()
        session.prefill([1])
    for use_closed in (lambda: model.logits([1]), session.logits):
        with pytest.raises(ContextError, match="closed"):
            use_closed()


def test_options_that_do_not_go_together(small: Path) -> None:
    for options, message in (
        ({"executor": "cuda"}, "there is no executor 'cuda'; expected one of gl, numpy"),
        ({"executor": "numpy", "device": 0}, "the numpy executor has no renderer; leave out device"),
        ({"executor": "numpy", "api": "es"}, "the numpy executor has no renderer; leave out device"),
        ({"executor": "numpy", "limits": Limits.webgl2_minimum()}, "the numpy executor has no renderer"),
        ({"executor": "numpy", "shader_root": small.parent}, "the numpy executor has no renderer"),
        ({"executor": "numpy", "lora": "adapter"}, "the numpy executor has no renderer"),
        ({"executor": "numpy", "plan": "slow"}, "there is no plan 'slow'"),
    ):
        with pytest.raises(InputError) as raised:
            glinfer.load(small, **options)  # type: ignore[arg-type]
        assert str(raised.value).startswith(message)


def test_the_command_line_takes_it(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", str(small), "--ids", "1,2,3", "-n", "3", "-t", "0", "--executor", "numpy"]
    assert run(command) == 0
    said = capsys.readouterr()
    with glinfer.load(small, executor="numpy") as model:
        expected = model.generate([1, 2, 3], max_tokens=3, temperature=0)
    assert said.out == f"{','.join(map(str, expected))}\n"
    assert said.err.startswith("0 draws/token · 3 tokens")
    assert said.err.endswith("float64 NumPy, no OpenGL\n")
    batch = tmp_path / "prompts.jsonl"
    batch.write_text('{"ids": [1]}\n')
    for refused, options in (
        ("no renderer", ["--device", "0"]),
        ("one sequence", ["--batch", str(batch), "--out", str(tmp_path / "out.jsonl")]),
    ):
        given = command[:2] + command[8:] if "--batch" in options else command
        assert run([*given, *options]) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert refused in said.err
