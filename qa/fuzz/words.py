"""What readers know and neither their modules nor the seeds spell: the words of libraries, and odd values."""

from __future__ import annotations

import stat
import zipfile
from typing import Any

GGUF: tuple[Any, ...] = (
    *(f"llama.rope.scaling.{name}" for name in ("type", "factor", "attn_factor", "original_context_length")),
    "llama.attention.sliding_window", "llama.expert_count", float("nan"), float("inf"), -1.5, 1e-300, 1e29,
)  # fmt: skip
CONFIG: tuple[Any, ...] = (1e-300, 1e29, 0.5, None, [1.0], [1.0, 2.0], ["sliding_attention"], {"q_proj": 2}, [0], {})
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
OPTIONS = (",", "=", "1", "2", "4", "0", "-1", "9" * 5000, "16777217", '"', "window=", "kv_heads=", "inner=")
BODY: tuple[Any, ...] = (
    "x-guidance", "$ref", "POST", True, False, None, 0, -1, 1.5, [], {}, [[1]], ["a"], [1, 2], {"1": 2}, "[" * 400,
    {"type": "text", "text": "x"}, {"role": "user", "content": "x"}, '{"a":' * 400,
)  # fmt: skip
STRUCTURE: tuple[Any, ...] = (
    "prefixItems", "oneOf", "not", "if", "#", "uuid", "minLength", "maximum", "x-guidance", "patternProperties",
    "propertyNames", "uniqueItems", "(a+)+$", "(?=a)", "[[:alpha:]]", "\\p{L}", "{1,99999}", "(a|b)*", "\\1", "(?i)",
    "%json ", "%lark ", "%regex ", "%ignore ", "[lazy]", "[capture]", "~9999", "/[0-9]+/", '"a"', "|", "*", "+", "?",
    "\n", "(", ")", "<[1]>", "<|im_end|>", 1e308, -1, 10**9, {}, [],
)  # fmt: skip
REPLY = (
    "<tool_call>[", "]</tool_call>", '\n{"name": "', '{"name": "', '", "arguments": ', '", "parameters": ', '"', "}",
    "}\n</tool_call>", "{", "\\", ", ", "\n", "STOP", "ST", "<", "|", ">", "^", "$", "\0", "look", "é",
)  # fmt: skip
ZIP = (
    *("", ".", "..", "/", "/etc/x", "../x", "a/../../x", "a//b", "c:x", "a\\b", "con", "x" * 300, "a/" * 40 + "x"),
    *("config.json", "Config.JSON", "m/config.json", "config.json/x", "m", "m/", "\u202ex", "\x1b]0;x\x07", "\ufffd"),
    *((kind | 0o777) << 16 for kind in (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFDIR)),
    *(zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA),
)
"""Names of entries, kinds of files and methods of compression."""
