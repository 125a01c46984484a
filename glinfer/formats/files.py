"""Files of every format: names in messages, opening a file safely, and writing one whole or not at all."""

from __future__ import annotations

import codecs
import contextlib
import errno
import itertools
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, NamedTuple

from glinfer.errors import FormatError, InputError

_BLOBS_ABOVE = 3  # folders up to the one that has the blobs, in the cache of Hugging Face's hub
_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")  # pathlib makes one slash of two
_WORK_FOLDER = re.compile(r"\.glinfer-[0-9a-f]{16}\.tmp")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
AnyPath = str | os.PathLike[str]
WITHOUT_GAB = (
    "Gab's files come from https://github.com/gszauer/Gab, and glinfer cannot fetch them; "
    "without them use shakespeare, a bundled model of Gab's architecture"
)
"""The advice where Gab's weights are missing."""

GAB1_MAGIC = 0x47414231
"""The first little-endian u32 of a GAB1 checkpoint."""

BPE1_MAGIC = 0x42504531
"""The first little-endian u32 of a BPE1 tokenizer."""


class FileStamp(NamedTuple):
    """What tells a file from a changed one: its size in bytes, and when it was last written, in nanoseconds."""

    size: int
    written: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileStamp:
        """The stamp out of a file's status."""
        return cls(status.st_size, status.st_mtime_ns)


_noted: ContextVar[dict[str, FileStamp] | None] = ContextVar("noted", default=None)


@contextlib.contextmanager
def noted_files() -> Iterator[dict[str, FileStamp]]:
    """Note the stamps of all files that :func:`opened` opens within the block, by their absolute paths."""
    files: dict[str, FileStamp] = {}
    token = _noted.set(files)
    try:
        yield files
    finally:
        _noted.reset(token)


def shown(path: AnyPath) -> str:
    """A path for a message: as it is, or quoted if it has characters that break the line or do not print."""
    text = os.fspath(path)
    return text if text and text.isprintable() else ascii(text)


def reason(error: OSError) -> str:
    """The operating system's words for an error, without number and path, on one line."""
    return " ".join((error.strerror or str(error) or type(error).__name__).split())


def words_of(error: object, most: int = 300) -> str:
    """The message of a library's error: on one line, printable, and at most ``most`` characters."""
    text = " ".join(str(error).split())
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return text if text.isprintable() else ascii(text)[:most]


def decode_text(data: bytes, source: str, expected: str = "text") -> str:
    """Decode a text that a user wrote: UTF-8, without a byte-order mark at its start, and with LF for each CR LF.

    Raises:
        InputError: it is UTF-16, or not UTF-8; names ``source`` and the byte.
    """
    start = data[:2]
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or (len(start) == 2 and start.count(0) == 1):
        raise InputError(
            f"{source} is UTF-16, as '>' of Windows PowerShell writes it; expected {expected}; save it as UTF-8"
        )
    try:
        return data.decode().removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is not UTF-8 (byte {error.start}); expected {expected}") from None


_DEVICES = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(?:\..*)?", re.IGNORECASE)
_FORBIDDEN = frozenset('<>:"|?*\\')
_MOST_PARTS, _LONGEST_PART, _LONGEST_PATH = 16, 200, 500


def is_plain_path(path: str) -> bool:
    """Whether a path of a repository or a zip file leads, on every system, to a file below its folder."""
    parts = path.split("/")
    return (
        len(path) <= _LONGEST_PATH
        and len(parts) <= _MOST_PARTS
        and path.isprintable()
        and not _FORBIDDEN & set(path)
        and all(
            part not in ("", ".", "..")
            and len(part.encode("utf-8", "surrogatepass")) <= _LONGEST_PART
            and not part.endswith((".", " "))
            and not _DEVICES.fullmatch(part)
            for part in parts
        )
    )


