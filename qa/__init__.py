"""Instruments for building glinfer, run from the checkout: ``python -m qa``. The package never imports them."""

import sys
from pathlib import Path

# Helpers of the tests import each other as pytest lets them.
sys.path += [str(Path(__file__).parents[1] / place) for place in ("tests", "tests/helpers")]
