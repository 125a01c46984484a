"""Every reader of files: small valid files for it, how to damage them, and what reads them (:mod:`.reads`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from qa.fuzz import archives, asked, beside, folders, reads, seeds, words
from qa.fuzz.mutate import (
    Mutator,
    any_bytes,
    behind_byte,
    bpe_mutator,
    by_byte,
    by_chance,
    gab_mutator,
    json_mutator,
    lines_mutator,
    safetensors_mutator,
    strings,
    text_mutator,
)
from qa.fuzz.mutate_gguf import gguf_mutator


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        name: also of its folder of kept cases.
        seeds: makes valid files.
        read: takes a file's bytes and a folder, reads and uses it.
        mutate: damages a file.
        prepare: writes what lies beside the file, once for each folder.
        modules: of glinfer, whose lines it is about.
        longest: bytes of a file that fuzzing makes.
        processes: whether it starts the process that renders templates, or compiles structures.
        programs: whether it runs templates in this process.
    """

    name: str
    seeds: Callable[[], Sequence[bytes]]
    read: Callable[[bytes, Path], object]
    mutate: Mutator
    prepare: Callable[[Path], object] = lambda folder: None
    modules: tuple[str, ...] = ()
    longest: int = 4096
    processes: bool = False
    programs: bool = False


_GGUF = (
    "formats/gguf/model.py",
    "formats/gguf/file.py",
    "formats/gguf/split.py",
    "formats/gguf/config.py",
    "families/gguf.py",
)
_HF = (
    "formats/huggingface/model.py",
    "formats/huggingface/files.py",
    "formats/safetensors_file.py",
    "formats/json_files.py",
)
_BPE = ("formats/gab/bpe.py",)
_CONFIG = ("formats/huggingface/config.py", "families/huggingface.py")
_VOCABULARY = ("formats/gguf/vocabulary.py",)
_LINES = ("batch/prompts.py", "batch/results.py", "batch/index.py", "formats/jsonl.py")

_SPLIT = gguf_mutator((*words.GGUF_WORDS, "split.no", "split.count", "split.tensors.count"))
_TENSORS = ("formats/safetensors_file.py",)
_SERVER = (
    "server/protocol.py",
    "server/limits.py",
    "server/structured.py",
    "server/responses.py",
)
_STRUCTURES = ("structured/structure.py", "structured/compiler.py")

