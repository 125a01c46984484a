"""VaultGemma (Google 2025): a Gemma 2 without norms after the branches."""

from dataclasses import replace

from glinfer.families import gemma2
from glinfer.families.layer import LayerConfig

FAMILY = replace(gemma2.FAMILY, name="vaultgemma", layer=LayerConfig(), gguf=None)
