#!/usr/bin/env bash
# Run the fast tests of the rooms that the given files belong to: scripts/test_changed.sh glinfer/gl/texture.py
# The pre-commit hook calls it with the files of a commit; paths are relative to the checkout.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

declare -A rooms=()
for file in "$@"; do
    case $file in
        qa/*) found=(qa/tests) ;;
        shaders/*) found=(tests/kernels tests/tensors) ;;
        glinfer/families/* | glinfer/graph/* | glinfer/lower/* | glinfer/program/*) found=(tests/models) ;;
        glinfer/ray/*) found=(tests/jobs) ;;
        glinfer/*/* | tests/*/*) found=("tests/$(cut -d/ -f2 <<<"$file")") ;;
        *) found=(tests/package) ;;
    esac
    for room in "${found[@]}"; do
        if compgen -G "$room/test_*.py" >/dev/null; then rooms[$room]=yes; fi
    done
done
if [ ${#rooms[@]} -eq 0 ]; then exit 0; fi
exec .venv/bin/python -m pytest -q "${!rooms[@]}"
