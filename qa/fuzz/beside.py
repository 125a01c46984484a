"""Files that are no models: importance, texts to embed, packed batches, reports, sites, conversations, caches."""

from __future__ import annotations

import gzip
import io
import warnings
from collections.abc import Sequence
from functools import partial
from importlib.metadata import PathDistribution
from pathlib import Path

import numpy as np
import zstandard
from huggingface_hub import constants

from glinfer.cli.chat import FORMAT, _read_chat
from glinfer.errors import GlinferWarning
from glinfer.export.card import licence_of
from glinfer.export.page import NOTE
from glinfer.export.site import check_target, is_export
from glinfer.formats.installed import models_of
from glinfer.formats.tensors import stored_tensors
from glinfer.hub.cache import RepositoryCache, cached_models
from glinfer.hub.fetch import cached
from glinfer.hub.names import HubName
from glinfer.inspect.importance import read_importance
from glinfer.inspect.look.output import earlier_pictures
from glinfer.inspect.profile.compare import compare
from glinfer.jobs.files import open_source
from glinfer.jobs.texts import arrow_modules, read_texts
from glinfer.jobs.vectors import VectorFile
from glinfer.text.chat import check_messages
from qa.fuzz import seeds
from qa.fuzz.folders import small_zip
from qa.fuzz.reads import MESSAGES, Files, root, with_errors
from qa.fuzz.seeds import written
from tests.goldens.gguf_file import write_gguf_file

# Importance

_LLAMA = seeds.config_of("llama")


def importances() -> Files:
    """What llama-imatrix writes."""
    tensors = {}
    for stored in stored_tensors(_LLAMA, _LLAMA.family.in_gguf.names):
        if len(stored.shape) == 2:
            tensors[f"{stored.name}.in_sum2"] = np.ones(stored.shape[1], np.float32)
            tensors[f"{stored.name}.counts"] = np.ones(1, np.float32)
    values = {"general.type": "imatrix"}
    return {**written(lambda folder: write_gguf_file(folder / "m.gguf", "llama", values, tensors))}


def importance(path: Path) -> None:
    """Read it for a small Llama."""
    assert read_importance(path, _LLAMA)


# Texts to embed, and packed files


def texts() -> Files:
    """A file of each form."""
    made, (pyarrow, parquet) = io.BytesIO(), arrow_modules()
    parquet.write_table(pyarrow.table({"text": ["a", "é"], "n": [1, 2]}), made)
    return {
        "t.txt": "one\nzwei é\n\n".encode(),
        "t.jsonl": b'{"text": "one"}\n\n{"text": "two", "n": 1}\n',
        "t.csv": b'n,text\n1,"a ""b"""\n2,c\n',
        "t.parquet": made.getvalue(),
    }


def read_some_texts(path: Path) -> None:
    """All texts of one file."""
    assert all(isinstance(text, str) for text in read_texts(path))


def packed() -> Files:
    """A batch, compressed in each way."""
    batch = b'{"prompt": "x"}\n' * 4
    return {"b.jsonl.gz": gzip.compress(batch, mtime=0), "b.jsonl.zst": zstandard.ZstdCompressor().compress(batch)}


def unpack(path: Path) -> None:
    """The first bytes that come out."""
    with open_source(path) as file:
        file.read(1 << 16)


def vectors() -> Files:
    """The part that a run of ``glinfer embed`` left."""

    def write(folder: Path) -> None:
        with VectorFile(folder / "v.npy", {"model": "m"}, 2) as file:
            file.add(np.zeros((2, 2), np.float32))

    return {name: data + bytes(4) for name, data in written(write).items()}


def continue_vectors(path: Path) -> None:
    """Go on with it, and write the result."""
    size = path.stat().st_size
    with VectorFile(path.with_suffix(""), {"model": "m"}, 2) as file:
        assert file.done <= size // 8
        file.finish(list)


# Reports, sites and conversations


def profiles() -> Files:
    """What ``glinfer profile --json`` prints, as far as it is compared."""
    kind = {"kind": "gemv", "draws": 2, "ms": 0.5, "bytes_read": 10, "bytes_written": 20}
    facts = {"renderer": "r", "config": {"dim": 1}, "plan": "fast", "weights": "f32", "what": "token", "tokens": 3}
    report = {"report": "glinfer profile", "version": 1, "model": "m", **facts, "timing": "clock", "kinds": [kind]}
    return {"p.json": seeds.compact({**report, "wall": {"median": 1.5}})}


def profile(path: Path) -> None:
    """Compare a report with itself."""
    compare(path, path).table()


def sites() -> Files:
    """What exports and pictures leave in a folder, and a model's card."""
    return {
        "plan.json": b'{"format": "glinfer-web", "version": 1}',
        "page/index.html": f"<!doctype html>\n{NOTE}\n".encode(),
        "look.json": b'{"format": "glinfer-look", "pictures": [{"file": "attention/a-1.png", "dark": "x/../y.png"}]}',
        "card/README.md": b"---\nlicense: other\nlicense_name: mine\n---\n# Model\n",
        "card/config.json": b"{}",
    }


def site(path: Path) -> None:
    """What is there is looked at before anything replaces it."""
    folder = root(path, "look.json")
    for each in (folder, folder / "page"):
        is_export(each)
        with_errors(partial(check_target, each))
    assert all(".." not in name for name in earlier_pictures(folder) or ())
    assert "\n" not in licence_of(folder / "card")


def saved_chats() -> Files:
    """What ``/save`` writes."""
    return {"c.json": seeds.compact({"format": FORMAT, "version": 1, "model": "m", "messages": list(MESSAGES)})}


def saved_chat(path: Path) -> None:
    """Read it as ``/load`` does."""
    check_messages(_read_chat(path))


# Installed packages and the cache of the hub


def installed() -> Files:
    """A package with a model."""
    record = b"cats/a.gguf,sha256=x,1\ncats/model.zip,,\n"
    return {
        "cats-1.dist-info/RECORD": record,
        "cats-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: cats\nVersion: 1\n",
        "cats/model.zip": small_zip(),
        "cats/a.gguf": b"GGUF",
    }


def installed_package(path: Path) -> None:
    """What ``glinfer models`` lists of it."""
    for model in models_of(PathDistribution(root(path, "cats-1.dist-info") / "cats-1.dist-info")):
        assert model.path.is_file()
        assert isinstance(model.name + model.version, str)


_COMMIT = "a" * 40
_SNAPSHOT = f"models--org--cats/snapshots/{_COMMIT}"


def hub_cache() -> Files:
    """A model of shards in the cache of a hub."""
    shards: Sequence[str] = ("m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors")
    index = seeds.compact({"weight_map": {"a": shards[0], "b": shards[1]}})
    return {
        "models--org--cats/refs/main": _COMMIT.encode(),
        f"{_SNAPSHOT}/model.safetensors.index.json": index,
        **{f"{_SNAPSHOT}/{shard}": b"x" for shard in shards},
        f"{_SNAPSHOT}/config.json": b"{}",
    }


def cached_model(path: Path) -> None:
    """Find it by its name, and list it."""
    before, folder = constants.HF_HUB_CACHE, root(path, "models--org--cats")
    try:
        constants.HF_HUB_CACHE = str(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GlinferWarning)
            list(cached_models())
        found = cached(HubName("org/cats"), RepositoryCache("org/cats", folder))
        assert found is None or found.is_whole
    finally:
        constants.HF_HUB_CACHE = before
