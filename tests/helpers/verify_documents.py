"""The JSON document of ``glinfer verify``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from commands import ran_json
from jsonschema import Draft202012Validator

from glinfer.inspect.verify.suite import SCHEMA


def validated(document: dict[str, Any]) -> dict[str, Any]:
    """The document, which keeps to the schema."""
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    return document


def verified(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> dict[str, Any]:
    """The document of a command that ends with ``status``."""
    document = validated(ran_json(capsys, "verify", *arguments, status=status))
    assert document["passed"] is (status == 0)
    return document
