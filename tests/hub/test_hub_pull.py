"""Models of a hub: what a name fetches, where it lies afterwards, and what is asked of the hub for it."""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
from pathlib import Path

import pytest
from commands import Terminal, refused
from each_case import each_case
from hub_server import Handler, Hub, git_hash
from small_models import hugging_face_files, small, small_gab, small_gguf, split_gguf

from glinfer.engine.fetching import described_model, found_model
from glinfer.errors import GlinferError, GlinferWarning, HubError
from glinfer.formats import load_checkpoint
from glinfer.hub import fetch, find_model, named_on_a_hub, origin_of
from glinfer.terminal import PrintableStream

NAME = "org/small-GGUF"


def stored(hub: Hub) -> list[str]:
    return hub.paths("storage")


def test_a_gguf_file_is_fetched_into_the_cache_that_all_tools_share(hub: Hub, cache: Path, gguf: bytes) -> None:
    repo = hub.add(NAME, {"small-Q8_0.gguf": gguf, "README.md": b"words"})
    path = Path(find_model(f"{NAME}:q8_0"))
    place = cache / "models--org--small-GGUF"
    assert path == place / "snapshots" / repo.commit / "small-Q8_0.gguf"
    assert path.read_bytes() == gguf
    assert path.is_symlink()
    assert path.resolve() == (place / "blobs" / hashlib.sha256(gguf).hexdigest()).resolve()
    assert (place / "refs" / "main").read_text() == repo.commit
    assert not list(place.rglob("*.incomplete"))
    assert not list(place.rglob("README.md")), "what is not a part of the model stays on the hub"
    hub.asked.clear()
    assert Path(find_model(NAME)) == path
    assert not stored(hub), "what the cache has is not fetched again"


def test_the_client_of_the_hub_finds_what_was_fetched_and_the_other_way_round(hub: Hub, gguf: bytes) -> None:
    from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache

    repo = hub.add(NAME, {"small-Q8_0.gguf": gguf, "small-F16.gguf": small_gguf("float16"), "config.json": b"{}"})
    assert HfApi(endpoint=hub.url).model_info(NAME, files_metadata=True).sha == repo.commit
    ours = Path(find_model(f"{NAME}:Q8_0"))
    assert try_to_load_from_cache(NAME, "small-Q8_0.gguf") == str(ours)
    hub.asked.clear()
    assert hf_hub_download(NAME, "small-Q8_0.gguf") == str(ours)
    theirs = Path(hf_hub_download(NAME, "small-F16.gguf"))
    fetched = stored(hub)
    assert len(fetched) == 1
    assert Path(find_model(f"{NAME}:f16")) == theirs
    assert stored(hub) == fetched


ADDRESS = "https://huggingface.co/{name}/resolve"
WAYS = ["{name}:Q8_0", "{name}:q8_0@main", "{name}:small-Q8_0", "hf://{name}:Q8_0", "hf://{name}@v1/small-Q8_0.gguf"]
WAYS += ["hf://models/{name}/small-Q8_0.gguf", "hf.co/{name}:Q8_0", "huggingface.co/{name}/blob/v1/small-Q8_0.gguf"]
WAYS += [f"{ADDRESS}/main/small-Q8_0.gguf?download=true", f"{ADDRESS}/refs%2Fpr%2F1/small-Q8_0.gguf"]
WAYS += ["{url}/{name}/resolve/main/small-Q8_0.gguf", "{name}@{commit}"]


@each_case("name", WAYS)
def test_every_way_to_name_a_file(hub: Hub, gguf: bytes, cache: Path, name: str) -> None:
    shutil.rmtree(cache, ignore_errors=True)
    repo = hub.add(NAME, {"small-Q8_0.gguf": gguf})
    repo.refs |= {"v1": repo.commit, "refs/pr/1": repo.commit}
    found = Path(find_model(name.format(name=NAME, url=hub.url, commit=repo.commit)))
    assert found.read_bytes() == gguf
    origin = origin_of(found)
    assert origin is not None
    assert (origin.repo, origin.commit, origin.path) == (NAME, repo.commit, "small-Q8_0.gguf")


def test_a_commit_that_the_cache_has_asks_the_hub_for_nothing(hub: Hub, gguf: bytes) -> None:
    repo = hub.add(NAME, {"small-Q8_0.gguf": gguf})
    name = f"{NAME}:Q8_0@{repo.commit}"
    path = find_model(name)
    hub.asked.clear()
    assert find_model(name) == path
    assert not hub.asked


