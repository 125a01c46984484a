"""Bad input to every command: one line that says what is wrong, exit status 2, no traceback, nothing written."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import commands
import numpy as np
import pytest
from commands import pipe, ran
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
    pipe(monkeypatch, b"hi\n")

    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    def refuse(*arguments: str | Path) -> str:
        before = files()
        line = commands.refused(capsys, *arguments)
        assert len(line) < 700 + sum(len(str(argument)) for argument in arguments)
        assert files() == before, "something was written"
        return line

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


def arguments_of(use: str, model: str | Path, tmp_path: Path) -> list[str]:
    places = {"MODEL": str(model), "TARGET": str(tmp_path / "target.safetensors")}
    return [places.get(argument, argument) for argument in USES[use]]


def header(*numbers: int) -> bytes:
    return struct.pack("<7I", 0x47414231, *numbers)


# tests/formats tries every damage; these show that each command says it.
BAD_GAB: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "one byte short": (lambda good: good[:-1], "1 bytes short"),
    "version 2": (lambda good: header(2, *struct.unpack("<5I", good[8:28])) + good[28:], "version is 2"),
    "safetensors of nothing": (
        lambda good: struct.pack("<Q", 2) + b"{}",
        "a safetensors file that glinfer did not save",
    ),
}


class TestCheckpoints:
    @pytest.mark.parametrize("use", USES)
    def test_damaged_files(self, bare: Path, tmp_path: Path, refused: Refused, use: str) -> None:
        path = tmp_path / "damaged.gab"
        for fault, (damage, words) in BAD_GAB.items():
            path.write_bytes(damage(bare.read_bytes()))
            line = refused(*arguments_of(use, path, tmp_path))
            assert str(path) in line, fault
            assert words in line, fault

    @pytest.mark.parametrize("use", USES)
    def test_paths_that_are_no_checkpoint(self, bare: Path, tmp_path: Path, refused: Refused, use: str) -> None:
        folder, pipe, loop, tokenizer = (tmp_path / name for name in ("folder", "pipe", "loop", "m.bpe"))
        folder.mkdir()
        os.mkfifo(pipe)
        loop.symlink_to(loop)
        write_bpe(BYTES, tokenizer)
        for given, words in (
            (tmp_path / "m.gab", "cannot read it: No such file"),
            (folder, "found a directory"),
            (pipe, "found a pipe"),
            (os.devnull, "found a device"),
            ("", "the model is empty; expected a path"),
            (bare / "x", "Not a directory"),
            ("x" * 300, "File name too long"),
            (loop, "symbolic links"),
            (tokenizer, "this is a BPE1 tokenizer"),
        ):
            assert words in refused(*arguments_of(use, given, tmp_path))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
    def test_files_that_may_not_be_read(self, bare: Path, tmp_path: Path, refused: Refused) -> None:
        path = Path(shutil.copy(bare, tmp_path / "m.gab"))
        path.chmod(0)
        for use in USES:
            assert "Permission denied" in refused(*arguments_of(use, path, tmp_path))

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_weights_that_are_no_numbers(self, small: Path, tmp_path: Path, refused: Refused, value: float) -> None:
        data = bytearray(small.read_bytes())
        data[-4:] = np.float32(value).tobytes()  # the last element of the last tensor
        path = tmp_path / "bad.gab"
        path.write_bytes(data)
        shutil.copy(small.with_suffix(".bpe"), tmp_path / "bad.bpe")
        for use in ("generate", "chat", "bench", "demo", "convert"):
            line = refused(*arguments_of(use, path, tmp_path))
            assert "1 value is NaN or infinite in tensor 'lm_head.bias', first at [299]" in line, use
        assert "1 value is NaN or infinite in tensor 'lm_head.bias'" in refused("verify", path, "--draws")


BAD_BPE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda good: b"", "0 bytes"),
    "wrong magic": (lambda good: b"BPE2" + good[4:], "expected 0x42504531"),
    "a checkpoint": (lambda good: header(1, 300, 32, 4, 2, 64), "this is a GAB1 checkpoint"),
}


class TestTokenizers:
    @pytest.mark.parametrize("use", ["generate", "chat", "demo"])
    def test_what_is_none_of_this_model(self, small: Path, tmp_path: Path, refused: Refused, use: str) -> None:
        command = [*arguments_of(use, small, tmp_path), "--tokenizer"]
        path = tmp_path / "damaged.bpe"
        for fault, (damage, words) in BAD_BPE.items():
            path.write_bytes(damage(small.with_suffix(".bpe").read_bytes()))
            line = refused(*command, path)
            assert str(path) in line, fault
            assert words in line, fault
        write_bpe(demo_tokenizer(299), path)
        assert "the tokenizer has 299 tokens, the model 300" in refused(*command, path)
        assert "found a directory" in refused(*command, tmp_path)

    def test_none_where_text_needs_one(self, bare: Path, refused: Refused) -> None:
        for arguments in (["generate", bare, "Once"], ["chat", bare], ["demo", "--model", bare]):
            said = refused(*arguments)
            assert "no tokenizer was given; pass tokenizer=… (--tokenizer) or use token ids" in said

    def test_one_beside_the_model_that_does_not_fit(self, bare: Path, tmp_path: Path, refused: Refused) -> None:
        path = Path(shutil.copy(bare, tmp_path / "m.gab"))
        write_bpe(demo_tokenizer(299), tmp_path / "m.bpe")
        assert "m.bpe next to the checkpoint has 299 tokens, the model 300" in refused("generate", path, "Once")


class TestPrompts:
    def test_ids(self, bare: Path, refused: Refused) -> None:
        for ids, words in (
            ("", "the prompt is empty"),
            ("300", "token 0 of the prompt is 300; this vocabulary has ids 0 to 299"),
            ("1,2,-1", "token 2 of the prompt is -1"),
            ("99999999999999999999", "token 0 of the prompt is 99999999999999999999"),
            ("a", "found 'a' in the token ids; expected integers such as 13,132,251"),
            ("²", "found '²'"),
            ("1\n\n2", "found '1\\n\\n2'"),
            ("9" * 5000, "found '9999999999999999999999999999999999999999…'"),
            (",".join(["1"] * 65), "the prompt has 65 tokens; this model's context holds 64"),
        ):
            assert words in refused("generate", bare, f"--ids={ids}"), ids
        for ids, words in (("", "the prompt is empty"), ("a", "found 'a'"), ("300", "token 0 of the prompt is 300")):
            assert words in refused("verify", bare, "--draws", f"--ids={ids}"), ids

    def test_text(self, small: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
        for prompt, words, words_of_chat in (
            ("", "the prompt is empty", "the message is empty"),
            ("word " * 500, "this model's context holds 64", "but the context holds 64"),
            ("caf\udce9", "half a surrogate pair", "half a surrogate pair"),
        ):
            assert words in refused("generate", small, prompt)
            assert words_of_chat in refused("demo", "--model", small, "--prompt", prompt)
        for data, words in ((b"caf\xe9", "standard input is not UTF-8 (byte 3)"), (b"", "the prompt is empty")):
            for arguments in (["-"], ["-p", "-"], ["-f", "-"]):
                pipe(monkeypatch, data)
                assert words in refused("generate", small, *arguments)

    def test_one_prompt_and_no_more(self, small: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
        pipe(monkeypatch, b"")
        nothing = "found no PROMPT, --file or --ids"
        assert f"{nothing}, and standard input is empty; give one of them" in refused("generate", small)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        for arguments, found in (
            ([], nothing),
            (["text", "--ids", "1"], "found both a PROMPT and --ids"),
            (["text", "--ids", ""], "found both a PROMPT and --ids"),
            (["text", "-p", "more"], "found both a PROMPT and --prompt"),
            (["-f", "prompt.txt", "-p", "more"], "found both --prompt and --file"),
        ):
            assert f"{found}; give one of them" in refused("generate", small, *arguments)

    def test_a_model_is_given_once(self, small: Path, refused: Refused) -> None:
        assert "Missing argument 'MODEL'" in refused("generate")
        assert "Missing argument 'MODEL'" in refused("chat")
        assert "Missing argument 'OUT'" in refused("export-web", "--drop")
        for arguments in (["generate", small, "text", "-m", small], ["chat", small, "-m", small]):
            assert "found --model and the argument" in refused(*arguments)

    def test_a_file_with_a_prompt(self, small: Path, refused: Refused, tmp_path: Path) -> None:
        assert "nowhere.txt: cannot read it: No such file or directory; check" in refused(
            "generate", small, "-f", tmp_path / "nowhere.txt"
        )
        (tmp_path / "bytes.txt").write_bytes(b"caf\xe9")
        assert "bytes.txt is not UTF-8 (byte 3)" in refused("generate", small, "-f", tmp_path / "bytes.txt")


# Options of commands that are given a good model, and words of the one line for each.
BAD_OPTIONS: dict[str, dict[str, str]] = {
    "generate MODEL x": {
        "--temperature nan": "--temperature is nan",
        f"--top-k {'9' * 5000}": "is not a valid integer",
        "--seed -1": "--seed is -1; expected an integer of at least 0",
        "--seed": "'--seed' requires an argument",
        "--max-tokens 0": "Invalid value for '-n' / '--max-tokens': 0",
        "--max-tokens 1.5": "'1.5' is not a valid integer (see ",
        "--stop=": "stop string 0 is empty",
        "--plan fastest": "Invalid value for '--plan'",
        "--plan reference --weights q8": (
            "the reference plan keeps its weights in f32, found q8; leave weights out or use the fast plan"
        ),
        "--limits none": "Invalid value for '--limits'",
        "--device first": "unknown device 'first'",
        "--device 63": "there is no EGL device 63",
        "--temprature 1": "No such option",
        "y": "unexpected extra argument",
    },
    "generate MODEL": {"--ids 1 --stop x": "stop strings need a text prompt"},
    "info MODEL": {"--plan reference --weights f16": "the reference plan keeps its weights in f32"},
    "convert MODEL": {"": "Missing argument 'TARGET'"},
    "--nonsense": {"": "No such option"},
    "serve MODEL": {"--port x": "'x' is not a valid integer (see ", "--grace x": "'x' is not a valid float (see "},
    "look MODEL x": {"--out -": "--out needs a folder, not standard input or output"},
    "profile MODEL": {"--html -": "--html needs a file, not", "--trace -": "--trace needs a file, not"},
    "verify": {"": "found neither a MODEL nor --config; give one"},
    "verify MODEL": {"--tokens 3": "--tokens and --ids need --draws", "--ids 3": "--tokens and --ids need"},
    "verify MODEL --draws": {
        "--ids 3 --tokens 3": "found both --tokens and --ids; give one",
        "--tokens 0": "--tokens is 0; expected 1 to 64",
        "--tokens 65": "--tokens is 65; expected 1 to 64",
    },
    "draws MODEL": {
        "--config=": "found both a MODEL and --config",
        "--tokens 0": "found 0 tokens; expected 1 to 64",
        "--plan reference --weights f16": "the reference plan keeps its weights in f32",
    },
    "bench MODEL --plan reference": {
        "--lengths 1,x": "found 'x' in the lengths",
        "--lengths=": "found no sequence length",
        "--lengths 1,65": "a sequence length is 65; expected 1 to 64",
        "--runs 0": "Invalid value for '--runs': 0",
    },
    "demo": {"--tokenizer x.bpe": "--tokenizer needs --model"},
    "demo --model MODEL": {"--max-tokens 0": "Invalid value for '--max-tokens': 0"},
}


class TestOptions:
    @pytest.mark.parametrize("command", BAD_OPTIONS)
    def test_bad_values(self, small: Path, refused: Refused, command: str) -> None:
        for options, words in BAD_OPTIONS[command].items():
            line = f"{command} {options}".split()
            found = refused(*[str(small) if argument == "MODEL" else argument for argument in line])
            assert words in found, options

    def test_a_shape_that_is_none(self, refused: Refused) -> None:
        for config, words in (
            ("layers=4", "unknown name 'layers' in --config; known: vocab, dim, heads, blocks, context"),
            ("Gab", "family, or a whole shape: gab, gift_of_gab"),
            ("family=mamba", "family='mamba' in --config; did you mean mamba2?"),
            ("family=opt", "family='opt' in --config; docs/models.md lists the families"),
            ("family=llama,heads=3,dim=32", "not a multiple of num_attention_heads 3"),
            ("family=llama,blocks=1000000", "need more than 100000 draws"),
            ("none.json", "none.json: cannot read it"),
        ):
            for command in ("draws", "verify"):
                assert words in refused(command, "--config", config), config

    def test_a_shape_too_large_for_a_plan(self, refused: Refused) -> None:
        for plan, config, words in (
            ("reference", "blocks=1000000", "1000000 blocks of 8 heads need 40000004 draws; expected at most 100000"),
            ("reference", "dim=4194304,heads=4194304", "6 blocks of 4194304 heads need 100663348 draws"),
            ("fast", "blocks=1000000", "1000000 layers need more than 100000 draws; expected fewer"),
            ("fast", "dim=4194304,heads=4194304", "the matrices of 6 layers have 1660944384 rows; expected at most"),
            ("fast", "dim=4,heads=1,blocks=9000,inner=16777216", "the matrices of 9000 layers have 301"),
            ("fast", "vocab=16000000", "the largest texture here is 16384×16384"),
        ):
            assert words in refused("draws", "--config", config, "--plan", plan), (plan, config)

    def test_a_shape_too_large_to_measure_is_refused_before_its_weights_are_made(self, refused: Refused) -> None:
        least = ("--limits", "webgl2")
        for config, options, words in (
            ("vocab=16000000", ("--plan", "reference"), "tensor transformer.wte.weight: a 16000000×512 matrix"),
            ("vocab=16000000", (), "16000000"),
            ("vocab=9,dim=4,heads=1,blocks=1,context=2100", (*least, "--plan", "reference"), "2100×2100"),
            ("vocab=9,dim=512,heads=1,blocks=1,context=20000", least, "the largest texture here is 2048×2048"),
        ):
            assert words in refused("draws", "--config", config, "--measure", *options)

    def test_the_environment(self, small: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value, words in (
            ("GLINFER_API", "vulkan", "unknown OpenGL flavour 'vulkan'"),
            ("GLINFER_DEVICE", "first", "unknown device 'first'"),
            ("GLINFER_DEVICE", "63", "there is no EGL device 63"),
        ):
            with monkeypatch.context() as patch:
                patch.setenv(name, value)
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

    def test_too_little_memory_and_too_few_threads(
        self, small: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        raised: list[BaseException] = [MemoryError(), RuntimeError("can't start new thread"), RuntimeError("a fault")]

        def fail(*_: object, **__: object) -> None:
            raise raised[0]

        monkeypatch.setattr("glinfer.cli.common.load_model", fail)
        assert "out of memory" in refused("generate", small, "x")
        del raised[0]
        assert "can't start new thread; end other processes, or raise" in refused("generate", small, "x")
        del raised[0]
        with pytest.raises(RuntimeError, match="a fault"):
            run(["generate", str(small), "x"])

    def test_a_file_that_finds_no_memory(self, small: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

        monkeypatch.setattr("glinfer.formats.files.FileStamp.of", fail)
        assert "Cannot allocate memory; end other processes, or raise" in refused("generate", small, "x")

    def test_a_user_without_a_home(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", no_home)
        assert "no home directory" in ran(capsys, "demo", "--random", status=2)[1]


class TestConvertTargets:
    def test_targets_that_cannot_be(self, bare: Path, tmp_path: Path, refused: Refused) -> None:
        folders = ["folder.gab", "folder.safetensors"]
        for folder in folders:
            (tmp_path / folder).mkdir()
        for target, words in (
            ("m.bin", "the name ends in '.bin'; expected .gab, .safetensors or .gguf"),
            ("m", "the name has no ending"),
            (".gab", "the name has no ending"),
            ("missing/m.gab", "cannot write it: No such file or directory"),
            ("missing/m.safetensors", "cannot write it: No such file or directory"),
            *((folder, "found a directory") for folder in folders),
        ):
            assert words in refused("convert", bare, tmp_path / target), target
            assert sorted(path.name for path in tmp_path.iterdir()) == folders
        assert "the name has no ending" in refused("convert", bare, "")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_directory_that_may_not_be_written(self, bare: Path, tmp_path: Path, refused: Refused) -> None:
        (tmp_path / "closed").mkdir(mode=0o500)
        assert "Permission denied" in refused("convert", bare, tmp_path / "closed" / "m.gab")