def check_path(what: str, path: object) -> None:
    """Refuse what is neither a text nor a path, such as None, and an empty one, which pathlib takes for a folder.

    Raises:
        InputError: naming what it was to be.
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise InputError(f"{what} is {type(path).__name__}; expected a path, as a str or a pathlib.Path")
    if not os.fspath(path):
        raise InputError(f"{what} is an empty text; expected a path")


def _usable(path: AnyPath) -> str:
    """Return a path as text if a file can have it."""
    text = os.fspath(path)
    try:
        if b"\0" not in os.fsencode(text):
            return text
    except UnicodeEncodeError:
        pass
    raise FormatError(f"{shown(path)}: no file can have this name; expected a path without such characters")


def cache_folder() -> Path:
    """The folder for glinfer's own files: $GLINFER_CACHE, else ``glinfer`` in $XDG_CACHE_HOME or in ~/.cache.

    Raises:
        InputError: there is none of them.
    """
    own = os.environ.get("GLINFER_CACHE")
    if own:
        return Path(own)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glinfer"
    except RuntimeError:
        raise InputError("this user has no home directory to keep files in; set XDG_CACHE_HOME") from None


def memory_folder(part: str) -> Path | None:
    """A folder for measurements that glinfer keeps between runs: ``part`` of :func:`cache_folder`.

    None if there is no such folder, or if GLINFER_CACHE is set and empty, which turns this off.
    """
    if os.environ.get("GLINFER_CACHE") == "":
        return None
    try:
        return cache_folder() / part
    except InputError:
        return None


def kind_of(mode: int) -> str:
    """The kind of a file that is not a regular one, from its ``st_mode``."""
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "not a regular file")


def is_directory(path: AnyPath) -> bool:
    """Whether ``path`` is a directory; False if that cannot be found out, so that opening it says why."""
    return os.path.isdir(path)  # noqa: PTH112 (Path.is_dir raises where the directory above may not be searched)


def inside(path: Path) -> Path:
    """Return a path if it lies in its own folder once links are followed: for files that a user did not name.

    The cache of Hugging Face's hub is known: its ``snapshots/<revision>/config.json`` is a link into ``blobs``, which
    lies beside ``snapshots``.

    Raises:
        FormatError: it is a link to somewhere else.
    """
    folder, real = Path(os.path.realpath(path.parent)), Path(os.path.realpath(path))
    homes = [folder, *(above / "blobs" for above in itertools.islice(folder.parents, _BLOBS_ABOVE))]
    if not any(real.is_relative_to(home) for home in homes):
        raise FormatError(
            f"{shown(path)}: found a link that leads out of its folder, to {shown(real)}; expected the file itself; "
            "copy it there, or give the folder that it lies in"
        )
    return path


def check_size(found: int, expected: int, label: str) -> None:
    """Compare a file's size in bytes with what its header promises.

    Raises:
        FormatError: the file is truncated or padded; names both sizes and the difference.
    """
    if found != expected:
        what, by = ("truncated", "short") if found < expected else ("padded", "too long")
        raise FormatError(
            f"{label}: {what}: found {found} bytes, but its header promises {expected}: "
            f"{abs(found - expected)} bytes {by}; get the file again"
        )


def _advice(path: AnyPath, error: OSError) -> str:
    """What to do about a file that cannot be read: names on a hub and addresses are no paths."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "close some, or allow more (ulimit -n)"
    if error.errno == errno.EIO:
        return "check the disk that it is on"
    name = os.fspath(path)
    if isinstance(name, str) and not os.path.lexists(name):
        if _ADDRESS.match(name):
            return "addresses are fetched from Hugging Face's hub alone; download the file and give its path"
        if name.endswith(".gab"):
            return f"check the path; {WITHOUT_GAB}"
        if _HUB_NAME.fullmatch(name) and not os.path.lexists(name.split("/")[0]):
            return "where it is the name of a model on a hub, 'glinfer pull' fetches it"
    return "check the path and its permissions"