_LIST = (
    Target("gab", lambda: [seeds.gab()], reads.gab, gab_mutator, modules=("formats/gab/file.py",)),
    Target(
        "bpe",
        lambda: [seeds.bpe(), seeds.bpe(())],
        reads.bpe,
        bpe_mutator,
        modules=("formats/gab/bpe.py",),
        longest=6000,
    ),
    Target(
        "merges_json",
        seeds.merges_json,
        reads.merges_json,
        json_mutator(words.MERGES_WORDS),
        modules=_BPE,
    ),
    Target(
        "safetensors",
        seeds.own_safetensors,
        reads.safetensors,
        safetensors_mutator(words.SAFETENSORS_WORDS),
        modules=("formats/safetensors.py", "formats/safetensors_file.py", "formats/checkpoint.py"),
    ),
    Target(
        "hf_weights",
        reads.hf_weights_seeds,
        reads.hf_weights,
        behind_byte(safetensors_mutator(words.SAFETENSORS_WORDS), 3),
        reads.prepare_hf,
        modules=_HF,
    ),
    Target(
        "hf_config",
        seeds.configs,
        reads.hf_config,
        json_mutator(words.CONFIG_WORDS),
        reads.prepare_hf_config,
        modules=(*_HF, *_CONFIG),
    ),
    Target(
        "hf_index",
        reads.hf_index_seeds,
        reads.hf_index,
        json_mutator((*reads.SHARDS, "config.json", "weight_map", "../x", "/x")),
        reads.prepare_hf_index,
        modules=_HF,
    ),
    Target("gguf", seeds.ggufs, reads.gguf, gguf_mutator(words.GGUF_WORDS), modules=_GGUF, longest=10000),
    Target(
        "gguf_tokenizer",
        seeds.gguf_vocabularies,
        reads.gguf_vocabulary,
        gguf_mutator(words.VOCABULARY_WORDS),
        modules=("text/tokenizers/gguf.py", "formats/gguf/file.py"),
    ),
    Target(
        "manifest",
        lambda: [text for text, _ in seeds.manifests()],
        reads.manifest,
        json_mutator(words.MANIFEST_WORDS),
        reads.prepare_manifest,
        modules=("formats/manifest/model.py", "formats/manifest/files.py"),
    ),
    Target(
        "tokenizer_json",
        seeds.tokenizer_jsons,
        reads.tokenizer_json,
        json_mutator(words.TOKENIZER_WORDS),
        modules=(
            "text/tokenizers/huggingface.py",
            "text/tokenizers/check.py",
            "text/tokenizers/patterns.py",
            *_VOCABULARY,
        ),
    ),
    Target(
        "slow_tokenizer",
        seeds.slow_tokenizers,
        reads.slow_tokenizer,
        any_bytes,
        modules=("text/tokenizers/slow.py",),
        longest=6000,
    ),
    Target(
        "tokenizer_config",
        seeds.tokenizer_configs,
        reads.tokenizer_config,
        json_mutator(words.TOKENIZER_CONFIG_WORDS),
        reads.prepare_tokenizer_config,
        modules=("text/tokenizers/huggingface.py", "text/stops.py", "text/parts.py", "formats/sampling.py"),
    ),
    Target(
        "template",
        reads.template_seeds,
        reads.template,
        text_mutator(words.TEMPLATE_WORDS),
        modules=("text/template_worker.py",),
        longest=2048,
        programs=True,
    ),
    Target(
        "template_apart",
        reads.template_seeds,
        reads.template_apart,
        text_mutator(words.TEMPLATE_WORDS),
        reads.prepare_template,
        modules=("text/templates.py",),
        longest=2048,
        processes=True,
    ),
    Target(
        "kernels",
        reads.kernels_seeds,
        reads.kernels,
        json_mutator(words.KERNEL_WORDS),
        modules=("models/tuning.py",),
    ),
    Target("batch", lambda: [reads.BATCH], reads.batch, lines_mutator(words.BATCH_WORDS), modules=_LINES),
    Target(
        "results",
        reads.results_seeds,
        reads.results,
        lines_mutator(words.BATCH_WORDS),
        reads.prepare_batch,
        modules=_LINES,
    ),
    Target(
        "options",
        reads.options_seeds,
        reads.options,
        text_mutator(words.OPTION_WORDS),
        modules=("config.py",),
        longest=1024,
    ),
    Target(
        "gguf_split",
        partial(folders.one_each, folders.parts, folders.PARTS),
        folders.split,
        behind_byte(_SPLIT, 2),
        partial(folders.prepare, folders.parts),
        modules=_GGUF,
    ),
    Target(
        "gguf_coded",
        seeds.coded_ggufs,
        reads.gguf,
        gguf_mutator(words.GGUF_WORDS),
        modules=("formats/gguf/model.py", "formats/packed.py", "quant/coded.py"),
        longest=10000,
    ),
    Target(
        "peft",
        partial(folders.one_each, folders.peft, folders.PEFT),
        folders.peft_adapter,
        by_byte(json_mutator(words.ADAPTER_WORDS), safetensors_mutator(words.ADAPTER_WORDS)),
        partial(folders.prepare, folders.peft),
        modules=("formats/adapters/peft.py", "formats/adapters/adapter.py", "formats/adapters/merge.py"),
    ),
    Target(
        "gguf_adapter",
        folders.gguf_adapters,
        folders.gguf_adapter,
        gguf_mutator(words.ADAPTER_WORDS),
        modules=("formats/adapters/gguf.py", "formats/adapters/adapter.py", "formats/adapters/merge.py"),
    ),
    Target(
        "sentence",
        partial(folders.one_each, folders.sentence, folders.SENTENCE),
        folders.embedder,
        by_byte(
            *(json_mutator(words.SENTENCE_WORDS) for _ in range(3)),
            safetensors_mutator(words.SENTENCE_WORDS),
            json_mutator((*words.CONFIG_WORDS, *words.SENTENCE_WORDS)),
            *(json_mutator(words.SENTENCE_WORDS) for _ in range(2)),
        ),
        partial(folders.prepare, folders.sentence),
        modules=("formats/huggingface/sentence.py", *_TENSORS),
    ),
    Target(
        "mxfp4",
        partial(folders.one_each, folders.mxfp4, folders.MXFP4),
        folders.blocks,
        by_byte(safetensors_mutator(words.MXFP4_WORDS), json_mutator((*words.CONFIG_WORDS, *words.MXFP4_WORDS))),
        partial(folders.prepare, folders.mxfp4),
        modules=("formats/huggingface/layouts.py", *_TENSORS),
        longest=12000,
    ),
    Target(
        "hub",
        asked.listings,
        asked.hub_answer,
        json_mutator(words.HUB_WORDS),
        modules=("hub/choice.py",),
    ),
    Target(
        "body",
        asked.body_seeds,
        asked.body,
        behind_byte(json_mutator(words.BODY_WORDS), len(asked.BODIES)),
        modules=_SERVER,
    ),
    Target(
        "requests",
        lambda: [asked.BATCH],
        asked.batch_requests,
        lines_mutator(words.BODY_WORDS),
        modules=("batch/requests.py", "batch/lines.py", "batch/index.py", "formats/jsonl.py"),
    ),
    Target(
        "request_results",
        asked.result_seeds,
        asked.batch_results,
        behind_byte(lines_mutator(words.BODY_WORDS), 2),
        asked.prepare_batch,
        modules=("batch/results.py", "batch/manifest.py"),
    ),
    Target(
        "structure",
        asked.structure_seeds,
        asked.structure,
        behind_byte(
            by_chance(json_mutator(words.STRUCTURE_WORDS), text_mutator(strings(words.STRUCTURE_WORDS))),
            len(asked.KINDS),
        ),
        modules=_STRUCTURES,
        longest=2048,
    ),
    Target(
        "structure_apart",
        asked.structure_seeds,
        asked.structure_apart,
        behind_byte(
            by_chance(json_mutator(words.STRUCTURE_WORDS), text_mutator(strings(words.STRUCTURE_WORDS))),
            len(asked.KINDS),
        ),
        modules=(*_STRUCTURES, "structured/constraint.py"),
        longest=2048,
        processes=True,
    ),
    Target(
        "conversation",
        asked.conversation_seeds,
        asked.conversation,
        behind_byte(json_mutator(words.BODY_WORDS), 2),
        modules=("text/templates.py", "server/protocol.py"),
        programs=True,
    ),
    Target(
        "reply",
        asked.reply_seeds,
        asked.reply,
        behind_byte(text_mutator(strings(words.REPLY_WORDS)), 7),
        modules=("structured/tools.py", "server/tool_calls.py", "text/reply.py"),
        longest=512,
    ),
    Target(
        "zip",
        archives.zips,
        archives.read_zip,
        archives.zip_mutator,
        modules=("formats/zipped.py",),
        longest=1 << 16,
    ),
    Target(
        "importance",
        beside.importances,
        beside.importance,
        gguf_mutator(("general.type", "imatrix", "blk.0.attn_q.weight.in_sum2", "blk.0.attn_q.weight.counts")),
        modules=("inspect/importance.py",),
    ),
    Target(
        "texts",
        lambda: beside.one_of_each(beside.texts()),
        beside.read_some_texts,
        by_byte(text_mutator(("\r\n", "\ufeff", "\0")), lines_mutator(("text",)), text_mutator(('"', ",")), any_bytes),
        modules=("batch/texts.py", "formats/jsonl.py"),
    ),
    Target(
        "packed",
        lambda: beside.one_of_each(beside.packed()),
        beside.unpack,
        behind_byte(any_bytes, 2),
        modules=("batch/places.py",),
    ),
    Target("vectors", beside.vectors, beside.continue_vectors, any_bytes, modules=("batch/vectors.py",)),
    Target(
        "profile",
        beside.profiles,
        beside.profile,
        json_mutator(("kinds", "wall", "median", "glinfer profile", [], {})),
        modules=("inspect/profile/compare.py",),
    ),
    Target(
        "site",
        lambda: beside.one_of_each(beside.sites()),
        beside.site,
        by_byte(
            json_mutator(("glinfer-web", "format")),
            any_bytes,
            json_mutator(("pictures", "file", "dark", "glinfer-look", "a/b.png", [], {})),
            text_mutator(("license: ", "---\n", "\r\n", "license_name: |", "\x1b")),
            json_mutator(),
        ),
        modules=("export/site.py", "export/licence.py", "inspect/look/output.py"),
    ),
    Target(
        "saved_chat",
        beside.saved_chats,
        beside.saved_chat,
        json_mutator((*words.BODY_WORDS, "glinfer-chat", "messages")),
        modules=("cli/chat.py",),
    ),
    Target(
        "installed",
        lambda: beside.one_of_each(beside.installed()),
        beside.installed_package,
        by_byte(
            text_mutator(("cats/model.zip,,\n", "../x.gguf,,\n", f"{'x' * 300}.gab,,\n", "\0.gguf,,\n")),
            text_mutator(("Name: ", "Version: ", "\n\n", "\x1b")),
            archives.zip_mutator,
            any_bytes,
        ),
        modules=("formats/installed.py",),
    ),
    Target(
        "hub_cache",
        lambda: beside.one_of_each(beside.hub_cache()),
        beside.cached_model,
        by_byte(any_bytes, json_mutator(("weight_map", "../x", "m-00001-of-00002.safetensors")), *[any_bytes] * 3),
        modules=("hub/cache.py", "hub/fetch.py"),
    ),
    Target(
        "any",
        reads.any_seeds,
        reads.any_file,
        behind_byte(json_mutator(), len(reads.NAMES)),
        modules=("formats/__init__.py", "text/tokenizer.py"),
    ),
)
TARGETS = {target.name: target for target in _LIST}
"""Every target by its name."""
