"""Converting and exporting where each call for a file fails in turn, the disk is full, or Ctrl-C comes: all or nothing.

Each ends in one line and exit code 2, with what was there before as it was and nothing beside it, and the same command
works afterwards.
"""

from __future__ import annotations

import errno
import json
import resource
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from broken_driver import BrokenDriver, mended
from broken_files import BrokenFiles
from goldens.gguf_models import K, byte_level
from interrupts import files_of, heeds_ctrl_c, interrupted_everywhere
from scripted_models import SMALL, random_file
from tiers import tiered
from tiny_models import tiny

from glinfer.cli.app import run
from glinfer.config import ModelConfig
from glinfer.engine import loading
from glinfer.engine.random_model import demo_tokenizer
from glinfer.export import convert as convert_module
from glinfer.export import site
from glinfer.formats import files as files_module
from glinfer.formats import load_checkpoint, random_checkpoint, write_bpe
from glinfer.formats.gguf.write import write_gguf
from glinfer.lower.weights.recipe import Formats

__all__ = ["heeds_ctrl_c"]

Capture = pytest.CaptureFixture[str]
Contents = dict[str, object]


def contents(folder: Path) -> Contents:
    """The files and folders below a folder, hidden ones too."""
    return {str(path.relative_to(folder)): content_of(path) for path in sorted(folder.rglob("*"))}


def content_of(path: Path) -> object:
    """What a file says; the metadata of a safetensors file have no order of their own."""
    data = path.read_bytes() if path.is_file() else b""
    if path.suffix != ".safetensors":
        return data
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file of a small Llama with a tokenizer."""
    pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    metadata = byte_level()
    path = tmp_path_factory.mktemp("llama") / "l.gguf"
    write_gguf(
        random_checkpoint(tiny("llama", vocab_size=len(metadata[K + "tokens"])), seed=1), path, tokenizer=metadata
    )
    return path


@pytest.fixture(scope="module")
def gab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gab")
    write_bpe(demo_tokenizer(300), folder / "g.bpe")
    return random_file(folder / "g.gab", SMALL)


class Work:
    """A command that writes into a folder of its own, where ``earlier`` ones have written before.

    Attributes:
        before: what is there before it.
        after: what it leaves.
    """

    def __init__(self, folder: Path, capsys: Capture, arguments: list[str], *earlier: list[str]) -> None:
        self.folder, self.capsys, self.arguments = folder, capsys, arguments
        folder.mkdir()
        for each in earlier:
            assert run(each) == 0
        self.kept, self.before = folder.with_name("kept"), contents(folder)
        shutil.copytree(folder, self.kept)
        assert run(arguments) == 0
        capsys.readouterr()
        self.after = contents(folder)
        assert self.after != self.before
        self.restore()

    def restore(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self.kept, self.folder)

    def run(self, why: str) -> int:
        """Run it once more; returns its status, after a look at what it said.

        A source checkout without the libraries of pages notes that; what is looked at is whatever else is said.
        """
        status = run(self.arguments)
        said = [line for line in self.capsys.readouterr().err.splitlines() if not line.startswith("note: ")]
        assert status in (0, 2), (why, said)
        assert [line.startswith("glinfer: ") for line in said] == ([True] if status else []), (why, said)
        return status

    def check(self, status: int, why: str) -> None:
        """All or nothing after an end with this status, each of several files by itself; then what was before.

        What of a former site cannot be removed may stay.
        """
        found = {
            name: data for name, data in contents(self.folder).items() if not (name.endswith(".old") and not status)
        }
        if status and self.several:
            assert found.keys() <= self.after.keys(), why
            assert all(data in (self.before.get(name), self.after[name]) for name, data in found.items()), why
            assert found.keys() >= self.before.keys(), why
        else:
            assert found == (self.before if status else self.after), why
        self.restore()

    @property
    def several(self) -> bool:
        """Whether there are files beside the target."""
        return not (self.folder / "site").exists() and len(self.after) > 1


Making = Callable[..., Work]


@pytest.fixture
def converting(tmp_path: Path, capsys: Capture, request: pytest.FixtureRequest) -> Making:
    """Makes the command ``convert`` to a file of an ending, where one of the same name has no tokenizer, or is none."""

    def make(ending: str, *options: str, former: bool) -> Work:
        source = str(request.getfixturevalue("gab" if ending == ".gab" else "llama"))
        folder = tmp_path / "out"
        whole = ["convert", source, str(folder / f"m{ending}"), *options]
        return Work(folder, capsys, whole, *([[*whole, "--no-tokenizer"]] if former else []))

    return make


@pytest.fixture
def exporting(tmp_path: Path, capsys: Capture, gab: Path) -> Making:
    """Makes the command ``export-web``, into a folder that has another plan's site, or is none."""

    def make(*options: str, former: bool) -> Work:
        folder = tmp_path / "out"
        whole = ["export-web", str(gab), str(folder / "site"), *options]
        return Work(folder, capsys, whole, *([[*whole, "--plan", "reference"]] if former else []))

    return make


