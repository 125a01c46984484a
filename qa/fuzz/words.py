"""Names and values that readers know, for the mutators to put where they do not belong."""

from __future__ import annotations

import dataclasses
from typing import Any

from glinfer.ops.kernels import KernelOptions

CONFIG_WORDS: tuple[Any, ...] = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gpt2", "rope_scaling", "rope_parameters", "rope_theta",
    "rope_type", "linear", "dynamic", "llama3", "yarn", "longrope", "factor", "attention_factor", "beta_fast",
    "beta_slow", "mscale", "mscale_all_dim", "short_factor", "long_factor", "layer_types", "full_attention",
    "sliding_attention", "eos_token_id", "sliding_window", "use_sliding_window", "max_window_layers", "head_dim",
    "num_key_value_heads", "attention_bias", "mlp_bias", "n_inner", "n_positions", "silu", "gelu",
    "max_position_embeddings", "low_freq_factor", "truncate", "high_freq_factor", "original_max_position_embeddings",
    "tie_word_embeddings", "quantization_config", 1e-300, 1e29, 0.5, 1.0, True, False, None, [1.0], [1.0, 2.0],
    ["full_attention"], ["sliding_attention"], {},
)  # fmt: skip
SAFETENSORS_WORDS: tuple[Any, ...] = (
    "F32", "F16", "BF16", "F64", "I64", "I8", "U8", "BOOL", "F8_E4M3", "F4", "dtype", "shape", "data_offsets",
    "__metadata__", "lm_head.weight", "model.embed_tokens.weight", "rotary_emb.inv_freq", [0, 0], [0, 48], [],
    [6, 4],
)  # fmt: skip
GGUF_WORDS: tuple[Any, ...] = (
    "general.architecture", "general.alignment", "general.type", "split.count", "split.no", "split.tensors.count",
    "llama", "gpt2", "qwen2", "qwen3", "gemma", "llama.context_length", "llama.rope.scaling.type",
    "llama.rope.scaling.factor", "yarn", "none", "linear", "llama.rope.scaling.attn_factor",
    "llama.rope.scaling.yarn_beta_fast", "llama.attention.head_count_kv", "llama.attention.key_length",
    "llama.rope.freq_base", "llama.attention.sliding_window", "llama.expert_count",
    "llama.rope.scaling.original_context_length", "llama.rope.scale_linear",
)  # fmt: skip
VOCABULARY_WORDS: tuple[Any, ...] = (
    "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.scores", "default",
    "tokenizer.ggml.token_type", "tokenizer.ggml.pre", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix", "tokenizer.chat_template", "gpt2", "llama",
    "llama-bpe", "tekken", "superbpe", "deepseek-llm", "falcon", "he llo", " x", "x ", "▁", "<0xFF>", "hell",
)  # fmt: skip
_REPLACES = [
    {"type": "Replace", "pattern": {"String": old}, "content": new}
    for old, new in (("a", "aa"), ("", "x"), ("h", "hhhhhhhhhh"), ("▁", " "))
]
TOKENIZER_WORDS: tuple[Any, ...] = (
    "BPE", "Unigram", "WordPiece", "WordLevel", "ByteLevel", "Metaspace", "Sequence", "Split", "Replace", "Prepend",
    "ByteFallback", "Fuse", "Strip", "TemplateProcessing", "NFC", "NFKC", "Precompiled", "type", "decoders",
    "normalizers", "pretokenizers", "processors", "pattern", "String", "Regex", "content", "vocab", "merges",
    "added_tokens", "unk_token", "unk_id", "dropout", "continuing_subword_prefix", "end_of_word_suffix",
    "ignore_merges", "byte_fallback", "precompiled_charsmap", "padding", "truncation", "model", "normalizer",
    "pre_tokenizer", "post_processor", "decoder", "first", "never", "always", "Isolated", "Removed",
    "MergedWithNext", "special", "id", "lstrip", 0.5, True, False, None, "(a+)+$", "(a|a)*$", "^", "$", "",
    "\\p{L}+", "(?=a)", "h", "h e", ["h", "e"], ["<s>", 0.0], {"String": ""}, {"Regex": "(a*)*"}, {"Regex": "(?=a)"},
    {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, {"type": "Lowercase"},
    {"type": "Strip", "content": " ", "start": 1000000, "stop": 0}, {"type": "Digits", "individual_digits": True},
    {"type": "Fuse"}, {"type": "ByteFallback"}, {"type": "Lowercase"},
    {"type": "WordPiece", "prefix": "##", "cleanup": True},
    {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": 1 << 40, "pad_id": 0, "pad_type_id": 0,
     "pad_token": "x"},
    {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 1 << 40},
    {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 0}}, *_REPLACES,
    {"type": "Sequence", "decoders": _REPLACES}, {"type": "Sequence", "normalizers": _REPLACES},
)  # fmt: skip
TOKENIZER_CONFIG_WORDS: tuple[Any, ...] = (
    "bos_token", "eos_token", "x_token", "additional_special_tokens", "extra_special_tokens", "content",
    "added_tokens_decoder", "chat_template", "special", "eos_token_id", "0", "12", "99", "hello", "name", "default",
    "template", [1, 2], {"content": "h"}, "lstrip", "single_word", True,
)  # fmt: skip
MANIFEST_WORDS: tuple[Any, ...] = (
    "q8_rowwise_symmetric", "float32", "m-0.bin", "m-1.bin", "m-q8.bin", "file", "length", "offset", "q", "scale",
    "data", "storage", "weights", "weights_shards", "byte_length", "shape", "mlp_bias", [6, 4], [4], [1], "config",
    "architecture", "lm_head.weight", "format", "gift-of-gab", True, False,
)  # fmt: skip
TEMPLATE_WORDS: tuple[Any, ...] = (
    "{{", "}}", "{%", "%}", "{#", "#}", " for x in messages ", " endfor ", " if ", " endif ", " set ns.n = ",
    " macro m(a) ", " endmacro ", " call ", " filter ", " include 'x' ", " import 'os' as o ", " extends 'x' ",
    "messages", "|attr('__class__')", ".__class__", ".__globals__", ".__init__", ".mro()", "cycler", "joiner",
    "namespace()", "lipsum()", "range(9)", "dict()", "strftime_now", "raise_exception", "|tojson",
    "|map(attribute='x')", "|format(1)", "'{0.x}'.format", "'%s'|format(messages)", "|groupby('role')", "|list",
    "|sort", "|join", "loop.index", "self", "super()", "caller()", "varargs", "_", "g", "*9", "**9", "[0]", "[::-1]",
    "~", "+", "not", "is defined", "%c", "|wordwrap(1)", "|xmlattr", "|urlize", "|indent", "|random", "|pprint",
    "generation", "endgeneration", "break", "continue", "()", "('x')", "|replace('a','b')", "|string", "|safe", "-",
)  # fmt: skip
OPTION_WORDS: tuple[Any, ...] = (
    "vocab=", "dim=", "heads=", "blocks=", "context=", "inner=", "kv_heads=", "head_dim=", "window=", "tied=",
    "family=", "gab", "gpt2", "llama", "gift_of_gab", "qwen2", "gemma", ",", "=", "1", "2", "4", "0", "-1",
    "9" * 5000, "16777217", "rope_scaling", '"',
)  # fmt: skip
BATCH_WORDS: tuple[Any, ...] = (
    "prompt", "ids", "id", "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed",
    "stop", "stop_ids", "text", "prompt_sha", "a", "b", 1, 0.5, None, True, ["a"], [1], [], {},
)  # fmt: skip
KERNEL_WORDS: tuple[Any, ...] = (
    *(field.name for field in dataclasses.fields(KernelOptions)), "points", "quads", "gpu", "llvmpipe", True, False,
    1.5, "version", "milliseconds", "weights", "q8", "f16", "f32", "file", "auto",
)  # fmt: skip
MERGES_WORDS: tuple[Any, ...] = ("reserved", "merges", "hihi", "<|a|>", [97, 98], [97, 97])
ADAPTER_WORDS: tuple[Any, ...] = (
    "peft_type", "LORA", "r", "lora_alpha", "bias", "none", "all", "use_dora", "use_rslora", "target_modules",
    "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out", "layers_to_transform", "layers_pattern",
    "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", "lora_embedding_A", "q_proj", "all-linear",
    "adapter.type", "adapter.lora.alpha", "lora", "general.type", "adapter", "model", "blk.0.attn_q.weight.lora_a",
    "blk.0.attn_q.weight.lora_b", {"q_proj": 2}, {"^a+$": 1}, ["q_proj"], [0], 1e-300, 1e29, True, False, None,
)  # fmt: skip
SENTENCE_WORDS: tuple[Any, ...] = (
    "idx", "name", "path", "type", "sentence_transformers.models.Pooling", "sentence_transformers.models.Dense",
    "sentence_transformers.models.Normalize", "sentence_transformers.models.Transformer", "1_Pooling", "2_Dense", "",
    "../x", "/etc", "pooling_mode_mean_tokens", "pooling_mode_cls_token", "pooling_mode_lasttoken",
    "pooling_mode_max_tokens", "word_embedding_dimension", "in_features", "out_features", "activation_function",
    "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity", "prompts", "default_prompt_name", "query",
    "similarity_fn_name", "max_seq_length", "do_lower_case", "include_prompt", "bias", True, False, None, 12, 4,
    "linear.weight", "F32", {"query": "q"}, {"a": 1}, [],
)  # fmt: skip
MXFP4_WORDS: tuple[Any, ...] = (
    "model.layers.0.mlp.experts.gate_up_proj_blocks", "model.layers.0.mlp.experts.gate_up_proj_scales",
    "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj_blocks", "U8", "BF16", "F32",
    [2, 64, 1, 16], [2, 64, 1], [2, 32, 64], [2, 0, 1, 16], "quantization_config", "quant_method", "mxfp4",
    "num_local_experts", "num_experts_per_tok", "experts_per_token", "swiglu_limit", "layer_types", None, {},
)  # fmt: skip
HUB_WORDS: tuple[Any, ...] = (
    "status", "headers", "body", 200, 206, 302, 401, 403, 404, 407, 416, 429, 500, 503, "Content-Range",
    "bytes 5-9/10", "bytes */10", "Content-Encoding", "gzip", "X-Error-Code", "GatedRepo", "RevisionNotFound",
    "EntryNotFound", "X-Error-Message", "Invalid credentials", "Retry-After", "9" * 30, "\r\nX: y", "ETag", "Location",
    '{"sha": 1}', "[" * 500, '{"sha": "' + "a" * 40 + '", "siblings": [null, {"rfilename": "../m.gguf", "size": 1}]}',
    '{"sha": "' + "a" * 40 + '", "siblings": [{"rfilename": "m-Q8_0.gguf", "size": 5, "blobId": "' + "c" * 40 + '"}]}',
)  # fmt: skip
BODY_WORDS: tuple[Any, ...] = (
    "model", "messages", "prompt", "input", "tools", "tool_choice", "response_format", "json_schema", "schema",
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "logit_bias", "stop", "n", "seed", "logprobs",
    "top_logprobs", "stream", "stream_options", "chat_template", "chat_template_kwargs", "enable_thinking",
    "add_generation_prompt", "continue_final_message", "role", "content", "user",
    "assistant", "tool", "system", "developer", "tool_calls", "tool_call_id", "function", "arguments", "name", "type",
    "text", "input_text", "function_call", "function_call_output", "call_id", "output", "reasoning", "item_reference",
    "instructions", "documents", "query", "tokens", "block", "dimensions", "encoding_format", "base64", "strict",
    "parameters", "x-guidance", "$ref", "custom_id", "method", "url", "body", "POST", "/v1/completions", "required",
    "auto", "none", "look", "<|im_end|>", "<tool_call>", True, False, None, 0, -1, 1.5, [], {}, [[1]], ["a"], [1, 2],
    {"type": "text", "text": "x"}, {"role": "user", "content": "x"}, {"1": 2}, "[" * 400, '{"a":' * 400,
)  # fmt: skip
STRUCTURE_WORDS: tuple[Any, ...] = (
    "type", "object", "array", "string", "integer", "number", "properties", "required", "items", "prefixItems", "enum",
    "const", "anyOf", "oneOf", "allOf", "not", "if", "$ref", "#", "#/$defs/x", "$defs", "pattern", "format", "uuid",
    "date-time", "minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "multipleOf", "x-guidance",
    "additionalProperties", "patternProperties", "propertyNames", "uniqueItems", "minProperties", "(a+)+$", "(?=a)",
    "[[:alpha:]]", "\\p{L}", "{1,99999}", "(a|b)*", "\\1", "(?i)", "start: ", "%json ", "%lark ", "%regex ", "%ignore ",
    "[lazy]", "[capture]", "~9999", "/[0-9]+/", '"a"', "|", "*", "+", "?", "\n", "(", ")", "<[1]>", "<|im_end|>", 1e308,
    -1, 0, 10**9, True, False, None, {}, [],
)  # fmt: skip
REPLY_WORDS: tuple[Any, ...] = (
    "<tool_call>", "</tool_call>", "<tool_call>[", ']</tool_call>', '\n{"name": "', '{"name": "', '", "arguments": ',
    '", "parameters": ', "}\n</tool_call>", "}", "{", '"', "\\", ", ", "\n", "STOP", "ST", "<", "|", ">", "^", "$",
    "\0",
    "analysis", "final", "assistant", "look", "é",
)  # fmt: skip