def test_a_directory_of_transformers_comes_without_pickles_and_code(
    hub: Hub, cache: Path, folder_files: dict[str, bytes]
) -> None:
    others = {"pytorch_model.bin": b"x" * 9000, "model.pt": b"y", "modeling.py": b"import os", "sub/model.gab": b"z"}
    repo = hub.add("org/small", {**folder_files, **others})
    path = Path(find_model("org/small"))
    assert path == cache / "models--org--small" / "snapshots" / repo.commit
    assert {each.name for each in path.iterdir()} == set(folder_files)
    checkpoint = load_checkpoint(path)
    assert checkpoint.config.hidden_size == 32
    assert not [each for each in hub.paths() if each.endswith((".bin", ".pt", ".py"))]


def test_all_shards_of_an_index_are_fetched(hub: Hub) -> None:
    files = hugging_face_files(shards=3)
    hub.add("org/small", files)
    path = Path(find_model("org/small"))
    assert {each.name for each in path.iterdir()} == set(files)
    assert load_checkpoint(path).parameter_count == small().parameter_count


def test_a_gab_file_brings_its_tokenizer(hub: Hub) -> None:
    hub.add("org/gab", {"model.gab": small_gab(), "model.bpe": b"tokens", "other.bpe": b"others"})
    path = Path(find_model("hf://org/gab/model.gab"))
    assert {each.name for each in path.parent.iterdir()} == {"model.gab", "model.bpe"}
    assert load_checkpoint(path).config.hidden_size == 32


