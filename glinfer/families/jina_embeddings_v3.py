"""Jina Embeddings v3 (Sturua et al. 2024): an XLM-RoBERTa with rotary positions.

Adapters for tasks are folders in the model's directory, whose names are those of transformers' modules.
"""

from dataclasses import replace

from glinfer.families import bert
from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import SAME_MATHS
from glinfer.families.names import GGUF_SUM_NAMES

NAMES = replace(
    bert.NAMES,
    embeddings="embeddings.word_embeddings",
    positions="",
    token_types="embeddings.token_type_embeddings",
    embedding_norm="emb_ln",
    layer="encoder.layers.{}.",
    projection="mixer.{}",
    output="mixer.out_proj",
    attention_post_norm="norm1",
    up="mlp.fc1",
    down="mlp.fc2",
    mlp_post_norm="norm2",
    letters={},
)

FAMILY = replace(
    bert.FAMILY,
    name="jina_embeddings_v3",
    names=NAMES,
    positions="halves",
    rope_theta=20000.0,
    usual={**bert.FAMILY.usual, "type_vocab_size": 1},
    huggingface=replace(
        bert.FAMILY.in_huggingface,
        sizes=(250002, 1024, 4096, 24, 16, 0, 0, 8194),
        eps=1e-5,
        only=SAME_MATHS,
        names=replace(NAMES, projection="mixer.Wqkv"),
        modules=replace(NAMES, layer="layers.{}.", projection="self_attn.{}_proj", output="self_attn.o_proj"),
        prefix="",
        buffers=r"(.*\.)?rotary_emb\..*|pooler\..*|lm_head\..*",
        classifier=None,
    ),
    gguf=Gguf("jina-bert-v3", names=replace(GGUF_SUM_NAMES, gate="")),
)
