"""Select the files of a repository that make up the named model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from glinfer.errors import HubError
from glinfer.families.settings import is_integer, quoted
from glinfer.formats.files import is_plain_path, shown
from glinfer.formats.huggingface.files import CONFIG, GENERATION_CONFIG, INDEX, WEIGHTS
from glinfer.formats.packed import PACKED_FORMATS
from glinfer.hub.names import COMMIT, HubName
from glinfer.limits import MAX_HUB_FILE_BYTES, MAX_PARTS
from glinfer.quant.formats import F32

USUAL = "Q4_K_M"
"""The default weights of a name without any."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_QUANT = re.compile(
    r"(?:^|[-._ ])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|NVFP4\w*|BF16|FP?16|FP?32))(?=$|[-. ])", re.IGNORECASE
)
_NOT_MODELS = re.compile(r"mmproj|imatrix", re.IGNORECASE)  # image projectors, and statistics for quantisation
_FLOATS = ("F16", "BF16", F32)
_AROUND = (
    *(CONFIG, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "additional_chat_templates/tool_use.jinja", "chat_template.json", GENERATION_CONFIG),
    *("preprocessor_config.json", "processor_config.json"),
)
"""Files that are fetched besides the weights; never ``.bin``, ``.pt`` or ``.py``."""
_SLOW = ("tokenizer.model", "vocab.json", "merges.txt")  # fetched without a tokenizer.json
_SHOWN = 24


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository: its path (see :func:`glinfer.formats.files.is_plain_path`) and its size in bytes.

    ``digest`` names the file's blob in the cache: SHA-256 of a large file's bytes (64 digits), or Git's hash of a blob
    (40 digits), which is SHA-1 of a line with the size, then the bytes. It is empty for files of the cache.
    """

    path: str
    size: int
    digest: str = ""

    def hasher(self) -> Any:
        """A hash object that gives :attr:`digest` after all bytes were added."""
        if len(self.digest) == 64:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)


@dataclass(frozen=True)
class Repository:
    """A repository at a commit: its files by path, or only the cached ones; unsafe names are passed over."""

    name: HubName
    commit: str
    files: Mapping[str, RemoteFile]
    passed_over: int = 0
    is_cached: bool = False

    def error(self, what: str) -> HubError:
        """An error about the files of this repository."""
        over = f" ({self.passed_over} with invalid names, sizes or hashes were skipped)" if self.passed_over else ""
        cache = "the cache of " if self.is_cached else ""
        return HubError(f"{self.name}: {cache}{self.name.repo} at {self.commit[:7]} has {what}{over}")


@dataclass(frozen=True)
class Chosen:
    """The files of a model: small ones, then the weights, of a GGUF model in the order of its parts.

    ``opened`` is the path in the repository to open: a file, or a folder (empty for the root). Of a GGUF model,
    ``quant`` is the quantisation in its name, in capital letters, and ``missing`` the number of parts it lacks.
    """

    files: tuple[RemoteFile, ...]
    opened: str
    quant: str = ""
    missing: int = 0

    @property
    def size(self) -> int:
        """Total bytes of the files."""
        return sum(file.size for file in self.files)

    @property
    def stem(self) -> str:
        """A GGUF model's path without its ending and part number."""
        numbered = _PART.fullmatch(self.opened)
        return numbered[1] if numbered else self.opened[: -len(".gguf")]


def read_listing(name: HubName, answer: Mapping[str, Any]) -> Repository:
    """The repository in a hub's answer."""
    commit, entries = answer.get("sha"), answer.get("siblings")
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise HubError(f"{name}: the hub answered with commit {quoted(commit)}; expected 40 hexadecimal digits")
    if name.revision != commit and COMMIT.fullmatch(name.revision):
        raise HubError(f"{name}: the hub answered with commit {commit}; expected the requested one")
    if not isinstance(entries, list):
        raise HubError(f"{name}: the hub's answer has no list of files")
    files = [file for file in map(_listed, entries) if file is not None]
    return Repository(name, commit, {file.path: file for file in files}, len(entries) - len(files))


