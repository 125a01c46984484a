"""The inputs of the recorded figures: configurations, templates, conversations and tokenizers."""

from __future__ import annotations

import json
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

SMOLLM2_PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nExplain why the sky is blue in two sentences.<|im_end|>\n<|im_start|>assistant\n"
)
SMOLLM2_COUNT = "One, two, three,"
SMOLLM2_TURNS = ("Hello! What is the capital of France?", "And of Japan?", "Which of the two is larger?")
SMOLLM2_TEXTS = (
    "In 1984, 12345 people paid $3.50; π ≈ 3.14159.",
    "def square(x):\n\treturn x**2  # a comment\n",
    "I'm sure we'll DON'T they'Ve",
    "Ünïcödé 日本語 한국어 עברית 🚀👩‍👩‍👧",
    "<|im_start|>user\nhi<|im_end|> <|endoftext|>",
    "   \n\n  \t x \r\n",
)

# Configurations

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma")
SIZES: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 64,
}
NULLS = {"num_key_value_heads": None, "head_dim": None}
WINDOWS: list[tuple[str, dict[str, Any]]] = [
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": 7}),
    ("qwen2", {"sliding_window": 7}),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 3, "num_hidden_layers": 5}),
    ("qwen3", {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 5}),
    ("qwen3", {"use_sliding_window": True, "max_window_layers": 40}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 1}),
    ("qwen2", {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3, "max_window_layers": 1}),
    (
        "qwen2",
        {
            "num_hidden_layers": 3,
            "layer_types": ["attention", "sliding_attention", "sliding_attention"],
            "use_sliding_window": True,
            "sliding_window": 9,
        },
    ),
]


NESTED = {"full_attention": {"rope_theta": 7.5}, "sliding_attention": {"rope_theta": 3.5}}
LAYERED: list[tuple[str, dict[str, Any]]] = [
    ("gemma2", {}),
    ("gemma2", {**SIZES, "num_hidden_layers": 5, "sliding_window": 7, "query_pre_attn_scalar": 9}),
    ("gemma2", {**SIZES, "attn_logit_softcapping": None, "final_logit_softcapping": 20.0}),
    ("gemma2", {**SIZES, "layer_types": ["full_attention", "sliding_attention"], "rope_theta": 7.5}),
    ("gemma3_text", {}),
    ("gemma3_text", {**SIZES, "num_hidden_layers": 8, "sliding_window": 7, "rope_local_base_freq": 50.0}),
    ("gemma3_text", {**SIZES, "num_hidden_layers": 5, "sliding_window_pattern": 3, "final_logit_softcapping": 9.0}),
    ("gemma3_text", {**SIZES, "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": NESTED}),
    ("gemma3_text", {**SIZES, "layer_types": ["full_attention"] * 2, "tie_word_embeddings": False}),
    ("smollm3", {"num_hidden_layers": 9}),
    ("smollm3", {**SIZES, "num_hidden_layers": 5, "no_rope_layer_interval": 2, "pad_token_id": 0}),
    ("smollm3", {**SIZES, "num_hidden_layers": 3, "no_rope_layers": [0, 1, 1], "pad_token_id": 0}),
    ("olmo2", {}),
    ("olmo2", {**SIZES, "rope_theta": 500000.0, "head_dim": 2, "pad_token_id": 0}),
    ("olmo3", {}),
    (
        "olmo3",
        {**SIZES, "num_hidden_layers": 6, "sliding_window": 7, "rope_theta": 7.5, "head_dim": 2, "pad_token_id": 0},
    ),
    ("olmo3", {**SIZES, "head_dim": 2, "pad_token_id": 0, "rope_parameters": NESTED}),
    ("ministral3", {}),
    ("ministral3", {**SIZES, "sliding_window": 7}),
    ("ministral3", {**SIZES, "rope_theta": 7.5, "tie_word_embeddings": True}),
    ("qwen3_vl_text", {"tie_word_embeddings": False}),
    ("ministral", {**SIZES}),
    ("ministral", {**SIZES, "sliding_window": 7, "layer_types": ["full_attention", "sliding_attention"]}),
    ("ministral", {**SIZES, "sliding_window": None}),
    ("granite", {"attention_multiplier": 0.5}),
    (
        "granite",
        {**SIZES, "head_dim": 2, "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8},
    ),
    ("phi3", {}),
    ("phi3", {**SIZES, "head_dim": 8, "hidden_size": 32, "partial_rotary_factor": 0.75, "pad_token_id": 0}),
    ("phi3", {**SIZES, "head_dim": 2, "sliding_window": 7, "pad_token_id": 0}),
]

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in FAMILIES),
    *((family, SIZES) for family in FAMILIES),
    ("llama", NULLS),
    ("mistral", {"head_dim": None}),
    ("qwen2", {"num_key_value_heads": None}),
    ("llama", {"rms_norm_eps": 1e-3, "rope_theta": 500000, "tie_word_embeddings": True, "pretraining_tp": 4}),
    ("qwen2", {"rope_theta": 1000000.0, "rope_scaling": None}),
    ("gemma", {"tie_word_embeddings": False, "rope_parameters": {"rope_theta": 7.5, "rope_type": "default"}}),
    ("llama", {"rope_theta": 3.0, "rope_parameters": {"rope_theta": 7.5}}),
    ("llama", {"rope_theta": 3.0, "rope_parameters": {"rope_type": "default"}}),
    ("llama", {"rope_parameters": {"rope_theta": 7.5}, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    *WINDOWS,
    *LAYERED,
]
"""Families and settings of config.json files."""

LLAMA3_ROPE = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"short_factor": [1.0, 1.5, 2], "long_factor": [2.0, 3.5, 4]}
SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4},
    {"type": "linear", "factor": 4.0},
    {"rope_type": "default", "type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16},
    {"rope_type": "llama3", **LLAMA3_ROPE, "original_max_position_embeddings": 16},
    {"rope_type": "llama3", **LLAMA3_ROPE},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4, "beta_slow": 0, "truncate": False, "attention_factor": 1.5},
    {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.4, "beta_fast": None},
    {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0},
    {"rope_type": "longrope", **LONG, "original_max_position_embeddings": 16, "factor": 4.0},
    {"rope_type": "longrope", **LONG, "original_max_position_embeddings": 16},
    {"rope_type": "longrope", **LONG, "attention_factor": 1.25},
]


