"""Configurations that a ``config.json`` describes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glinfer.config import ModelConfig
from glinfer.formats.huggingface.config import read_config


def config_with(folder: Path, settings: Mapping[str, Any] | str, **changes: Any) -> ModelConfig:
    """What is read of these settings, or of a family's defaults by its name, with changes; ``...`` leaves one out."""
    given = {"model_type": settings} if isinstance(settings, str) else settings
    values = {name: value for name, value in {**given, **changes}.items() if value is not ...}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values), "utf-8")
    return read_config(folder / "config.json")
