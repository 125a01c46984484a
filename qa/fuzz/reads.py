"""What a program does with the files that fuzzing makes: read them, and use what was read.

A GlinferError is fine, anything else is a find. Models are used up to where a device would be needed: configurations
make their tables of angles, checkpoints their plans and arrays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import gguf as _late  # noqa: F401 (readers import it late, which opens files and runs code)
import numpy as np

from glinfer.config import ModelConfig
from glinfer.engine.defaults import default_sampling
from glinfer.errors import GlinferError, InputError
from glinfer.formats import Checkpoint, load_checkpoint, random_checkpoint
from glinfer.formats.checkpoint import with_context
from glinfer.formats.gab.bpe import BpeModel, read_bpe
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.gguf.vocabulary import vocabulary_metadata
from glinfer.formats.huggingface.config import read_config
from glinfer.formats.huggingface.model import read_huggingface
from glinfer.inspect.info import model_report
from glinfer.jobs.files import Target
from glinfer.jobs.index import LineIndex
from glinfer.jobs.lines import RequestLine
from glinfer.jobs.manifest import file_digest
from glinfer.jobs.prompts import PromptForm
from glinfer.jobs.requests import RequestForm
from glinfer.jobs.results import ResultFile, check_targets, read_finished
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.rotary import cosines_and_sines, rope_frequencies
from glinfer.lower.fused.token import fast_plan
from glinfer.lower.options import PlanOptions
from glinfer.lower.plans import plan_for, weights_for
from glinfer.program import tuning
from glinfer.program.tuning import TuningKey, load_tuned
from glinfer.text.parts import sidecar_files, text_parts
from glinfer.text.stops import stop_ids_of
from glinfer.text.template_worker import render
from glinfer.text.templates import find_template
from glinfer.text.tokenizer import Tokenizer
from glinfer.text.tokenizers.gguf import gguf_stops, gguf_tokenizer
from glinfer.text.tokenizers.huggingface import read_hf_tokenizer
from glinfer.text.tokenizers.slow import read_slow_tokenizer
from qa.fuzz import seeds

TEXTS = ("hello hihi <|a|> <s>", " é\n日本🚀\0", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!")
_SMALL, _FEW_LAYERS = 1 << 16, 8  # parameters and layers of a model that is used to the end
_MOST_PLANNED = 1024
_planned: set[tuple[object, ...]] = set()
"""Shapes whose plan was made: plans depend on nothing else, and most damage changes no shape."""
MESSAGES = ({"role": "user", "content": "hello <|im_end|>"}, {"role": "assistant", "content": "hi"})


Files = dict[str, bytes | list[bytes]]
"""Files by their names; of one that is damaged there may be several."""


def put(folder: Path, name: str, data: bytes) -> Path:
    """Write one file."""
    path = folder / name
    with open(path, "wb", buffering=0) as file:  # noqa: PTH123 (half the time of Path.write_bytes)
        file.write(data)
    return path


def root(path: Path, sign: str) -> Path:
    """The folder above a file that has this in it."""
    return next(folder for folder in path.parents if (folder / sign).exists())


# Using what was read


def use_config(config: ModelConfig) -> None:
    """What every command does with a configuration."""
    assert ModelConfig.from_json(config.to_json()) == config
    hash(config)
    config.layer(0)
    config.with_context(1)
    if config.rope_scaling or config.model_type not in ("gab", "gpt2"):
        positions = min(config.max_position_embeddings, 16)
        width, scaling = min(config.rotary_dim, 64) & ~1 or 2, dict(config.rope_scaling)
        cosines_and_sines(positions, *rope_frequencies(positions, width, config.rope_theta, scaling))


def use_checkpoint(checkpoint: Checkpoint) -> None:
    """What loading a model does with a checkpoint, up to where a device is needed; and what `glinfer info` tells."""
    config = checkpoint.config
    use_config(config)
    assert checkpoint.parameter_count > 0
    str(checkpoint.source)
    if checkpoint.parameter_count > _SMALL or config.num_hidden_layers > _FEW_LAYERS:
        return
    checkpoint.check_finite()
    for name in checkpoint.formats():
        with np.errstate(all="ignore"):
            float(checkpoint.floats(name).sum())
    short = with_context(checkpoint, min(4, config.max_position_embeddings))
    _use_shape(short, config.max_position_embeddings, checkpoint.parameter_count)
    with np.errstate(all="ignore"):
        arrays = weights_for(short, "fast")
        for name in arrays:
            assert arrays[name].size


def _use_shape(short: Checkpoint, positions: int, parameters: int) -> None:
    """Compute the facts that ``info`` prints of a model, and its plan, once for each shape."""
    shape = (short.config, tuple(short.formats().items()), positions, parameters)
    if shape in _planned:
        return
    report = model_report(short, positions, "fast", "file", "f32", None)
    assert report["parameters"] <= parameters
    plan_for(short.config, "fast", formats=short.formats()).validate()
    if len(_planned) == _MOST_PLANNED:
        _planned.clear()
    _planned.add(shape)


def use_tokenizer(tokenizer: Tokenizer) -> None:
    """Text to ids and back, in all the ways there are."""
    for text in TEXTS:
        for special in (True, False):
            try:
                ids = tokenizer.encode(text, allow_special=special)
            except InputError:  # no way to write this text
                continue
            tokenizer.decode(ids)
    for control in list(tokenizer.control_tokens.values())[:3]:
        with_errors(partial(tokenizer.encode_mixed, ["hello ", control, " hi"]))
    for token in (0, tokenizer.vocab_size - 1, tokenizer.vocab_size // 2):
        tokenizer.token_bytes(token)
    tokenizer.fits(ModelConfig(6, 4, 2, 1, 8))


def with_errors(call: Callable[[], object]) -> None:
    """Make a call that may refuse its input."""
    with contextlib.suppress(GlinferError):
        call()


def model(read: Callable[[Path], Checkpoint]) -> Callable[[Path], None]:
    """The use of a file that is read as a model."""
    return lambda path: use_checkpoint(read(path))


# Models


def hf_models() -> Files:
    models = (
        ("llama", seeds.LLAMA, "float16"),
        ("tied", {**seeds.LLAMA, "tie_word_embeddings": True}, "bfloat16"),
        ("gpt2", seeds.GPT2, "float16"),
    )
    return {
        f"{name}/{file}": data
        for name, settings, dtype in models
        for file, data in seeds.huggingface(settings, dtype).items()
    }


def hf_configs() -> Files:
    return {**seeds.huggingface(), "config.json": seeds.configs()}


def hf_config(path: Path) -> None:
    with_errors(lambda: stop_ids_of(path.parent))
    use_config(read_config(path))
    with_errors(lambda: use_checkpoint(read_huggingface(path)))


INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def manifests() -> Files:
    made = seeds.manifests()
    return {"m.json": [text for text, _ in made], **{name: part for _, parts in made for name, part in parts.items()}}


def any_files() -> Files:
    made = [seeds.gab(), seeds.bpe(), *seeds.own_safetensors()[:1], *seeds.ggufs()[:1], *seeds.merges_json()[:1]]
    made += [seeds.manifests()[0][0], seeds.configs()[0], seeds.tokenizer_jsons()[0], seeds.gguf_vocabularies()[0]]
    made += [seeds.huggingface()["model.safetensors"], b"", b"{", b"GGUF", b"a batch\n", b"[]"]
    return dict(zip(NAMES, made, strict=True))


NAMES = (
    "model", "model.gab", "model.bpe", "model.safetensors", "model.gguf", "config.json", "tokenizer.json", INDEX,
    "model-00001-of-00002.safetensors", "pytorch_model.bin", "tokenizer_config.json", "chat_template.jinja", "x.json",
    "generation_config.json", "x.safetensors.index.json",
)  # fmt: skip


def any_file(path: Path) -> None:
    """The file, alone in a folder."""
    inside = path.parent / "alone"
    inside.mkdir(exist_ok=True)
    alone = path.rename(inside / path.name)
    try:
        calls = (find_template, stop_ids_of, default_sampling, file_digest)
        for call in (load_checkpoint, Tokenizer.from_file, *calls):
            for given in (alone, inside):
                with_errors(partial(call, given))
        with_errors(lambda: use_checkpoint(load_checkpoint(alone)))
        with_errors(lambda: use_tokenizer(Tokenizer.from_file(alone)))
    finally:
        alone.unlink()


# Tokenizers


def gab_vocabulary(read: Callable[[Path], BpeModel]) -> Callable[[Path], None]:
    """The use of a file that is read as a vocabulary of Gab's."""

    def use(path: Path) -> None:
        found = read(path)
        use_tokenizer(Tokenizer(found))
        with_errors(lambda: vocabulary_metadata(found, len(found.vocabulary)))

    return use


