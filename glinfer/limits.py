"""Upper bounds on input and memory that glinfer refuses to exceed.

Limits for files allow every known model, and refuse absurd sizes before memory is allocated.
"""

# Commands
MAX_LOOK_TOKENS = 512
"""Tokens of a text for ``glinfer look``."""
MAX_LOOK_BYTES = 256_000_000
"""Captured tensors that ``glinfer look`` holds in memory at a time."""
MAX_CHAT_BYTES = 16_000_000
"""A conversation that ``/load`` of ``glinfer chat`` reads."""
MAX_PROFILE_RUNS = 10_000
"""Unprofiled runs of one profile."""
MAX_PROFILE_BYTES = 256 << 20
"""Size of a JSON report given to ``glinfer profile --compare``."""
MAX_DIFF_LOGITS = 1 << 28
"""Logits that ``glinfer diff`` keeps for each model, 1 GiB."""
MAX_TUNE_SECONDS = 86400
"""Time for one search of ``glinfer tune``."""
MAX_PROMPT_LINE_BYTES = 16_000_000
"""Size of one prompt in a batch file."""
MAX_RESULT_LINE_BYTES = 2 * MAX_PROMPT_LINE_BYTES
"""Size of one result in a batch file; a million tokens take about 12 million bytes."""
MAX_SINGLE_FILE_BYTES = 350_000_000
"""Weights in a single-file site: a browser's string holds 512 MiB, and base64 adds a third."""
MAX_SITE_FILE_BYTES = 1 << 28
"""Bytes of texels in one file of a site: one RGBA32F texture of 4096 × 4096 texels, 256 MiB."""
PIECE_ELEMENTS = 1 << 22
"""Elements of one tensor that are converted to float64 at a time, 32 MB."""

# Configurations
MAX_CONFIG_NUMBER = 1 << 24
"""Limit for every integer: far above any model, and low enough for 32-bit texel indices."""

# JSON files
MAX_JSON_VALUES = 1 << 20
"""Values in one settings file; each takes about 100 bytes of memory, and as few as two bytes in the file."""
MAX_JSON_NUMBER = 1e30
MAX_LINE_BRACKETS = 1 << 20
"""Brackets in a line of JSON; each can open a list, which takes thirty times the memory of its text."""
MAX_CONFIG_BYTES = 1 << 20
"""Size of a ``config.json`` or ``generation_config.json``; real ones have a few thousand bytes."""
MAX_TOKENIZER_CONFIG_BYTES = 1 << 24
"""A ``tokenizer_config.json`` may list thousands of added tokens."""
MAX_TOKENIZER_BYTES, MAX_TOKENIZER_VALUES = 1 << 27, 5 << 19
"""A ``tokenizer.json`` of 260 000 tokens has 35 million bytes and 2 million values."""
MAX_INDEX_BYTES = 10_000_000
"""Size of an index of shards, which is about that of all their headers."""
MAX_MANIFEST_BYTES = 4 << 20
"""Size of a second-generation Gab's manifest; real ones have about 50 000 bytes."""

# safetensors files
MAX_HEADER_VALUES = MAX_JSON_VALUES // 2
"""A tensor has nine values in the header."""
MAX_HEADER_BYTES = 10_000_000
"""GPT-2 takes about 100 bytes a tensor, so this allows about 8000 blocks."""
MAX_OWN_HEADER_BYTES = 100_000_000
"""The format's own limit, for files that glinfer saved."""

# Adapters
MAX_ADAPTER_RANK = 4096
"""Published adapters have 4 to 512."""

# Manifests and GGUF files
MAX_TENSOR_EDGE = MAX_CONFIG_NUMBER
MAX_FILE_OFFSET = 1 << 46
MAX_GGUF_ENTRIES = 1 << 16
"""Metadata entries, or tensors; the largest models have a few thousand."""
MAX_GGUF_ELEMENTS = 1 << 21
"""Elements of all metadata arrays together; a vocabulary of 262 144 tokens has 1.3 million."""
MAX_GGUF_SKIPPED = 1 << 22
"""Strings skipped in nested or oversized arrays, an array counted as 8; skipping this many takes a few seconds."""
MAX_GGUF_PARTS = 1000
"""Files of one model; published models have up to a few dozen."""
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
"""Reserved texts; the tokenizer searches every piece for each of them."""
MAX_VOCABULARY_BYTES = 1 << 22
"""Bytes of all pieces of a BPE: each piece can be twice as long as the one before it."""
MAX_VOCABULARY_CHARACTERS = 1 << 22
"""Characters of all SentencePiece tokens together; a vocabulary of 262 144 has 2 million."""
MAX_TOKEN_CHARACTERS = 1024
"""Characters of a SentencePiece token; the reader tries to split it at each of them."""

