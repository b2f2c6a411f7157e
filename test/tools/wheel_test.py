#!/usr/bin/env python3
"""Tests the wheels of runtime/cmake/wheel.py before auditwheel repairs them: names, dependencies that pip fetches, and
the folders in which programs look for these. Also the packed extension of VS Code.

    wheel_test.py ROOT
"""

import base64
import hashlib
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
import zipfile

ROOT = None


class WheelTest(unittest.TestCase):
    def setUp(self):
        spec = importlib.util.spec_from_file_location("wheel", ROOT / "runtime/cmake/wheel.py")
        self.wheel = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.wheel)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name) / "tree"
        (self.tree / "bin").mkdir(parents=True)
        (self.tree / "share/shardc/recipes").mkdir(parents=True)
        (self.tree / "share/shardc/recipes/a.recipe").write_text("recipe a { }\n")
        (self.tree / "share/man/man1").mkdir(parents=True)
        (self.tree / "share/man/man1/shardc.1").write_text(".TH shardc 1\n")
        for program in self.wheel.PROGRAMS:
            shutil.copy("/bin/true", self.tree / "bin" / program)

    def packed(self, cuda):
        archive = zipfile.ZipFile(self.wheel.pack(self.tree, "1.2", self.tree.parent, cuda))
        self.addCleanup(archive.close)
        return archive

    def test_both_wheels(self):
        for cuda, name in ((False, "shardc"), (True, "shardc-cuda")):
            archive = self.packed(cuda)
            info = f"{name.replace('-', '_')}-1.2.dist-info"
            lines = archive.read(f"{info}/METADATA").decode().splitlines()
            self.assertIn(f"Name: {name}", lines)
            needs = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist")]
            # Packages whose name has no CUDA version must not come with one other than 13.
            self.assertEqual(needs, ["nvidia-nccl-cu13", "nvidia-cudnn-cu13>=9,<10", "nvidia-cublas>=13,<14", "nvidia-cuda-nvrtc>=13,<14"]
                             if cuda else [])
            self.assertIn("shardc = shardc.programs:shardc\n", archive.read(f"{info}/entry_points.txt").decode())
            self.assertIn("shardc/share/shardc/recipes/a.recipe", archive.namelist())
            self.assertIn(f"{name.replace('-', '_')}-1.2.data/data/share/man/man1/shardc.1", archive.namelist())
            for line in archive.read(f"{info}/RECORD").decode().splitlines()[:-1]:
                path, digest, size = line.rsplit(",", 2)
                data = archive.read(path)
                self.assertEqual((digest, int(size)),
                                 ("sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(), len(data)))

    def test_programs_look_into_nvidias_packages(self):
        tools = ROOT / "build/wheel/tools/bin/patchelf"
        patchelf = shutil.which("patchelf") or (str(tools) if tools.exists() else None)
        if patchelf is None:
            self.skipTest("there is no patchelf")
        subprocess.run([patchelf, "--version"], check=True, capture_output=True)
        self.wheel.let_find_nvidia(self.tree, patchelf)
        said = subprocess.run(["readelf", "-d", self.tree / "bin/shardc-run"], check=True, capture_output=True, text=True).stdout
        [line] = [line for line in said.splitlines() if "RUNPATH" in line]
        # From shardc/bin, where the program is, to folders beside package shardc.
        self.assertIn("[$ORIGIN/../../nvidia/nccl/lib:$ORIGIN/../../nvidia/cudnn/lib:$ORIGIN/../../nvidia/cu13/lib]", line)

    def test_extension(self):
        """Equal files make equal archives, whose manifest names what package.json does, and each kind of file has a type."""
        made = []
        for name in ("first", "second"):
            done = subprocess.run([sys.executable, "-B", ROOT / "docs/editors/vsix.py", ROOT / "docs/editors/vscode", self.tree / name],
                                  check=True, capture_output=True, text=True)
            made.append(pathlib.Path(done.stdout.strip()))
        self.assertEqual(made[0].read_bytes(), made[1].read_bytes())
        with zipfile.ZipFile(made[0]) as archive:
            package = json.loads(archive.read("extension/package.json"))
            manifest = xml.etree.ElementTree.fromstring(archive.read("extension.vsixmanifest"))
            types = xml.etree.ElementTree.fromstring(archive.read("[Content_Types].xml"))
            names = archive.namelist()
        identity = next(item for item in manifest.iter() if item.tag.endswith("}Identity"))
        self.assertEqual([identity.get(key) for key in ("Id", "Version", "Publisher")], [package[key] for key in ("name", "version", "publisher")])
        self.assertEqual({pathlib.Path(name).suffix for name in names if name != "[Content_Types].xml"}, {item.get("Extension") for item in types})
        files = {path.relative_to(ROOT / "docs/editors/vscode") for path in (ROOT / "docs/editors/vscode").rglob("*") if path.is_file()}
        self.assertEqual({name.removeprefix("extension/") for name in names[2:]}, {str(file) for file in files})


if __name__ == "__main__":
    ROOT = pathlib.Path(sys.argv[1])
    unittest.main(argv=sys.argv[:1])
