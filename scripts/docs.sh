#!/bin/sh
# Builds the pages of docs/ as a site in build/site: scripts/docs.sh. A broken link is an error.
# MkDocs and its theme go into an environment of their own, build/docs, pinned in requirements/docs.txt.
set -eu
cd "$(dirname "$0")/.."
venv=build/docs
if ! cmp -s requirements/docs.txt $venv/installed; then
    python=$(command -v python3.11 || command -v python3) || { echo "docs: no python3 was found" >&2 && exit 1; }
    echo "docs: installing requirements/docs.txt into $venv"
    rm -rf $venv
    mkdir -p build
    "$python" -m venv $venv || { echo "docs: install python3-venv" >&2 && exit 1; }
    $venv/bin/python -m pip install -q --disable-pip-version-check --no-input --only-binary :all: --require-hashes -r requirements/docs.txt
    cp requirements/docs.txt $venv/installed
fi
NO_MKDOCS_2_WARNING=1 $venv/bin/python -m mkdocs build --quiet --strict
echo "docs: open $PWD/build/site/index.html; search works behind a server: python3 -m http.server -d build/site"
