"""Files of every format: paths in messages, safe opening, and atomic writing."""

from __future__ import annotations

import codecs
import contextlib
import errno
import itertools
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, NamedTuple

from glinfer.errors import ConfigError, FormatError, InputError

_BLOBS_ABOVE = 3  # most levels above a model's folder at which Hugging Face's hub cache has ``blobs``
_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")  # pathlib collapses two slashes into one
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
AnyPath = str | os.PathLike[str]
WITHOUT_GAB = (
    "Gab's files come from https://github.com/gszauer/Gab, and glinfer cannot fetch them; "
    "without them use shakespeare, a bundled model of Gab's architecture"
)
"""The advice for missing Gab weights."""

WORK_FOLDER = re.compile(r"\.glinfer-[0-9a-f]{16}\.tmp")
"""The names of folders of :func:`work_folder`, which stay if their process is killed."""

GAB1_MAGIC = 0x47414231
"""The first little-endian u32 of a GAB1 checkpoint."""

BPE1_MAGIC = 0x42504531
"""The first little-endian u32 of a BPE1 tokenizer."""


class FileStamp(NamedTuple):
    """The size in bytes and the modification time in nanoseconds, which differ if a file has changed."""

    size: int
    written: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileStamp:
        """The stamp of a file with this status."""
        return cls(status.st_size, status.st_mtime_ns)


_noted: ContextVar[dict[str, FileStamp] | None] = ContextVar("noted", default=None)


@contextlib.contextmanager
def noted_files() -> Iterator[dict[str, FileStamp]]:
    """Record the stamps of all files that :func:`opened` opens within the block, by absolute path."""
    files: dict[str, FileStamp] = {}
    token = _noted.set(files)
    try:
        yield files
    finally:
        _noted.reset(token)


unpacked_from: dict[str, str] = {}
"""The zip file of each folder that models are unpacked to; messages name the file."""


def shown(path: AnyPath) -> str:
    """A path for a message, quoted if it has line breaks or characters that do not print."""
    text = os.fspath(path)
    for folder, packed in list(unpacked_from.items()):  # other threads may unpack
        if text == folder or text.startswith(f"{folder}{os.sep}"):
            text = f"{packed}{text[len(folder) :]}"
    return text if text and text.isprintable() else ascii(text)


def reason(error: OSError) -> str:
    """The operating system's message for an error, on one line, without number and path."""
    return " ".join((error.strerror or str(error) or type(error).__name__).split())


def words_of(error: object, most: int = 300) -> str:
    """The message of a library's error: on one line, printable, and at most ``most`` characters."""
    text = " ".join(str(error).split())
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return text if text.isprintable() else ascii(text)[:most]


def decode_text(data: bytes, source: str, expected: str = "text") -> str:
    """Decode a user's UTF-8 text; drop a byte-order mark at its start, and convert CR LF to LF."""
    zeros = [byte == 0 for byte in data[:4]]
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or zeros in ([False, True] * 2, [True, False] * 2):
        raise InputError(
            f"{source} is UTF-16, as '>' of Windows PowerShell writes it; expected {expected}; save it as UTF-8"
        )
    try:
        return data.decode().removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is not UTF-8 (byte {error.start}); expected {expected}; save it as UTF-8") from None


_DEVICES = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(?:\..*)?", re.IGNORECASE)
_FORBIDDEN = frozenset('<>:"|?*\\')
_MOST_PARTS, _LONGEST_PART, _LONGEST_PATH = 16, 200, 500


def is_plain_path(path: str) -> bool:
    """Whether a path from a repository or a zip file stays below its folder on every operating system."""
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
    """Refuse values that are not a str or a path, and empty ones, which pathlib reads as the current folder."""
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise InputError(f"{what} is {type(path).__name__}; expected a path, as a str or a pathlib.Path")
    if not os.fspath(path):
        raise InputError(f"{what} is empty; expected a path")


def ending_found(path: AnyPath) -> str:
    """What errors say of the ending of a name."""
    suffix = Path(path).suffix
    return f"the name ends in {suffix!r}" if suffix else "the name has no ending"


