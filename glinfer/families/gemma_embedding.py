"""EmbeddingGemma (Gemma Team 2025): a Gemma 3 whose tokens also see later tokens.

Its files are those of Gemma 3 with ``use_bidirectional_attention``. A window of n tokens has n // 2 on each side.
"""

from dataclasses import replace
from functools import partial

from glinfer.families import gemma3
from glinfer.families.gguf import Gguf, windows
from glinfer.families.huggingface import SAME_MATHS, marked

_FORM = gemma3.FAMILY.in_huggingface


FAMILY = replace(
    gemma3.FAMILY,
    name="gemma_embedding",
    encodes=True,
    huggingface=replace(
        _FORM,
        variant=(gemma3.FAMILY.name, marked("use_bidirectional_attention")),
        only={**SAME_MATHS, "is_causal": (False, None), "use_bidirectional_attention": (True,)},
    ),
    gguf=Gguf("gemma-embedding", attention_bias=False, more=partial(windows, period=6, local_theta=gemma3.LOCAL_THETA)),
)
