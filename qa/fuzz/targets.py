"""Every reader of files: small valid files for it, which of them are damaged, and what reads and uses them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from glinfer.formats import load_checkpoint
from glinfer.formats.gab.bpe import read_bpe, read_merges_json
from glinfer.formats.gab.file import read_gab
from glinfer.formats.gguf.model import read_gguf
from glinfer.formats.huggingface.model import read_huggingface
from glinfer.formats.manifest.model import read_manifest
from glinfer.formats.safetensors import read_safetensors
from qa.fuzz import asked, beside, folders, reads, seeds, words
from qa.fuzz.mutate import form_of, words_of
from qa.fuzz.reads import Files, model, put, use_checkpoint

PACKAGE = Path(__file__).resolve().parents[2] / "glinfer"


@dataclass(frozen=True)
class Target:
    """One reader.

    A case is what one file holds, after a byte that chooses the file where there are several.

    Attributes:
        name: also of its folder of kept cases.
        files: makes valid files by their paths in a folder, or several valid ones for a path.
        use: reads and uses a folder of these files; takes the path of the damaged one.
        modules: of glinfer, whose lines it is about.
        damaged: the files that are damaged; all without any.
        words: names and values that the reader knows, beside those of its modules and the files.
        longest: bytes of a file that fuzzing makes.
        processes: whether it starts the process that renders templates, or compiles structures.
        programs: whether it runs templates in this process.
    """

    name: str
    files: Callable[[], Files]
    use: Callable[[Path], object]
    modules: tuple[str, ...]
    damaged: tuple[str, ...] = ()
    words: tuple[Any, ...] = ()
    longest: int = 4096
    processes: bool = False
    programs: bool = False

    @cached_property
    def whole(self) -> dict[str, list[bytes]]:
        """The valid files."""
        return {name: made if isinstance(made, list) else [made] for name, made in self.files().items()}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The files that are damaged."""
        return self.damaged or tuple(self.whole)

    def seeds(self) -> list[bytes]:
        """Cases of valid files."""
        several = len(self.names) > 1
        return [
            bytes([place] * several) + data for place, name in enumerate(self.names) for data in self.whole[name]
        ]  # fmt: skip

    def _parts(self, data: bytes) -> tuple[str, bytes, bytes]:
        """The file that a case is about, the byte that chooses it, and what it holds."""
        if len(self.names) == 1:
            return self.names[0], b"", data
        return self.names[sum(data[:1]) % len(self.names)], data[:1], data[1:]

    @cached_property
    def _damaged_last(self) -> dict[Path, str]:
        """The file that is not as it should be, by folder: the others need not be written again."""
        return {}

    def write(self, folder: Path, data: bytes) -> Path:
        """Write all files, one of them as a case has it; returns the path of that one."""
        chosen, _, held = self._parts(data)
        last = self._damaged_last.get(folder)
        for name, (whole, *_) in self.whole.items():
            if last is None:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if last in (None, name) or name == chosen:
                put(folder, name, held if name == chosen else whole)
        self._damaged_last[folder] = chosen
        return folder / chosen

    def read(self, data: bytes, folder: Path) -> None:
        """Write the files of a case, and use them."""
        self.use(self.write(folder, data))

    @cached_property
    def vocabulary(self) -> list[Any]:
        """All names and values that are put where they do not belong."""
        found = [*self.words, *(text for module in self.modules for text in _texts_of(PACKAGE / module))]
        for name in self.names:
            for data in self.whole[name]:
                with suppress(Exception):  # what has no form is damaged as bytes
                    found += words_of(form_of(name).parse(data))
        return list({repr(word): word for word in found}.values())

    def mutate(self, data: bytes, random: Random) -> bytes:
        """Damage a case once."""
        name, choice, held = self._parts(data)
        if choice and random.random() < 0.05:
            return bytes([random.randrange(256)]) + held
        return choice + form_of(name).damage(held, random, self.vocabulary)


