#!/usr/bin/env bash
# Install the requirements of `make test-web` besides .venv: Chromium (Debian's package), and the npm packages of web/
# without the optional ones, which `python -m qa bench-web` compares with. Installed ones stay. If one cannot be
# installed, the line to run is printed, the tests that need it skip, and the exit status is 0.
# It is 1 where package-lock.json does not match package.json. `setup_web.sh packages` skips the browser.
set -euo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

readonly NODE_LEAST=20.19
APT=(apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=1 -o Acquire::http::Timeout=20)

say() { printf 'setup: %s\n' "$*" >&2; }

# Run a command silently; show the end of its output when it fails.
quietly() {
    local log status=0
    log=$(mktemp)
    "$@" >"$log" 2>&1 || status=$?
    if [ "$status" -ne 0 ]; then tail -n 20 "$log" >&2; fi
    rm -f "$log"
    return "$status"
}

# May this user install packages? Sets as_root to the prefix of the command.
may_install() {
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" -eq 0 ]; then
        as_root=(env)
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        as_root=(sudo -n env)
    else
        return 1
    fi
}

has_browser() {
    local name
    for name in "${GLINFER_CHROMIUM:-}" chromium chromium-browser google-chrome; do
        if [ -n "$name" ] && command -v "$name" >/dev/null; then return; fi
    done
    return 1
}

install_browser() {
    local line='apt-get update && apt-get install -y --no-install-recommends chromium'
    if has_browser; then return; fi
    if may_install; then
        say "installing chromium with apt-get"
        quietly "${as_root[@]}" DEBIAN_FRONTEND=noninteractive "${APT[@]}" update || true
        if quietly "${as_root[@]}" DEBIAN_FRONTEND=noninteractive "${APT[@]}" install -y --no-install-recommends chromium &&
            has_browser; then return; fi
    fi
    if [ "$(id -u)" -ne 0 ]; then line=${line//apt-get/sudo apt-get}; fi
    say "there is no Chromium, so that the browser tests skip; run this line, or name one with GLINFER_CHROMIUM: $line"
}

is_new_enough() { [ "$(printf '%s\n' "$NODE_LEAST" "$1" | sort -V | head -n 1)" = "$NODE_LEAST" ]; }

node_is_good() {
    command -v npm >/dev/null && command -v node >/dev/null && is_new_enough "$(node -p process.versions.node)"
}

# The system's own Node.js, where that is new enough: Debian 12 has an older one, Debian 13 does not.
install_node() {
    local offered
    if node_is_good || ! may_install; then return; fi
    offered=$(apt-cache policy nodejs 2>/dev/null | sed -n 's/^  Candidate: \([0-9.]*\).*/\1/p')
    if [ -z "$offered" ] || ! is_new_enough "$offered"; then return; fi
    say "installing nodejs and npm with apt-get"
    quietly "${as_root[@]}" DEBIAN_FRONTEND=noninteractive "${APT[@]}" install -y --no-install-recommends nodejs npm || true
}

install_packages() {
    local folder=$1
    # npm keeps a copy of the lock file that it installed.
    if [ "$folder/node_modules/.package-lock.json" -nt "$folder/package-lock.json" ]; then return; fi
    if ! (cd -- "$folder" && npm ci --dry-run --offline --ignore-scripts --no-audit --no-fund) >/dev/null 2>&1; then
        say "$folder/package-lock.json is not that of package.json; run: npm install --package-lock-only --prefix $folder"
        exit 1
    fi
    say "installing the npm packages of $folder"
    if ! (cd -- "$folder" && quietly npm ci --omit=optional --ignore-scripts --no-audit --no-fund); then
        rm -rf -- "${folder:?}/node_modules"
        say "npm could not install them, so that what needs them is left out; try this line: (cd $folder && npm ci)"
    fi
}

main() {
    if [ "${1:-}" != packages ]; then install_browser; fi
    install_node
    if node_is_good; then
        install_packages web
    else
        say "there is no Node.js $NODE_LEAST or newer with npm, so that all tests of the web page skip;" \
            "install one"
    fi
}

main "$@"
