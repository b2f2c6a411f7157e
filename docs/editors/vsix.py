#!/usr/bin/env python3
"""Packs an extension of VS Code, as `vsce package` does, which Debian and PyPI do not have: an archive with a manifest.

    vsix.py FOLDER TO

FOLDER has the extension's package.json and the modules that npm fetched for it, if any. The path of what is written below TO goes to
standard output.
"""

import json
import pathlib
import sys
import xml.sax.saxutils
import zipfile

MANIFEST = """<?xml version="1.0" encoding="utf-8"?>
<PackageManifest Version="2.0.0" xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011">
  <Metadata>
    <Identity Language="en-US" Id={name} Version={version} Publisher={publisher}/>
    <DisplayName>{title}</DisplayName>
    <Description xml:space="preserve">{description}</Description>
    <Categories>{categories}</Categories>
    <Properties>
      <Property Id="Microsoft.VisualStudio.Code.Engine" Value={engine}/>
    </Properties>
  </Metadata>
  <Installation><InstallationTarget Id="Microsoft.VisualStudio.Code"/></Installation>
  <Dependencies/>
  <Assets><Asset Type="Microsoft.VisualStudio.Code.Manifest" Path="extension/package.json" Addressable="true"/></Assets>
</PackageManifest>
"""


def manifest(package):
    quoted, text = xml.sax.saxutils.quoteattr, xml.sax.saxutils.escape
    return MANIFEST.format(name=quoted(package["name"]), version=quoted(package["version"]), publisher=quoted(package["publisher"]),
                           title=text(package["displayName"]), description=text(package["description"]),
                           categories=text(",".join(package["categories"])), engine=quoted(package["engines"]["vscode"]))


def content_types(files):
    rows = "".join(f'<Default Extension="{suffix}" ContentType="application/octet-stream"/>'
                   for suffix in sorted({file.suffix for file in files} - {"", ".vsixmanifest"}))
    return ('<?xml version="1.0" encoding="utf-8"?>\n<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
            f'<Default Extension=".vsixmanifest" ContentType="text/xml"/>{rows}</Types>\n')


def pack(folder, to):
    package = json.loads((folder / "package.json").read_text(encoding="utf-8"))
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    path = to / f"{package['name']}-{package['version']}.vsix"
    to.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        def add(name, data):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same bytes from the same files
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
        add("extension.vsixmanifest", manifest(package))
        add("[Content_Types].xml", content_types(files))
        for file in files:
            add(f"extension/{file.relative_to(folder)}", file.read_bytes())
    return path


if __name__ == "__main__":
    print(pack(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
