"""Commands on names of models on a hub: what they fetch, say and report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from commands import ran, ran_json, refused
from each_case import each_case
from hub_server import Hub
from own_process import finished
from small_models import hugging_face_files, small_gguf

import glinfer
from glinfer.cli.app import run
from glinfer.errors import PlanError
from glinfer.hub import find_model
from glinfer.inspect import figures
from glinfer.inspect.verify.suite import SCHEMA

pytestmark = pytest.mark.gl
NAME = "org/small-GGUF"
Capture = pytest.CaptureFixture[str]


def said(capsys: Capture, *line: str) -> str:
    return ran(capsys, *line)[0]


def reported(capsys: Capture, *line: str) -> Any:
    """The JSON of a command that may say more on standard error."""
    return json.loads(said(capsys, *line, "--json"))


def test_pull_says_what_it_fetches_and_where_it_is(hub: Hub, gguf: bytes, cache: Path, capsys: Capture) -> None:
    repo = hub.add(NAME, {"small-Q8_0.gguf": gguf})
    out, err = ran(capsys, "pull", f"{NAME}:q8_0")
    place = cache / "models--org--small-GGUF" / "snapshots" / repo.commit / "small-Q8_0.gguf"
    assert out == f"{NAME}:q8_0 at {repo.commit}, 39,680 B: {place}\n"
    assert f"fetching {NAME} Q8_0 at {repo.commit[:7]}: 0.0 MB; " in err
    assert " of textures for a context of 96" in err
    facts = {"name": NAME, "repo": NAME, "commit": repo.commit, "bytes": len(gguf), "path": str(place)}
    assert ran_json(capsys, "pull", NAME) == facts, "without a word, since it is there already"


def test_models_lists_what_the_cache_has_and_remove_removes_it(
    hub: Hub, gguf: bytes, cache: Path, folder_files: dict[str, bytes], capsys: Capture
) -> None:
    other = small_gguf("q4_0")
    repo = hub.add(NAME, {"small-Q8_0.gguf": gguf, "small-Q4_0.gguf": other})
    folder = hub.add("org/small", folder_files)
    for name in (f"{NAME}:Q8_0", f"{NAME}:Q4_0", "org/small"):
        find_model(name)
    found = {each["name"]: each for each in reported(capsys, "models") if each["kind"] == "cached"}
    assert set(found) == {NAME, "org/small"}
    assert found[NAME]["commit"] == repo.commit
    assert found[NAME]["bytes"] == len(gguf) + len(other)
    assert found["org/small"]["commit"] == folder.commit
    assert "small-Q4_0.gguf, small-Q8_0.gguf" in said(capsys, "models")

    gone = reported(capsys, "remove", f"{NAME}:q4_0")
    assert (gone["commits"], gone["bytes"]) == ([repo.commit], len(other))
    assert [each.name for each in cache.rglob("*.gguf")] == ["small-Q8_0.gguf"]
    assert f"removed {NAME} at {repo.commit[:12]}: freed 39,680 B" in said(capsys, "remove", NAME)
    assert not (cache / "models--org--small-GGUF").exists()
    assert not [each for each in reported(capsys, "models") if each["name"] == NAME]
    assert reported(capsys, "remove", f"org/small@{folder.commit}")["commits"] == [folder.commit]
    assert "does not have it; 'glinfer models' lists its models" in refused(capsys, "remove", "org/small")


def test_weights_that_two_commits_share_stay_while_one_needs_them(hub: Hub, gguf: bytes, cache: Path) -> None:
    hub.add(NAME, {"small-Q8_0.gguf": gguf}, commit="1" * 40, refs={"main": "1" * 40, "old": "1" * 40})
    find_model(f"{NAME}@old")
    hub.add(NAME, {"small-Q8_0.gguf": gguf, "x": b""}, commit="2" * 40, refs={"main": "2" * 40})
    second = Path(find_model(NAME))
    assert len(hub.paths("storage")) == 2, "one for the header, one for the rest, and none for the second commit"
    assert run(["remove", f"{NAME}@old:Q8_0"]) == 0
    assert second.read_bytes() == gguf
    assert not list(cache.glob("*/snapshots/1*/*.gguf"))


@each_case(
    ("line", "words"),
    [
        (["remove", "shakespeare"], "this model is part of glinfer and cannot be removed"),
        (["pull", "shakespeare"], "this model is part of glinfer and cannot be downloaded"),
        (["remove", "."], "found a path; models of a hub are removed by name, such as org/name"),
        (["pull", "nobody"], "this is not the name of a model on a hub; expected org/name"),
        (["remove", "org/nobody"], "does not have it"),
    ],
)
def test_what_is_no_model_of_a_hub(hub: Hub, capsys: Capture, line: list[str], words: str) -> None:
    assert words in refused(capsys, *line)
    assert not hub.asked


def test_a_model_in_a_package_is_neither_downloaded_nor_removed(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    info = tmp_path / "packed_model-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: packed-model\nVersion: 1.2\n")
    (info / "RECORD").write_text("packed.gguf,,\n")
    (tmp_path / "packed.gguf").write_bytes(small_gguf("float32"))
    monkeypatch.syspath_prepend(tmp_path)
    words = "pypi:packed-model: this model is in an installed package; "
    assert f"{words}use it without downloading it" in refused(capsys, "pull", "pypi:packed-model")
    assert f"{words}'pip uninstall packed-model' removes it" in refused(capsys, "remove", "pypi:packed-model")
    assert not hub.asked


def test_parts_of_a_download_are_removed_too(hub: Hub, cache: Path, capsys: Capture) -> None:
    blobs = cache / "models--org--small-GGUF" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{'a' * 64}.incomplete").write_bytes(b"x" * 500)
    assert "freed 500 B" in said(capsys, "remove", NAME)
    assert not blobs.parent.exists()


def test_info_and_draws_fetch_no_weights(
    hub: Hub, cache: Path, folder_files: dict[str, bytes], capsys: Capture
) -> None:
    data = small_gguf("float32")
    repo = hub.add(NAME, {"small-F32.gguf": data})
    folder = hub.add("org/small", folder_files)
    about = reported(capsys, "info", NAME)["model"]
    assert about["origin"] == {"repo": NAME, "commit": repo.commit, "file": "small-F32.gguf"}
    assert about["config"]["hidden_size"] == 32
    assert about["fits"]
    printed = said(capsys, "info", "org/small")
    assert f"org/small at {folder.commit}, model.safetensors" in printed
    assert "Jinja template, from " in printed
    assert "temperature 0.5" in printed
    draws = reported(capsys, "draws", NAME)
    assert draws["draws"] == about["draws"]
    assert not cache.exists()
    issued = reported(capsys, "draws", NAME, "--measure")["issued"]
    assert issued == reported(capsys, "draws", str(find_model(NAME)))["draws"]


def test_a_model_by_name_is_the_one_of_its_file(hub: Hub) -> None:
    hub.add(NAME, {"small-F32.gguf": small_gguf("float32")})
    with glinfer.load(f"{NAME}:F32") as model:
        by_name = model.logits([1])
    with glinfer.load(find_model(NAME)) as model:
        assert (model.logits([1]) == by_name).all()


@pytest.mark.slow
def test_a_report_has_the_commit(hub: Hub, gguf: bytes, capsys: Capture) -> None:
    repo = hub.add(NAME, {"small-Q8_0.gguf": gguf})
    report = reported(capsys, "verify", NAME)
    jsonschema.validate(report, json.loads(SCHEMA.read_text()))
    assert report["origin"] == {"repo": NAME, "commit": repo.commit, "file": "small-Q8_0.gguf"}
    assert reported(capsys, "verify", "shakespeare", "--limits", "webgl2")["origin"] is None


@pytest.mark.slow
@pytest.mark.usefixtures("known_ceiling")
def test_a_bench_reports_the_commit_and_can_leave_weights_where_they_are(
    hub: Hub, gguf: bytes, cache: Path, capsys: Capture
) -> None:
    repo = hub.add(NAME, {"small-Q8_0.gguf": gguf})
    short = ("--contexts", "4", "--runs", "1")
    report = reported(capsys, "bench", NAME, "--no-fetch", *short)
    assert report["origin"]["commit"] == repo.commit
    zeros = "the weights were not downloaded and are zeros: only greedy decoding is meaningful"
    assert (report["notes"], list(report["samplings"])) == ([zeros], ["greedy"])
    assert not cache.exists()
    report = reported(capsys, "bench", NAME, *short)
    assert (report["origin"]["commit"], report["notes"]) == (repo.commit, [])
    for line in (["bench", "--no-fetch"], ["bench", NAME, "--no-fetch", "--plan", "reference"]):
        assert "--no-fetch times only the fast plan of a MODEL" in refused(capsys, *line)


@pytest.mark.slow
def test_every_other_command_takes_a_name(
    hub: Hub, folder_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    hub.add("org/small", folder_files)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(figures, "pixels_of", lambda *_, **__: np.zeros((1, 1, 4), dtype=np.uint8))
    Path("text.txt").write_text("Before we proceed any further, hear me speak.")
    Path("lines.jsonl").write_text('{"prompt": "hear me"}\n')
    for line in (
        ["generate", "org/small", "hear", "--max-tokens", "2", "-q"],
        ["generate", "org/small", "--batch", "lines.jsonl", "--out", "out.jsonl", "--max-tokens", "2"],
        ["generate", "shakespeare", "hear", "--max-tokens", "2", "-q"],
        ["convert", "org/small", "here.safetensors"],
        ["eval", "org/small", "--text", "text.txt"],
        ["profile", "org/small", "--runs", "2", "--no-ceiling"],
        ["look", "org/small", "hear me", "--out", "inside"],
        ["diff", "org/small", "--prompt", "hear me"],
        ["export-web", "org/small", "site"],
        ["demo", "--model", "org/small", "--max-tokens", "2"],
        ["tune", "org/small", "--seconds", "1"],
    ):
        ran(capsys, *line)
    assert json.loads(Path("site/plan.json").read_text())["model"]["name"] == "small"
    assert len(hub.paths("storage")) == 3, "the length of the header, the header, and the rest: fetched once for all"


def test_a_model_beyond_the_memory_is_refused_before_its_weights(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("GLINFER_MEMORY", "0.05")
    hub.add("org/small", hugging_face_files(max_position_embeddings=1 << 20))
    with pytest.raises(PlanError, match=r"plan fast takes .* cache .* of memory, and 50\.0 MB are free here"):
        glinfer.load("org/small", context=1 << 20)
    assert not list(cache.rglob("*.safetensors"))
    monkeypatch.delenv("GLINFER_MEMORY")
    assert " of memory are free" in ran(capsys, "pull", "org/small", "--context", "64")[1]


AUDITED = """
import sys
sockets = []
sys.addaudithook(lambda event, found: sockets.append(event) if event.startswith("socket.") else None)
from glinfer.cli.app import run
for line in sys.argv[1:]:
    print(run(line.split()))
