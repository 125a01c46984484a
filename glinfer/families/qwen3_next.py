"""Qwen3-Next (Qwen Team 2025): the layers of Qwen 3.5 with experts, in files of another form.

Each expert has its own tensors, and the rows of the matrices before a delta rule are grouped by key head.
"""

from dataclasses import replace

from glinfer.families import qwen3_5_moe

_FORM, _GGUF = qwen3_5_moe.FAMILY.in_huggingface, qwen3_5_moe.FAMILY.in_gguf
FAMILY = replace(
    qwen3_5_moe.FAMILY,
    name="qwen3_next",
    huggingface=replace(
        _FORM,
        sizes=(151936, 2048, 512, 48, 16, 2, 256, 32768),
        only={**_FORM.only, "decoder_sparse_step": (1,), "mlp_only_layers": ([], None)},
        names=replace(qwen3_5_moe.NAMES, letters={"qkv": "qkvz", "z": "qkvz", "b": "ba", "a": "ba"}),
        experts=(512, 10, True),
        wrapped=(),
        layouts={"delta_in": "by key"},
    ),
    gguf=replace(
        _GGUF,
        architecture="qwen3next",
        names=replace(_GGUF.names, letters={**_GGUF.names.letters, "b": "ssm_ba", "a": "ssm_ba"}),
        keys_in_turn=False,
    ),
)
