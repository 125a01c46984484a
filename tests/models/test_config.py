"""Model shapes: every field's limits, the options text, and JSON from people who mean harm."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glinfer.config import ModelConfig
from glinfer.errors import ConfigError
from glinfer.families import DEFAULT_SHAPE

SMALL: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "max_position_embeddings": 11,
}
INTS = [*SMALL, "intermediate_size"]
MOST = 1 << 24


def make(**changes: Any) -> ModelConfig:
    return ModelConfig(**{**SMALL, **changes})


def refused(message: str) -> Any:
    """Expect a ConfigError of one short line that matches from its start."""
    return pytest.raises(ConfigError, match=rf"\A{message}[^\n]{{0,200}}\Z")


def config_or_short_line(read: Callable[[str], ModelConfig], text: str) -> ModelConfig | None:
    """What ``read`` makes of ``text``: a configuration, or None where it refuses in one short line."""
    try:
        return read(text)
    except ConfigError as error:
        line = str(error)
    assert len(line) < 300
    return None


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    heads, width = draw(st.integers(1, 64)), draw(st.integers(1, 64))
    return ModelConfig(
        vocab_size=draw(st.integers(1, MOST)),
        hidden_size=heads * width,
        num_attention_heads=heads,
        num_hidden_layers=draw(st.integers(1, MOST)),
        max_position_embeddings=draw(st.integers(1, MOST)),
        intermediate_size=draw(st.integers(1, MOST)),
        layer_norm_eps=draw(st.floats(0, 1, exclude_min=True, exclude_max=True)),
        hidden_act=draw(st.sampled_from(["gelu", "gelu_new"])),
        model_type=draw(st.text(max_size=20)),
        tie_word_embeddings=draw(st.booleans()),
    )


# Making one


def test_left_out_fields_have_gabs_values() -> None:
    config = make()
    assert config.intermediate_size == 48
    assert config.layer_norm_eps == 1e-5
    assert config.hidden_act == "gelu_new"
    assert config.model_type == "gab"
    assert config.head_dim == 4


def test_a_number_out_of_range_is_refused() -> None:
    wrong = [-1, MOST + 1, 10**100, 1.0, 2.5, float("nan"), "12", None, True, [1], np.int64(12)]
    for name, value in itertools.product(INTS, wrong):
        with refused(rf"{name} is .*; expected an integer from 1 to {MOST}"):
            make(**{name: value})
    for name in SMALL:
        with refused(rf"{name} is 0; expected an integer from 1 to {MOST}"):
            make(**{name: 0})
    for name, value in itertools.product(
        (SMALL.keys() | {"intermediate_size"}) - {"hidden_size", "num_attention_heads"}, (1, MOST)
    ):
        assert getattr(make(**{name: value}), name) == value


def test_what_is_no_model_is_refused() -> None:
    for hidden, heads in ((12, 5), (12, 13), (1, 2), (512, 7)):
        with refused(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}; every head"):
            make(hidden_size=hidden, num_attention_heads=heads)
    for eps in (0, 0.0, -0.0, -1e-5, 1, 1.0, 2.0, float("nan"), float("inf"), "1e-5", None, True, []):
        with refused(r"layer_norm_eps is .*; expected a number between 0 and 1"):
            make(layer_norm_eps=eps)
    for act in ("relu", "", "GELU", "gelu_fast", None, 1, ["gelu"], "gelu\n"):
        with refused("hidden_act is .*; expected one of gelu, gelu_new"):
            make(hidden_act=act)
    for name in (None, 1, ["gab"]):
        with refused("model_type is .*; expected a name"):
            make(model_type=name)


def test_the_form_of_gelu_can_be_chosen() -> None:
    config = make()
    assert config.with_gelu("erf") == make(hidden_act="gelu")
    assert config.with_gelu("erf").with_gelu("tanh") == config
    with refused("gelu is 'gelu'; expected 'tanh' or 'erf'"):
        config.with_gelu("gelu")


# The options text


def test_options_replace_what_they_name() -> None:
    for text in ("dim=64,heads=4", " dim=64 , heads=4 ", ",dim=64,,heads=4,", "heads=4,dim=64", "dim= 64,heads=04"):
        config = ModelConfig.from_options(text)
        assert (config.hidden_size, config.num_attention_heads, config.vocab_size) == (64, 4, 5256)
    for name in DEFAULT_SHAPE:
        assert ModelConfig.from_options(f"{name}=512") != ModelConfig.from_options(f"{name}=1024,heads=8")


def test_a_published_shape_goes_by_its_name() -> None:
    gab = ModelConfig.from_options("")
    assert ModelConfig.from_options("gab") == ModelConfig.from_options("family=llama,kv_heads=2,gab") == gab
    assert ModelConfig.from_options("gab, blocks=2") == dataclasses.replace(gab, num_hidden_layers=2)
    second = ModelConfig.from_options("gift_of_gab")
    assert second.model_type == "gift_of_gab"
    assert second.tie_word_embeddings
    assert (second.num_hidden_layers, second.hidden_size, second.num_attention_heads) == (13, 768, 12)
    assert (second.vocab_size, second.max_position_embeddings) == (10000, 2048)


def test_a_family_sets_its_usual_activation_and_base() -> None:
    found = ModelConfig.from_options("family=nomic_bert,dim=64,heads=4")
    assert (found.hidden_act, found.rope_theta, found.pooling) == ("silu", 1000.0, "mean")
    assert found.tie_word_embeddings


def test_options_that_make_no_model_are_refused() -> None:
    for text in ("width=5", "Dim=64", "=5", "dim heads=4", "dim:64", "hidden_size=64", "dïm=3"):
        with refused("unknown name '.*' in --config; known: vocab, dim, heads, blocks, context"):
            ModelConfig.from_options(text)
    for number in ("", "six", "6.0", "6x", "0x10", "1e3", "6=7", "²", "9" * 5000, "--6", "\x00"):
        with refused("blocks='.*' in --config; expected an integer"):
            ModelConfig.from_options(f"blocks={number}")
    with pytest.raises(ConfigError, match=r"^hidden_size is 9+\.\.\.9+; expected an integer from 1 to "):
        ModelConfig.from_options(f"family=llama,dim={'9' * 400}")
    for text in ("blocks=0", "blocks=-1", "vocab=99999999", "dim=100,heads=7", "context=0", "dim=16777216,heads=1"):
        with refused(""):
            ModelConfig.from_options(text)


@settings(max_examples=25)
@given(st.text(max_size=40))
def test_any_options_text_gives_a_model_or_one_line(text: str) -> None:
    config_or_short_line(ModelConfig.from_options, text)


# JSON


def test_heads_that_do_not_divide_the_width_are_kept() -> None:
    config = ModelConfig(70, 40, 6, 2, 64, head_dim=8, model_type="glm4_moe")
    assert ModelConfig.from_json(config.to_json()) == config


def test_the_width_beside_experts_that_a_family_needs_is_kept() -> None:
    config = ModelConfig(70, 40, 4, 2, 64, model_type="gemma4_moe", shared_intermediate_size=90)
    assert ModelConfig.from_json(config.to_json()) == config


@settings(max_examples=25)
@given(configs())
def test_json_and_back(config: ModelConfig) -> None:
    text = config.to_json()
    assert ModelConfig.from_json(text) == config
    assert ModelConfig.from_json(json.dumps(json.loads(text), indent=2)) == config
    assert ModelConfig.from_mapping(dataclasses.asdict(config)) == config


def test_missing_and_unknown_fields_are_named_in_a_short_line() -> None:
    for name in SMALL:
        with refused(f"the configuration has no '{name}'; required: {', '.join(SMALL)}"):
            ModelConfig.from_json(json.dumps({key: value for key, value in SMALL.items() if key != name}))
    for name in ("n_layer", "", "vocab_size ", "__class__", "headdim", "a\nb", "\ud800", "x" * 10**6):
        with refused("unknown configuration field '.*; known: vocab_size, "):
            ModelConfig.from_json(json.dumps({**SMALL, name: 1}))
    with refused("unknown configuration field 'k0"):
        ModelConfig.from_json(json.dumps({**SMALL, **{f"k{i:04}": 1 for i in range(10_000)}}))


def test_text_that_is_no_configuration_is_refused() -> None:
    for text in (
        *("", "{", "{'a': 1}", '{"a": 1} x', "\ufeff{}", "[" * 100_000, '{"a":' * 100_000),
        '{"vocab_size": ' + "9" * 5000 + "}",
    ):
        with refused("the configuration is not JSON"):
            ModelConfig.from_json(text)
    for text, kind in (("null", "NoneType"), ("[]", "list"), ('"text"', "str"), ("5", "int"), ("NaN", "float")):
        with refused(f"the configuration is a JSON {kind}; expected an object"):
            ModelConfig.from_json(text)
    with refused("the configuration has no 'vocab_size'"):
        ModelConfig.from_json("{}")


def test_json_values_of_another_kind_are_refused_in_a_short_line() -> None:
    hostile = [None, True, "12", 1.5, [], {}, [[[[[[[[1]]]]]]]], {"a": {"b": 1}}, "x" * 10**6, [0] * 10**4, -1, 1e308]
    for name, value in itertools.product([*INTS, "layer_norm_eps"], hostile):
        with refused(f"{name} is .*; expected an? "):
            ModelConfig.from_json(json.dumps({**SMALL, name: value}))
    for text in ("NaN", "Infinity", "-Infinity", "1e999", "1e-999"):
        with refused("layer_norm_eps is .*; expected a number between 0 and 1"):
            ModelConfig.from_json(json.dumps(SMALL)[:-1] + f', "layer_norm_eps": {text}}}')


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=25)
@given(st.dictionaries(st.sampled_from([*INTS, "layer_norm_eps", "hidden_act", "model_type"]), JSON), st.booleans())
def test_any_json_gives_a_model_or_one_line(values: dict[str, Any], complete: bool) -> None:
    config = config_or_short_line(ModelConfig.from_json, json.dumps({**(SMALL if complete else {}), **values}))
    assert config is None or ModelConfig.from_json(config.to_json()) == config
