"""GPT-2 (Radford et al. 2019) over weights that stay in the blocks of their file.

With float weights its plans are Gab's, see :mod:`glinfer.models.gab`; blocks cannot be folded as those plans want them.
"""

from glinfer.formats.families import GPT2
from glinfer.models.decoder import Style

STYLES = {
    GPT2: Style(
        norm="layer",
        embeddings="transformer.wte.weight",
        positions="transformer.wpe.weight",
        layer="transformer.h.{}.",
        attention_norm="ln_1",
        mlp_norm="ln_2",
        final_norm="transformer.ln_f",
        projection="attn.{}_proj",
        output="attn.out_proj",
        up="mlp.fc_in",
        down="mlp.fc_out",
    )
}
"""What the models of this family compute."""