def _listed(entry: object) -> RemoteFile | None:
    """A file of the list; None if it cannot belong to a model or has no hash."""
    if not isinstance(entry, dict):
        return None
    path, size, digest, form = entry.get("rfilename"), entry.get("size"), entry.get("blobId"), COMMIT
    if isinstance(large := entry.get("lfs"), dict):
        size, digest, form = large.get("size"), large.get("sha256"), _SHA256
    if not isinstance(path, str) or not is_plain_path(path) or not isinstance(size, int) or not is_integer(size, 0):
        return None
    if not isinstance(digest, str) or not form.fullmatch(digest) or size > MAX_HUB_FILE_BYTES:
        return None
    return RemoteFile(path, size, digest)


def base_format(quant: str) -> str:
    """The format of most tensors in a file with this quantisation: ``Q4_K`` for ``Q4_K_M``; empty if unknown."""
    name = _plain(quant).removeprefix("UD-")
    known = [form for form in (F32, *PACKED_FORMATS) if re.fullmatch(rf"{form}(_[A-Z]+)?", name)]
    if not known and (mixed := re.fullmatch(r"(IQ\d_)[SM]", name)):
        known = [form for form in PACKED_FORMATS if form.startswith(mixed[1])]
    return max(known, key=len, default="")


def _plain(quant: str) -> str:
    return re.sub(r"^FP(?=16|32)", "F", quant.upper())


def choose(repository: Repository, shards_of: Callable[[RemoteFile], Iterable[str]]) -> Chosen:
    """The files of the named model; ``shards_of`` reads the names of the shards in an index."""
    path, quant = repository.name.path, repository.name.quant
    if path in repository.files:
        return _of_file(repository, path, shards_of)
    prefix = f"{path}/" if path else ""
    inside = [file for name, file in repository.files.items() if name.startswith(prefix)]
    if not inside:
        raise repository.error(f"no file or folder {shown(path)}" if path else "no files")
    ggufs = gguf_choices(inside)
    if not ggufs and not quant:
        return _of_folder(repository, prefix, shards_of)
    if not ggufs:
        raise repository.error(f"no GGUF files; leave out :{quant}")
    found = _matching(ggufs, quant) if quant else _usual(ggufs)
    if len(found) == 1:
        return _whole(repository, found[0])
    among = found or ggufs
    several = f"{len(found)} files of {quant or among[0].quant or 'weights without a quantisation in their names'}"
    what = several if found else f"no {quant or 'usual one'}"
    listed = ", ".join(f"{tag(each, among)} ({_megabytes(each.size)})" for each in among[:_SHOWN])
    more = f" and {len(among) - _SHOWN} more" if len(among) > _SHOWN else ""
    raise repository.error(f"{what}; choose one of {listed}{more}, as {repository.name.repo}:{tag(among[0], among)}")


def _of_file(repository: Repository, path: str, shards_of: Callable[[RemoteFile], Iterable[str]]) -> Chosen:
    """The files of the model that a file of the repository belongs to."""
    file, folder = repository.files[path], path.rpartition("/")[0]
    ending = PurePosixPath(path).suffix.lower()
    if ending == ".gguf":
        found = [each for each in gguf_choices(repository.files.values()) if file in each.files]
        if not found:
            raise HubError(f"{repository.name}: {shown(path)} is not a model by itself; name the model's file")
        return _whole(repository, found[0])
    if ending == ".gab":
        names = (f"{path.removesuffix('.gab')}.bpe", f"{folder}/model.bpe".lstrip("/"))
        return Chosen((*[repository.files[name] for name in names if name in repository.files][:1], file), path)
    if PurePosixPath(path).name in (CONFIG, WEIGHTS, INDEX):
        return _of_folder(repository, f"{folder}/" if folder else "", shards_of)
    expected = f"a .gguf, .gab or {WEIGHTS}, or the repository alone"
    raise HubError(f"{repository.name}: {shown(path)} is not a model; expected {expected}")


