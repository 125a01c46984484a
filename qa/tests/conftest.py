"""What tests of fuzzing need."""

from __future__ import annotations

import importlib.util
import os

# GGUF files are among those that are damaged, and are read with this package.
collect_ignore_glob = [] if importlib.util.find_spec("gguf") else ["test_fuzz*.py"]

# The library's threads and the processes that render templates do not go together without a warning.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
