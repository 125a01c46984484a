"""Upper bounds on input and memory that glinfer refuses to exceed.

Those for files are above every known model, and low enough to refuse absurd sizes before memory is taken.
"""

# Commands
MAX_LOOK_TOKENS = 512
"""Tokens of a text that ``glinfer look`` draws."""
MAX_LOOK_BYTES = 256_000_000
"""Captured tensors that ``glinfer look`` holds in memory at a time."""
MAX_CHAT_BYTES = 16_000_000
"""A conversation that ``/load`` of ``glinfer chat`` reads."""
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
MAX_SITE_FILE_BYTES = 1 << 28
"""Texels in one file of a site, which is as much as one texture of 4096 texels a side can hold, 256 MiB."""
PIECE_ELEMENTS = 1 << 22
"""Numbers of one tensor that are widened to float64 at a time, 32 MB."""

# Configurations
MAX_CONFIG_NUMBER = 1 << 24
"""Every whole number: far above any model, far below what would overflow a 32-bit texel index."""

# JSON files
MAX_JSON_VALUES = 1 << 20
"""Values in one file of settings; each takes some hundred bytes of memory, and as few as two in the file."""
MAX_JSON_NUMBER = 1e30
MAX_LINE_BRACKETS = 1 << 20
"""Brackets in a line of JSON; each can be a list of its own, which takes thirty times as much memory."""
MAX_CONFIG_BYTES = 1 << 20
"""A ``config.json`` or ``generation_config.json`` has a few thousand."""
MAX_TOKENIZER_CONFIG_BYTES = 1 << 24
"""A ``tokenizer_config.json`` may list thousands of added tokens."""
MAX_TOKENIZER_BYTES, MAX_TOKENIZER_VALUES = 1 << 27, 5 << 19
"""A ``tokenizer.json`` of 260 000 tokens has 35 million bytes and 2 million values."""
MAX_INDEX_BYTES = 10_000_000
"""An index of shards takes about as much as their headers together."""
MAX_MANIFEST_BYTES = 4 << 20
"""A manifest of a second-generation Gab has about 50 thousand."""

# safetensors files
MAX_HEADER_VALUES = MAX_JSON_VALUES // 2
"""A tensor has nine values in the header."""
MAX_HEADER_BYTES = 10_000_000
"""GPT-2 takes about 100 for each tensor, so this is some 8000 blocks."""
MAX_OWN_HEADER_BYTES = 100_000_000
"""For files that glinfer saved, the limit of the format itself."""

# Adapters
MAX_ADAPTER_RANK = 4096
"""Published adapters have 4 to 512."""

# Manifests and GGUF files
MAX_TENSOR_EDGE = MAX_CONFIG_NUMBER
MAX_FILE_OFFSET = 1 << 46
MAX_GGUF_ENTRIES = 1 << 16
"""Pieces of metadata, or tensors; the largest models have some thousands."""
MAX_GGUF_ELEMENTS = 1 << 21
"""Elements of all arrays in the metadata together; a vocabulary of 262 144 comes with 1.3 million."""
MAX_GGUF_SKIPPED = 1 << 22
"""Strings that are skipped in arrays that are too large or nested, an array counted as 8; it takes some seconds."""
MAX_GGUF_PARTS = 1000
"""Files of one model; published ones have up to some dozens."""
MAX_GGUF_NAME_BYTES, MAX_GGUF_STRING_BYTES = (1 << 16) - 1, 1 << 24
MAX_GGUF_DIMENSIONS = 4

# Vocabularies
MAX_TOKENS = 1 << 19
"""Twice the tokens of the largest known vocabulary."""
MAX_TOKEN_ID = MAX_CONFIG_NUMBER
"""The tokenizers library counts up to the highest id when it copies itself."""
MAX_MERGES_FILE_BYTES = 1 << 24
"""The ``tokenizer.json`` of a second-generation Gab with 10 000 tokens has 103 000."""
MAX_MERGES = 1 << 18
MAX_RESERVED_TOKENS = 128
"""Each reserved text is looked for in every piece."""
MAX_VOCABULARY_BYTES = 1 << 22
"""Bytes of all pieces of a BPE: each piece can be twice as long as the one before it."""
MAX_VOCABULARY_CHARACTERS = 1 << 22
"""Characters of all SentencePiece tokens together; a vocabulary of 262 144 has 2 million."""
MAX_TOKEN_CHARACTERS = 1024
"""Every place in a SentencePiece token is tried at which it could be two."""

# Steps of a tokenizer.json
MAX_STEPS = 64
MAX_TEXT_GROWTH = 1024
"""Factor by which all steps together may lengthen a text, in bytes; real files stay below 200."""
MAX_STEP_CHARACTERS = 1024
"""Characters that a step puts before a text or around it."""
MAX_AROUND_PIECES = 64
"""Pieces of a template that is put around a text."""
MAX_EXPRESSION_CHARACTERS, MAX_EXPRESSION_DEPTH = 8192, 32
"""The longest known regular expression has 1900 characters."""

# Chat templates
MAX_TEMPLATE_CHARACTERS = 1 << 18
"""The longest real templates have some 20 000."""
MAX_RENDERED_CHARACTERS = 1 << 22
MAX_RENDER_SECONDS = 10
"""Seconds of a processor for rendering; real templates take milliseconds."""
MAX_RENDER_BYTES = 1 << 30
"""Memory for rendering."""

# Models on a hub
MAX_LISTING_BYTES = 1 << 24
"""The list of a repository's files; one of 10 000 files takes 3 million bytes."""
MAX_LISTED_FILES = 1 << 16
"""Files of a repository."""
MAX_HUB_FILE_BYTES = 1 << 42
"""Size of one file of a repository, 4 TiB."""
MAX_SMALL_FILE_BYTES = 1 << 27
"""A file beside the weights; the largest is ``tokenizer.json``."""
MAX_REMOTE_HEADER_BYTES = 1 << 26
"""The header of a GGUF file, which has the vocabulary; one of 260 000 tokens takes 15 million bytes."""
MAX_PARTS = 512
"""Parts of split weights."""

# Structures: JSON schemas, regular expressions, grammars and choices
MAX_STRUCTURE_BYTES = 1 << 18
"""Bytes of one; schemas of real interfaces have some 10 000."""
MAX_STRUCTURE_DEPTH = 96
"""Brackets within each other; the parsers of the library go down by one call for each."""
MAX_SCHEMA_PROPERTIES = 1000
"""Properties of all objects of a schema together; the time for one object grows with their square."""
MAX_CHOICES = 10_000
MAX_COMPILE_SECONDS, MAX_COMPILE_CLOCK_SECONDS = 5, 60
"""Seconds of a processor, and by the clock, for compiling one; real schemas take milliseconds of both."""
MAX_COMPILE_BYTES = 1 << 30
"""Memory for compiling."""
MAX_COMPILED, MAX_COMPILED_BYTES = 64, 1 << 21
"""Structures that a model keeps compiled, and bytes of their texts."""

# Zip files
MAX_ZIP_ENTRIES, MAX_ZIP_BYTES = 1 << 12, 1 << 36
"""Files of a model in a zip file, and their bytes when it is unpacked."""
MAX_ZIP_GROWTH, ZIP_SLACK = 4, 64 << 20
"""Growth of a zip file by unpacking, as a factor and bytes more; bfloat16 saved as float32 shrinks to a third."""
MAX_ZIP_LIST_BYTES = 1 << 22
"""The list of the files in a zip file."""
