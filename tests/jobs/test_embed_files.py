"""``glinfer embed``: every kind of file in and out, runs that go on, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import refused
from safetensors.numpy import load_file
from tiny_embedders import write_bert, write_embedder

import glinfer
from glinfer.cli.app import run
from glinfer.errors import FormatError, InputError
from glinfer.jobs.texts import read_texts
from glinfer.jobs.vectors import VectorFile

TEXTS = ["the cat", "", "a dog, sat", "rain"]
Capture = pytest.CaptureFixture[str]


def put(path: Path) -> Path:
    """The same texts in a file of the kind that its ending says."""
    if path.suffix == ".txt":
        path.write_text("\n".join(TEXTS) + "\n")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": text, "id": 3}) + "\n" for text in TEXTS))
    elif path.suffix == ".csv":
        path.write_text("id,text\n" + "".join(f'1,"{text}"\n' for text in TEXTS))
    else:
        arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
        parquet.write_table(arrow.table({"id": [1] * len(TEXTS), "text": TEXTS}), path)
    return path


class TestTexts:
    def test_every_kind_another_column_and_the_only_one(self, tmp_path: Path) -> None:
        for kind in (".txt", ".jsonl", ".csv", ".parquet"):
            assert list(read_texts(put(tmp_path / f"a{kind}"))) == TEXTS, kind
        (tmp_path / "a.csv").write_text('line\n"two\nlines"\nb\n')
        assert list(read_texts(tmp_path / "a.csv")) == ["two\nlines", "b"]
        (tmp_path / "b.jsonl").write_text('{"q": "x"}\n\n{"q": "y"}\n')
        assert list(read_texts(tmp_path / "b.jsonl", "q")) == ["x", "y"] == list(read_texts(tmp_path / "b.jsonl"))

    def test_what_is_refused(self, tmp_path: Path) -> None:
        refused: tuple[tuple[str, bytes, str | None, str], ...] = (
            ("a.doc", b"x", None, "the name ends in '.doc'; expected one of .txt, .jsonl, .csv, .parquet"),
            ("a.txt", b"x", "text", "a text file has no columns"),
            ("a.txt", b"a\nb\xff\n", None, r"a.txt:2 is not UTF-8 \(byte 1\)"),
            ("a.jsonl", b'{"text": 3}\n', None, r'a.jsonl:1: "text" is 3; expected a text'),
            ("a.jsonl", b'{"text": "a"}\nx\n', None, r"a.jsonl:2: this is not JSON"),
            ("a.csv", b"a,b\n1,2\n", None, r"""found the columns \['a', 'b'\], and no 'text' among them"""),
            ("a.jsonl", b'{"q": "a", "id": 3}\n', None, r"""a.jsonl:1: found the keys \['q', 'id'\], and no 'text'"""),
            ("a.jsonl", b'{"q": "a"}\n{"text": "b"}\n', None, r"""a.jsonl:2: found the keys \['text'\], and no 'q'"""),
            ("a.csv", b"a,text\n1\n", None, "a.csv:2: found 1 column; expected 2 columns"),
            ("a.csv", b"text,a\nx, y,1\n", None, "a.csv:2: found 3 columns; expected 2 columns"),
            ("a.csv", b'a,text\n1,"x\n', None, "this is not a CSV"),
            ("a.parquet", b"PAR1nonsense", None, "this is not a Parquet file|needs? the package pyarrow"),
        )
        for name, data, column, said in refused:
            (tmp_path / name).write_bytes(data)
            with pytest.raises(InputError, match=said):
                list(read_texts(tmp_path / name, column))
        with pytest.raises(FormatError, match="cannot read it"):
            list(read_texts(tmp_path / "none.txt"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedder") / "m"
    write_embedder(folder)
    return folder


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranker")
    write_bert(folder, architectures=["BertForSequenceClassification"], id2label={"0": "x"})
    return folder


@pytest.fixture(scope="module")
def expected(model: Path) -> Any:
    with glinfer.load(model) as opened:
        return opened.embed(TEXTS)


def vectors_in(path: Path) -> Any:
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".safetensors":
        return load_file(path)["embeddings"]
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["text"] for line in lines] == TEXTS
        return np.array([line["embedding"] for line in lines], np.float32)
    table = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed").read_table(path)
    assert table["text"].to_pylist() == TEXTS
    return np.array(table["embedding"].to_pylist(), np.float32)


@pytest.mark.gl
class TestCommand:
    @pytest.mark.parametrize("kind", [".npy", ".safetensors", ".jsonl", ".parquet"])
    def test_every_kind_has_the_same_bits(self, tmp_path: Path, model: Path, expected: Any, kind: str) -> None:
        source, out = put(tmp_path / "a.txt"), tmp_path / f"out{kind}"
        assert run(["embed", str(model), "--in", str(source), "--out", str(out)]) == 0
        assert np.array_equal(vectors_in(out), expected)
        assert sorted(each.name for each in tmp_path.iterdir()) == ["a.txt", out.name], "nothing is left behind"

    def test_a_run_that_was_stopped_goes_on(
        self, tmp_path: Path, model: Path, expected: Any, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        source, out = put(tmp_path / "a.txt"), tmp_path / "out.npy"
        command = ["embed", str(model), "-i", str(source), "-o", str(out), "--json"]
        monkeypatch.setattr("glinfer.cli.embed.TOGETHER", 1)
        add, left = VectorFile.add, [2]

        def stopping(self: VectorFile, vectors: Any) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            add(self, vectors)

        monkeypatch.setattr(VectorFile, "add", stopping)
        assert run(command) == 130
        assert f"interrupted: {out}.part has 2 of 4 results; the same command resumes\n" in capsys.readouterr().err
        assert not out.exists()
        part = tmp_path / "out.npy.part"
        part.write_bytes(part.read_bytes() + b"half a row")
        monkeypatch.setattr(VectorFile, "add", add)
        assert run(command) == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["texts"], report["finished_before"], report["width"]) == (4, 2, 36)
        assert np.array_equal(np.load(out), expected)
        part.write_bytes(b"x" * 600)
        assert run(command) == 2
        assert "this was made with another model, file or option" in capsys.readouterr().err
        assert part.read_bytes() == b"x" * 600
        assert run([*command, "--restart"]) == 0

    def test_a_second_run_leaves_the_first_one_alone(self, tmp_path: Path) -> None:
        pytest.importorskip("fcntl", reason="this system has no locks")
        with VectorFile(tmp_path / "o.npy", {}, 2) as first:
            first.add(np.ones((3, 2), np.float32))
            for restart in (False, True):
                with pytest.raises(InputError, match="another run writes to it"):
                    VectorFile(tmp_path / "o.npy", {}, 2, restart=restart)
            first.finish(lambda: [])
        assert np.array_equal(np.load(tmp_path / "o.npy"), np.ones((3, 2)))

    @pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
    def test_an_input_that_changes_meanwhile(
        self, tmp_path: Path, model: Path, expected: Any, monkeypatch: pytest.MonkeyPatch, capsys: Capture, kind: str
    ) -> None:
        source, out, add = put(tmp_path / "a.txt"), tmp_path / f"o{kind}", VectorFile.add
        for new, status in (("more\n", 0), ("new\n" * 5, 2)):

            def changing(self: VectorFile, vectors: Any, new: str = new, status: int = status) -> None:
                source.write_text(new if status else source.read_text() + new)
                add(self, vectors)

            monkeypatch.setattr(VectorFile, "add", changing)
            put(source)
            assert run(["embed", str(model), "--in", str(source), "--out", str(out)]) == status
            assert np.array_equal(vectors_in(out), expected), "and its texts"
        assert "it was changed while it was read; run the same command with --restart" in capsys.readouterr().err

    def test_options(self, tmp_path: Path, model: Path) -> None:
        source, out = put(tmp_path / "a.txt"), tmp_path / "out.npy"
        options = ["--dimensions", "5", "--prompt", "the ", "--no-normalize"]
        assert run(["embed", str(model), "--in", str(source), "--out", str(out), *options]) == 0
        with glinfer.load(model) as opened:
            wanted = opened.embed(TEXTS, dimensions=5, prompt="the ", normalize=False)
        assert np.array_equal(np.load(out), wanted)

    def test_what_is_refused(self, tmp_path: Path, model: Path, small: Path, ranker: Path, capsys: Capture) -> None:
        (tmp_path / "empty.txt").write_text("")
        given = {"--in": str(put(tmp_path / "b.txt")), "--out": str(tmp_path / "o.npy")}
        same = str(put(tmp_path / "c.jsonl"))
        for asked, change, said in (
            (model, {"--out": str(tmp_path / "a.txt")}, "the name ends in '.txt'; expected"),
            (model, {"--out": str(tmp_path / "a")}, "the name has no ending; expected one of .npy"),
            (model, {"--out": "-"}, "--out needs a file, not standard input or output"),
            (model, {"--in": "-"}, "--in needs a file, not standard input or output"),
            (model, {"--out": str(tmp_path / "no" / "a.npy")}, "there is no such folder"),
            (model, {"--in": same, "--out": same}, "this is the input itself"),
            (model, {"--in": str(tmp_path / "empty.txt")}, "found no texts in the file"),
            (model, {"--dimensions": "99"}, "dimensions is 99; expected"),
            (
                model,
                {"--prompt-name": "x"},
                "--prompt-name is 'x'; this model names no prompts; for a text of your own, use prompt",
            ),
            (model, {"--context": "2"}, "texts are limited to 2 tokens"),
            (small, {}, "this model generates text"),
            (ranker, {}, "scores pairs of texts"),
        ):
            error = refused(capsys, "embed", asked, *(part for pair in {**given, **change}.items() for part in pair))
            assert said in error
            assert sorted(each.name for each in tmp_path.iterdir()) == ["b.txt", "c.jsonl", "empty.txt"], change
