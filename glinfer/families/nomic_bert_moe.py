"""Nomic's BERT with experts (Nussbaum and Duderstadt 2025): in every other layer eight MLPs, of which a token uses two.

No MLP has a gate, matrices outside of experts have biases, and so has the sum of experts; GGUF files lack that bias.
"""

from dataclasses import replace

from glinfer.families import nomic_bert
from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import Fields, marked
from glinfer.families.layer import FULL, LONGEST_PERIOD, MOE
from glinfer.families.names import GGUF_SUM_NAMES
from glinfer.families.settings import Keys, Settings

_EVERY = "moe_every_n_layers"
_NO, _FORM = (False, None), nomic_bert.FAMILY.in_huggingface
_NAMES = replace(
    nomic_bert.NAMES,
    gate="",
    up="mlp.experts.{}.w1",
    down="mlp.experts.{}.w2",
    router="mlp.router.layer",
    expert_sum_bias="mlp.experts.bias",
    dense_gate="",
    dense_up="mlp.fc1",
    dense_down="mlp.fc2",
)


def _layers(settings: Settings) -> tuple[str, ...]:
    """The second layer of every ``moe_every_n_layers`` has experts."""
    every = settings.integer(_EVERY, least=2, most=LONGEST_PERIOD)
    return (FULL, MOE, *(FULL,) * (every - 2))


def _of_settings(settings: Settings, fields: Fields) -> Fields:
    return {
        **nomic_bert.old_settings(settings, fields),
        "layer_types": _layers(settings),
        "num_experts_per_tok": settings.integer("moe_top_k", 2),
        "mlp_bias": True,
    }


def _of_metadata(keys: Keys, fields: Fields) -> Fields:
    return {"layer_types": _layers(keys), "norm_topk_prob": False}


FAMILY = replace(
    nomic_bert.FAMILY,
    name="nomic_bert_moe",
    names=_NAMES,
    rope_theta=10000.0,
    gated=False,
    activation="gelu",
    biases=("q", "k", "v", "o", "dense_up", "dense_down"),
    mlp_biases=("expert_sum_bias",),
    usual={**nomic_bert.FAMILY.usual, "type_vocab_size": 1, "layer_types": (FULL, MOE)},
    huggingface=replace(
        _FORM,
        sizes=(250048, 768, 3072, 12, 12, 0, 0, 2048),
        activations={"activation_function": {"gelu": "gelu"}},
        eps=1e-5,
        experts=(8, 2, False),
        only={
            **_FORM.only,
            **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), (True,)),
            **dict.fromkeys(("moe_normalize_expert_weights", "expert_choice_router", "num_shared_experts"), _NO),
        },
        more=_of_settings,
        variant=(nomic_bert.FAMILY.name, marked("num_experts")),
        names=replace(
            _NAMES,
            projection="attn.Wqkv",
            up="mlp.experts.mlp.w1",
            down="mlp.experts.mlp.w2",
            endings={"up.weight": "", "down.weight": ""},
        ),
        layouts={"up": "stacked", "down": "stacked, transposed"},
    ),
    gguf=Gguf(
        "nomic-bert-moe",
        names=replace(
            GGUF_SUM_NAMES, gate="", up="ffn_up_exps", down="ffn_down_exps", router="ffn_gate_inp", dense_gate=""
        ),
        more=_of_metadata,
    ),
)