def check_ending(path: AnyPath) -> str:
    """The ending of a file to write, in lower case; InputError unless it is ``.gab``, ``.safetensors`` or ``.gguf``."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".gab", ".safetensors", ".gguf"):
        raise InputError(f"{shown(path)}: {ending_found(path)}; expected .gab, .safetensors or .gguf")
    return suffix


def _usable(path: AnyPath) -> str:
    """A path as text, if a file can have that name."""
    text = os.fspath(path)
    try:
        if b"\0" not in os.fsencode(text):
            return text
    except UnicodeEncodeError:
        pass
    raise FormatError(f"{shown(path)}: no file can have this name; expected a path without such characters")


def cache_folder() -> Path:
    """The folder for glinfer's own files: $GLINFER_CACHE, else ``glinfer`` in $XDG_CACHE_HOME or in ~/.cache."""
    own = os.environ.get("GLINFER_CACHE")
    if own:
        return Path(own)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glinfer"
    except RuntimeError:
        raise InputError("this user has no home directory to keep files in; set XDG_CACHE_HOME") from None


def memory_folder(part: str) -> Path | None:
    """A folder for data that glinfer keeps between runs: ``part`` of :func:`cache_folder`.

    None if there is no cache folder, or if GLINFER_CACHE is set but empty, which turns it off.
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
    """Whether ``path`` is a directory; False on errors, which opening the path then reports."""
    return os.path.isdir(path)  # noqa: PTH112 (Path.is_dir raises where the directory above may not be searched)


def inside(path: Path) -> Path:
    """Return a path that stays in its folder when links are resolved; for files that the user did not name.

    Hugging Face's hub cache is allowed: ``snapshots/<revision>/config.json`` links into ``blobs``, next to
    ``snapshots``.

    Raises:
        FormatError: the path is a link that leads elsewhere.
    """
    folder, real = Path(os.path.realpath(path.parent)), Path(os.path.realpath(path))
    homes = [folder, *(above / "blobs" for above in itertools.islice(folder.parents, _BLOBS_ABOVE))]
    if not any(real.is_relative_to(home) for home in homes):
        raise FormatError(
            f"{shown(path)}: found a link that leads out of its folder, to {shown(real)}; expected the file itself; "
            "copy it there, or give the folder that contains it"
        )
    return path


def check_size(found: int, expected: int, label: str, promise: str = "its header promises") -> None:
    """Compare a file's size in bytes with a promise; the error names both, and the difference."""
    if found != expected:
        what, by = ("truncated", "short") if found < expected else ("padded", "too long")
        raise FormatError(
            f"{label}: {what}: found {found} bytes, but {promise} {expected}: {abs(found - expected)} bytes {by}; "
            "get the file again"
        )


def unread(path: AnyPath, error: OSError) -> str:
    """The message for a file that cannot be read, with advice; its path may be a hub name or an address."""
    return f"{shown(path)}: cannot read it: {reason(error)}; {_advice(path, error)}"


