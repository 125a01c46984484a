"""Every reader of files: small valid files for it, how to damage them, and what reads them (:mod:`.reads`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from qa.fuzz import archives, asked, beside, folders, pictures, reads, seeds, words
from qa.fuzz.mutate import BPE, BYTES, GAB, JSON, LINES, SAFETENSORS, TEXT, Form, first_byte, words_of
from qa.fuzz.mutate_gguf import GGUF
from qa.fuzz.reads import Files, one_of_each


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        name: also of its folder of kept cases.
        seeds: makes valid files.
        read: takes a file's bytes and a folder, reads and uses it.
        form: how a file is taken apart, to be damaged.
        words: names and values that the reader knows, and that are not in the seeds.
        prepare: writes what lies beside the file, once for each folder.
        modules: of glinfer, whose lines it is about.
        longest: bytes of a file that fuzzing makes.
        processes: whether it starts the process that renders templates, or compiles structures.
        programs: whether it runs templates in this process.
    """

    name: str
    seeds: Callable[[], Sequence[bytes]]
    read: Callable[[bytes, Path], object]
    form: Form
    words: tuple[Any, ...] = ()
    prepare: Callable[[Path], object] = lambda folder: None
    modules: tuple[str, ...] = ()
    longest: int = 4096
    processes: bool = False
    programs: bool = False

    @cached_property
    def vocabulary(self) -> list[Any]:
        """All names and values that are put where they do not belong."""
        found = list(self.words)
        for data in self.seeds():
            with suppress(Exception):  # what has no form is damaged as bytes
                found += words_of(self.form.parse(data))
        return list({repr(word): word for word in found}.values())

    def mutate(self, data: bytes, random: Random) -> bytes:
        """Damage a file once."""
        return self.form.damage(data, random, self.vocabulary)


_GGUF = (
    *("formats/gguf/model.py", "formats/gguf/file.py", "formats/gguf/split.py", "formats/gguf/config.py"),
    "families/gguf.py",
)
_TENSORS = ("formats/safetensors_file.py",)
_HF = ("formats/huggingface/model.py", "formats/huggingface/files.py", "formats/json_files.py", *_TENSORS)
_LINES = ("jobs/prompts.py", "jobs/results.py", "jobs/index.py", "formats/jsonl.py")
_SERVER = ("server/protocol.py", "server/limits.py", "server/structured.py", "server/responses.py")
_ADAPTERS = ("formats/adapters/adapter.py", "formats/adapters/merge.py")
_STRUCTURES = ("structured/structure.py", "structured/compiler.py")
_TOKENIZERS = ("text/tokenizers/huggingface.py", "text/tokenizers/check.py", "text/tokenizers/patterns.py")
_STRUCTURE = first_byte(JSON, TEXT, TEXT, JSON)


def _files(files: Callable[[], Files]) -> Callable[[], Sequence[bytes]]:
    return lambda: one_of_each(files())


