#!/usr/bin/env python3
"""Writes a bill of materials of an installed tree: an SPDX document in JSON.

    sbom.py TREE VERSION OUTPUT [PACKAGE...]

TREE is what `cmake --install` wrote. The document lists the libraries that its programs load, with the distribution's package, version and
digest of each, and the packages named by PACKAGE, whose code is compiled into the programs: the distribution's, or NAME==VERSION of PyPI.
"""

import hashlib
import json
import pathlib
import re
import subprocess
import sys

CREATED = "1970-01-01T00:00:00Z"  # equal inputs give equal documents


def output_of(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout if done.returncode == 0 else ""


def loaded_libraries(tree):
    """The paths of the shared libraries that the programs load."""
    found = set()
    for program in sorted((tree / "bin").iterdir()):
        found.update(re.findall(r"=> (/\S+) \(", output_of("ldd", str(program))))
    return sorted(found)


def package_of(path):
    """The distribution's package of a file. Packages list a file by the path before or after links of folders."""
    for name in (path, str(pathlib.Path(path).resolve()), path.replace("/lib/", "/usr/lib/", 1), path.replace("/usr/lib/", "/lib/", 1)):
        if found := output_of("dpkg-query", "-S", name):
            return found.split(":")[0]
    return None


def described(name, how, path=None):
    """A package of the document."""
    name, _, pypi = name.partition("==")
    version = pypi or output_of("dpkg-query", "-W", "-f", "${Version}", name).strip() or "NOASSERTION"
    item = {"name": name, "SPDXID": "SPDXRef-" + re.sub("[^A-Za-z0-9.-]", "-", name), "versionInfo": version, "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, "comment": how}
    if version != "NOASSERTION":
        item["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                                 "referenceLocator": f"pkg:{'pypi' if pypi else 'deb/debian'}/{name}@{version}"}]
    if path:
        item["checksums"] = [{"algorithm": "SHA256", "checksumValue": hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()}]
    return item


def document(tree, version, compiled):
    packages = {}
    for path in loaded_libraries(tree):
        name = package_of(path) or pathlib.Path(path).name
        if name not in packages:
            packages[name] = described(name, "loaded by the programs", path)
    for name in compiled:
        if name not in packages:
            packages[name] = described(name, "compiled into the programs")
    own = {"name": "shardc", "SPDXID": "SPDXRef-shardc", "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
           "licenseDeclared": "Apache-2.0"}
    items = [packages[name] for name in sorted(packages)]
    relations = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-shardc"}]
    relations += [{"spdxElementId": "SPDXRef-shardc", "relationshipType": "DEPENDS_ON", "relatedSpdxElement": item["SPDXID"]} for item in items]
    digest = hashlib.sha256(json.dumps(items).encode()).hexdigest()
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"shardc-{version}",
            "documentNamespace": f"urn:shardc:{version}:{digest}", "creationInfo": {"created": CREATED, "creators": ["Tool: shardc sbom.py"]},
            "packages": [own, *items], "relationships": relations}


def main():
    tree, version, output, *compiled = sys.argv[1:]
    pathlib.Path(output).write_text(json.dumps(document(pathlib.Path(tree), version, compiled), indent=1) + "\n")


if __name__ == "__main__":
    main()
