"""Environments with another system's OpenGL: its packages in a folder, and this Python on that system's C library.

apt-get fetches a driver's packages with all that they need, the C library too, with lists and signatures of its own,
and dpkg-deb unpacks them; nothing is installed and no script of a package is run. The loader among them then starts
this Python with those libraries, see :func:`launcher`. That works without root and without a container, since a program
runs with every C library that is newer than the one that it was built with.
"""

from __future__ import annotations

import json
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from qa.steps import ROOT, run

CACHE = ROOT / ".cache" / "renderers"
"""Where environments are kept; 300 MB each."""
PACKAGES = ("libegl1", "libgles2", "libgl1", "libegl-mesa0", "libgl1-mesa-dri", "mesa-vulkan-drivers", "libvulkan1")
"""Mesa with llvmpipe, softpipe and zink, and lavapipe below that; the rest comes as dependencies."""

_KEYS = Path("usr/share/keyrings")


class MissingError(Exception):
    """An environment cannot be made here; the message is one line with what is missing and how to get it."""


@dataclass(frozen=True)
class System:
    """A release of a distribution, whose packages become an environment.

    Attributes:
        name: of the folder, and of the release.
        title: for people.
        address: where the distribution has its packages.
        components: of its packages, as in a sources.list.
        keyring: file name of the keys that sign it.
        keys_from: the system that has a package with these keys; None for the one that is here.
        further: packages beside :data:`PACKAGES`.
    """

    name: str
    title: str
    address: str
    components: str
    keyring: str
    keys_from: System | None = None
    further: tuple[str, ...] = ()


def _debian(name: str, title: str, *further: str) -> System:
    address = "http://deb.debian.org/debian"
    return System(name, title, address, "main", "debian-archive-keyring.gpg", None, further)


BOOKWORM = _debian("bookworm", "Debian 12")
TRIXIE = _debian("trixie", "Debian 13", "ubuntu-archive-keyring")
SID = _debian("sid", "Debian unstable")
_UBUNTU = "http://archive.ubuntu.com/ubuntu"
RESOLUTE = System("resolute", "Ubuntu 26.04", _UBUNTU, "main universe", "ubuntu-archive-keyring.gpg", TRIXIE)


def make(system: System) -> Path:
    """The folder of an environment, made when it is first asked for.

    Raises:
        MissingError: what makes it is missing.
        StepError: packages could not be fetched or unpacked.
    """
    root, folder = CACHE / system.name / "root", CACHE / system.name
    if root.is_dir():
        return root
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise MissingError(f"{tool} is missing, which unpacks {system.title}; use Debian or Ubuntu")
    keys = _keys(system)
    apt = folder / "apt"
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True)
    (apt / "status").touch()  # of a system that has nothing, so that all dependencies come too
    source = f"deb [signed-by={keys}] {system.address} {system.name} {system.components}\n"
    (apt / "sources.list").write_text(source, "utf-8")
    options = {
        "Dir::State::Lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Etc::SourceList": apt / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Cache": apt / "cache",
        "Debug::NoLocking": "1",
        "Acquire::Languages": "none",
        "APT::Update::Error-Mode": "any",
        "APT::Sandbox::User": "root",
    }
    apt_get = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    run(*apt_get, "update")
    chosen = (*PACKAGES, *system.further)
    run(*apt_get, "install", "--yes", "--no-install-recommends", "--download-only", *chosen)
    part = folder / "part"
    for package in sorted((apt / "cache" / "archives").glob("*.deb")):
        run("dpkg-deb", "-x", package, part)
    shutil.rmtree(apt)
    part.rename(root)
    return root


def _keys(system: System) -> Path:
    here = Path("/") / _KEYS / system.keyring
    if here.is_file():
        return here
    if system.keys_from is None:
        name = system.keyring.removesuffix(".gpg")
        raise MissingError(f"the keys of {system.title} are missing; install them with: sudo apt-get install {name}")
    return make(system.keys_from) / _KEYS / system.keyring


def triple() -> str:
    """What Debian calls the folder of this processor's libraries, such as ``x86_64-linux-gnu``."""
    return f"{platform.machine()}-linux-gnu"


def libraries(root: Path) -> list[Path]:
    """The folders of libraries of an environment."""
    return [folder for name in ("usr/lib", "lib") if (folder := root / name / triple()).is_dir()]


def launcher(root: Path) -> list[str]:
    """The beginning of a command that runs this Python with the libraries of an environment.

    Raises:
        MissingError: the environment has no loader for this processor.
    """
    folders = libraries(root)
    loader = next((found for folder in folders for found in sorted(folder.glob("ld-linux*.so.*"))), None)
    if loader is None:
        raise MissingError(f"{root} has no loader; remove it, and it is made anew")
    own = [str(folder) for folder in folders]
    path = ":".join([*own, *(str(Path("/") / folder.relative_to(root)) for folder in folders)])
    return [str(loader), "--inhibit-cache", "--library-path", path, "--argv0", sys.executable, sys.executable]


def variables(root: Path) -> dict[str, str]:
    """Environment variables by which the parts of an environment's Mesa find each other, not the system's."""
    drivers = [str(folder / "dri") for folder in libraries(root)]
    vulkan = CACHE / f"lavapipe-{root.parent.name}.json"
    library = next((found for folder in libraries(root) for found in folder.glob("libvulkan_lvp.so")), None)
    if library is not None:  # some releases name it by a path of the whole system
        driver = {"library_path": str(library), "api_version": "1.1.0"}
        vulkan.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": driver}), "utf-8")
    return {
        "__EGL_VENDOR_LIBRARY_FILENAMES": str(root / "usr/share/glvnd/egl_vendor.d/50_mesa.json"),
        "LIBGL_DRIVERS_PATH": ":".join(drivers),
        "VK_DRIVER_FILES": str(vulkan),
        "VK_ICD_FILENAMES": str(vulkan),  # the older name
        "MESA_SHADER_CACHE_DIR": str(root.parent / "shaders"),
        "LIBGL_ALWAYS_SOFTWARE": "1",
    }