def gguf_choices(files: Iterable[RemoteFile]) -> list[Chosen]:
    """The models in a list's GGUF files, each with its parts, sorted by name."""
    parts: dict[tuple[str, int], dict[int, RemoteFile]] = {}
    for file in files:
        if not file.path.lower().endswith(".gguf") or _NOT_MODELS.search(PurePosixPath(file.path).name):
            continue
        stem, number, count = file.path[: -len(".gguf")], 1, 1
        numbered = _PART.fullmatch(file.path)
        if numbered and 1 <= int(numbered[2]) <= int(numbered[3]) <= MAX_PARTS:
            stem, number, count = numbered[1], int(numbered[2]), int(numbered[3])
        parts.setdefault((stem, count), {})[number] = file
    found = []
    for (stem, count), held in sorted(parts.items(), key=lambda each: each[0]):
        ordered = tuple(held[number] for number in sorted(held))
        # The quantisation is in the file's name, else in its folder's.
        quants = next(filter(None, map(_QUANT.findall, reversed(stem.split("/")))), [""])
        found.append(Chosen(ordered, ordered[0].path, quants[-1].upper(), count - len(held)))
    return found


def _whole(repository: Repository, model: Chosen) -> Chosen:
    """Return a GGUF model that has all its parts."""
    if model.missing:
        held, stem = len(model.files), shown(model.stem)
        raise repository.error(f"{held} of the {held + model.missing} parts of {stem}; expected all of them")
    return model


def _matching(ggufs: Sequence[Chosen], wanted: str) -> list[Chosen]:
    """The models with this quantisation, else this file name, else Unsloth's ``UD-`` form of the quantisation."""
    name = wanted.upper().removesuffix(".GGUF")
    by_quant = [each for each in ggufs if _plain(each.quant) == _plain(name)]
    by_name = [each for each in ggufs if name in (each.stem.upper(), PurePosixPath(each.stem).name.upper())]
    return (
        by_name if len(by_name) == 1 else by_quant or by_name or [each for each in ggufs if each.quant == f"UD-{name}"]
    )


def _usual(ggufs: Sequence[Chosen]) -> list[Chosen]:
    """The default weights: Q4_K_M, else the most exact integers, which are the largest, else the smallest floats."""
    if usual := _matching(ggufs, USUAL):
        return usual
    known = [each for each in ggufs if base_format(each.quant)]
    if not known:
        return list(ggufs) if len(ggufs) == 1 else []
    integers = [each for each in known if base_format(each.quant) not in _FLOATS]
    best = max(integers, key=lambda each: each.size) if integers else min(known, key=lambda each: each.size)
    return [each for each in known if each.quant == best.quant]


def tag(model: Chosen, among: Sequence[Chosen]) -> str:
    """The part of a name after ``:`` that selects one of several models."""
    alone = model.quant and [each.quant for each in among].count(model.quant) == 1
    return model.quant if alone else PurePosixPath(model.stem).name


def _megabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _of_folder(repository: Repository, prefix: str, shards_of: Callable[[RemoteFile], Iterable[str]]) -> Chosen:
    """The files of a Hugging Face model, whose weights may be in shards that an index names."""
    files = {name.removeprefix(prefix): file for name, file in repository.files.items() if name.startswith(prefix)}
    if CONFIG not in files or not {WEIGHTS, INDEX} & files.keys():
        others = sorted({PurePosixPath(name).suffix for name in files} - {""})
        found = f"files that end in {', '.join(others[:8])}" if others else "no files with endings"
        expected = f"expected a .gguf file, or {CONFIG} with {WEIGHTS} or {INDEX}"
        raise repository.error(f"{found}; {expected}; pickled weights (.bin, .pt) are never fetched")
    small = [name for name in (*_AROUND, *(() if "tokenizer.json" in files else _SLOW)) if name in files]
    weights = [WEIGHTS]
    if WEIGHTS not in files:
        small, weights = [*small, INDEX], sorted(set(shards_of(files[INDEX])))
        missing = [name for name in weights if name not in files]
        if missing or len(weights) > MAX_PARTS:
            first = f", first {shown(missing[0])}" if missing else ""
            what = f"{prefix}{INDEX}, which names {len(weights)} shards, and lacks {len(missing)}{first}"
            raise repository.error(f"{what}; expected all of at most {MAX_PARTS}")
    return Chosen(tuple(files[name] for name in (*small, *weights)), prefix.rstrip("/"))