_LIST = (
    Target("gab", lambda: [seeds.gab()], reads.gab, GAB, modules=("formats/gab/file.py",)),
    Target("bpe", lambda: [seeds.bpe(), seeds.bpe(())], reads.bpe, BPE, modules=("formats/gab/bpe.py",), longest=6000),
    Target("merges_json", seeds.merges_json, reads.merges_json, JSON, modules=("formats/gab/bpe.py",)),
    Target("safetensors", seeds.own_safetensors, reads.safetensors, SAFETENSORS, words.SAFETENSORS,
           modules=("formats/safetensors.py", "formats/checkpoint.py", *_TENSORS)),
    Target("hf_weights", reads.hf_weights_seeds, reads.hf_weights, first_byte(*[SAFETENSORS] * 3), words.SAFETENSORS,
           reads.prepare_hf, _HF),
    Target("hf_config", seeds.configs, reads.hf_config, JSON, words.CONFIG, reads.prepare_hf_config,
           (*_HF, "formats/huggingface/config.py", "families/huggingface.py")),
    Target("hf_index", reads.hf_index_seeds, reads.hf_index, JSON, ("config.json", "../x", "/x"),
           reads.prepare_hf_index, _HF),
    Target("gguf", seeds.ggufs, reads.gguf, GGUF, words.GGUF, modules=_GGUF, longest=10000),
    Target("gguf_tokenizer", seeds.gguf_vocabularies, reads.gguf_vocabulary, GGUF, words.VOCABULARY,
           modules=("text/tokenizers/gguf.py", "formats/gguf/file.py")),
    Target("manifest", lambda: [text for text, _ in seeds.manifests()], reads.manifest, JSON, (),
           reads.prepare_manifest, ("formats/manifest/model.py", "formats/manifest/files.py")),
    Target("tokenizer_json", seeds.tokenizer_jsons, reads.tokenizer_json, JSON, words.TOKENIZER,
           modules=(*_TOKENIZERS, "formats/gguf/vocabulary.py")),
    Target("slow_tokenizer", seeds.slow_tokenizers, reads.slow_tokenizer, BYTES, modules=("text/tokenizers/slow.py",),
           longest=6000),
    Target("tokenizer_config", seeds.tokenizer_configs, reads.tokenizer_config, JSON, ("x_token", "lstrip", [1, 2]),
           reads.prepare_tokenizer_config,
           ("text/tokenizers/huggingface.py", "text/stops.py", "text/parts.py", "formats/sampling.py")),
    Target("template", reads.template_seeds, reads.template, TEXT, words.TEMPLATE,
           modules=("text/template_worker.py",), longest=2048, programs=True),
    Target("template_apart", reads.template_seeds, reads.template_apart, TEXT, words.TEMPLATE, reads.prepare_template,
           ("text/templates.py",), 2048, processes=True),
    Target("kernels", reads.kernels_seeds, reads.kernels, JSON, ("quads", "q8", "f16", "auto"),
           modules=("program/tuning.py",)),
    Target("batch", lambda: [reads.BATCH], reads.batch, LINES, words.BATCH, modules=_LINES),
    Target("results", reads.results_seeds, reads.results, LINES, words.BATCH, reads.prepare_batch, _LINES),
    Target("options", reads.options_seeds, reads.options, TEXT, words.OPTIONS, modules=("config.py",), longest=1024),
    Target("gguf_split", _files(folders.parts), folders.split, first_byte(GGUF, GGUF), words.GGUF, modules=_GGUF),
    Target("gguf_coded", seeds.coded_ggufs, reads.gguf, GGUF, words.GGUF,
           modules=("formats/gguf/model.py", "formats/packed.py", "quant/coded.py"), longest=10000),
    Target("peft", _files(folders.peft), folders.peft_adapter, first_byte(JSON, SAFETENSORS), words.ADAPTER,
           modules=("formats/adapters/peft.py", *_ADAPTERS)),
    Target("gguf_adapter", folders.gguf_adapters, folders.gguf_adapter, GGUF, words.ADAPTER,
           modules=("formats/adapters/gguf.py", *_ADAPTERS)),
    Target("sentence", _files(lambda: folders.sentence()[0]), folders.embedder,
           first_byte(JSON, JSON, JSON, SAFETENSORS, JSON, JSON, JSON), words.SENTENCE,
           modules=("formats/huggingface/sentence.py", *_TENSORS)),
    Target("mxfp4", _files(folders.mxfp4), folders.blocks, first_byte(SAFETENSORS, JSON), words.MXFP4,
           modules=("formats/huggingface/layouts.py", *_TENSORS), longest=12000),
    Target("hub", asked.listings, asked.hub_answer, JSON, ("../m.gguf", "m-Q8_0.gguf", -1), modules=("hub/choice.py",)),
    Target("body", asked.body_seeds, asked.body, first_byte(*[JSON] * len(asked.BODIES)), words.BODY, modules=_SERVER),
    Target("requests", lambda: [asked.BATCH], asked.batch_requests, LINES, words.BODY,
           modules=("jobs/requests.py", "jobs/lines.py", "jobs/index.py", "formats/jsonl.py")),
    Target("request_results", asked.result_seeds, asked.batch_results, first_byte(LINES, JSON), words.BODY,
           asked.prepare_batch, ("jobs/results.py", "jobs/manifest.py")),
    Target("structure", asked.structure_seeds, asked.structure, _STRUCTURE, words.STRUCTURE, modules=_STRUCTURES,
           longest=2048),
    Target("structure_apart", asked.structure_seeds, asked.structure_apart, _STRUCTURE, words.STRUCTURE,
           modules=(*_STRUCTURES, "structured/constraint.py"), longest=2048, processes=True),
    Target("conversation", asked.conversation_seeds, asked.conversation, first_byte(JSON, JSON), words.BODY,
           modules=("text/templates.py", "server/protocol.py"), programs=True),
    Target("reply", asked.reply_seeds, asked.reply, first_byte(*[TEXT] * 7), words.REPLY,
           modules=("structured/tools.py", "server/tool_calls.py", "text/reply.py"), longest=512),
    Target("zip", archives.zips, archives.read_zip, archives.ZIP, archives.WORDS, modules=("formats/zipped.py",),
           longest=1 << 16),
    Target("encoder", _files(pictures.encoders), pictures.encoder, first_byte(GGUF, JSON, JSON), (), pictures.prepare,
           ("formats/vision.py",), 1 << 18),
    Target("image", pictures.images, pictures.image, BYTES, modules=("text/images.py",)),
    Target("importance", beside.importances, beside.importance, GGUF, modules=("inspect/importance.py",)),
    Target("texts", _files(beside.texts), beside.read_some_texts, first_byte(TEXT, LINES, TEXT, BYTES),
           ("\r\n", "\ufeff", '"', ","), modules=("jobs/texts.py", "formats/jsonl.py")),
    Target("packed", _files(beside.packed), beside.unpack, first_byte(BYTES, BYTES), modules=("jobs/places.py",)),
    Target("vectors", beside.vectors, beside.continue_vectors, BYTES, modules=("jobs/vectors.py",)),
    Target("profile", beside.profiles, beside.profile, JSON, modules=("inspect/profile/compare.py",)),
    Target("site", _files(beside.sites), beside.site, first_byte(JSON, BYTES, JSON, TEXT, JSON),
           ("license: ", "---\n", "\r\n", "license_name: |", "\x1b"),
           modules=("export/site.py", "export/card.py", "inspect/look/output.py")),
    Target("saved_chat", beside.saved_chats, beside.saved_chat, JSON, words.BODY, modules=("cli/chat.py",)),
    Target("installed", _files(beside.installed), beside.installed_package, first_byte(TEXT, TEXT, archives.ZIP, BYTES),
           ("../x.gguf,,\n", f"{'x' * 300}.gab,,\n", "\0.gguf,,\n", "Name: ", "Version: ", "\n\n", "\x1b"),
           modules=("formats/installed.py",)),
    Target("hub_cache", _files(beside.hub_cache), beside.cached_model, first_byte(TEXT, JSON, BYTES, BYTES, BYTES),
           ("../x",), modules=("hub/cache.py", "hub/fetch.py")),
    Target("any", reads.any_seeds, reads.any_file, first_byte(*[JSON] * len(reads.NAMES)),
           modules=("formats/__init__.py", "text/tokenizer.py")),
)  # fmt: skip
TARGETS = {target.name: target for target in _LIST}
"""Every target by its name."""
