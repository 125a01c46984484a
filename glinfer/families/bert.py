"""BERT (Devlin et al. 2019): every token sees its whole text; MiniLM, bge, gte and e5 are of this form.

Norms follow attention and MLP.
"""

from dataclasses import replace

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import ACTIVATIONS, Classifier, HuggingFace
from glinfer.families.layer import LayerConfig
from glinfer.families.names import GGUF_SUM_NAMES, Names
from glinfer.families.record import Family

NAMES = Names(
    embeddings="bert.embeddings.word_embeddings",
    positions="bert.embeddings.position_embeddings",
    token_types="bert.embeddings.token_type_embeddings",
    embedding_norm="bert.embeddings.LayerNorm",
    layer="bert.encoder.layer.{}.",
    projection="attention.self.{}",
    output="attention.output.dense",
    attention_post_norm="attention.output.LayerNorm",
    gate="",
    up="intermediate.dense",
    down="output.dense",
    mlp_post_norm="output.LayerNorm",
    final_norm="",
    head="",
    letters={"q": "query", "k": "key", "v": "value"},
)

FAMILY = Family(
    "bert",
    names=NAMES,
    norm="layer",
    positions="learned",
    gated=False,
    activation="gelu",
    layer=LayerConfig(norms="sum"),
    encodes=True,
    biases=("q", "k", "v", "o", "up", "down"),
    usual={"type_vocab_size": 2},
    huggingface=HuggingFace(
        sizes=(30522, 768, 3072, 12, 12, 0, 0, 512),
        activations={"hidden_act": ACTIVATIONS},
        eps=1e-12,
        tied=True,
        only={
            "lora_adaptations": (None,),
            "position_embedding_type": ("absolute", None),
            "is_decoder": (False,),
            "add_cross_attention": (False,),
        },
        prefix="bert.",
        buffers=r"embeddings\.position_ids|pooler\..*|cls\..*",
        classifier=Classifier(("bert.pooler.dense", "classifier")),
    ),
    gguf=Gguf("bert", names=replace(GGUF_SUM_NAMES, gate="")),
)
