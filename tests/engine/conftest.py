"""Models that many tests share: each is opened once, and a test gets it as if it had just been opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from glinfer.engine.model import Model


def as_new(model: Model) -> Model:
    """Undo what earlier tests set or left in the model's own sequence."""
    from glinfer.engine.sampler import NEUTRAL

    model.sampling = NEUTRAL
    model.engine.nan_guard.strict = model.engine.nan_guard._warned = False
    model._own.hold([])
    return model


@pytest.fixture(scope="session")
def shared_gab(small: Path) -> Iterator[Model]:
    """Use ``model``. Its chunk plan is there from the start, so that no test depends on an earlier one."""
    import glinfer

    with glinfer.load(small) as opened:
        opened.logits(range(12))
        yield opened


@pytest.fixture
def model(shared_gab: Model) -> Model:
    """A Gab of 2 blocks, 4 heads, 300 tokens and a context of 64; its defaults draw from all tokens."""
    return as_new(shared_gab)


@pytest.fixture(scope="session")
def shared_reference(small: Path) -> Iterator[Model]:
    """Use ``reference``."""
    import glinfer

    with glinfer.load(small, plan="reference") as opened:
        yield opened


@pytest.fixture
def reference(shared_reference: Model) -> Model:
    """The same model by the reference plan."""
    return as_new(shared_reference)


@pytest.fixture(scope="session")
def shared_llama() -> Iterator[Model]:
    """Use ``llama``."""
    from made_models import of_family, opened

    with opened(of_family("llama")) as made:
        made.logits(range(12))
        yield made


@pytest.fixture
def llama(shared_llama: Model) -> Model:
    """A Llama of 2 layers, 4 heads (2 of keys and values), 301 tokens and a context of 48."""
    return as_new(shared_llama)
