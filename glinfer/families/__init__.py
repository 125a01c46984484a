"""Every family of models that runs here: one record a file, and what is in it is all that is known of the family.

Records are data and this room imports no other, so that configurations, formats and plans can all read them.
"""

from glinfer.families import gab, gemma, gift_of_gab, gpt2, llama, mistral, qwen2, qwen3
from glinfer.families.record import Family

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY for module in (gab, gpt2, gift_of_gab, llama, mistral, qwen2, qwen3, gemma)
}
"""Every family by its name, which is what ``model_type`` says."""
DEFAULT, DEFAULT_SHAPE = gab.FAMILY.name, gab.SHAPE
"""The family, and the shape in the names of ``--config``, of a model that nothing is said about."""
