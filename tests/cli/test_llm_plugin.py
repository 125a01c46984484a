"""The plug-in of llm, with the real llm: as a command, as llm's Python API calls it, and what each error says."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from each_case import each_case
from own_process import finished
from small_models import hugging_face_files, small_gguf
from template_models import write_other
from tiny_embedders import write_embedder

import glinfer

llm = pytest.importorskip("llm", reason="llm is not installed; pip install -e '.[llm]'")
from llm.cli import cli as commands  # noqa: E402

from glinfer import llm_plugin  # noqa: E402
from glinfer.llm_plugin import AsyncGlinferModel, GlinferEmbedding, GlinferModel, Known, PluginError  # noqa: E402

pytestmark = [pytest.mark.gl, pytest.mark.slow]
ASKED = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    llm_plugin.close()


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Says "yes" to a first "hi", and "again" to a second one."""
    folder = tmp_path_factory.mktemp("speaker")
    _, words = write_other(folder, {})
    first = len(words.encode(ASKED)) - 1
    second = len(words.encode(f"{ASKED}yes<|im_end|>\n{ASKED}")) - 1
    return write_other(folder, {first: "yes", second: "again"})[0]


def test_a_command(speaker: Path, tmp_path: Path) -> None:
    """It finds the entry point, and leaves nothing open."""
    command = ["llm", "-m", "glinfer", "-o", "model", str(speaker), "-o", "temperature", "0", "-u", "hi"]
    done = finished([sys.executable, "-m", *command], env={**os.environ, "LLM_USER_PATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (0, "yes\n"), done.stderr
    assert done.stderr.endswith(" input, 4 output\n")


def test_commands_of_a_conversation(speaker: Path, tmp_path: Path) -> None:
    def said(*arguments: str, status: int = 0, typed: str = "") -> str:
        done = CliRunner().invoke(commands, arguments, input=typed, env={"LLM_USER_PATH": str(tmp_path)})
        assert done.exit_code == status, done.output
        assert not llm_plugin._opened
        return done.output

    listed = said("models", "-q", "glinfer").splitlines()
    assert listed[:2] == ["GlinferModel: glinfer", "GlinferModel: glinfer/shakespeare"]
    which = ("-o", "model", str(speaker), "-o", "temperature", "0")
    assert said("-m", "glinfer", *which, "hi") == "yes\n"
    assert said("-c", *which, "hi") == "again\n"
    newest = json.loads(said("logs", "-n", "1", "--json"))[0]
    assert (newest["model"], newest["output_tokens"]) == ("glinfer", len("again") + 1)
    assert newest["response_json"]["finish_reason"] == "stop"
    assert newest["response_json"]["draws"] > 0
    assert said("-m", "glinfer", "hi", status=1).startswith("Error: glinfer needs a model: -o model FILE")
    error = said("chat", "-m", "glinfer", "-o", "model", "none.gguf", status=1, typed="hi\n").splitlines()[-1]
    assert "Error: none.gguf: cannot read it" in error


def test_a_command_searches_for_models_once(speaker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[Known] = []

    def known() -> Iterator[Known]:
        searches.append(Known("glinfer/speaker", speaker, False))
        yield searches[-1]

    monkeypatch.setattr(llm_plugin, "known_models", known)
    for count in (1, 2):
        arguments = ("-m", "glinfer/speaker", "-o", "temperature", "0", "hi")
        done = CliRunner().invoke(commands, arguments, env={"LLM_USER_PATH": str(tmp_path)})
        assert (done.output, len(searches)) == ("yes\n", count)


def test_a_conversation_in_python(speaker: Path) -> None:
    model = GlinferModel("glinfer/speaker", speaker)
    talk = model.conversation()
    first = talk.prompt("hi", temperature=0)
    assert list(first) == ["y", "e", "s"]
    assert talk.prompt("hi", stream=False).text() == "again"
    with glinfer.load(speaker) as plain:
        same = plain.chat("hi", temperature=0)
        assert (first.usage().input, first.usage().output) == (same.prompt_tokens, same.tokens)
        assert model.prompt("ho", seed=3, top_k=5).text() == plain.chat("ho", seed=3, top_k=5, max_tokens=192)
        system = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "ho"}]
        assert model.prompt("ho", system="Be kind.", seed=3).text() == plain.chat(system, seed=3, max_tokens=192)


def test_any_thread_and_event_loop(speaker: Path) -> None:
    """A stream that is left early is closed, and notes its costs."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(GlinferModel("m", speaker).prompt("hi").text()))
    thread.start()
    thread.join()

    async def ask() -> tuple[list[str], Any]:
        model = AsyncGlinferModel("m", speaker)
        left = model.prompt("hi", temperature=0)
        async for _ in left:
            break
        await left._generator.aclose()
        return [await model.prompt("hi").text() for _ in range(2)], left

    texts, left = asyncio.run(ask())
    assert [*found, *texts] == ["yes"] * 3
    assert left.response_json["finish_reason"] == "closed"


def test_a_model_that_continues_texts() -> None:
    model = GlinferModel("glinfer/shakespeare", Path(glinfer.__file__).parent / "bundled" / "shakespeare.safetensors")
    talk = model.conversation()
    first = talk.prompt("ROMEO:", seed=1, max_tokens=8).text()
    with glinfer.load("shakespeare") as plain:
        assert first == plain.generate("ROMEO:", seed=1, max_tokens=8)
        more = talk.prompt("JULIET:", seed=1, max_tokens=8).text()
        assert more == plain.generate(f"ROMEO:\n{first}\nJULIET:", seed=1, max_tokens=8)


def test_schemas(speaker: Path) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"]}
    schema["additionalProperties"] = False
    model = GlinferModel("glinfer/speaker", speaker)
    assert 0 <= json.loads(model.prompt("hi", schema=schema).text())["n"] <= 9
    assert model.prompt("hi", schema=schema, max_tokens=2, incomplete="partial").text() == '{"'
    with pytest.raises(PluginError, match="does not match the requested structure"):
        model.prompt("hi", schema=schema, max_tokens=2).text()


@each_case(
    ("options", "words"),
    [
        ({"temperature": -1}, "temperature is -1.0; expected a finite number"),
        ({"template_kwargs": '{"tone": 1}'}, "tone"),
        ({"think": True}, "chat template decides whether it thinks"),
        ({"prompt": "a" * 300}, "the context holds 192"),
        ({"context": 193}, "193"),
    ],
)
def test_errors_have_one_line(speaker: Path, options: dict[str, Any], words: str) -> None:
    """And are click's, which every command of llm prints without a traceback."""
    with pytest.raises(click.ClickException, match=words) as caught:
        GlinferModel("m", speaker).prompt(**{"prompt": "hi", **options}).text()
    assert "\n" not in str(caught.value)


def test_vectors(tmp_path: Path) -> None:
    write_embedder(tmp_path / "bert")
    model, texts = GlinferEmbedding("glinfer/bert", tmp_path / "bert"), ["the cat", "rain", ""]
    with glinfer.load(tmp_path / "bert") as plain:
        want = plain.embed(texts).tolist()
    assert list(model.embed_multi(texts, batch_size=2)) == want
    assert model.embed("rain") == want[1]
    with pytest.raises(PluginError, match="embeds texts and does not generate any"):
        GlinferModel("m", tmp_path / "bert").prompt("the cat").text()
    with pytest.raises(PluginError, match="generates text and makes no vectors"):
        GlinferEmbedding("glinfer/shakespeare", Path("shakespeare")).embed("a")


def test_models_of_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each GGUF file of a repository has a name, and models that embed texts are listed apart."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="huggingface_hub is not installed")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))

    def snapshot(repo: str) -> Path:
        folder, commit = tmp_path / f"models--{repo.replace('/', '--')}", "0123456789" * 4
        (folder / "refs").mkdir(parents=True)
        (folder / "blobs").mkdir()
        (folder / "refs" / "main").write_text(commit)
        (folder / "snapshots" / commit).mkdir(parents=True)
        return folder / "snapshots" / commit

    two = snapshot("org/two-GGUF")
    for quant in ("Q8_0", "Q4_0"):
        (two / f"two-{quant}.gguf").write_bytes(small_gguf("q8_0"))
    folder = snapshot("org/folder")
    for name, data in hugging_face_files().items():
        (folder / name).write_bytes(data)
    write_embedder(snapshot("org/bert"))
    found = {known.name: known for known in llm_plugin.known_models() if "/org/" in known.name}
    embeds = {name.removeprefix("glinfer/org/"): known.embeds for name, known in found.items()}
    assert embeds == {"two-GGUF:Q8_0": False, "two-GGUF:Q4_0": False, "folder": False, "bert": True}
    assert found["glinfer/org/two-GGUF:Q4_0"].path == two / "two-Q4_0.gguf"
    assert GlinferModel("m", found["glinfer/org/folder"].path).prompt("a", max_tokens=2).usage().output == 2
