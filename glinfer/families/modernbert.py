"""ModernBERT (Warner et al. 2024): norms before the branches, rotary positions, gated GELU, and mostly local layers.

Defaults follow ModernBertConfig in Hugging Face's transformers. Its norms have no biases.
"""

from glinfer.families.record import ACTIVATIONS, Family, HuggingFace, Names

FAMILY = Family(
    "modernbert",
    names=Names(
        embeddings="model.embeddings.tok_embeddings",
        embedding_norm="model.embeddings.norm",
        layer="model.layers.{}.",
        attention_norm="attn_norm",
        projection="attn.{}",
        output="attn.Wo",
        mlp_norm="mlp_norm",
        gate="mlp.gate",
        up="mlp.up",
        down="mlp.Wo",
        final_norm="model.final_norm",
        head="",
    ),
    norm="layer",
    norm_biases=False,
    first_norm=False,
    rope_theta=160000.0,
    looks="both",
    embedding_norm=True,
    usual={"tie_word_embeddings": True, "pooling": "mean", "hidden_act": "gelu"},
    huggingface=HuggingFace(
        sizes=(50368, 768, 1152, 22, 12, 0, 0, 8192),
        activation="gelu",
        activations={"hidden_activation": ACTIVATIONS},
        eps=1e-5,
        eps_key="norm_eps",
        tied=True,
        window="around",
        only={"norm_bias": (False,), "attention_bias": (False,), "mlp_bias": (False,)},
        names=Names(
            embeddings="model.embeddings.tok_embeddings",
            embedding_norm="model.embeddings.norm",
            layer="model.layers.{}.",
            attention_norm="attn_norm",
            projection="attn.Wqkv",
            output="attn.Wo",
            mlp_norm="mlp_norm",
            gate="mlp.Wi",
            up="mlp.Wi",
            down="mlp.Wo",
            final_norm="model.final_norm",
            head="",
        ),
        buffers=r"(.*\.)?rotary_emb\..*|head\..*|decoder\..*",
    ),
)