# Steps of a tokenizer.json
MAX_STEPS = 64
MAX_TEXT_GROWTH = 1024
"""Factor by which all steps together may lengthen a text, in bytes; real files stay below 200."""
MAX_STEP_CHARACTERS = 1024
"""Characters that a step adds before or around a text."""
MAX_AROUND_PIECES = 64
"""Pieces of a template around a text."""
MAX_EXPRESSION_CHARACTERS, MAX_EXPRESSION_DEPTH = 8192, 32
"""The longest known regular expression has 1900 characters."""

# Chat templates
MAX_TEMPLATE_CHARACTERS = 1 << 18
"""The longest real templates have about 20 000."""
MAX_RENDERED_CHARACTERS = 1 << 22
MAX_RENDER_SECONDS = 10
"""CPU seconds for rendering; real templates take milliseconds."""
MAX_RENDER_BYTES = 1 << 30
"""Memory for rendering."""

# Models on a hub
MAX_LISTING_BYTES = 1 << 24
"""The list of a repository's files; one of 10 000 files takes 3 million bytes."""
MAX_HUB_FILE_BYTES = 1 << 42
"""Size of one file of a repository, 4 TiB."""
MAX_SMALL_FILE_BYTES = 1 << 27
"""Size of a file next to the weights; the largest is ``tokenizer.json``."""
MAX_REMOTE_HEADER_BYTES = 1 << 26
"""Header of a GGUF file, which contains the vocabulary; 260 000 tokens take 15 million bytes."""
MAX_PARTS = 512
"""Parts of split weights."""

# Images
MAX_IMAGE_BYTES = 20_000_000
"""Size of an image's file."""
MAX_IMAGE_PIXELS = 50_000_000
"""Pixels of an image; decoded ones take three bytes each."""
MAX_IMAGES = 16
"""Images of one conversation."""
MAX_IMAGE_SIDE = 4096
"""Pixels of the longest side to which an image is resized, as in transformers."""
MAX_IMAGE_RATIO = 64
"""Longest side of an image, relative to the shortest."""
MAX_PATCHES = 1 << 14
"""Patches of a square that an encoder sees at once; SmolVLM has 1024."""
MAX_GRID_PATCHES = 4096
"""Patches of an image of any shape; larger images are made smaller. Their attention takes 1 GB with 16 heads."""
MAX_DEEP_VECTORS = 8
"""Layers of an image encoder with further vectors of a token; Qwen3-VL has three."""
MAX_KNOWN_IMAGES = 8
"""Images whose rows a model keeps for the next conversation."""

# Structures: JSON schemas, regular expressions, grammars and choices
MAX_STRUCTURE_BYTES = 1 << 18
"""Bytes of one structure; schemas of real interfaces have about 10 000."""
MAX_STRUCTURE_DEPTH = 96
"""Nested brackets; the library's parsers recurse once for each."""
MAX_SCHEMA_PROPERTIES = 1000
"""Properties of all objects of a schema together; compile time grows with the square of an object's properties."""
MAX_CHOICES = 10_000
MAX_COMPILE_SECONDS, MAX_COMPILE_CLOCK_SECONDS = 5, 60
"""CPU seconds and wall-clock seconds to compile one structure; real schemas take milliseconds."""
MAX_COMPILE_BYTES = 1 << 30
"""Memory for compiling."""
MAX_COMPILED, MAX_COMPILED_BYTES = 64, 1 << 21
"""Compiled structures that a model keeps, and the size of their texts."""

# Zip files
MAX_ZIP_ENTRIES, MAX_ZIP_BYTES = 1 << 12, 1 << 36
"""Files in a model's zip file, and their unpacked size."""
MAX_ZIP_GROWTH, ZIP_SLACK = 4, 64 << 20
"""Unpacked size: at most MAX_ZIP_GROWTH times the zip file's plus ZIP_SLACK; bfloat16 saved as float32 packs 3 to 1."""
MAX_ZIP_LIST_BYTES = 1 << 22
"""The list of the files in a zip file."""
