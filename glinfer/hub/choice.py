"""Select the files of a repository that make up the named model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from glinfer.errors import HubError
from glinfer.formats.files import shown
from glinfer.formats.huggingface.files import CONFIG, GENERATION_CONFIG, INDEX, WEIGHTS
from glinfer.formats.packed import PACKED_FORMATS
from glinfer.hub.listing import RemoteFile, Repository
from glinfer.limits import MAX_PARTS
from glinfer.quant.formats import F32

USUAL = "Q4_K_M"
"""The default weights of a name without any."""
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_QUANT = re.compile(
    r"(?:^|[-._ ])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|NVFP4\w*|BF16|FP?16|FP?32))(?=$|[-. ])", re.IGNORECASE
)
_NOT_MODELS = re.compile(r"mmproj|imatrix", re.IGNORECASE)  # image projectors, and statistics for quantisation
_SIZES = ("_XXS", "_XS", "_S", "_M", "_L", "_XL")
_AROUND = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "additional_chat_templates/tool_use.jinja", "chat_template.json", GENERATION_CONFIG),
)
"""Files that are fetched besides configuration and weights; never ``.bin``, ``.pt`` or ``.py``."""
_SLOW = ("tokenizer.model", "vocab.json", "merges.txt")  # fetched without a tokenizer.json
_SHOWN = 24


@dataclass(frozen=True)
class GgufChoice:
    """A model of a repository, in one GGUF file or in several parts.

    Attributes:
        stem: the file's path without its ending and part number.
        quant: the quantisation in its name, in capital letters; empty without one.
        parts: the files, in order.
        missing: the number of parts that the repository lacks.
    """

    stem: str
    quant: str
    parts: tuple[RemoteFile, ...]
    missing: int = 0

    @property
    def size(self) -> int:
        """Total bytes of the parts."""
        return sum(part.size for part in self.parts)

    @property
    def is_read(self) -> bool:
        """Whether glinfer reads weights with this quantisation's name."""
        return base_format(self.quant) != ""


@dataclass(frozen=True)
class Chosen:
    """The files of a model.

    Attributes:
        small: files besides the weights.
        weights: files of weights; the parts of a GGUF file in order.
        opened: the path in the repository to open: a file, or a folder (empty for the root).
        quant: the quantisation in a GGUF file's name.
    """

    small: tuple[RemoteFile, ...]
    weights: tuple[RemoteFile, ...]
    opened: str
    quant: str = ""

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """All files, the small ones first."""
        return (*self.small, *self.weights)


def base_format(quant: str) -> str:
    """The format of most tensors in a file with this quantisation: ``Q4_K`` for ``Q4_K_M``; empty if unknown."""
    name = {"FP16": "F16", "FP32": F32}.get(quant, quant).removeprefix("UD-")
    known = [form for form in (F32, *PACKED_FORMATS) if re.fullmatch(rf"{form}(_[A-Z]+)?", name)]
    if not known and (mixed := re.fullmatch(r"(IQ\d_)[SM]", name)):
        known = [form for form in PACKED_FORMATS if form.startswith(mixed[1])]
    return max(known, key=len, default="")


def choose(repository: Repository) -> Chosen | None:
    """The files of the named model; None if an index of shards must be read first.

    Raises:
        HubError: no file or several files match; the error lists the candidates with their sizes.
    """
    path = repository.name.path
    if path in repository.files:
        return _single(repository, path)
    prefix = f"{path}/" if path else ""
    files = [file for name, file in repository.files.items() if name.startswith(prefix)]
    if not files:
        raise HubError(f"{repository.name}: {_place(repository)} has no {_what(repository, path)}{_over(repository)}")
    ggufs = gguf_choices(files)
    if ggufs or repository.name.quant:
        return _of_gguf(_chosen_gguf(repository, ggufs))
    return _of_folder(repository, prefix)


def _what(repository: Repository, path: str) -> str:
    if not repository.is_cached:
        return f"file or folder {shown(path)}" if path else "files"
    return f"copy of {shown(path)}" if path else "copy of its files"


def _place(repository: Repository) -> str:
    kept = "the cache of " if repository.is_cached else ""
    return f"{kept}{repository.name.repo} at {repository.commit[:7]}"


def _over(repository: Repository) -> str:
    count = repository.passed_over
    return f" ({count} with invalid names, sizes or hashes were skipped)" if count else ""


