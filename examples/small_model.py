"""The examples' model: the one named on the command line, else a small random one in a temporary folder."""

import sys
import tempfile
from pathlib import Path

from glinfer import ModelConfig
from glinfer.tools.demo import write_demo


def model_path() -> Path:
    """`python 01_generate.py model.gab` uses model.gab (with the .bpe beside it); without it, noise."""
    if len(sys.argv) > 1:
        return Path(sys.argv[1])
    shape = ModelConfig.from_options("vocab=600,dim=64,heads=4,blocks=2,context=128")
    checkpoint, _tokenizer = write_demo(Path(tempfile.mkdtemp(prefix="glinfer-")), shape)
    return checkpoint
