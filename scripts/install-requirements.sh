#!/usr/bin/env bash
# Installs a list of requirements into a virtual environment:
#
#   scripts/install-requirements.sh VENV LIST
#
# uv is quicker with the long list of the tests. It reads none of pip's settings, so pip installs the list where
# they name another index, and where uv fails.
set -euo pipefail

python=$1/bin/python
list=$2
pip=("$python" -m pip install --quiet --disable-pip-version-check --no-input --no-compile)

if ! [[ $("$python" -m pip config list) =~ \.(index-url|extra-index-url|no-index|proxy)= ]]; then
  # In a folder of its own: pip builds the package in the environment at the same time.
  "${pip[@]}" --upgrade --target "$1/uv" uv==0.13.9 &&
    "$1/uv/bin/uv" pip install --quiet --python "$python" -r "$list" && exit
  echo "uv did not install $list; pip is tried." >&2
fi
"${pip[@]}" -r "$list"