def _advice(path: AnyPath, error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "close some files, or raise the limit (ulimit -n)"
    if error.errno == errno.ENOMEM:
        return "end other processes, or raise this one's memory limit (ulimit -v)"
    if error.errno == errno.EIO:
        return "check the disk that it is on"
    name = os.fspath(path)
    if isinstance(name, str) and not os.path.lexists(name):
        if _ADDRESS.match(name):
            return "only addresses of Hugging Face's hub can be fetched; download the file and give its path"
        if name.endswith(".gab"):
            return f"check the path; {WITHOUT_GAB}"
        if _HUB_NAME.fullmatch(name) and not os.path.lexists(name.split("/")[0]):
            return "if it is the name of a model on a hub, 'glinfer pull' downloads it"
    return "check the path and its permissions"


@contextlib.contextmanager
def opened(path: AnyPath) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file for reading; yields the open file and its size in bytes.

    Raises:
        FormatError: the file is missing or unreadable, is a directory, pipe or device, or reading it fails
            inside the ``with`` block.
    """
    name = Path(_usable(path))
    try:
        # Checked before opening, because opening a pipe would wait for a writer.
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
        raise FormatError(unread(path, error)) from None


def read_whole(path: AnyPath, most: int, what: str) -> bytes:
    """The bytes of a regular file of at most ``most`` bytes; ``what`` names its contents in the error.

    Raises:
        FormatError: the file cannot be read, or has more bytes.
    """
    with opened(path) as (file, size):
        data = file.read(min(size, most) + 1)  # read() allocates its argument at once
    if len(data) > most:
        found = f"found {what} of {max(size, len(data))} bytes"
        raise FormatError(f"{shown(path)}: {found}, which exceeds the limit of {most}")
    return data


@contextlib.contextmanager
def work_folder(parent: Path, mode: int = 0o777) -> Iterator[Path]:
    """Create a folder for unfinished files in ``parent``, and remove it at the end unless the block renamed it.

    A process locks its folder until it exits. Unlocked folders are leftovers of killed processes, and are removed
    first.
    """
    folder, held = parent / f".glinfer-{os.urandom(8).hex()}.tmp", -1
    _remove_leftovers(parent)
    try:
        while held < 0:  # another process may remove it before it is locked
            folder.mkdir(mode, exist_ok=True)
            held = _held(folder, wait=True)
        yield folder
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # again, in case Ctrl-C interrupted the first call
        if held > 0:
            os.close(held)


def _remove_leftovers(parent: Path) -> None:
    with contextlib.suppress(OSError):
        for name in filter(WORK_FOLDER.fullmatch, os.listdir(parent)):  # noqa: PTH208
            if (held := _held(parent / name, wait=False)) > 0:
                shutil.rmtree(parent / name, ignore_errors=True)
                os.close(held)


def _held(folder: Path, *, wait: bool) -> int:
    """Lock a folder: its descriptor, -1 if another process holds it or it is gone, 0 without lock support."""
    if not hasattr(os, "O_DIRECTORY"):  # not on Windows
        return 0
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return -1
    locked = lock(descriptor, wait=wait)
    if locked and folder.is_dir():
        return descriptor
    os.close(descriptor)
    return 0 if locked is None else -1


def lock(descriptor: int, *, wait: bool = False) -> bool | None:
    """Lock an open file or folder by its descriptor, until it is closed.

    Returns:
        False if another process holds the lock; None if the system or the file system has no locks.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # some network file systems have no locks
        return None
    return True


@contextlib.contextmanager
def described_by(what: str, kind: str = "model") -> Iterator[None]:
    """Turn a ConfigError within the block into a FormatError: ``what`` describes no possible ``kind``."""
    try:
        yield
    except ConfigError as error:
        raise FormatError(f"{what} describes no possible {kind}: {error}") from None


@contextlib.contextmanager
def writing(path: AnyPath, advice: str = "check the free space and the permissions") -> Iterator[None]:
    """Turn errors of the operating system within the block into a FormatError in one line that ends with ``advice``."""
    try:
        yield
    except OSError as error:
        raise FormatError(f"{shown(path)}: cannot write it: {reason(error)}; {advice}") from None


@contextlib.contextmanager
def replacing(path: AnyPath) -> Iterator[Path]:
    """Write a file atomically.

    Yields the path of a new, empty file in a :func:`work_folder` next to ``path``. When the block ends, that file
    replaces ``path`` and keeps the permissions of the old file; a symbolic link stays, and its target is replaced. If
    the block fails or Ctrl-C interrupts it, the new file is removed and ``path`` is unchanged.

    Raises:
        FormatError: the directory is missing or not writable, ``path`` is not a regular file, or the operating system
            reports an error inside the block, such as a full disk.
    """
    # Not Path.resolve, which raises its own kind of error for a link that points at itself.
    target = Path(os.path.realpath(_usable(path)))
    with writing(path, "check the directory, its permissions and the free space"):
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
            temporary.chmod(mode)  # libraries that recreate the file reset its permissions
            temporary.replace(target)