def gguf_choices(files: Iterable[RemoteFile]) -> list[GgufChoice]:
    """The models in a list's GGUF files, each with its parts, sorted by name."""
    parts: dict[tuple[str, int], dict[int, RemoteFile]] = {}
    for file in files:
        if not file.path.lower().endswith(".gguf") or _NOT_MODELS.search(PurePosixPath(file.path).name):
            continue
        numbered = _PART.fullmatch(file.path)
        if numbered and 1 <= int(numbered[2]) <= int(numbered[3]) <= MAX_PARTS:
            parts.setdefault((numbered[1], int(numbered[3])), {})[int(numbered[2])] = file
        else:
            parts.setdefault((file.path[: -len(".gguf")], 1), {})[1] = file
    return [
        GgufChoice(stem, _quant_of(stem), tuple(held[number] for number in sorted(held)), count - len(held))
        for (stem, count), held in sorted(parts.items(), key=lambda each: each[0])
    ]


def _quant_of(stem: str) -> str:
    """The quantisation in a file's name, else in its folder's."""
    for part in reversed(stem.split("/")):
        if found := _QUANT.findall(part):
            return str(found[-1]).upper()
    return ""


def _chosen_gguf(repository: Repository, ggufs: Sequence[GgufChoice]) -> GgufChoice:
    """The GGUF model that the name selects.

    Raises:
        HubError: none or several models match.
    """
    wanted = repository.name.quant
    found = _matching(ggufs, wanted) if wanted else _usual(ggufs)
    if len(found) == 1:
        if found[0].missing:
            total = len(found[0].parts) + found[0].missing
            raise HubError(
                f"{repository.name}: {_place(repository)} has {len(found[0].parts)} of the {total} parts of "
                f"{shown(found[0].stem)}; expected all of them"
            )
        return found[0]
    what = f"{len(found)} files of {wanted}" if found and wanted else f"no {wanted}" if wanted else "no usual one"
    if not wanted and len(found) > 1:
        what = f"{len(found)} files of {found[0].quant or 'weights without a quantisation in their names'}"
    if not ggufs:
        raise HubError(
            f"{repository.name}: {_place(repository)} has no GGUF files{_over(repository)}; leave out :{wanted}"
        )
    raise HubError(
        f"{repository.name}: {_place(repository)} has {what}; choose one of {_choices(found or ggufs)}, "
        f"as {repository.name.repo}:{_tag((found or ggufs)[0], found or ggufs)}"
    )


def _matching(ggufs: Sequence[GgufChoice], wanted: str) -> list[GgufChoice]:
    """The models with this quantisation, else this file name, else Unsloth's ``UD-`` form of the quantisation."""
    name = wanted.casefold().removesuffix(".gguf")
    same = {"fp16": "f16", "fp32": "f32"}
    by_quant = [
        each for each in ggufs if same.get(each.quant.casefold(), each.quant.casefold()) == same.get(name, name)
    ]
    by_name = [each for each in ggufs if name in (each.stem.casefold(), PurePosixPath(each.stem).name.casefold())]
    dynamic = [each for each in ggufs if each.quant.casefold() == f"ud-{name}"]
    return by_name if len(by_name) == 1 else by_quant or by_name or dynamic


def _usual(ggufs: Sequence[GgufChoice]) -> list[GgufChoice]:
    """The default weights: Q4_K_M, else the most exact integers, else floats."""
    if usual := _matching(ggufs, USUAL):
        return usual
    known = [each for each in ggufs if each.is_read]
    if not known:
        return list(ggufs) if len(ggufs) == 1 else []
    best = max(map(_exactness, known))
    return [each for each in known if _exactness(each) == best]


def _exactness(choice: GgufChoice) -> tuple[int, int, int]:
    """Sort key: integers before floats, which need at least twice the memory; then bits, then the variant's size."""
    name = base_format(choice.quant)
    digits = re.search(r"\d+", name)
    bits = int(digits[0]) if digits else 0
    is_float = name.lstrip("B").startswith("F")
    sizes = [ending for ending in _SIZES if choice.quant.endswith(ending)]
    variant = _SIZES.index(sizes[-1]) if sizes else int(name.partition("_")[2] or 0) if name[-1:].isdigit() else 0
    # Shorter floats are as good as the published ones.
    return (0, -bits, 0) if is_float else (1, bits, variant)


def _choices(ggufs: Sequence[GgufChoice]) -> str:
    listed = [f"{_tag(each, ggufs)} ({_megabytes(each.size)})" for each in ggufs[:_SHOWN]]
    return ", ".join(listed) + (f" and {len(ggufs) - _SHOWN} more" if len(ggufs) > _SHOWN else "")


