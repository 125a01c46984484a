"""Gab, second generation: RMSNorm, rotary positions that turn neighbours, an erf-form GELU MLP without a gate.

The file is read by :mod:`glinfer.formats.manifest`; names are those of Hugging Face's Llama.
"""

from glinfer.formats.families import GIFT_OF_GAB
from glinfer.models.decoder import Style

STYLES = {GIFT_OF_GAB: Style(interleaved=True)}
"""What the models of this family compute."""
