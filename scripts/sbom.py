"""Writes what release files consist of, as SPDX 2.3: scripts/sbom.py VERSION EPOCH FILE... >sbom.spdx.json

What is not ours comes from the pins: DuckDB and the page's packages by npm's hashes, GCC's libraries by the hash of the
wheel that they are taken from. The same files give the same text.
"""
import base64
import hashlib
import json
import re
import sys
from datetime import datetime, timezone
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent


def checksum(integrity):
    """npm's "sha512-BASE64" as SPDX has it."""
    kind, value = integrity.split("-", 1)
    return {"algorithm": kind.upper(), "checksumValue": base64.b64decode(value).hex()}


def package(name, version, licence, purl, checksums):
    return {"SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{name}-{version}"), "name": name,
            "versionInfo": version, "downloadLocation": "NOASSERTION", "licenseConcluded": licence,
            "licenseDeclared": licence, "copyrightText": "NOASSERTION", "filesAnalyzed": False, "checksums": checksums,
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": purl}]}


def taken_in():
    for line in (TOP / "requirements/duckdb.npm").read_text().splitlines():
        machine, *rest = line.split()
        if machine not in ("#", "any"):
            name, version, integrity, _ = rest
            yield package(name, version, "MIT", f"pkg:npm/{name.replace('@', '%40')}@{version}", [checksum(integrity)])
    for line in (TOP / "requirements/musl.txt").read_text().splitlines():
        found = re.match(r"(kiwisolver)==(\S+) --hash=sha256:(\w+) # (\S+)", line)
        if found:
            name, version, value, machine = found.groups()
            yield package(f"gcc-libraries-musl-{machine}", version, "GPL-3.0-or-later WITH GCC-exception-3.1",
                          f"pkg:pypi/{name}@{version}", [{"algorithm": "SHA256", "checksumValue": value}])
    lock = json.loads((TOP / "web/package-lock.json").read_text())
    for path, each in sorted(lock["packages"].items()):
        if path and not each.get("dev") and not each.get("devOptional"):
            name = path.split("node_modules/")[-1]
            yield package(name, each["version"], each.get("license", "NOASSERTION"),
                          f"pkg:npm/{name.replace('@', '%40')}@{each['version']}", [checksum(each["integrity"])])


def main(version, epoch, *files):
    own = package("probing", version, "Apache-2.0", f"pkg:pypi/probing@{version}", [])
    del own["checksums"]
    others = list(taken_in())
    digests = {Path(file).name: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in sorted(files)}
    listed = [{"SPDXID": "SPDXRef-File-" + re.sub(r"[^A-Za-z0-9.-]", "-", name), "fileName": "./" + name,
               "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION",
               "checksums": [{"algorithm": "SHA256", "checksumValue": digest}]} for name, digest in digests.items()]
    whole = hashlib.sha256("".join(digests.values()).encode()).hexdigest()
    ties = [("SPDXRef-DOCUMENT", "DESCRIBES", own["SPDXID"])]
    ties += [(each["SPDXID"], "GENERATED_FROM", own["SPDXID"]) for each in listed]
    ties += [(own["SPDXID"], "CONTAINS", each["SPDXID"]) for each in others]
    json.dump({"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
               "name": f"probing-{version}", "documentNamespace": f"urn:sha256:{whole}",
               "creationInfo": {"creators": ["Tool: probing-sbom"],
                                "created": datetime.fromtimestamp(int(epoch), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")},
               "packages": [own, *others], "files": listed,
               "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
                                 for a, kind, b in ties]}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit("usage: scripts/sbom.py VERSION EPOCH FILE...")
    main(*sys.argv[1:])