def _texts_of(module: Path) -> Iterator[str]:
    """The names in the source of a reader."""
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"\S{1,60}", node.value):
            yield node.value


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
_TEMPLATE: dict[str, Any] = {"words": words.TEMPLATE, "longest": 2048}
_KERNELS = f"kernels/{reads.KEY.file_name}"

_LIST = (
    Target("gab", lambda: {"m.gab": seeds.gab()}, model(read_gab), ("formats/gab/file.py",)),
    Target("bpe", lambda: {"m.bpe": [seeds.bpe(), seeds.bpe(())]}, reads.gab_vocabulary(read_bpe),
           ("formats/gab/bpe.py",), longest=6000),
    Target("merges_json", lambda: {"tokenizer.json": seeds.merges_json()}, reads.gab_vocabulary(read_merges_json),
           ("formats/gab/bpe.py",)),
    Target("safetensors", lambda: {"m.safetensors": seeds.own_safetensors()}, model(read_safetensors),
           ("formats/safetensors.py", "formats/checkpoint.py", *_TENSORS)),
    Target("hf_weights", reads.hf_models, lambda path: use_checkpoint(read_huggingface(path.parent)), _HF,
           tuple(f"{name}/model.safetensors" for name in ("llama", "tied", "gpt2"))),
    Target("hf_config", reads.hf_configs, reads.hf_config,
           (*_HF, "formats/huggingface/config.py", "families/huggingface.py"), ("config.json",), words.CONFIG),
    Target("hf_index", lambda: {**seeds.huggingface(shards=2)}, model(read_huggingface), _HF, (reads.INDEX,),
           ("../x", "/x")),
    Target("gguf", lambda: {"m.gguf": seeds.ggufs()}, model(read_gguf), _GGUF, words=words.GGUF, longest=10000),
    Target("gguf_tokenizer", lambda: {"m.gguf": seeds.gguf_vocabularies()}, reads.gguf_vocabulary,
           ("text/tokenizers/gguf.py", "formats/gguf/file.py"), words=("he llo", " x", "x ", "▁", "<0xFF>")),
    Target("manifest", reads.manifests, model(read_manifest),
           ("formats/manifest/model.py", "formats/manifest/files.py"), ("m.json",)),
    Target("tokenizer_json", lambda: {"tokenizer.json": seeds.tokenizer_jsons()}, reads.tokenizer_json,
           (*_TOKENIZERS, "formats/gguf/vocabulary.py"), words=words.TOKENIZER),
    Target("slow_tokenizer", seeds.slow_tokenizers, reads.slow_tokenizer, ("text/tokenizers/slow.py",)),
    Target("tokenizer_config", reads.tokenizer_configs, reads.tokenizer_config,
           ("text/tokenizers/huggingface.py", "text/stops.py", "text/parts.py", "formats/sampling.py"),
           ("tokenizer_config.json",), ("x_token", "lstrip", [1, 2])),
    Target("template", lambda: {"t.jinja": reads.templates()}, reads.template, ("text/template_worker.py",),
           programs=True, **_TEMPLATE),
    Target("template_apart", reads.templates_apart, reads.template_apart, ("text/templates.py",),
           ("chat_template.jinja",), processes=True, **_TEMPLATE),
    Target("kernels", lambda: {_KERNELS: reads.kernels_seeds()}, reads.kernels, ("program/tuning.py",)),
    Target("batch", lambda: {"in.jsonl": reads.BATCH}, reads.batch, _LINES),
    Target("results", reads.batch_results, reads.resumed_batch, _LINES, ("out.jsonl",)),
    Target("options", lambda: {"options": reads.all_options()}, reads.options, ("config.py",), words=words.OPTIONS,
           longest=1024),
    Target("gguf_split", folders.parts, folders.split, _GGUF, words=words.GGUF),
    Target("gguf_coded", lambda: {"m.gguf": seeds.coded_ggufs()}, model(read_gguf),
           ("formats/gguf/model.py", "formats/packed.py", "quant/coded.py"), words=words.GGUF, longest=12000),
    Target("peft", folders.peft, lambda path: folders.adapted(path.parent), ("formats/adapters/peft.py", *_ADAPTERS),
           words=words.CONFIG),
    Target("gguf_adapter", folders.gguf_adapters, folders.adapted, ("formats/adapters/gguf.py", *_ADAPTERS)),
    Target("sentence", folders.sentence, folders.embedder,
           ("formats/huggingface/sentence.py", *_TENSORS), folders.SENTENCE, ("../x", "/etc", *words.CONFIG)),
    Target("mxfp4", folders.mxfp4, lambda path: use_checkpoint(load_checkpoint(path.parent)),
           ("formats/huggingface/layouts.py", *_TENSORS), words=words.CONFIG, longest=12000),
    Target("hub", asked.listings, asked.hub_answer, ("hub/choice.py",), words=("../m.gguf", "m-Q8_0.gguf", -1)),
    Target("body", asked.body_files, asked.body, _SERVER, words=words.BODY),
    Target("requests", lambda: {"requests.jsonl": asked.BATCH}, asked.batch_requests,
           ("jobs/requests.py", "jobs/lines.py", "jobs/index.py", "formats/jsonl.py"), words=words.BODY),
    Target("request_results", asked.batch_results, asked.resumed_requests, ("jobs/results.py", "jobs/manifest.py"),
           asked.RESULTS),
    Target("structure", asked.structures, asked.structure, _STRUCTURES, words=words.STRUCTURE, longest=2048),
    Target("structure_apart", asked.structures, asked.structure_apart,
           (*_STRUCTURES, "structured/constraint.py"), words=words.STRUCTURE, longest=2048, processes=True),
    Target("conversation", asked.conversations, asked.conversation, ("text/templates.py", "server/protocol.py"),
           words=words.BODY, programs=True),
    Target("reply", asked.replies, asked.reply,
           ("structured/tools.py", "structured/python_calls.py", "server/tool_calls.py", "text/reply.py"),
           words=words.REPLY, longest=512),
    Target("zip", folders.zips, folders.read_zip, ("formats/zipped.py",), words=words.ZIP, longest=1 << 16),
    Target("encoder", folders.encoders, folders.encoder, ("formats/vision.py",), folders.ENCODER, longest=1 << 18),
    Target("image", folders.images, folders.image, ("text/images.py",)),
    Target("importance", beside.importances, beside.importance, ("inspect/importance.py",)),
    Target("texts", beside.texts, beside.read_some_texts, ("jobs/texts.py", "formats/jsonl.py"),
           words=("\r\n", "\ufeff")),
    Target("packed", beside.packed, beside.unpack, ("jobs/files.py",)),
    Target("vectors", beside.vectors, beside.continue_vectors, ("jobs/vectors.py",)),
    Target("profile", beside.profiles, beside.profile, ("inspect/profile/compare.py",)),
    Target("site", beside.sites, beside.site, ("export/site.py", "export/card.py", "inspect/look/output.py"),
           words=("license: ", "---\n", "\r\n", "license_name: |", "\x1b")),
    Target("saved_chat", beside.saved_chats, beside.saved_chat, ("cli/chat.py",), words=words.BODY),
    Target("installed", beside.installed, beside.installed_package, ("formats/installed.py",),
           words=("../x.gguf,,\n", f"{'x' * 300}.gab,,\n", "\0.gguf,,\n", "Name: ", "Version: ", "\n\n", "\x1b")),
    Target("hub_cache", beside.hub_cache, beside.cached_model, ("hub/cache.py", "hub/fetch.py"), words=("../x",)),
    Target("any", reads.any_files, reads.any_file, ("formats/__init__.py", "text/tokenizer.py")),
)  # fmt: skip
TARGETS = {target.name: target for target in _LIST}
"""Every target by its name."""