def test_a_split_model_is_checked_by_all_its_headers_and_read_from_its_first_part(
    hub: Hub, cache: Path, gguf: bytes
) -> None:
    parts = split_gguf(gguf, 3)
    names = [f"small-Q8_0-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    hub.add(NAME, dict(zip(names, parts, strict=True)))
    with described_model(NAME) as described:
        assert load_checkpoint(described.path).parameter_count == small().parameter_count
    assert not cache.exists()
    found = Path(found_model(f"{NAME}:Q8_0"))
    assert found.name == names[0]
    assert {each.name for each in found.parent.iterdir()} == set(names)
    assert Path(find_model(f"hf://{NAME}/{names[1]}")) == found
    (cache / "one.gguf").write_bytes(gguf)
    assert load_checkpoint(found).formats() == load_checkpoint(cache / "one.gguf").formats()


def test_an_existing_path_always_wins(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gguf: bytes) -> None:
    hub.add(NAME, {"small-Q8_0.gguf": gguf})
    monkeypatch.chdir(tmp_path)
    Path("org").mkdir()
    Path(NAME).write_bytes(gguf)
    assert find_model(NAME) == NAME
    assert named_on_a_hub("org/elsewhere") is None, "the first part is a folder here"
    Path("hf.co").write_bytes(gguf)
    assert find_model("hf.co") == "hf.co"
    assert not hub.asked


@each_case("name", ["./org/name", "../x", "/nowhere/model", "~/m", "org/m.gguf", "a/b/c", "b/m.safetensors", "x\\y"])
def test_a_name_that_looks_like_a_path_never_reaches_the_network(
    hub: Hub, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert "cannot read it: No such file" in refused(capsys, "generate", name, "text")
    assert not hub.asked


@each_case(
    ("name", "words"),
    [
        ("https://example.org/m.gguf", "only addresses on the hub"),
        ("https://huggingface.co/org", "is not a name of a repository"),
        ("https://huggingface.co/org/name/edit/main/x", "found edit after the repository's name"),
        ("https://[x/a/b", "this is not a valid address"),
        ("hf://org/na..me", "is not a name of a repository"),
        ("hf://org/name/../x.gguf", "is not a path in a repository"),
        ("hf://org/name@../..", "is not a revision"),
        ("hf://org/name/x.gguf:Q8_0", "found both x.gguf and :Q8_0"),
        ("org/name:", "nothing follows its last : or @"),
    ],
)
def test_what_is_no_name_is_one_line(hub: Hub, capsys: pytest.CaptureFixture[str], name: str, words: str) -> None:
    errors = refused(capsys, "info", name)
    assert words in errors
    assert not hub.asked


def cut_off(hub: Hub, data: bytes, nbytes: int, times: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Break off the first answers of the storage after ``nbytes``; the list gets the place that each try asks for."""
    asked: list[int] = []

    def cut(handler: Handler) -> bool:
        if handler.origin != "storage" or handler.headers["Range"] == "bytes=0-4095":
            return False
        first = int(handler.headers["Range"].removeprefix("bytes=").partition("-")[0])
        asked.append(first)
        values = {"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"}
        return len(asked) <= times and handler.cut(data[first:], nbytes, status=206, **values)

    monkeypatch.setattr(fetch, "_FIRST", 4096)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 100)
    hub.faults.append(cut)
    return asked


def test_interrupted_downloads_go_on_where_they_ended(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = small_gguf("float32")
    asked = cut_off(hub, data, 5000, 1, monkeypatch)
    hub.add(NAME, {"small-F32.gguf": data})
    hub.faults.append(lambda handler: len(asked) == 2 and handler.reply(502, {}, b""))
    with pytest.raises(HubError, match=r"has an internal error \(502\); try again later"):
        find_model(NAME)
    assert list(cache.rglob("*.incomplete")), "what has arrived stays"
    assert not list(cache.rglob("small-F32.gguf"))
    hub.faults.pop()
    path = Path(find_model(NAME))
    assert path.read_bytes() == data
    assert asked[0] + 5000 == asked[1] == asked[2]


def test_a_cut_is_mended_within_one_download(hub: Hub, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, {"small-Q8_0.gguf": gguf})
    asked = cut_off(hub, gguf, 700, 3, monkeypatch)
    assert Path(find_model(NAME)).read_bytes() == gguf
    assert len(set(asked)) == 4, "each try asks for what is missing"


def test_a_bar_on_a_terminal_only(hub: Hub, cache: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, {"small-Q8_0.gguf": gguf})
    monkeypatch.setenv("COLUMNS", "100")
    for terminal, shows in ((Terminal(), True), (io.StringIO(), False)):
        shutil.rmtree(cache, ignore_errors=True)
        monkeypatch.setattr(sys, "stderr", PrintableStream(terminal))
        find_model(NAME)
        assert ("\rsmall-Q8_0.gguf: " in terminal.getvalue()) == shows, "and not as signs of control characters"
        assert shows or not terminal.getvalue()
    shutil.rmtree(cache)
    monkeypatch.setattr(sys, "stderr", None)
    find_model(NAME)


def test_storage_that_gives_no_parts_is_asked_for_everything(
    hub: Hub, gguf: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first part, which its header is read from, or of what follows."""
    monkeypatch.setattr(fetch, "_FIRST", 4096)
    for parts in ((), ("bytes=0-4095",)):
        hub.add(name := f"org/{len(parts)}", {"small-Q8_0.gguf": gguf})
        hub.faults[:] = [
            lambda handler, parts=parts: (
                handler.origin == "storage" and handler.headers["Range"] not in parts and handler.reply(200, {}, gguf)
            )
        ]
        assert Path(find_model(name)).read_bytes() == gguf


def test_a_file_with_another_hash_is_thrown_away(hub: Hub, cache: Path, gguf: bytes) -> None:
    hub.add(NAME, {"small-Q8_0.gguf": gguf})
    wrong = gguf[:-1] + bytes([gguf[-1] ^ 1])
    hub.faults.append(lambda handler: handler.origin == "storage" and (handler.file(wrong, {}) or True))
    with pytest.raises(
        HubError, match=f"arrived with the hash [0-9a-f]{{64}}; expected {hashlib.sha256(gguf).hexdigest()}"
    ):
        find_model(NAME)
    assert not [each for each in cache.glob("models--*/**/*") if each.is_file()]
    hub.faults.clear()
    assert Path(find_model(NAME)).read_bytes() == gguf


def test_a_small_file_with_another_hash_is_refused_too(hub: Hub, cache: Path, folder_files: dict[str, bytes]) -> None:
    hub.add("org/small", folder_files)
    wrong = folder_files["config.json"].replace(b"258", b"259")
    hub.faults.append(lambda handler: handler.path.endswith("config.json") and (handler.file(wrong, {}) or True))
    with pytest.raises(HubError, match=rf"config\.json arrived with the hash {git_hash(wrong)}"):
        find_model("org/small")
    assert not list(cache.rglob("model.safetensors"))


def test_what_an_earlier_try_left_wrong_is_fetched_anew(hub: Hub, cache: Path, gguf: bytes) -> None:
    hub.add(NAME, {"small-Q8_0.gguf": gguf})
    partial = cache / "models--org--small-GGUF" / "blobs" / f"{hashlib.sha256(gguf).hexdigest()}.incomplete"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"something else" * 100)
    path = Path(find_model(NAME))
    assert path.read_bytes() == gguf
    assert not partial.exists()
    path.resolve().write_bytes(gguf[:-1])
    assert Path(find_model(NAME)).read_bytes() == gguf


def test_the_token_goes_to_the_hub_alone(hub: Hub, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, {"small-Q8_0.gguf": gguf}, token="hf_secret")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert Path(find_model(NAME)).read_bytes() == gguf
    values = {each.origin: each.headers.get("Authorization") for each in hub.asked}
    assert values == {"hub": "Bearer hf_secret", "storage": None}


def test_a_redirect_back_from_another_host_gets_no_token(
    hub: Hub, gguf: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.add(NAME, {"small-Q8_0.gguf": gguf}, token="hf_secret")
    back = {"Location": f"{hub.url}/back"}
    hub.faults.append(lambda handler: handler.origin == "storage" and handler.reply(302, back, b""))
    with pytest.raises(HubError):
        find_model(NAME)
    assert [each.headers.get("Authorization") for each in hub.asked if each.path == "/back"] == [None]


def test_a_refused_model_costs_no_weights(hub: Hub, cache: Path) -> None:
    hub.add("org/other", hugging_face_files(model_type="mamba", architectures=["MambaForCausalLM"]))
    with pytest.raises(GlinferError, match=r"org/other.*mamba"):
        found_model("org/other")
    assert not list(cache.rglob("model.safetensors"))
    assert sum(len(each) for each in map(str, stored(hub))) < 400, "no more than tokenizer and header"


def test_a_model_beyond_the_disk_is_refused_first(hub: Hub, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(NAME, {"small-Q8_0.gguf": gguf})
    monkeypatch.setattr(fetch, "free_bytes", lambda path: 1000)
    with pytest.raises(HubError, match=r"download needs .* GB, but the disk of .* has 0\.00 GB free; make room"):
        find_model(NAME)
    assert not stored(hub)


def test_descriptions_fetch_no_weights(hub: Hub, cache: Path, folder_files: dict[str, bytes]) -> None:
    data = small_gguf("float32")
    hub.add(NAME, {"small-F32.gguf": data})
    hub.add("org/small", folder_files)
    for name in (NAME, "org/small"):
        with described_model(name) as described:
            assert described.is_copy
            held = Path(described.path)
            checkpoint = load_checkpoint(held)
            assert checkpoint.parameter_count == small().parameter_count
            blocks = sum(each.stat().st_blocks for each in ([held] if held.is_file() else held.iterdir()))
            assert blocks * 512 < 2 << 20
        assert not held.exists()
    assert not cache.exists(), "nothing was fetched to stay"
    assert not [each for each in hub.asked if each.origin == "storage" and "Range" not in each.headers]


def test_a_long_header_is_read_in_pieces(hub: Hub, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_FIRST", 64)
    hub.add(NAME, {"small-Q8_0.gguf": gguf})
    with described_model(NAME) as described:
        assert load_checkpoint(described.path).config.hidden_size == 32
    ranges = [each.headers["Range"] for each in hub.asked if each.origin == "storage"]
    assert ranges[:3] == ["bytes=0-63", "bytes=64-255", "bytes=256-1023"]
    monkeypatch.setattr(fetch, "MAX_REMOTE_HEADER_BYTES", 200)
    with pytest.raises(HubError, match="its header has more than 200 bytes"), described_model(NAME):
        pass


def test_the_copy_in_the_cache_is_used_while_the_hub_is_away(hub: Hub, gguf: bytes) -> None:
    hub.add(NAME, {"small-Q8_0.gguf": gguf})
    path = find_model(NAME)
    hub.faults.append(lambda handler: handler.reply(503, {}, b""))
    with pytest.warns(GlinferWarning, match=r"has an internal error \(503\); try again later; using the cached copy"):
        assert find_model(NAME) == path
