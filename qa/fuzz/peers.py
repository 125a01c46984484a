"""The same damaged files for other readers: ``python -m qa.fuzz.peers``.

Each reader gets some hundred damaged GGUF, safetensors, config.json and tokenizer.json files, GGUF models in two parts,
LoRA adapters, directories of sentence-transformers and structures, the same for all, in processes of its own with a
limit of time and memory. What comes of a file: a clean error, of the kind that the reader's
documentation promises; another exception; a crash, which ends the process; a hang; or it is accepted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from qa.fuzz import folders
from qa.fuzz.mutate import any_bytes

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 10  # by the clock, for one file
STARTING = 90  # to import a reader, and to read the first file
MEMORY = 8 << 30  # of addresses; importing torch alone takes some
TEXT = "hello aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa! é\n  1234"
KINDS = ("clean error", "other exception", "crash", "hang", "accepted")


@dataclass(frozen=True)
class Reader:
    """One reader of one format.

    Attributes:
        read: takes a path; a directory for those of whole models.
        clean: names of the kinds of errors that it promises.
    """

    format: str
    name: str
    read: Callable[[Path], object]
    clean: tuple[str, ...]


def _gguf_reader(path: Path) -> None:
    import gguf

    reader = gguf.GGUFReader(path)
    for entry in reader.fields.values():
        entry.contents()
    for tensor in reader.tensors:
        tensor.data.sum()


def _llama_cpp(path: Path) -> None:
    import llama_cpp

    model = llama_cpp.Llama(model_path=str(path), vocab_only=True, verbose=False)
    model.detokenize(model.tokenize(TEXT.encode()))
    model.close()


def _own_gguf(path: Path) -> None:
    from glinfer.formats.gguf.split import read_gguf_file
    from glinfer.text.tokenizer import Tokenizer
    from glinfer.text.tokenizers.gguf import gguf_tokenizer

    file = read_gguf_file(path)
    for tensor in file.tensors.values():
        tensor.data.sum()
    if any(key.startswith("tokenizer.") for key in file.metadata):
        tokenizer = Tokenizer(gguf_tokenizer(file.metadata, file.source))
        tokenizer.decode(tokenizer.encode(TEXT))


def _own_safetensors(path: Path) -> None:
    from glinfer.formats import load_checkpoint

    load_checkpoint(path).check_finite()


def _safe_open(path: Path) -> None:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as tensors:
        for name in tensors.keys():  # noqa: SIM118 (not a mapping)
            tensors.get_tensor(name).sum()


def _own_config(path: Path) -> None:
    from glinfer.formats.huggingface.config import read_config

    read_config(path / "config.json")


def _transformers_config(path: Path) -> None:
    from transformers import AutoConfig

    AutoConfig.from_pretrained(path, local_files_only=True)


def _own_tokenizer(path: Path) -> None:
    from glinfer.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    for special in (True, False):
        tokenizer.decode(tokenizer.encode(TEXT, allow_special=special))


def _tokenizers(path: Path) -> None:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.decode(tokenizer.encode(TEXT).ids)


def _transformers_tokenizer(path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    made: Any = PreTrainedTokenizerFast
    tokenizer = made(tokenizer_file=str(path / "tokenizer.json"))
    tokenizer.decode(tokenizer.encode(TEXT))


def _own_split(path: Path) -> None:
    from glinfer.formats import load_checkpoint

    load_checkpoint(path / "m-00001-of-00002.gguf").check_finite()


def _gguf_split(path: Path) -> None:
    for part in sorted(path.glob("*.gguf")):
        _gguf_reader(part)


def _own_adapter(path: Path) -> None:
    from glinfer.formats.adapters.merge import read_adapter
    from qa.fuzz.folders import ADAPTED

    read_adapter(path, ADAPTED)


def _peft(path: Path) -> None:
    from peft import PeftConfig
    from peft.utils import load_peft_weights

    PeftConfig.from_pretrained(str(path))
    for tensor in load_peft_weights(str(path), device="cpu").values():
        tensor.sum()


def _own_embedder(path: Path) -> None:
    from glinfer.formats import load_checkpoint

    load_checkpoint(path).check_finite()


def _sentence_transformers(path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(str(path), local_files_only=True, device="cpu").encode(TEXT)


def _structure_in(path: Path) -> dict[str, Any]:
    from qa.fuzz.asked import _given

    return _given(path.read_bytes())


def _own_structure(path: Path) -> None:
    from glinfer.structured.structure import structure_of
    from qa.fuzz.asked import _compiler

    found = structure_of(_structure_in(path))
    assert found is not None
    _compiler().constraint(found).mask()


def _llguidance(path: Path) -> None:
    import llguidance

    ((kind, text),) = _structure_in(path).items()
    made = llguidance.LLMatcher
    if kind == "json_schema":
        grammar = made.grammar_from_json_schema(text)
    elif kind == "regex":
        grammar = made.grammar_from_regex(text)
    else:
        grammar = made.grammar_from_lark(text if kind == "grammar" else json.dumps(text))
    is_error, messages = made.validate_grammar_with_warnings(grammar)
    if is_error:
        raise ValueError(messages[0])


_OWN = ("FormatError", "InputError", "ConfigError")
READERS = (
    Reader("gguf", "glinfer", _own_gguf, _OWN),
    Reader("gguf", "gguf.GGUFReader", _gguf_reader, ("ValueError",)),
    Reader("gguf", "llama_cpp.Llama(vocab_only)", _llama_cpp, ("ValueError", "RuntimeError")),
    Reader("safetensors", "glinfer", _own_safetensors, _OWN),
    Reader("safetensors", "safetensors.safe_open", _safe_open, ("SafetensorError",)),
    Reader("config.json", "glinfer", _own_config, _OWN),
    Reader(
        "config.json",
        "transformers.AutoConfig",
        _transformers_config,
        ("OSError", "ValueError", "StrictDataclassError"),
    ),
    Reader("tokenizer.json", "glinfer", _own_tokenizer, _OWN),
    Reader("tokenizer.json", "tokenizers.Tokenizer", _tokenizers, ("Exception",)),
    Reader("tokenizer.json", "transformers (fast)", _transformers_tokenizer, ("Exception", "OSError", "ValueError")),
    Reader("GGUF in parts", "glinfer", _own_split, _OWN),
    Reader("GGUF in parts", "gguf.GGUFReader, each", _gguf_split, ("ValueError",)),
    Reader("LoRA of PEFT", "glinfer", _own_adapter, _OWN),
    Reader("LoRA of PEFT", "peft", _peft, ("OSError", "ValueError", "SafetensorError")),
    Reader("sentence-transformers", "glinfer", _own_embedder, _OWN),
    Reader("sentence-transformers", "sentence_transformers", _sentence_transformers,
           ("OSError", "ValueError", "SafetensorError", "StrictDataclassError")),
    Reader("structures", "glinfer", _own_structure, (*_OWN, "StructureError")),
    Reader("structures", "llguidance, in this process", _llguidance, ("ValueError",)),
)  # fmt: skip
_SETS = {
    "gguf": ("gguf", "gguf_tokenizer"),
    "safetensors": ("safetensors",),
    "config.json": ("hf_config",),
    "tokenizer.json": ("tokenizer_json",),
    "GGUF in parts": ("gguf_split",),
    "LoRA of PEFT": ("peft",),
    "sentence-transformers": ("sentence",),
    "structures": ("structure",),
}
_SEVERAL = {
    "GGUF in parts": folders.PARTS,
    "LoRA of PEFT": folders.PEFT,
    "sentence-transformers": folders.SENTENCE,
}


def damaged(format: str, count: int, folder: Path) -> list[Path]:
    """``count`` damaged files, the same every time: kept cases first, the rest made of seeds."""
    from qa.fuzz.run import cases
    from qa.fuzz.targets import TARGETS

    found: list[bytes] = []
    targets = [TARGETS[name] for name in _SETS[format]]
    for target in targets:
        found += [file.read_bytes() for file in cases(target.name)][: count // (2 * len(targets))]
    random, originals = Random(f"{format} 1"), {data for target in targets for data in target.seeds()}
    while len(found) < count:
        target = random.choice(targets)
        data = random.choice(list(target.seeds()))
        for _ in range(random.choice((1, 1, 2, 3))):
            data = any_bytes(data, random) if random.random() < 0.1 else target.mutate(data, random)
        if data not in originals:
            found.append(data[: target.longest])
    paths = []
    for index, data in enumerate(found):
        inside = folder / f"{format}-{index:04}"
        inside.mkdir()
        if names := _SEVERAL.get(format):
            targets[0].prepare(inside)
            (inside / names[data[0] % len(names) if data else 0]).write_bytes(data[1:])
            paths.append(inside)
            continue
        whole = {"gguf": "m.gguf", "safetensors": "m.safetensors", "structures": "structure"}.get(format)
        path = inside / (whole or format)
        path.write_bytes(data)
        paths.append(path if whole else inside)
    return paths


def read_here(number: int, listed: Path) -> None:
    """Read files one after the other, and say what came of each; run in a process of its own."""
    reader = READERS[number]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    said = os.fdopen(os.dup(1), "w")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)  # what libraries print
    for index, path in enumerate(json.loads(listed.read_text())):
        try:
            reader.read(Path(path))
            told = "accepted"
        except BaseException as error:
            names = {kind.__name__ for kind in type(error).__mro__} - (
                {"Exception"} if type(error) is not Exception else set()
            )
            told = "clean error" if names & set(reader.clean) else f"other exception: {type(error).__name__}"
        said.write(json.dumps([index, told]) + "\n")
        said.flush()


def outcomes(number: int, paths: list[Path], folder: Path) -> list[str]:
    """What came of each file, in as many processes as it takes."""
    found: list[str] = []
    while len(found) < len(paths):
        listed = folder / f"list-{number}.json"
        listed.write_text(json.dumps([str(path) for path in paths[len(found) :]]))
        found += _one_process(number, listed)
    return found


def _one_process(number: int, listed: Path) -> Iterator[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
                   "RUST_BACKTRACE": "0", "OMP_NUM_THREADS": "1"}  # fmt: skip
    command = [sys.executable, "-m", f"{__package__}.peers", "--here", str(number), str(listed)]
    total = len(json.loads(listed.read_text()))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, cwd=ROOT
    ) as child:
        assert child.stdout is not None
        done = 0
        while done < total:
            ready, _, _ = select.select([child.stdout], [], [], STARTING if done == 0 else SECONDS)
            if not ready:
                child.kill()
                yield "hang"
                return
            line = child.stdout.readline()
            if not line:
                yield "crash"
                return
            done += 1
            yield json.loads(line)[1]


def main(given: list[str] | None = None) -> int:
    """Compare, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m qa.fuzz.peers", description="Damaged files for other readers.")
    parser.add_argument("--count", type=int, default=300, help="files of each format (300)")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=f"of {', '.join(_SETS)}; all without any")
    options = parser.parse_args(given)
    if unknown := [name for name in options.formats if name not in _SETS]:
        parser.error(f"there is no format {unknown[0]!r}; expected one of {', '.join(_SETS)}")
    chosen = options.formats or list(_SETS)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        sets = {format: damaged(format, options.count, Path(folder)) for format in chosen}
        for number, reader in enumerate(READERS):
            if reader.format not in sets:
                continue
            told = outcomes(number, sets[reader.format], Path(folder))
            counts = Counter(word.partition(":")[0] for word in told)
            others = Counter(word.partition(": ")[2] for word in told if word.startswith("other"))
            rows.append({"format": reader.format, "reader": reader.name, **{kind: counts[kind] for kind in KINDS},
                         "others": dict(others.most_common())})  # fmt: skip
            print(f"{reader.format}, {reader.name}: {dict(counts)}", file=sys.stderr, flush=True)
    print(json.dumps(rows) if options.json else table(rows))
    return 0


def table(rows: list[dict[str, Any]]) -> str:
    """The counts for people."""
    cells = [
        ("format", "reader", *KINDS),
        *((row["format"], row["reader"], *(str(row[kind]) for kind in KINDS)) for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    made = []
    for row in cells:
        names = (cell.ljust(width) for cell, width in zip(row[:2], widths, strict=False))
        made.append("  ".join([*names, *(cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True))]))
    made += [f"  {row['format']}, {row['reader']}: {row['others']}" for row in rows if row["others"]]
    return "\n".join(made)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        read_here(int(sys.argv[2]), Path(sys.argv[3]))
        sys.exit()
    sys.exit(main())
