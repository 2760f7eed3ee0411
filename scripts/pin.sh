#!/bin/sh
# Rewrites requirements/*.txt from requirements/*.in: newest versions that fit, for Python 3.9 and later, each with the
# hashes of all its files. Run it by hand to move to newer versions; it needs uv, which it takes from a throw-away
# environment. torch is pinned by pip instead: its CPU build comes from whichever index the machine has for it.
set -eu
cd "$(dirname "$0")/.."

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q uv

head_line() {
    echo "# Written by scripts/pin.sh from requirements/$1.in: versions and hashes of what setup may install."
}

for set in build cmake node test sql bench wheel harm debugpy docs; do
    "$tmp/venv/bin/uv" pip compile -q --universal --python-version 3.9 --upgrade --generate-hashes \
        --no-header --no-annotate "requirements/$set.in" -o "$tmp/$set.txt"
    { head_line $set; cat "$tmp/$set.txt"; } >requirements/$set.txt
done

# Beside the packages of the tests, and the third beside the second, whose versions they have to take.
"$tmp/venv/bin/uv" pip compile -q --universal --python-version 3.10 --generate-hashes --no-header --no-annotate \
    -c requirements/test.txt requirements/clients.in -o "$tmp/clients.txt"
{ head_line clients; cat "$tmp/clients.txt"; } >requirements/clients.txt

"$tmp/venv/bin/uv" pip compile -q --universal --python-version 3.10 --generate-hashes --no-header --no-annotate \
    -c requirements/test.txt -c requirements/clients.txt requirements/soak.in -o "$tmp/soak.txt"
{ head_line soak; cat "$tmp/soak.txt"; } >requirements/soak.txt

# torch is there already, the CPU build: what its CUDA build wants is left out.
"$tmp/venv/bin/uv" pip compile -q --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-package torch \
    -c requirements/test.txt -c requirements/clients.txt requirements/frameworks.in -o "$tmp/frameworks.txt"
{
    head_line frameworks
    awk '/^[a-z]/ { out = /^(nvidia|cuda|triton)/ } !out' "$tmp/frameworks.txt"
} >requirements/frameworks.txt

python3.11 -m pip download -q -r requirements/torch.in -d "$tmp/torch"
{
    head_line torch
    for wheel in "$tmp"/torch/*.whl; do
        name=$(basename "$wheel" | cut -d- -f1 | tr _ -)
        version=$(basename "$wheel" | cut -d- -f2)
        printf '%s==%s \\\n    --hash=sha256:%s\n' "$name" "$version" "$(sha256sum "$wheel" | cut -d' ' -f1)"
    done
} >requirements/torch.txt