@contextlib.contextmanager
def opened(path: AnyPath) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file for reading; gives the open file and its size in bytes.

    Raises:
        FormatError: the file is missing or unreadable, is a directory, pipe or device, or reading it fails
            inside the ``with`` block.
    """
    name = Path(_usable(path))
    try:
        # Looked at before it is opened, because opening a pipe would wait for a writer.
        mode = name.stat().st_mode
        if not stat.S_ISREG(mode):
            raise FormatError(f"{shown(path)}: found {kind_of(mode)}; expected a regular file")
        with name.open("rb") as file:
            stamp = FileStamp.of(os.fstat(file.fileno()))
            files = _noted.get()
            if files is not None:
                files[os.path.abspath(name)] = stamp  # noqa: PTH100 (Path.resolve would follow links)
            yield file, stamp.size
    except OSError as error:
        raise FormatError(f"{shown(path)}: cannot read it: {reason(error)}; {_advice(path, error)}") from None


@contextlib.contextmanager
def work_folder(parent: Path, mode: int = 0o777) -> Iterator[Path]:
    """Make a folder for unfinished files in ``parent``, and remove it at the end, unless the block has renamed it.

    A process holds a lock on its folder until it ends, however it ends. Folders there that nobody holds are leftovers
    of killed processes, and are removed first.

    Raises:
        OSError: the folder cannot be made.
    """
    folder, held = parent / f".glinfer-{secrets.token_hex(8)}.tmp", -1
    _remove_leftovers(parent)
    try:
        while held < 0:  # another process may remove it before it is locked
            folder.mkdir(mode, exist_ok=True)
            held = _held(folder, wait=True)
        yield folder
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # again, in case the first one fails or a Ctrl-C comes before it
        if held > 0:
            os.close(held)


def _remove_leftovers(parent: Path) -> None:
    with contextlib.suppress(OSError):
        for name in filter(_WORK_FOLDER.fullmatch, os.listdir(parent)):  # noqa: PTH208
            if (held := _held(parent / name, wait=False)) > 0:
                shutil.rmtree(parent / name, ignore_errors=True)
                os.close(held)


def _held(folder: Path, *, wait: bool) -> int:
    """Lock a folder: the descriptor to close, -1 if it is another process's or gone, 0 where there are no locks."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return 0
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return -1
    try:
        fcntl.flock(place, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        if folder.is_dir():
            return place
        found = -1
    except OSError as error:  # some network file systems have no locks
        found = -1 if isinstance(error, BlockingIOError) else 0
    os.close(place)
    return found


@contextlib.contextmanager
def replacing(path: AnyPath) -> Iterator[Path]:
    """Write a file whole or not at all.

    Gives the path of a new, empty file to write to, in a :func:`work_folder` beside ``path``. When the block ends, it
    takes the place of ``path`` (keeping the permissions of a file that was there; a symbolic link stays one
    and its target is replaced). When the block fails in any way, Ctrl-C included, it is removed and ``path``
    stays as it was.

    Raises:
        FormatError: there is no such directory, it may not be written to, ``path`` is something other than a
            regular file, or the operating system reports an error inside the block (a full disk, say).
    """
    # Not Path.resolve, which raises its own kind of error for a link that points at itself.
    target = Path(os.path.realpath(_usable(path)))
    try:
        if target.exists() and not target.is_file():
            found = kind_of(target.stat().st_mode)
            raise FormatError(f"{shown(path)}: found {found}; expected a regular file to replace or a new name")
        with work_folder(target.parent) as folder:
            temporary = folder / target.name
            temporary.touch(exist_ok=False)  # the mode of a new file follows the umask
            if target.exists():
                shutil.copymode(target, temporary)
            mode = stat.S_IMODE(temporary.stat().st_mode)
            yield temporary
            temporary.chmod(mode)  # libraries that write a file anew give it permissions of their own
            temporary.replace(target)
    except OSError as error:
        raise FormatError(
            f"{shown(path)}: cannot write it: {reason(error)}; check the directory, its permissions and the free space"
        ) from None