print(sockets)
"""


def process(*lines: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("HF_") and "proxy" not in name.lower()
    }
    return finished([sys.executable, "-c", AUDITED, *lines], env={**kept, **environment})


def test_offline_no_socket_is_opened(hub: Hub, gguf: bytes, cache: Path) -> None:
    """By the settings as users make them, in a process of its own."""
    hub.add(NAME, {"small-Q8_0.gguf": gguf})
    find_model(NAME)
    settings = {"HF_HUB_CACHE": str(cache), "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "1"}
    found = process(f"draws {NAME}", f"draws {NAME}:Q4_K_M", "draws org/other", "models", **settings)
    lines = found.stdout.splitlines()
    assert [line for line in lines if line in ("0", "2")] == ["0", "2", "2", "0"], found.stderr
    assert lines[-1] == "[]"
    assert "HF_HUB_OFFLINE" in found.stderr


@pytest.mark.slow
def test_the_settings_of_the_environment_lead_to_hub_and_cache(hub: Hub, gguf: bytes, tmp_path: Path) -> None:
    hub.add(NAME, {"small-Q8_0.gguf": gguf}, token="hf_right")
    settings = {"HF_HOME": str(tmp_path / "own"), "HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_right"}
    found = process(f"convert {NAME} {tmp_path}/x.gguf --dtype file", **settings)
    assert found.stdout.splitlines()[-2:-1] == ["0"], found.stderr
    assert "socket.connect" in found.stdout
    (path,) = (tmp_path / "own" / "hub" / "models--org--small-GGUF").glob("snapshots/*/small-Q8_0.gguf")
    assert path.read_bytes() == gguf
    assert not [each.path for each in hub.asked if "agent" in each.path], "nothing is asked but for the model"