def _tag(choice: GgufChoice, among: Sequence[GgufChoice]) -> str:
    """The part of a name after ``:`` that selects one of several models."""
    alone = choice.quant and [each.quant for each in among].count(choice.quant) == 1
    return choice.quant if alone else PurePosixPath(choice.stem).name


def _megabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _single(repository: Repository, path: str) -> Chosen:
    """The model of a single named file."""
    file, folder = repository.files[path], os.path.dirname(path)  # noqa: PTH120 (a path of the repository, not of a system)
    ending = PurePosixPath(path).suffix.lower()
    if ending == ".gguf":
        found = next((each for each in gguf_choices(repository.files.values()) if file in each.parts), None)
        if found is None:
            raise HubError(f"{repository.name}: {shown(path)} is not a model by itself; name the model's file")
        return _of_gguf(_chosen_gguf(repository, [found])) if found.missing else _of_gguf(found)
    if ending == ".gab":
        names = (f"{path.removesuffix('.gab')}.bpe", f"{folder}/model.bpe".lstrip("/"))
        beside = [repository.files[name] for name in dict.fromkeys(names) if name in repository.files]
        return Chosen(tuple(beside[:1]), (file,), path)
    if PurePosixPath(path).name in (CONFIG, WEIGHTS, INDEX):
        chosen = _of_folder(repository, f"{folder}/" if folder else "")
        return chosen if chosen is not None else Chosen((), (), folder)
    raise HubError(
        f"{repository.name}: {shown(path)} is not a model; expected a .gguf, .gab or {WEIGHTS}, or the repository alone"
    )


def _of_gguf(choice: GgufChoice) -> Chosen:
    return Chosen((), choice.parts, choice.parts[0].path, choice.quant)


def _of_folder(repository: Repository, prefix: str) -> Chosen | None:
    """The files of a Hugging Face model; None if its weights are in shards, see :func:`with_shards`."""
    files = repository.files
    if f"{prefix}{CONFIG}" not in files or not {f"{prefix}{WEIGHTS}", f"{prefix}{INDEX}"} & files.keys():
        others = sorted({PurePosixPath(name).suffix for name in files if name.startswith(prefix)} - {""})
        found = f"files that end in {', '.join(others[:8])}" if others else "no files with endings"
        raise HubError(
            f"{repository.name}: {_place(repository)} has {found}; expected a .gguf file, or {CONFIG} with {WEIGHTS} "
            f"or {INDEX}{_over(repository)}; pickled weights (.bin, .pt) are never fetched"
        )
    if f"{prefix}{WEIGHTS}" not in files:
        return None
    return Chosen(around(repository), (files[f"{prefix}{WEIGHTS}"],), prefix.rstrip("/"))


def folder_of(repository: Repository) -> str:
    """The path prefix of a Hugging Face model in its repository: empty, or a folder and a slash."""
    path = repository.name.path
    if path in repository.files:
        path = os.path.dirname(path)  # noqa: PTH120
    return f"{path}/" if path else ""


def around(repository: Repository) -> tuple[RemoteFile, ...]:
    """The configuration, tokenizer and template files of a Hugging Face model."""
    prefix = folder_of(repository)
    slow = () if f"{prefix}tokenizer.json" in repository.files else _SLOW
    found = (repository.files.get(f"{prefix}{name}") for name in (CONFIG, *_AROUND, *slow))
    return tuple(each for each in found if each is not None)


def with_shards(repository: Repository, shards: Iterable[str]) -> Chosen:
    """The files of a Hugging Face model whose index names these shards.

    Raises:
        HubError: the repository lacks a shard, or there are too many.
    """
    prefix = folder_of(repository)
    names = [f"{prefix}{shard}" for shard in sorted(set(shards))]
    missing = [name for name in names if name not in repository.files]
    if missing or len(names) > MAX_PARTS:
        raise HubError(
            f"{repository.name}: {prefix}{INDEX} names {len(names)} shards, of which {_place(repository)} lacks "
            f"{len(missing)}{f', first {shown(missing[0])}' if missing else ''}; expected all of at most {MAX_PARTS}"
        )
    small = (*around(repository), repository.files[f"{prefix}{INDEX}"])
    return Chosen(small, tuple(repository.files[name] for name in names), prefix.rstrip("/"))
