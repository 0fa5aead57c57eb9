#!/usr/bin/env bash
# Checks all pages on another PyTorch than the one to which they are pinned, in an environment that is removed again:
# a number, such as 2.14.1, or `newest`. Exits as the check does, and leaves alone the runs that the checkout keeps.
set -euo pipefail
if [[ $# -ne 1 || ! $1 =~ ^(newest|[0-9]+(\.[0-9]+)*)$ ]]; then
    echo "version is \"$*\"; give one: bash tests/pages_on.sh 2.14.1, or bash tests/pages_on.sh newest" >&2
    exit 2
fi
[[ $1 == newest ]] && torch=torch || torch="torch==$1"
cd "$(dirname "$0")/.."
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT

python3 -m venv "$venv"
"$venv/bin/pip" install --quiet -e "src/proofread[mkdocs]" -e ".[docs]"
"$venv/bin/pip" install --quiet --upgrade "$torch" # past the pin, which holds for one command alone
"$venv/bin/python" -c 'import torch; print("PyTorch", torch.__version__)'
"$venv/bin/proofread" check --no-cache
