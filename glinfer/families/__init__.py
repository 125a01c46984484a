"""The families of models that run here, one record a file; nothing outside its record depends on a family.

Records are data and import nothing else of glinfer, so that configurations, formats and plans can all read them.
"""

from glinfer.families import gab, gemma, gift_of_gab, gpt2, llama, mistral, qwen2, qwen3
from glinfer.families.record import Family

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY for module in (gab, gpt2, gift_of_gab, llama, mistral, qwen2, qwen3, gemma)
}
"""Every family by its name, the ``model_type`` of its models."""
DEFAULT, DEFAULT_SHAPE = gab.FAMILY.name, gab.SHAPE
"""The default family, and its shape under the names of ``--config``."""
