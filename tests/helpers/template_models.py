"""A small model that chats by a Jinja template, and whose every word is known beforehand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import tokenizers
from scripted_models import scripted
from tokenizers import decoders, models, pre_tokenizers

from glinfer.formats import save_checkpoint, weight_shapes
from glinfer.text.tokenizer import Tokenizer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


GEMMA_TOKENS = ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<|tool_response>")
HARMONY_TOKENS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")


def byte_library(*special: str) -> tokenizers.Tokenizer:
    """A tokenizer whose tokens are the bytes, those of ChatML, and special ones."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(models.BPE({text: token for token, text in enumerate(letters)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<|im_start|>", "<|im_end|>", *special])
    return library


def write_other(
    folder: Path,
    script: dict[int, str],
    template: str | None = CHATML,
    *,
    harmony: bool = False,
    gemma: bool = False,
    added: tuple[str, ...] = (),
    special: tuple[str, ...] = (),
    context: int = 192,
) -> tuple[Path, Tokenizer]:
    """A model of another family that says these texts from these positions on, each with its ``<|im_end|>``.

    With ``harmony`` it has the control tokens of gpt-oss too, and its texts end as those do; with ``gemma`` those of
    Gemma 4. ``added`` are further tokens, which text may spell, and ``special`` control tokens.
    """
    library = byte_library(*(HARMONY_TOKENS if harmony else GEMMA_TOKENS if gemma else special))
    library.add_tokens([tokenizers.AddedToken(name, normalized=False) for name in added])
    library.save(str(folder / "tokenizer.json"))
    config = {} if template is None else {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    words = Tokenizer.from_file(folder)
    if harmony:
        ends = [words.control_tokens[name] for name in ("<|return|>", "<|call|>", "<|im_end|>")]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    tokens = (words.encode("abcdefghijklmnopqrstuvwx") * context)[:context]
    for start, text in script.items():
        ids = words.encode(text + "<|im_end|>")
        tokens[start : start + len(ids)] = ids
    made = scripted(tokens, vocab=300, context=context, dim=32, blocks=2)
    other = dataclasses.replace(made.config, model_type="gpt2")
    tensors = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(other).items()}
    tensors.update((name, array) for name, array in made.tensors.items() if array.any())
    path = folder / "model.safetensors"
    save_checkpoint(dataclasses.replace(made, config=other, tensors=tensors), path)
    return path, words
