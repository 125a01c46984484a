"""An exported site in Firefox and in WebKitGTK: the same tokens and draw calls as Python's, and nothing complains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glinfer
from glinfer.export.site import export_web
from qa.renderers.browsers import serving

pytestmark = [pytest.mark.gl, pytest.mark.web]


@pytest.mark.parametrize("browser", ["firefox", "webkit"])
def test_the_bundled_model_writes_what_it_writes_in_python(
    request: pytest.FixtureRequest, browser: str, tmp_path: Path
) -> None:
    opened: Callable[..., dict[str, Any]] = request.getfixturevalue(f"open_in_{browser}")
    made = export_web("shakespeare", tmp_path / "site")
    with glinfer.load("shakespeare") as model:
        assert model.tokenizer is not None
        prompt = model.tokenizer.encode("ROMEO:")
        ids = model.generate(prompt, max_tokens=20, temperature=0, stop_ids=())
        logits = model.logits(prompt)
    with serving(made.folder) as url:
        jobs = [{"kind": "greedy", "ids": prompt, "count": 20}, {"kind": "verify"}]
        greedy, verified = opened(f"{url}?worker=0", jobs)["results"]
    assert greedy["ids"] == ids
    assert np.abs(np.array(greedy["logits"][0], np.float32) - logits).max() <= 1e-4
    assert greedy["draws"][1:] == [made.draws] * 19, "the first one ends what the prompt's last piece has begun"
    assert verified["reports"][0]["ok"] is True
