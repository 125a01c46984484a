"""The supported model families, one module each; code outside of these modules does not depend on a family.

A module has the family's record, and functions that read what only its files have. It imports no other room than
errors and limits, so configurations, formats and plans can all read it. Unless it says otherwise, defaults are those of
the configuration class of its ``model_type`` in Hugging Face's transformers 5.
"""

from importlib import import_module

from glinfer.families import gab, gift_of_gab, qwen3_vl_vision, siglip
from glinfer.families.record import Family

_NAMES = """
    gab gpt2 gift_of_gab llama mistral ministral ministral3 qwen2 qwen3 qwen3_vl gemma gemma2 gemma3 gemma4 smollm3
    olmo2 olmo3 phi3 granite lfm2 lfm3 qwen3_5 seed_oss ernie4_5 exaone4 granitemoehybrid falcon_h1 nemotron_h
    mamba2 hunyuan_v1_dense phi apertus exaone glm glm4 cohere cohere2 gpt_neox stablelm starcoder2 nemotron arcee
    bitnet youtu minicpm3 internlm3 iquestcoder cwm helium hyperclovax jais2 vaultgemma
    mixtral glm4_moe deepseek_v3 solar_open exaone_moe glm4_moe_lite deepseek_v2 dots1
    minimax_m2 ernie4_5_moe hunyuan_v1_moe qwen2_moe qwen3_moe olmoe granitemoe
    granitemoehybrid_moe nemotron_h_moe gemma4_moe lfm2_moe gpt_oss qwen3_5_moe qwen3_next bert roberta xlm_roberta
    nomic_bert nomic_bert_moe modernbert gemma_embedding eurobert jina_embeddings_v3
"""
_MODULES = [import_module(f"{__name__}.{name}") for name in _NAMES.split()]
FAMILIES: dict[str, Family] = {module.FAMILY.name: module.FAMILY for module in _MODULES}
"""Every family by its name, the ``model_type`` of its models."""
TOWERS = {module.FAMILY.name: module.FAMILY for module in (siglip, qwen3_vl_vision)}
"""The families of image encoders, whose models are parts of others."""
DECODERS = {name: family for name, family in FAMILIES.items() if not family.encodes}
"""The families whose models generate text."""
DEFAULT, DEFAULT_SHAPE = gab.FAMILY.name, gab.SHAPE
"""The default family, and its shape under the names of ``--config``."""
SHAPES: dict[str, dict[str, int]] = {module.FAMILY.name: module.SHAPE for module in (gab, gift_of_gab)}
"""The shapes of published models that ``--config`` accepts by name."""
