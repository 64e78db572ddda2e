#!/bin/sh
# Makes the environment of one image: install.sh ROLE FOLDER, from the repository's root, with uv on the PATH. The Dockerfile
# and images/environment.py both run it, so what is tested is what is shipped.
set -eu
role=$1
target=$2
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
uv venv --quiet --python "${PYTHON:-python3}" --no-project "$target"
uv pip install --quiet --python "$target/bin/python" --require-hashes --requirement "images/locks/$role.txt"
uv build --quiet --wheel --build-constraints images/locks/build.txt --require-hashes --out-dir "$wheels"
uv pip install --quiet --python "$target/bin/python" --no-deps "$wheels"/trimtab-*.whl