def each_fails(
    work: Work, patch: pytest.MonkeyPatch, folder: Path, chosen: Callable[[list[tuple[str, str]]], Iterable[int]]
) -> int:
    """Run it with a fault at each chosen call for a file in turn; returns how many of them ended it."""
    with patch.context() as patched:
        files = BrokenFiles(patched, folder)
        assert work.run("counting") == 0
        places = list(chosen(files.calls))
        files.fail_at(0)
        work.restore()
        ended = 0
        for at in places:
            files.fail_at(at)
            status = work.run(f"call {at}")
            failed = files.failed
            assert failed, f"call {at} was not reached"
            files.fail_at(0)
            work.check(status, failed)
            ended += status == 2
    assert work.run("mended") == 0
    work.check(0, "mended")
    return ended


def every(calls: list[tuple[str, str]]) -> Iterable[int]:
    return range(1, len(calls) + 1)


def first_and_last(calls: list[tuple[str, str]]) -> Iterable[int]:
    """Of the calls of one name for files of one ending the first and the last: a page has two hundred files."""
    found: dict[tuple[str, str], list[int]] = {}
    for at, (name, path) in enumerate(calls, start=1):
        found.setdefault((name, Path(path).suffix), []).append(at)
    return sorted({at for places in found.values() for at in (places[0], places[-1])})


@contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    """As if the disk had room for so many bytes of each file, for libraries in other languages too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def interrupted_at_each_line(work: Work, *modules: ModuleType, step: int = 1) -> None:
    """Raise a Ctrl-C before each line of these modules in turn, or every few; what is complete may stay."""

    def act() -> None:
        if run(work.arguments) == 130:
            raise KeyboardInterrupt

    def after(where: str) -> None:
        said = work.capsys.readouterr()
        assert said.err.strip() == "", where
        found = contents(work.folder)
        assert found in (work.before, work.after), where
        work.restore()

    assert interrupted_everywhere(act, after, (), files_of(*modules), step) > 30
    work.capsys.readouterr()


def few_files(folder: Path) -> Path:
    """A page of three files."""
    (folder / "page").mkdir(parents=True)
    (folder / "index.html").write_text("<html></html>")
    (folder / "offline.js").write_text("// nothing")
    (folder / "page" / "page.js").write_text("// nothing")
    return folder


class TestConvert:
    @tiered(("ending", "former"), [(".gguf", True), (".gab", True), (".safetensors", True), (".gguf", False)])
    def test_a_disk_that_fails_at_any_call(
        self, converting: Making, monkeypatch: pytest.MonkeyPatch, ending: str, former: bool
    ) -> None:
        work = converting(ending, former=former)
        assert each_fails(work, monkeypatch, work.folder, every) >= 4

    @pytest.mark.slow
    def test_a_source_that_fails_at_any_call(self, converting: Making, monkeypatch: pytest.MonkeyPatch) -> None:
        """A model whose tokenizer cannot be read is converted without it, which a note says."""
        work = converting(".gguf", former=False)
        source, target = map(Path, work.arguments[1:3])
        noted = refused = 0
        with monkeypatch.context() as patch:
            files = BrokenFiles(patch, source.parent)
            assert work.run("counting") == 0
            for at in every(files.calls):
                work.restore()
                files.fail_at(at)
                status, said = run(work.arguments), work.capsys.readouterr()
                failed = files.failed
                assert failed
                files.fail_at(0)
                assert said.err.count("\n") <= 1, failed
                if status == 2:
                    refused += 1
                    assert contents(work.folder) == work.before, failed
                    continue
                assert status == 0, failed
                noted += said.err.startswith(f"note: {target} has no tokenizer: ")
                assert (contents(work.folder) == work.after) == (said.err == ""), failed
                assert load_checkpoint(target).config == load_checkpoint(source).config
        assert noted >= 1
        assert refused >= 2

    @tiered("ending", [".gguf", ".gab", ".safetensors"])
    def test_a_disk_that_is_full_at_any_size(self, converting: Making, ending: str) -> None:
        work = converting(ending, former=True)
        assert work.run("its size") == 0
        nbytes = max(path.stat().st_size for path in work.folder.iterdir())
        work.restore()
        for size in (0, 1, *range(nbytes // 8, nbytes, nbytes // 8), nbytes - 1):
            with largest_file(size):
                status = work.run(f"full at {size}")
            assert status == 2, size
            work.check(status, f"full at {size}")
        with largest_file(nbytes):
            assert work.run("room for all") == 0
        work.check(0, "room for all")

    @pytest.mark.slow
    def test_ctrl_c_at_any_line(self, converting: Making, heeds_ctrl_c: None) -> None:
        work = converting(".gguf", former=True)
        interrupted_at_each_line(work, convert_module, files_module)

    @pytest.mark.slow
    @pytest.mark.gl
    def test_no_memory_for_a_texture_of_the_run_that_says_what_matters(
        self, converting: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "text.txt").write_text("what is run")
        driver, opened = BrokenDriver(monkeypatch), loading.open_device
        monkeypatch.setattr(loading, "open_device", lambda *given, **named: mended(driver, opened(*given, **named)))
        work = converting(".gguf", "--dtype", "iq4_nl", "--imatrix", str(tmp_path / "text.txt"), former=False)
        at, status = 0, 2
        while status:
            at += 1 if at < 3 else 9
            driver.fail_at(at)
            status = work.run(f"allocation {at}")
            driver.mend()
            work.check(status, f"allocation {at}")
        assert at > 20


@pytest.fixture
def laid_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are laid out once for each choice: that takes most of the time of an export, and writes nothing."""
    made: dict[object, object] = {}
    lay_out = site.laid_out

    def kept(config: ModelConfig, formats: Formats, plan: str, *given: Any) -> object:
        if plan not in made:
            made[plan] = lay_out(config, formats, plan, *given)
        return made[plan]

    monkeypatch.setattr(site, "laid_out", kept)


@pytest.mark.usefixtures("laid_out_once")
class TestExport:
    @pytest.mark.slow
    def test_a_disk_that_fails_at_any_call(self, exporting: Making, monkeypatch: pytest.MonkeyPatch) -> None:
        work = exporting(former=True)
        assert each_fails(work, monkeypatch, work.folder, first_and_last) >= 20

    @pytest.mark.slow
    def test_ctrl_c_at_any_line(
        self, exporting: Making, heeds_ctrl_c: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """With a page of three files, since each line of copying is a place."""
        root = few_files(tmp_path / "web")
        parts = {name: root / name for name in ("index.html", "offline.js", "page")}
        monkeypatch.setattr(site, "site_parts", lambda *given, **named: parts)
        interrupted_at_each_line(exporting(former=True), site, step=5)

    def test_a_former_site_that_cannot_be_put_back_is_named(
        self, exporting: Making, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        work, rename = exporting(former=True), Path.rename

        def refused(path: Path, target: Path) -> Path:
            if target.name == "site":
                raise OSError(errno.EIO, "planted")
            return rename(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", refused)  # on Python 3.10 it does not ask os for its rename
            assert run(work.arguments) == 2
        err = work.capsys.readouterr().err
        (old,) = work.folder.iterdir()
        assert err.endswith(f"the earlier export is {old} now\n")
        old.rename(work.folder / "site")
        work.check(2, "put back by hand")
