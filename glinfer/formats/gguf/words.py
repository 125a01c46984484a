"""Pre-tokenisers of byte-level vocabularies in GGUF files, by name (``pre``): cutting, composing, whole words.

The regular expressions are those of llama.cpp's ``llama-vocab.cpp``; where it rewrote one for C++, the original, which
it quotes, is used. Its own cuts for ``kimi-k2`` differ: they leave words such as ``helloWorld`` whole. Each expression
cuts the pieces that the previous ones left.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_APOSTROPHE = r"'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE = f"(?i:{_APOSTROPHE})"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2_WORDS = rf"{_APOSTROPHE}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_ANY_CASE}|{_LETTERS}|\p{{N}}{{1,3}}|{_OTHERS}|{_REST}"
_QWEN2 = rf"{_ANY_CASE}|{_LETTERS}|\p{{N}}|{_OTHERS}|{_REST}"
_QWEN35 = rf"{_ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ONE_OTHER = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = (
    rf"{_ONE_OTHER}{_UPPER}*{_LOWER}+|{_ONE_OTHER}{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
)
_GPT4O = (
    rf"{_ONE_OTHER}{_UPPER}*{_LOWER}+{_ANY_CASE}?|{_ONE_OTHER}{_UPPER}+{_LOWER}*{_ANY_CASE}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
)
_NO_HAN = rf"{_UPPER[:-1]}&&[^\p{{Han}}]]", rf"{_LOWER[:-1]}&&[^\p{{Han}}]]"
_KIMI = (
    rf"[\p{{Han}}]+|{_ONE_OTHER}{_NO_HAN[0]}*{_NO_HAN[1]}+{_ANY_CASE}?|{_ONE_OTHER}{_NO_HAN[0]}+{_NO_HAN[1]}*{_ANY_CASE}?"
    rf"|\p{{N}}{{1,3}}|{_OTHERS}|{_REST}"
)
_DEEPSEEK_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_REST}"
)
_FAR_EAST = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# The letters that have an upper and a lower case in the Unicode version that DeepSeek LLM was made with.
_CASED = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)

_BY_EXPRESSIONS: Mapping[tuple[str, ...], str] = {
    (r"[\p{P}\$\+<=>\^~\|]+", GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]"): "default",
    (GPT2_WORDS,): "gpt-2 roberta-bpe phi-2 mpt olmo jais trillion gigachat a.x-4.0 mellum exaone4 granite-docling",
    (r"\p{N}", GPT2_WORDS): "smollm starcoder refact command-r codeshell exaone minerva-7b",
    (_LLAMA3,): "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe chatglm-bpe glm4",
    (_QWEN2,): "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan megrez solar-open grok-2",
    (_QWEN35,): "qwen35",
    (_TEKKEN,): "tekken",
    (r"\p{N}+", r"(?=(\d{3})+(?!\d))"): "superbpe",
    (_GPT4O,): "gpt-4o llama4 kanana2 minimax-m2",
    (_KIMI,): "kimi-k2",
    (r"[\p{P}\$\+<=>\^~\|`]+", GPT2_WORDS, "[0-9][0-9][0-9]"): "falcon",
    (r"[\r\n]", rf"\s?[{_CASED}]+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$",
     _FAR_EAST, r"\p{N}+"): "deepseek-llm",
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _FAR_EAST, r"\p{N}"): "deepseek-coder",
    (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_V3): "deepseek-v3 hunyuan-dense joyai-llm",
}  # fmt: skip

EXPRESSIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: expressions for expressions, names in _BY_EXPRESSIONS.items() for name in names.split()}
)
"""The regular expressions that cut a text, applied in order, by the name in ``tokenizer.ggml.pre``."""

_WHOLE = "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 tekken"
WHOLE_WORDS = frozenset(_WHOLE.split())
"""Names of vocabularies in which a word that is a token becomes that token, whatever the merges give."""

_NFC = "qwen2 qwen35 deepseek-r1-qwen f2llmv2 stablelm2 command-r mpt olmo"
COMPOSED = frozenset(_NFC.split())
"""Names of vocabularies that compose letters and their marks (NFC) first.

GGUF files do not record it, and llama.cpp does not do it. The ``tokenizer.json`` of these models does, as do
Qwen2Tokenizer, GPTNeoXTokenizer (``mpt``, ``olmo``) and CohereTokenizer of transformers.
"""

BEGIN_WITH_BOS = WHOLE_WORDS
"""Names of vocabularies whose texts begin with the token ``bos`` if the file does not say."""
