"""Model shapes: every field's limits, the options text, and JSON from people who mean harm."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
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
    assert "\n" not in line
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


def test_it_is_immutable_and_hashable() -> None:
    config = make()
    assert config == make()
    assert len({config, make(), make(vocab_size=38)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.vocab_size = 5  # type: ignore[misc]


@pytest.mark.parametrize("name", INTS)
@pytest.mark.parametrize("value", [-1, MOST + 1, 10**100, 1.0, 2.5, float("nan"), "12", None, True, [1], np.int64(12)])
def test_a_number_out_of_range_is_refused(name: str, value: Any) -> None:
    with refused(rf"{name} is .*; expected a whole number from 1 to {MOST}"):
        make(**{name: value})


@pytest.mark.parametrize("name", sorted(SMALL))
def test_nought_is_refused(name: str) -> None:
    with refused(rf"{name} is 0; expected a whole number from 1 to {MOST}"):
        make(**{name: 0})


@pytest.mark.parametrize("name", ["vocab_size", "num_hidden_layers", "max_position_embeddings", "intermediate_size"])
@pytest.mark.parametrize("value", [1, MOST])
def test_the_ends_of_the_range_are_taken(name: str, value: int) -> None:
    assert getattr(make(**{name: value}), name) == value


def test_a_width_too_large_for_the_default_inner_width_says_which() -> None:
    with refused(rf"intermediate_size is {4 * MOST}; expected a whole number from 1 to {MOST}"):
        make(hidden_size=MOST, num_attention_heads=1)
    assert make(hidden_size=MOST, num_attention_heads=1, intermediate_size=1).head_dim == MOST


@pytest.mark.parametrize(("hidden", "heads"), [(12, 5), (12, 7), (12, 13), (1, 2), (512, 7)])
def test_heads_that_do_not_divide_the_width_are_refused(hidden: int, heads: int) -> None:
    with refused(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}; every head"):
        make(hidden_size=hidden, num_attention_heads=heads)


@pytest.mark.parametrize("eps", [0, 0.0, -0.0, -1e-5, 1, 1.0, 2.0, float("nan"), float("inf"), "1e-5", None, True, []])
def test_an_epsilon_out_of_range_is_refused(eps: Any) -> None:
    with refused(r"layer_norm_eps is .*; expected a number between 0 and 1"):
        make(layer_norm_eps=eps)


@pytest.mark.parametrize("act", ["relu", "", "GELU", "gelu_fast", None, 1, ["gelu"], "gelu\n"])
def test_an_unknown_activation_is_refused(act: Any) -> None:
    with refused("hidden_act is .*; expected one of gelu, gelu_new"):
        make(hidden_act=act)


@pytest.mark.parametrize("name", [None, 1, ["gab"]])
def test_a_model_type_that_is_no_name_is_refused(name: Any) -> None:
    with refused("model_type is .*; expected a name"):
        make(model_type=name)


def test_the_form_of_gelu_can_be_chosen() -> None:
    config = make()
    assert config.with_gelu("erf") == make(hidden_act="gelu")
    assert config.with_gelu("erf").with_gelu("tanh") == config
    with refused("gelu is 'gelu'; expected 'tanh' or 'erf'"):
        config.with_gelu("gelu")


# The options text


def test_no_options_are_gab_itself() -> None:
    config = ModelConfig.from_options("")
    assert config.to_dict() == {
        "vocab_size": 5256,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_hidden_layers": 6,
        "max_position_embeddings": 2048,
        "intermediate_size": 2048,
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu_new",
        "model_type": "gab",
        "tie_word_embeddings": False,
    }


@pytest.mark.parametrize(
    "text", ["dim=64,heads=4", " dim=64 , heads=4 ", ",dim=64,,heads=4,", "heads=4,dim=64", "dim= 64,heads=04"]
)
def test_options_replace_what_they_name(text: str) -> None:
    config = ModelConfig.from_options(text)
    assert (config.hidden_size, config.num_attention_heads, config.vocab_size) == (64, 4, 5256)


@pytest.mark.parametrize("name", sorted(DEFAULT_SHAPE))
def test_every_name_of_the_header_is_an_option(name: str) -> None:
    assert ModelConfig.from_options(f"{name}=512") != ModelConfig.from_options(f"{name}=1024,heads=8")


@pytest.mark.parametrize("text", ["width=5", "Dim=64", "=5", "dim heads=4", "dim:64", "hidden_size=64", "dïm=3"])
def test_an_unknown_option_is_refused(text: str) -> None:
    with refused("unknown name '.*' in --config; known: vocab, dim, heads, blocks, context"):
        ModelConfig.from_options(text)


@pytest.mark.parametrize("number", ["", "six", "6.0", "6x", "0x10", "1e3", "6=7", "²", "9" * 5000, "--6", "\x00"])
def test_an_option_that_is_no_number_is_refused(number: str) -> None:
    with refused("blocks='.*' in --config; expected a whole number"):
        ModelConfig.from_options(f"blocks={number}")


def test_a_width_beyond_floats_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^hidden_size is 9+\.\.\.9+; expected a whole number from 1 to "):
        ModelConfig.from_options(f"family=llama,dim={'9' * 400}")


@pytest.mark.parametrize(
    "text", ["blocks=0", "blocks=-1", "vocab=99999999", "dim=100,heads=7", "context=0", "dim=16777216,heads=1"]
)
def test_options_that_make_no_model_are_refused(text: str) -> None:
    with refused(""):
        ModelConfig.from_options(text)


@given(st.text(max_size=40))
def test_any_options_text_gives_a_model_or_one_line(text: str) -> None:
    config_or_short_line(ModelConfig.from_options, text)


# JSON


@given(configs())
def test_json_and_back(config: ModelConfig) -> None:
    text = config.to_json()
    assert "\n" not in text
    assert ModelConfig.from_json(text) == config
    assert ModelConfig.from_json(json.dumps(json.loads(text), indent=2)) == config
    assert ModelConfig.from_mapping(dataclasses.asdict(config)) == config


def test_left_out_fields_may_be_left_out_of_json_too() -> None:
    assert ModelConfig.from_json(json.dumps(SMALL)) == make()


@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_missing_field_is_named(name: str) -> None:
    with refused(f"the configuration has no '{name}'; required: {', '.join(SMALL)}"):
        ModelConfig.from_json(json.dumps({key: value for key, value in SMALL.items() if key != name}))


@pytest.mark.parametrize("name", ["n_layer", "", "vocab_size ", "__class__", "headdim", "a\nb", "\ud800", "x" * 10**6])
def test_an_unknown_field_is_named_in_a_short_line(name: str) -> None:
    with refused("unknown configuration field '.*; known: vocab_size, "):
        ModelConfig.from_json(json.dumps({**SMALL, name: 1}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the configuration is not JSON"),
        ("{", "the configuration is not JSON"),
        ("{'a': 1}", "the configuration is not JSON"),
        ('{"a": 1} x', "the configuration is not JSON"),
        ("\ufeff{}", "the configuration is not JSON"),
        ("[" * 100_000, "the configuration is not JSON"),
        ('{"a":' * 100_000, "the configuration is not JSON"),
        ('{"vocab_size": ' + "9" * 5000 + "}", "the configuration is not JSON"),
        ("null", "the configuration is a JSON NoneType; expected an object"),
        ("[]", "the configuration is a JSON list; expected an object"),
        ('"text"', "the configuration is a JSON str; expected an object"),
        ("5", "the configuration is a JSON int; expected an object"),
        ("NaN", "the configuration is a JSON float; expected an object"),
        ("{}", "the configuration has no 'vocab_size'"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_text_that_is_no_configuration_is_refused(text: str, words: str) -> None:
    with refused(words):
        ModelConfig.from_json(text)


HOSTILE: list[Any] = [
    None,
    True,
    "12",
    1.5,
    [],
    {},
    [[[[[[[[1]]]]]]]],
    {"a": {"b": 1}},
    "x" * 10**6,
    [0] * 10**5,
    -1,
    1e308,
]


@pytest.mark.parametrize("name", [*INTS, "layer_norm_eps"])
@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:12])
def test_a_json_value_of_another_kind_is_refused_in_a_short_line(name: str, value: Any) -> None:
    with refused(f"{name} is .*; expected a "):
        ModelConfig.from_json(json.dumps({**SMALL, name: value}))


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "1e-999"])
def test_json_numbers_that_are_no_numbers_are_refused(text: str) -> None:
    with refused("layer_norm_eps is .*; expected a number between 0 and 1"):
        ModelConfig.from_json(json.dumps(SMALL)[:-1] + f', "layer_norm_eps": {text}}}')


def test_many_unknown_fields_are_one_short_line() -> None:
    with refused("unknown configuration field 'k0"):
        ModelConfig.from_json(json.dumps({**SMALL, **{f"k{i:07}": 1 for i in range(100_000)}}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*INTS, "layer_norm_eps", "hidden_act", "model_type"]), JSON), st.booleans())
def test_any_json_gives_a_model_or_one_line(values: dict[str, Any], complete: bool) -> None:
    config = config_or_short_line(ModelConfig.from_json, json.dumps({**(SMALL if complete else {}), **values}))
    assert config is None or ModelConfig.from_json(config.to_json()) == config