def rope_settings(scaling: dict[str, Any], name: str, beside: dict[str, Any]) -> dict[str, Any]:
    """The settings of a Llama with this scaling of rotary positions, by the older or the newer ``name``."""
    if name == "rope_scaling":
        return {**SIZES, "rope_theta": 5000.0, **beside, name: scaling}
    return {**SIZES, **beside, name: {**scaling, "rope_theta": 5000.0}}


ROPES = [
    rope_settings(scaling, name, beside)
    for scaling in SCALINGS
    for name in ("rope_scaling", "rope_parameters")
    for beside in ({}, {"original_max_position_embeddings": 24})
]
"""Settings of Llamas whose rotary positions are scaled in every way."""

ACTIVATIONS: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {}, "silu"),
    ("qwen3", {"hidden_act": "gelu"}, "gelu"),
    ("mistral", {"hidden_act": "gelu_pytorch_tanh"}, "gelu_new"),
    ("qwen2", {"hidden_act": "swish"}, "silu"),
    ("gemma", {}, "gelu_new"),
    ("gemma", {"hidden_act": "gelu"}, "gelu_new"),
    ("gemma", {"hidden_act": "gelu", "hidden_activation": None}, "gelu_new"),
    ("gemma", {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}, "gelu_new"),
    ("gemma", {"hidden_act": "silu"}, "silu"),
]
"""Families, settings, and the activation that they mean by its name in glinfer."""

SAVES: dict[str, dict[str, Any]] = {
    **{f"llama-{dtype}": {"model_type": "llama", "dtype": dtype} for dtype in ("float32", "float16", "bfloat16")},
    **{family: {"model_type": family, "dtype": "float16"} for family in ("mistral", "qwen3")},
    **{family: {"model_type": family, "dtype": "bfloat16"} for family in ("qwen2", "gemma")},
    "llama-base": {"model_type": "llama", "dtype": "float32", "tie_word_embeddings": True},
}
"""Settings of models that transformers saved; those of "base" without a head."""
BIASES = {family: {"attention_bias": True} for family in ("llama", "qwen3", "gemma")}
BIASES["llama"] |= {"mlp_bias": True}
SHARDED: dict[str, dict[str, Any]] = {
    f"{family}-shards{'-tied' * tied}": {
        "model_type": family,
        "dtype": "bfloat16",
        "head_dim": 10,
        "tie_word_embeddings": tied,
        **BIASES.get(family, {}),
    }
    for family, tied in (
        *(("llama", True), ("llama", False), ("mistral", False)),
        *(("qwen2", True), ("qwen3", False), ("gemma", True)),
    )
}
"""The same in shards of at most a kilobyte."""


# Chat templates

CHATML = (
    "{% for message in messages %}\n  {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' "
    "+ '\\n' -}}\n{% endfor %}\n  {% if add_generation_prompt %}\n{{- '<|im_start|>assistant\\n' -}}\n{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA3 = (
    "{{- bos_token }}\n{%- if not date_string is defined %}\n    {%- set date_string = '26 Jul 2024' %}\n{%- endif %}\n"
    "{%- for message in messages %}\n    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' "
    "+ message['content'] | trim + '<|eot_id|>' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n"
    "    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"
)
MACROS = (
    "{%- macro say(role, text) -%}\n<|{{ role }}|>{{ text }}\n{%- endmacro -%}\n"
    "{%- set ns = namespace(seen=0, last='') -%}\n{%- for message in messages -%}\n"
    "  {%- if not message.content -%}{%- continue -%}{%- endif -%}\n  {%- set ns.seen = ns.seen + 1 -%}\n"
    "  {%- set ns.last = message.content.split('</think>')[-1].lstrip('\\n') -%}\n"
    "  {{- say(message.role, ns.last) }}{% if ns.seen > 4 %}{% break %}{% endif -%}\n{%- endfor -%}\n"
    "{{ ns.seen }} {{ messages[-1] | tojson }} {{ messages[::-1][0].role | upper }}\n"
    "{%- for message in messages[:1] %} {{ message.items() | list | length }}{% endfor %}\n"
    "{% generation %}{{ 'é <&>' }}{% endgeneration %}\n    {%- if tools %}never{% endif %} {{ missing }}|"
)
TEMPLATES = {"chatml": CHATML, "llama2": LLAMA2, "llama3": LLAMA3, "gemma": GEMMA, "macros": MACROS}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

