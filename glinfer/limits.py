"""Upper bounds on input and memory that glinfer refuses to exceed."""

MAX_LOOK_TOKENS = 512
"""Tokens of a text that ``glinfer look`` draws."""
MAX_LOOK_BYTES = 256_000_000
"""Captured tensors that ``glinfer look`` holds in memory at a time."""
MAX_PROFILE_RUNS = 10_000
"""Plain runs of one profile."""
MAX_PROFILE_BYTES = 256 << 20
"""Size of a JSON report given to ``glinfer profile --compare``."""
MAX_DIFF_LOGITS = 1 << 28
"""Logits that ``glinfer diff`` keeps of each side, 1 GiB."""
MAX_TUNE_SECONDS = 86400
"""Time for one search of ``glinfer tune``."""
MAX_PROMPT_LINE_BYTES = 16_000_000
"""Size of one prompt in a batch file."""
MAX_RESULT_LINE_BYTES = 2 * MAX_PROMPT_LINE_BYTES
"""Size of one result in a batch file; a million tokens take some 12 million bytes."""
MAX_SINGLE_FILE_BYTES = 350_000_000
"""Weights in a single-file site: a browser's string holds 512 MiB, and base64 adds a third."""
PIECE_ELEMENTS = 1 << 22
"""Numbers of one tensor that are widened to float64 at a time, 32 MB."""