def tokenizer_json(path: Path) -> None:
    found = Tokenizer(read_hf_tokenizer(path))
    with_errors(lambda: vocabulary_metadata(found.vocabulary, 64))
    use_tokenizer(found)


def slow_tokenizer(path: Path) -> None:
    whole = path if path.suffix == ".model" else path.with_name("vocab.json")
    use_tokenizer(Tokenizer(read_slow_tokenizer(whole)))


def tokenizer_configs() -> Files:
    return {"tokenizer_config.json": seeds.tokenizer_configs(), "tokenizer.json": seeds.tokenizer_jsons()[0]}


def tokenizer_config(path: Path) -> None:
    folder, others = path.parent, [path.with_name(f"{name}.json") for name in ("generation_config", "chat_template")]
    for other in others:
        other.write_bytes(path.read_bytes())
    with_errors(lambda: stop_ids_of(folder))
    with_errors(lambda: default_sampling(folder))
    with_errors(lambda: find_template(folder))
    others[1].unlink()
    with_errors(lambda: find_template(path))
    with_errors(lambda: sidecar_files(text_parts(folder, None, ModelConfig(64, 4, 2, 1, 8)), folder / "m.gab"))
    use_tokenizer(Tokenizer.from_file(folder))


def gguf_vocabulary(path: Path) -> None:
    file = read_gguf_file(path)
    with_errors(lambda: gguf_stops(file.metadata, file.source))
    with_errors(lambda: find_template(path))
    with_errors(lambda: vocabulary_metadata(file.metadata, 64))
    use_tokenizer(Tokenizer(gguf_tokenizer(file.metadata, file.source)))


