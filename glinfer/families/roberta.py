"""RoBERTa (Liu et al. 2019): a BERT without token types, whose positions begin after that of the padding token."""

from dataclasses import replace

from glinfer.families import bert
from glinfer.families.huggingface import UNUSED_POSITIONS, Classifier, Fields, HuggingFace
from glinfer.families.settings import Settings


def _positions(settings: Settings, fields: Fields) -> Fields:
    """The file also counts the positions up to that of the padding token."""
    return {"max_position_embeddings": fields["max_position_embeddings"] - UNUSED_POSITIONS}


def named(name: str, vocab_size: int) -> HuggingFace:
    """The files of a model of this form."""
    own = bert.FAMILY.in_huggingface
    return replace(
        own,
        sizes=(vocab_size, *own.sizes[1:]),
        names=replace(
            bert.NAMES,
            **{
                field: getattr(bert.NAMES, field).replace("bert.", "roberta.", 1)
                for field in ("embeddings", "positions", "token_types", "embedding_norm", "layer")
            },
        ),
        prefix="roberta.",
        buffers=r"embeddings\.position_ids|pooler\..*|lm_head\..*",
        layouts={"positions": "padded"},
        more=_positions,
        classifier=Classifier(("classifier.dense", "classifier.out_proj")),
    )


FAMILY = replace(bert.FAMILY, name="roberta", huggingface=named("roberta", 50265))
