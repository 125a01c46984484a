"""Names and values that readers know and that no seed has, to be put where they do not belong."""

from __future__ import annotations

from typing import Any

SAFETENSORS: tuple[Any, ...] = (
    "BF16", "F64", "I64", "I8", "U8", "BOOL", "F8_E4M3", "F4", "rotary_emb.inv_freq", [0, 0], [],
)  # fmt: skip
CONFIG: tuple[Any, ...] = (
    "sliding_attention", "silu", "quantization_config", 1e-300, 1e29, 0.5, None, [1.0], [1.0, 2.0],
    ["sliding_attention"], {},
)  # fmt: skip
GGUF: tuple[Any, ...] = (
    "general.alignment", "general.type", "split.count", "split.no", "split.tensors.count", "llama.rope.scaling.type",
    "llama.rope.scaling.factor", "none", "linear", "yarn", "llama.rope.scaling.attn_factor",
    "llama.rope.scaling.yarn_beta_fast", "llama.attention.sliding_window", "llama.expert_count",
    "llama.rope.scaling.original_context_length", "llama.rope.scale_linear", float("nan"), float("inf"), -1.5,
)  # fmt: skip
VOCABULARY: tuple[Any, ...] = (
    "tokenizer.ggml.eot_token_id", "tekken", "superbpe", "deepseek-llm", "falcon", "he llo", " x", "x ", "▁", "<0xFF>",
)  # fmt: skip
_REPLACES = [
    {"type": "Replace", "pattern": {"String": old}, "content": new}
    for old, new in (("a", "aa"), ("", "x"), ("h", "hhhhhhhhhh"), ("▁", " "))
]
TOKENIZER: tuple[Any, ...] = (
    "WordPiece", "WordLevel", "NFC", "processors", "dropout", "continuing_subword_prefix", "end_of_word_suffix",
    "never", "always", "Removed", "MergedWithNext", 0.5, "(a+)+$", "(a|a)*$", "^", "$", "", "(?=a)", {"String": ""},
    {"Regex": "(a*)*"}, {"Regex": "(?=a)"}, {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    {"type": "Lowercase"}, {"type": "Strip", "content": " ", "start": 1000000, "stop": 0},
    {"type": "Digits", "individual_digits": True}, {"type": "WordPiece", "prefix": "##", "cleanup": True},
    {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": 1 << 40, "pad_id": 0, "pad_type_id": 0,
     "pad_token": "x"},
    {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 1 << 40}, *_REPLACES,
    {"type": "Sequence", "decoders": _REPLACES}, {"type": "Sequence", "normalizers": _REPLACES},
)  # fmt: skip
TEMPLATE = (
    "{{", "}}", "{%", "%}", "{#", "#}", " for x in messages ", " endfor ", " if ", " endif ", " set ns.n = ",
    " macro m(a) ", " endmacro ", " call ", " filter ", " include 'x' ", " import 'os' as o ", " extends 'x' ",
    "messages", "|attr('__class__')", ".__class__", ".__globals__", ".__init__", ".mro()", "cycler", "joiner",
    "namespace()", "lipsum()", "range(9)", "dict()", "strftime_now", "raise_exception", "|tojson",
    "|map(attribute='x')", "|format(1)", "'{0.x}'.format", "'%s'|format(messages)", "|groupby('role')", "|list",
    "|sort", "|join", "loop.index", "self", "super()", "caller()", "varargs", "_", "g", "*9", "**9", "[0]", "[::-1]",
    "~", "+", "not", "is defined", "%c", "|wordwrap(1)", "|xmlattr", "|urlize", "|indent", "|random", "|pprint",
    "generation", "endgeneration", "break", "continue", "()", "('x')", "|replace('a','b')", "|string", "|safe", "-",
)  # fmt: skip
OPTIONS = (
    "gab", "gpt2", "gift_of_gab", "qwen2", "gemma", ",", "=", "1", "2", "4", "0", "-1", "9" * 5000, "16777217", "tied=",
    "rope_scaling", '"', "window=", "kv_heads=", "head_dim=", "inner=",
)  # fmt: skip
BATCH: tuple[Any, ...] = ("text", "prompt_sha", None, True, ["a"], [1], [], {})
ADAPTER: tuple[Any, ...] = (
    "all", "use_dora", "use_rslora", "modules_to_save", "fan_in_fan_out", "layers_to_transform", "layers_pattern",
    "lora_embedding_A", "q_proj", "all-linear", "adapter.type", "adapter.lora.alpha", "lora", "adapter", "model",
    "blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b", {"q_proj": 2}, {"^a+$": 1}, ["q_proj"], [0], 1e-300,
    1e29, True, False, None,
)  # fmt: skip
SENTENCE: tuple[Any, ...] = (
    "../x", "/etc", "pooling_mode_cls_token", "pooling_mode_lasttoken", "pooling_mode_max_tokens", "include_prompt",
    "torch.nn.modules.linear.Identity", "similarity_fn_name", {"query": "q"}, {"a": 1}, [], *CONFIG,
)  # fmt: skip
MXFP4: tuple[Any, ...] = ("F32", [2, 32, 64], [2, 0, 1, 16], None, {}, *CONFIG)
BODY: tuple[Any, ...] = (
    "guided_json", "guided_grammar", "chat_template", "chat_template_kwargs", "enable_thinking", "developer",
    "add_generation_prompt", "continue_final_message", "input_text", "reasoning", "item_reference", "x-guidance",
    "$ref", "custom_id", "method", "url", "body", "POST", "/v1/completions", "required", "auto", "none", "<tool_call>",
    True, False, None, 0, -1, 1.5, [], {}, [[1]], ["a"], [1, 2], {"type": "text", "text": "x"},
    {"role": "user", "content": "x"}, {"1": 2}, "[" * 400, '{"a":' * 400,
)  # fmt: skip
STRUCTURE: tuple[Any, ...] = (
    "prefixItems", "oneOf", "not", "if", "#", "uuid", "minLength", "maximum", "x-guidance", "patternProperties",
    "propertyNames", "uniqueItems", "(a+)+$", "(?=a)", "[[:alpha:]]", "\\p{L}", "{1,99999}", "(a|b)*", "\\1", "(?i)",
    "%json ", "%lark ", "%regex ", "%ignore ", "[lazy]", "[capture]", "~9999", "/[0-9]+/", '"a"', "|", "*", "+", "?",
    "\n", "(", ")", "<[1]>", "<|im_end|>", 1e308, -1, 10**9, {}, [],
)  # fmt: skip
REPLY = (
    "<tool_call>", "</tool_call>", "<tool_call>[", "]</tool_call>", '\n{"name": "', '{"name": "', '", "arguments": ',
    '", "parameters": ', "}\n</tool_call>", "}", "{", '"', "\\", ", ", "\n", "STOP", "ST", "<", "|", ">", "^", "$",
    "\0", "analysis", "final", "assistant", "look", "é",
)  # fmt: skip