# Templates


def templates() -> list[bytes]:
    texts = (
        seeds.TEMPLATE,
        "{%- macro say(a) -%}{{ a | upper }}{%- endmacro -%}{{ say('x') }}{% generation %}y{% endgeneration %}",
        "{% set ns = namespace(n=0) %}{% for m in messages[::-1] %}{% set ns.n = ns.n + 1 %}{% break %}{% endfor %}",
        "{{ messages | tojson(indent=2) }}{{ strftime_now('%Y') }}{% if not bos_token is defined %}"
        "{{ raise_exception('no') }}{% endif %}{{ messages[0].items() | list }}{{ '%s' | format(1) }}",
    )
    return [text.encode() for text in texts]


def templates_apart() -> Files:
    config = b'{"bos_token": "<s>", "eos_token": "</s>"}'
    return {"chat_template.jinja": templates(), "tokenizer_config.json": config}


def template(path: Path) -> None:
    """In this process, where the watch sees what the template opens; errors are the template's own."""
    variables: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True, "tools": None}
    with contextlib.suppress(Exception):  # of any kind, as jinja2 and what a template calls raise them
        render(
            path.read_bytes().decode(errors="surrogatepass"),
            {**variables, "messages": [dict(m) for m in MESSAGES]},
            100_000,
        )


def template_apart(path: Path) -> None:
    """In a process of its own, as a program does; then the ids of the text."""
    found = find_template(path.parent)
    assert found is not None
    found.render(MESSAGES)
    with_errors(lambda: found.ids(_tokenizer(), MESSAGES))


@cache
def _tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return Tokenizer(read_bpe(put(Path(folder), "m.bpe", seeds.bpe())))


