"""A site that an earlier version has exported, under the runtime of this one."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glinfer.export.site import export_web

pytestmark = [pytest.mark.gl, pytest.mark.web]

RECORDED = Path(__file__).parents[3] / "tests" / "upgrade" / "recorded"


def test_it_is_refused_in_one_line(run_site: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """Plan, weights, tokenizer and shaders are the earlier version's; JavaScript and page are of now."""
    site = export_web(RECORDED / "0.1.0" / "model.gab", tmp_path / "site").folder
    with tarfile.open(RECORDED / "site-version-4.tar.xz") as archive:
        archive.extractall(site)  # our own; Python before 3.11.4 has no filters
    with pytest.raises(AssertionError, match="version 4; expected glinfer-web version 5; export the model again"):
        run_site(site, [{"kind": "logits", "ids": [1]}])
