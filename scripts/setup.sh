#!/usr/bin/env bash
# Make this checkout ready: the OpenGL ES libraries, the virtual environment .venv, and glinfer installed in it.
#
#   scripts/setup.sh run     what `make demo` needs
#   scripts/setup.sh dev     that, and the tools that `make test` needs
#
# PYTHON=/path/to/python3.12 picks the interpreter. Run it as often as you like: what is in place is left alone.
# Exit status: 0 when ready, 1 when a download or an installation failed (its own output is shown),
# 2 when something is missing that you have to provide (the line to run is printed).
set -euo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv
readonly STAMP=$VENV/.glinfer-setup
readonly GL_PACKAGES=(libegl1 libgles2 libgl1-mesa-dri)
APT=(apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=1 -o Acquire::http::Timeout=20)

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 2; }

# Run a command silently; show all that it said when it fails.
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

# Sets python and version. The base interpreter is taken, so that an activated .venv can be replaced from itself.
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

# Is .venv usable? It runs, has pip, was made here (scripts in it carry this path) and is of the version asked for.
venv_is_good() {
    local found made_for='' made_in=''
    found=$("$VENV/bin/python" -I -c 'import pip' 2>/dev/null && version_of "$VENV/bin/python") || return 1
    if [ -n "${PYTHON:-}" ] && [ "$found" != "$version" ]; then return 1; fi
    if [ -f "$STAMP" ]; then
        { read -r _ && read -r made_for && read -r made_in; } <"$STAMP" || return 1
        [ "$made_for" = "$found" ] && [ "$made_in" = "$PWD" ] || return 1
    fi
}

# May this user install packages? Sets as_root to what has to stand before the command.
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
    # A third-party source that is down makes the update fail, and need not matter: the installation decides.
    quietly "${as_root[@]}" DEBIAN_FRONTEND=noninteractive "${APT[@]}" update || true
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

# Bring in the system packages that are missing, given the interpreter that looks for them.
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

    # Beside a GPU's working driver Mesa is welcome, not needed: it is tried at the first set-up only.
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

# Install the package unless the stamp says that it was done: for this pyproject.toml, in this mode or a larger one.
install_package() {
    local mode=$1 key done_mode='' done_key='' what=.
    key=$(cksum <pyproject.toml)
    if [ -f "$STAMP" ] && [ -x "$VENV/bin/glinfer" ]; then
        { read -r done_mode && read -r _ && read -r _ && read -r done_key; } <"$STAMP" || done_key=''
        if [ "$done_key" = "$key" ] && { [ "$done_mode" = "$mode" ] || [ "$done_mode" = dev ]; }; then return; fi
        # Once a developer's environment, always one: a changed pyproject.toml must not leave its tools behind.
        if [ "$done_mode" = dev ]; then mode=dev; fi
    fi
    if [ "$mode" = dev ]; then what='.[dev]'; fi
    say "installing glinfer into $VENV (pip install -e $what)"
    rm -f "$STAMP"
    quietly "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -e "$what" ||
        { say "pip could not install glinfer; its own message is above"; exit 1; }
    printf '%s\n' "$mode" "$(version_of "$VENV/bin/python")" "$PWD" "$key" >"$STAMP"
}

main() {
    case "${1:-}" in
        run | dev) ;;
        *) fail "got '${1:-}'; expected: scripts/setup.sh run, or scripts/setup.sh dev" ;;
    esac
    python='' version=''
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
}

main "$@"