USER = {"role": "user", "content": " Hello\n<b>'é'</b>  "}
REPLY = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi 🚀"}
SYSTEM = {"role": "system", "content": "Be kind."}
CONVERSATIONS = {
    "one": [USER],
    "three": [USER, REPLY, {"role": "user", "content": "Again"}],
    "system": [SYSTEM, USER],
    "ended": [USER, REPLY],
    "empty": [{"role": "user", "content": ""}, REPLY, USER],
}
SMOLLM2_CONVERSATIONS = ("one", "three", "system")


MESSAGES = [
    {"role": "user", "content": "hello there"},
    {"role": "assistant", "content": "one\n two "},
    {"role": "user", "content": "  an apple  "},
]

# Tokenizers

CHAT_TOKENS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
LINES = ["hello world, the quick brown fox", "the  lazy dog; 日本語 and é", "  hello\n\n\tworld 🚀"] * 4
SAMPLES = [
    "hello world",
    " hello",
    "  two  spaces  ",
    "日本語🚀 é e\u0301",
    "\n\n\tx\r\n",
    "<|endoftext|>hi<s></s>",
    "\0\x7f\u00a0\ufeff",
    "",
]


def byte_level(*special: str) -> tokenizers.Tokenizer:
    """A GPT-2-like tokenizer of at most 400 tokens, the special ones first, and two added ones at the end."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    first = list(special) or ["<|endoftext|>"]
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=first, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator(LINES, trainer)
    library.add_tokens([AddedToken("é!", special=False, normalized=False), AddedToken("<é>", special=True)])
    return library


def piece_level(*, metaspace: bool = False) -> tokenizers.Tokenizer:
    """A Llama-like tokenizer: ``▁`` for a space and before the text, unknown characters as bytes."""
    library = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")  # so that it learns words
    in_bytes = [f"<0x{value:02X}>" for value in range(256)]
    first = ["<unk>", "<s>", "</s>", *in_bytes]
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=first, show_progress=False)
    library.train_from_iterator(LINES[:1], trainer)
    if not metaspace:
        library.pre_tokenizer = None
        library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    values = json.loads(library.to_str())
    values["added_tokens"] = [token for token in values["added_tokens"] if token["content"] not in in_bytes]
    library = tokenizers.Tokenizer.from_str(json.dumps(values))
    if metaspace:
        library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    else:
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        library.decoder = decoders.Sequence(steps)
    return library


def entry(content: str, **flags: bool) -> dict[str, Any]:
    usual = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)
    return {"content": content, **usual, **flags}


def words(*, pieces: str = "", **flags: bool) -> tokenizers.Tokenizer:
    """A tokenizer that joins "he", "el", " a", "n ", …: across every border, if one lets it.

    It is byte-level, or with ``▁`` before the "first" piece or before "every" one.
    """
    alphabet = sorted({*pre_tokenizers.ByteLevel.alphabet(), "▁"})
    space = "▁" if pieces else "Ġ"
    pairs = [("h", "e"), ("l", "l"), (space, "a"), (space, "["), ("]", space), ("n", "Ċ"), ("Ċ", "h"), ("e", space)]
    vocabulary = {text: token for token, text in enumerate([*alphabet, *(a + b for a, b in pairs)])}
    library = tokenizers.Tokenizer(models.BPE(vocabulary, pairs, fuse_unk=True, unk_token="?"))
    if pieces == "first":
        library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        library.decoder = decoders.Metaspace(prepend_scheme="first")
    elif pieces:
        library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)])
    else:
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(text, normalized=False, special=True, **flags) for text in CHAT_TOKENS])
    return library


def added_tokens(size: int) -> dict[str, Any]:
    """What a tokenizer_config.json says of tokens, for a tokenizer of ``size``: new ones, and others with new flags."""
    return {
        str(size + 3): entry("<late>", lstrip=True),
        str(size): entry("<|im_start|>", special=True, rstrip=True),
        str(size - 1): entry("<é>", lstrip=True),  # one of the file's own, with other flags, or a new one
        "300": entry("hello", normalized=True),
    }


TEXTS = ["hi <|im_start|> x <late> hello <é> helloworld", "  <late><é>  <|im_start|>", *SAMPLES]
PROMPT = "the quick café"
VERSE = "ROMEO:\nBut, soft! what light through yonder window breaks?\nIt is the east, and Juliet is the sun.\n" * 3
PEER_PROMPT = [(7919 * place + 31) % 300 for place in range(1, 13)]
"""Of Gab models."""
