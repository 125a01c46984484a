"""Bad input to every command: one line that says what is wrong, exit status 2, no traceback, nothing written."""

from __future__ import annotations

import io
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from scripted_models import BYTES

from glinfer.cli.app import run
from glinfer.engine.random_model import demo_tokenizer
from glinfer.formats import write_bpe

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Refused]:
    """A function that runs a command which has to be refused, and returns its one line."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hi\n"), encoding="utf-8"))

    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    def refuse(*arguments: str | Path, out: str | None = "") -> str:
        before = files()
        status = run([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert status == 2, said
        if out is not None:
            assert said.out == out
        assert said.err.count("\n") == 1, said.err
        assert said.err.startswith("glinfer: ")
        assert len(said.err) < 700 + sum(len(str(argument)) for argument in arguments)
        assert files() == before, "something was written"
        return said.err

    return refuse


# Every command that takes a checkpoint, as it would be run with a good one.
USES = {
    "generate": ["generate", "MODEL", "--ids", "1,2"],
    "chat": ["chat", "MODEL"],
    "draws": ["draws", "MODEL"],
    "draws --measure": ["draws", "MODEL", "--measure"],
    "verify": ["verify", "MODEL"],
    "info": ["info", "MODEL"],
    "bench": ["bench", "MODEL"],
    "demo": ["demo", "--model", "MODEL"],
    "convert": ["convert", "MODEL", "TARGET"],
}


def arguments_of(use: str, model: Path, tmp_path: Path) -> list[str]:
    places = {"MODEL": str(model), "TARGET": str(tmp_path / "target.safetensors")}
    return [places.get(argument, argument) for argument in USES[use]]


def header(*numbers: int) -> bytes:
    return struct.pack("<7I", 0x47414231, *numbers)


BAD_GAB: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda good: b"", "empty file"),
    "three bytes": (lambda good: good[:3], "3 bytes"),
    "half a header": (lambda good: good[:20], "20 bytes"),
    "only a header": (lambda good: good[:28], "truncated"),
    "one byte short": (lambda good: good[:-1], "1 bytes short"),
    "half of it": (lambda good: good[: len(good) // 2], "truncated"),
    "one byte too long": (lambda good: good + b"\0", "padded"),
    "twice": (lambda good: good * 2, "padded"),
    "wrong magic": (lambda good: b"GAB2" + good[4:], "expected a GAB1, safetensors or GGUF checkpoint"),
    "big-endian": (lambda good: good[3::-1] + good[4:], "expected a GAB1, safetensors or GGUF checkpoint"),
    "version 2": (lambda good: header(2, *struct.unpack("<5I", good[8:28])) + good[28:], "version is 2"),
    "terabytes": (lambda good: header(1, 1 << 24, 1 << 14, 8, 1 << 24, 1 << 24) + good[28:], "truncated"),
    "more than 64 bits of bytes": (
        lambda good: header(1, 1 << 24, 1 << 22, 1, 1 << 24, 1 << 24) + good[28:],
        "truncated",
    ),
    "all ones": (lambda good: b"\xff" * len(good), "first bytes ff ff"),
    "no heads": (lambda good: header(1, 300, 32, 0, 2, 64) + good[28:], "num_attention_heads is 0"),
    "odd heads": (lambda good: header(1, 300, 32, 5, 2, 64) + good[28:], "not a multiple"),
    "text": (lambda good: b"hello\n" * 100, "expected a GAB1, safetensors or GGUF checkpoint"),
    "json": (lambda good: b'{"model": "gab"}', "expected a GAB1, safetensors or GGUF checkpoint"),
    "safetensors of nothing": (
        lambda good: struct.pack("<Q", 2) + b"{}",
        "a safetensors file that glinfer did not save",
    ),
    "safetensors with a huge header": (lambda good: struct.pack("<Q", 1 << 62) + b"{}", "promise"),
    "safetensors with a broken header": (lambda good: struct.pack("<Q", 4) + b"{nul", "damaged"),
}


class TestCheckpoints:
    @pytest.mark.parametrize("use", USES)
    @pytest.mark.parametrize("fault", BAD_GAB)
    def test_damaged_files(self, bare: Path, tmp_path: Path, refused: Refused, use: str, fault: str) -> None:
        damage, words = BAD_GAB[fault]
        path = tmp_path / "damaged.gab"
        path.write_bytes(damage(bare.read_bytes()))
        line = refused(*arguments_of(use, path, tmp_path))
        assert str(path) in line
        assert words in line

    @pytest.mark.parametrize("use", USES)
    @pytest.mark.parametrize(
        ("kind", "words"),
        [
            ("missing", "cannot read it: No such file"),
            ("directory", "found a directory"),
            ("pipe", "found a pipe"),
            ("device", "found a device"),
            ("empty", "the model is an empty text; expected a path"),
            ("inside a file", "Not a directory"),
            ("too long", "File name too long"),
            ("link to itself", "symbolic links"),
            ("tokenizer", "this is a BPE1 tokenizer"),
        ],
    )
    def test_paths_that_are_no_checkpoint(
        self, bare: Path, tmp_path: Path, refused: Refused, use: str, kind: str, words: str
    ) -> None:
        path = tmp_path / "m.gab"
        if kind == "directory":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path = Path(os.devnull)
        elif kind == "link to itself":
            path.symlink_to(path)
        elif kind == "tokenizer":
            write_bpe(BYTES, path)
        elif kind == "inside a file":
            path = Path(shutil.copy(bare, path)) / "x"
        given = {"empty": "", "too long": "x" * 300}.get(kind, str(path))
        arguments = [given if argument == "MODEL" else argument for argument in USES[use]]
        line = refused(*[str(tmp_path / "target.gab") if argument == "TARGET" else argument for argument in arguments])
        assert words in line

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
    def test_files_that_may_not_be_read(self, bare: Path, tmp_path: Path, refused: Refused) -> None:
        path = Path(shutil.copy(bare, tmp_path / "m.gab"))
        path.chmod(0)
        for use in USES:
            assert "Permission denied" in refused(*arguments_of(use, path, tmp_path))

    def test_a_path_that_would_break_the_line_does_not(self, tmp_path: Path, refused: Refused) -> None:
        assert "two\\nlines" in refused("generate", tmp_path / "two\nlines.gab", "--ids", "1")
        assert "\\x1b[31m" in refused("generate", tmp_path / "\x1b[31m.gab", "--ids", "1")

    @pytest.mark.parametrize("use", ["generate", "chat", "bench", "demo", "convert", "verify --draws"])
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_weights_that_are_no_numbers(
        self, small: Path, tmp_path: Path, refused: Refused, use: str, value: float
    ) -> None:
        data = bytearray(small.read_bytes())
        data[-4:] = np.float32(value).tobytes()  # the last element of the last tensor
        path = tmp_path / "bad.gab"
        path.write_bytes(data)
        shutil.copy(small.with_suffix(".bpe"), tmp_path / "bad.bpe")
        arguments = ["verify", path, "--draws"] if use == "verify --draws" else arguments_of(use, path, tmp_path)
        line = refused(*arguments)
        assert "1 value is NaN or infinite in tensor 'lm_head.bias', first at [299]" in line


BAD_BPE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda good: b"", "0 bytes"),
    "half a header": (lambda good: good[:10], "10 bytes"),
    "one byte short": (lambda good: good[:-1], "truncated"),
    "half of it": (lambda good: good[: len(good) // 2], "truncated"),
    "one byte too long": (lambda good: good + b"\0", "padded"),
    "wrong magic": (lambda good: b"BPE2" + good[4:], "expected 0x42504531"),
    "four billion merges": (lambda good: good[:8] + struct.pack("<2I", 255, 2**32 - 1) + good[16:], "next id"),
    "as many and consistent": (lambda good: good[:8] + struct.pack("<2I", 2**32 - 1, 2**32 - 257), "truncated"),
    "all ones": (lambda good: b"\xff" * len(good), "expected 0x42504531"),
    "a checkpoint": (lambda good: header(1, 300, 32, 4, 2, 64), "this is a GAB1 checkpoint"),
}


class TestTokenizers:
    @pytest.mark.parametrize("use", ["generate", "chat", "demo"])
    @pytest.mark.parametrize("fault", BAD_BPE)
    def test_damaged_files(self, small: Path, tmp_path: Path, refused: Refused, use: str, fault: str) -> None:
        damage, words = BAD_BPE[fault]
        path = tmp_path / "damaged.bpe"
        path.write_bytes(damage(small.with_suffix(".bpe").read_bytes()))
        line = refused(*arguments_of(use, small, tmp_path), "--tokenizer", path)
        assert str(path) in line
        assert words in line

    @pytest.mark.parametrize("use", ["generate", "chat", "demo"])
    def test_one_of_another_model(self, small: Path, tmp_path: Path, refused: Refused, use: str) -> None:
        write_bpe(demo_tokenizer(299), tmp_path / "other.bpe")
        line = refused(*arguments_of(use, small, tmp_path), "--tokenizer", tmp_path / "other.bpe")
        assert "the tokenizer has 299 tokens, the model 300" in line

    @pytest.mark.parametrize("use", ["generate", "chat", "demo"])
    def test_a_path_that_is_none(self, small: Path, tmp_path: Path, refused: Refused, use: str) -> None:
        line = refused(*arguments_of(use, small, tmp_path), "--tokenizer", tmp_path)
        assert "found a directory" in line

    @pytest.mark.parametrize("arguments", [["generate", "MODEL", "Once"], ["demo", "--model", "MODEL"]])
    def test_none_where_text_needs_one(self, bare: Path, refused: Refused, arguments: list[str]) -> None:
        line = refused(*[str(bare) if argument == "MODEL" else argument for argument in arguments])
        assert "no tokenizer was given; pass tokenizer=… (--tokenizer) or use token ids" in line

    def test_one_beside_the_model_that_does_not_fit(self, bare: Path, tmp_path: Path, refused: Refused) -> None:
        path = Path(shutil.copy(bare, tmp_path / "m.gab"))
        write_bpe(demo_tokenizer(299), tmp_path / "m.bpe")
        assert "m.bpe beside the checkpoint has 299 tokens, the model 300" in refused("generate", path, "Once")


class TestPrompts:
    @pytest.mark.parametrize(
        ("ids", "words"),
        [
            ("", "the prompt is empty"),
            (" , ,", "the prompt is empty"),
            ("300", "token 0 of the prompt is 300; this vocabulary has ids 0 to 299"),
            ("1,2,-1", "token 2 of the prompt is -1"),
            ("99999999999999999999", "token 0 of the prompt is 99999999999999999999"),
            ("a", "found 'a' in the token ids; expected whole numbers such as 13,132,251"),
            ("1,b,2", "found 'b'"),
            ("1.5", "found '1.5'"),
            ("1e3", "found '1e3'"),
            ("0x10", "found '0x10'"),
            ("1 2", "found '1 2'"),
            ("1;2", "found '1;2'"),
            ("--5", "found '--5'"),
            ("-", "found '-'"),
            ("²", "found '²'"),
            ("[1,2]", "found '[1'"),
            ("nan", "found 'nan'"),
            ("1\n\n2", "found '1\\n\\n2'"),
            ("9" * 5000, "found '9999999999999999999999999999999999999999…'"),
            (",".join(["1"] * 65), "the prompt has 65 tokens; this model's context holds 64"),
        ],
    )
    @pytest.mark.parametrize("command", ["generate", "verify"])
    def test_ids(self, bare: Path, refused: Refused, command: str, ids: str, words: str) -> None:
        extra = ["--draws"] if command == "verify" else []
        assert words in refused(command, bare, f"--ids={ids}", *extra)

    @pytest.mark.parametrize(
        ("prompt", "words", "words_of_chat"),
        [
            ("", "the prompt is empty", "the message is empty"),
            ("word " * 500, "this model's context holds 64", "but the context holds 64"),
            ("caf\udce9", "half a surrogate pair", "half a surrogate pair"),
        ],
    )
    def test_text(self, small: Path, refused: Refused, prompt: str, words: str, words_of_chat: str) -> None:
        assert words in refused("generate", small, prompt)
        assert words_of_chat in refused("demo", "--model", small, "--prompt", prompt)

    @pytest.mark.parametrize(
        ("data", "words"), [(b"caf\xe9", "standard input is not UTF-8 (byte 3)"), (b"", "the prompt is empty")]
    )
    def test_standard_input(
        self, small: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, data: bytes, words: str
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        assert words in refused("generate", small, "-")

    @pytest.mark.parametrize(
        ("arguments", "found"),
        [
            ([], "found neither a PROMPT nor --file nor --ids"),
            (["text", "--ids", "1"], "found both a PROMPT and --ids"),
            (["text", "--ids", ""], "found both a PROMPT and --ids"),
            (["text", "-p", "more"], "found both a PROMPT and --prompt"),
            (["-f", "prompt.txt", "-p", "more"], "found both --prompt and --file"),
        ],
    )
    def test_one_prompt_and_no_more(self, small: Path, refused: Refused, arguments: list[str], found: str) -> None:
        assert f"{found}; give one of them" in refused("generate", small, *arguments)

    def test_a_model_is_given_once(self, small: Path, refused: Refused) -> None:
        assert "Missing argument 'MODEL'" in refused("generate")
        assert "Missing argument 'MODEL'" in refused("chat")
        for arguments in (["generate", small, "text", "-m", small], ["chat", small, "-m", small]):
            assert "--model stands in place of the argument MODEL; leave out" in refused(*arguments)

    def test_a_file_with_a_prompt(self, small: Path, refused: Refused, tmp_path: Path) -> None:
        assert "nowhere.txt: cannot read it" in refused("generate", small, "-f", tmp_path / "nowhere.txt")
        (tmp_path / "bytes.txt").write_bytes(b"caf\xe9")
        assert "bytes.txt is not UTF-8 (byte 3)" in refused("generate", small, "-f", tmp_path / "bytes.txt")


BAD_OPTIONS = [
    (["generate", "MODEL", "x", "--temperature", "nan"], "temperature is nan"),
    (["generate", "MODEL", "x", "--temperature", "inf"], "temperature is inf"),
    (["generate", "MODEL", "x", "--temperature", "-1"], "temperature is -1.0"),
    (["generate", "MODEL", "x", "--temperature", "hot"], "'hot' is not a valid float"),
    (["generate", "MODEL", "x", "--top-p", "2"], "top_p is 2.0"),
    (["generate", "MODEL", "x", "--top-p", "nan"], "top_p is nan"),
    (["generate", "MODEL", "x", "--min-p", "-0.1"], "min_p is -0.1"),
    (["generate", "MODEL", "x", "--top-k", "-1"], "top_k is -1"),
    (["generate", "MODEL", "x", "--top-k", "1.5"], "'1.5' is not a valid integer"),
    (["generate", "MODEL", "x", "--top-k", "9" * 5000], "is not a valid integer"),
    (["generate", "MODEL", "x", "--repetition-penalty", "0"], "repetition_penalty is 0.0"),
    (["generate", "MODEL", "x", "--seed", "-1"], "seed is -1"),
    (["generate", "MODEL", "x", "--max-tokens", "0"], "Invalid value for '-n' / '--max-tokens': 0"),
    (["generate", "MODEL", "x", "--max-tokens", "-5"], "Invalid value for '-n' / '--max-tokens': -5"),
    (["generate", "MODEL", "x", "--max-tokens", "1.5"], "'1.5' is not a valid integer"),
    (["generate", "MODEL", "x", "--stop", ""], "stop string 0 is empty"),
    (["generate", "MODEL", "--ids", "1", "--stop", "x"], "stop strings need a text prompt"),
    (["generate", "MODEL", "x", "--plan", "fastest"], "Invalid value for '--plan'"),
    (["generate", "MODEL", "x", "--plan", "a\nb"], "Invalid value for '--plan'"),
    (["generate", "MODEL", "x", "--weights", "q3"], "Invalid value for '--weights'"),
    (
        ["generate", "MODEL", "x", "--plan", "reference", "--weights", "q8"],
        "the reference plan keeps its weights in f32, found q8; leave weights out or use the fast plan",
    ),
    (["draws", "MODEL", "--plan", "reference", "--weights", "f16"], "the reference plan keeps its weights in f32"),
    (["info", "MODEL", "--plan", "reference", "--weights", "f16"], "the reference plan keeps its weights in f32"),
    (["generate", "MODEL", "x", "--gelu", "relu"], "Invalid value for '--gelu'"),
    (["generate", "MODEL", "x", "--api", "vulkan"], "Invalid value for '--api'"),
    (["generate", "MODEL", "x", "--limits", "none"], "Invalid value for '--limits'"),
    (["generate", "MODEL", "x", "--device", "first"], "unknown device 'first'"),
    (["generate", "MODEL", "x", "--device", "-1"], "unknown device '-1'"),
    (["generate", "MODEL", "x", "--device", "63"], "there is no EGL device 63"),
    (["generate", "MODEL", "x", "--temprature", "1"], "No such option"),
    (["generate", "MODEL", "x", "y"], "unexpected extra argument"),
    (["generate", "MODEL", "x", "--seed"], "'--seed' requires an argument"),
    (["generate"], "Missing argument 'MODEL'"),
    (["convert", "MODEL"], "Missing argument 'TARGET'"),
    (["verify"], "found neither a MODEL nor --config; give one"),
    (["chat"], "Missing argument 'MODEL'"),
    (["nonsense"], "No such command 'nonsense'"),
    (["--nonsense"], "No such option"),
    (["verify", "MODEL", "--tokens", "3"], "--tokens and --ids belong to --draws"),
    (["verify", "MODEL", "--ids", "3"], "--tokens and --ids belong to --draws"),
    (["verify", "MODEL", "--draws", "--ids", "3", "--tokens", "3"], "found both --tokens and --ids; give one"),
    (["verify", "MODEL", "--draws", "--tokens", "0"], "--tokens is 0; expected 1 to 64"),
    (["verify", "MODEL", "--draws", "--tokens", "65"], "--tokens is 65; expected 1 to 64"),
    (["draws"], "found neither a MODEL nor --config"),
    (["draws", "MODEL", "--config", ""], "found both a MODEL and --config"),
    (["draws", "MODEL", "--tokens", "0"], "found 0 tokens; expected 1 to 64"),
    (["draws", "MODEL", "--tokens", "65"], "found 65 tokens; expected 1 to 64"),
    (["draws", "MODEL", "--tokens", "-1"], "found -1 tokens"),
    (["bench", "MODEL", "--plan", "reference", "--lengths", "1,x"], "found 'x' in the lengths"),
    (["bench", "MODEL", "--plan", "reference", "--lengths", ""], "lengths"),
    (
        ["bench", "MODEL", "--plan", "reference", "--lengths", "1,65"],
        "sequence length 65 is not within 1 to 64",
    ),
    (["bench", "MODEL", "--plan", "reference", "--lengths", "0"], "sequence length 0 is not within 1 to 64"),
    (["bench", "MODEL", "--runs", "0"], "Invalid value for '--runs': 0"),
    (["demo", "--model", "MODEL", "--max-tokens", "0"], "Invalid value for '--max-tokens': 0"),
    (["demo", "--tokenizer", "x.bpe"], "--tokenizer belongs to --model"),
]


class TestOptions:
    @pytest.mark.parametrize(("arguments", "words"), BAD_OPTIONS)
    def test_bad_values(self, small: Path, refused: Refused, arguments: list[str], words: str) -> None:
        line = refused(*[str(small) if argument == "MODEL" else argument for argument in arguments])
        assert words in line

    @pytest.mark.parametrize(
        ("config", "words"),
        [
            ("blocks", "blocks='' in --config; expected a whole number"),
            ("blocks=", "blocks='' in --config"),
            ("blocks=x", "blocks='x' in --config"),
            ("blocks=1.5", "blocks='1.5' in --config"),
            ("blocks=6 heads=8", "blocks='6 heads=8' in --config"),
            ("layers=4", "unknown name 'layers' in --config; known: vocab, dim, heads, blocks, context"),
            ("=4", "unknown name '' in --config"),
            ("nonsense", "unknown name 'nonsense' in --config"),
            ("blocks=0", "num_hidden_layers is 0; expected a whole number from 1"),
            ("blocks=-1", "num_hidden_layers is -1"),
            ("context=0", "max_position_embeddings is 0"),
            ("heads=3", "hidden_size 512 is not a multiple of num_attention_heads 3"),
            ("vocab=99999999999999999999", "vocab_size is 99999999999999999999"),
            ("blocks=" + "9" * 5000, "in --config; expected a whole number"),
        ],
    )
    def test_a_shape_that_is_none(self, refused: Refused, config: str, words: str) -> None:
        assert words in refused("draws", "--config", config)

    @pytest.mark.parametrize(
        ("plan", "config", "words"),
        [
            ("reference", "blocks=1000000", "1000000 blocks of 8 heads need 40000004 draws; expected at most 100000"),
            ("reference", "dim=4194304,heads=4194304", "6 blocks of 4194304 heads need 100663348 draws"),
            ("fast", "blocks=1000000", "1000000 layers need more than 100000 draws; expected fewer"),
            ("fast", "dim=4194304,heads=4194304", "the largest texture here is 16384×16384"),
            ("fast", "vocab=16000000", "the largest texture here is 16384×16384"),
        ],
    )
    def test_a_shape_too_large_for_a_plan(self, refused: Refused, plan: str, config: str, words: str) -> None:
        assert words in refused("draws", "--config", config, "--plan", plan)

    def test_a_shape_too_large_to_measure_is_refused_before_its_weights_are_made(self, refused: Refused) -> None:
        line = refused("draws", "--config", "vocab=16000000", "--measure", "--plan", "reference")
        assert "tensor transformer.wte.weight: a 16000000×512 matrix" in line
        line = refused("draws", "--config", "vocab=16000000", "--measure")
        assert "16000000" in line

    def test_one_too_large_for_the_renderer(self, small: Path, tmp_path: Path, refused: Refused) -> None:
        config = "vocab=9,dim=4,heads=1,blocks=1,context=2100"
        line = refused("draws", "--config", config, "--measure", "--limits", "webgl2", "--plan", "reference")
        assert "2100×2100" in line
        config = "vocab=9,dim=512,heads=1,blocks=1,context=20000"
        assert "the largest texture here is 2048×2048" in refused(
            "draws", "--config", config, "--measure", "--limits", "webgl2"
        )

    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("GLINFER_API", "vulkan", "unknown OpenGL flavour 'vulkan'"),
            ("GLINFER_DEVICE", "first", "unknown device 'first'"),
            ("GLINFER_DEVICE", "63", "there is no EGL device 63"),
        ],
    )
    def test_the_environment(
        self, small: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
    ) -> None:
        monkeypatch.setenv(name, value)
        for arguments in (["info"], ["generate", small, "x"], ["verify", small], ["draws", small, "--measure"]):
            assert words in refused(*arguments)

    @pytest.mark.parametrize("command", ["demo --random", "bench"])
    def test_a_cache_that_cannot_be_written(
        self, capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
        assert run(command.split()) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last == "glinfer: /dev/null/glinfer/demo: cannot make this folder: Not a directory; set XDG_CACHE_HOME"

    def test_too_little_memory(self, small: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object, **__: object) -> None:
            raise MemoryError

        monkeypatch.setattr("glinfer.cli.common.load_model", fail)
        assert "out of memory" in refused("generate", small, "x")

    def test_a_user_without_a_home(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", no_home)
        assert run(["demo", "--random"]) == 2
        assert "no home directory" in capsys.readouterr().err


class TestConvertTargets:
    @pytest.mark.parametrize(
        ("target", "words"),
        [
            ("m.bin", "the name ends in '.bin'; expected .gab, .safetensors or .gguf"),
            ("m.bpe", "the name ends in '.bpe'"),
            ("m", "the name has no ending"),
            (".gab", "the name has no ending"),
            ("missing/m.gab", "cannot write it: No such file or directory"),
            ("missing/m.safetensors", "cannot write it: No such file or directory"),
            ("folder.gab", "found a directory"),
            ("folder.safetensors", "found a directory"),
            ("", "the name has no ending"),
        ],
    )
    def test_targets_that_cannot_be(
        self, bare: Path, tmp_path: Path, refused: Refused, target: str, words: str
    ) -> None:
        for folder in ("folder.gab", "folder.safetensors"):
            (tmp_path / folder).mkdir()
        assert words in refused("convert", bare, f"{tmp_path}/{target}" if target else "")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.gab", "folder.safetensors"]

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_directory_that_may_not_be_written(self, bare: Path, tmp_path: Path, refused: Refused) -> None:
        (tmp_path / "closed").mkdir(mode=0o500)
        assert "Permission denied" in refused("convert", bare, tmp_path / "closed" / "m.gab")

    def test_a_source_that_is_damaged_leaves_the_target_as_it_was(
        self, bare: Path, tmp_path: Path, refused: Refused
    ) -> None:
        source, target = tmp_path / "source.gab", tmp_path / "target.gab"
        source.write_bytes(bare.read_bytes()[:-4])
        target.write_bytes(b"precious")
        refused("convert", source, target)
        assert target.read_bytes() == b"precious"