# The cache

KEY = TuningKey("renderer", "driver", "shape,weights=f32")


def kernels_seeds() -> list[bytes]:
    values = {"version": tuning.VERSION, **dataclasses.asdict(KEY), "milliseconds": 1.5, "default_milliseconds": 2.0}
    made = (KernelOptions(), KernelOptions(tiles=8, part_steps=8, quad=False, cover="points"))
    return [seeds.compact({**values, "kernels": dataclasses.asdict(each)}) for each in made]


def kernels(path: Path) -> None:
    os.environ["GLINFER_CACHE"] = str(path.parent.parent)
    try:
        found = load_tuned(KEY)
    finally:
        os.environ["GLINFER_CACHE"] = ""
    if found is not None:
        assert 0 < found.milliseconds < 1e9, found
        assert 0 < found.default_milliseconds < 1e9, found
        fast_plan(PlanOptions(_small().config, weights="f32", kernels=found.kernels, max_texture_size=4096)).validate()


@cache
def _small() -> Checkpoint:
    return random_checkpoint(ModelConfig(6, 4, 2, 1, 8))


# Batches and options

_DEFAULTS: dict[str, Any] = {
    "max_tokens": 8, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "seed": 3,
    "stop": [], "stop_ids": None,
}  # fmt: skip
_FORM = PromptForm(_DEFAULTS, ("m",))
BATCH = (
    b'{"prompt": "Once upon", "id": "a", "max_tokens": 3, "temperature": 0.5, "top_k": 4, "top_p": 0.9, "seed": 1}\n'
    b'{"ids": [1, 2, 3], "stop_ids": [0], "min_p": 0.1, "repetition_penalty": 1.1}\n\n'
    b'{"prompt": "x", "stop": ["a", "b"]}\n'
)


def batch(path: Path) -> None:
    for line in scanned(_FORM, path):
        assert len(line.digest) == 16


def scanned(form: PromptForm | RequestForm, path: Path) -> list[RequestLine]:
    """The lines of a batch, with ids that differ."""
    with LineIndex(form, path) as index:
        index.scan()
        return list(index.todo())


def resumed(form: PromptForm | RequestForm, source: Path, out: Path) -> None:
    """Results that a resumed run reads: it keeps those that are whole."""
    target, data = Target(out), out.read_bytes()
    check_targets(source, target)
    with LineIndex(form, source) as index:
        index.scan()
        finished = read_finished(target, index)
    with ResultFile(target, finished) as file:
        file.open()
    assert out.read_bytes() == data[: finished.size]


def batch_results() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        lines = scanned(_FORM, put(Path(folder), "in.jsonl", BATCH))
    report = {"text": "é", "ids": [1], "finish_reason": "stop", "prompt_tokens": 1, "tokens": 1}
    results = [{"id": line.key, **report, "prompt_sha": line.digest} for line in lines]
    made = [seeds.compact(result).replace(b'{"id":', b'{"id": ') + b"\n" for result in results]
    return {"out.jsonl": [b"".join(made), b"".join(made[:2])[:-20], b""], "in.jsonl": BATCH}


def resumed_batch(path: Path) -> None:
    resumed(_FORM, path.with_name("in.jsonl"), path)


def options(path: Path) -> None:
    text = path.read_bytes().decode(errors="replace")
    if text.startswith("{"):
        use_config(ModelConfig.from_json(text))
        return
    config = ModelConfig.from_options(text)
    use_config(config)
    layers, width = config.num_hidden_layers, config.hidden_size
    if layers <= _FEW_LAYERS and config.vocab_size * width + layers * width**2 < _SMALL:
        use_checkpoint(random_checkpoint(config))


def all_options() -> list[bytes]:
    shape = b"vocab=6,dim=4,heads=2,blocks=1,context=8"
    made = [b"gab", b"llama,inner=4,kv_heads=1", b"qwen3,head_dim=2,window=4,tied=1"]
    return [*(b"family=" + more + b"," + shape for more in made), _small().config.to_json().encode()]
