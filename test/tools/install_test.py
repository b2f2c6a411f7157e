#!/usr/bin/env python3
"""Installs a build into a folder, moves the folder, and uses programs, recipes, documentation and the plan library from
there. Links of installed pages must lead to installed files.

    install_test.py CMAKE BUILD SOURCE [COMPILER_FLAGS]
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

FILES = [
    "bin/shardc", "bin/shardc-opt", "bin/shardc-run",
    "share/shardc/recipes/llama3/llama3_8b.recipe", "share/shardc/recipes/overlays/fsdp.recipe",
    "share/shardc/editors/vscode/syntaxes/shardc.tmLanguage.json",
    "share/doc/shardc/README.md", "share/doc/shardc/docs/language.md", "share/doc/shardc/docs/libraries.md",
    "share/doc/shardc/LICENSE", "share/doc/shardc/copyright", "share/doc/shardc-dev/copyright",
]


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_files(tree, source, build):
    for name in FILES:
        if not (tree / name).is_file():
            sys.exit(f"{name} is not installed")
    for path in tree.rglob("*"):
        if path.is_file() and path.suffix in (".cmake", ".recipe", ".md", ".h", ".def"):
            text = path.read_text(encoding="utf-8")
            for folder in (source, build):
                if folder in text:
                    sys.exit(f"{path.relative_to(tree)} names '{folder}', which is not part of it")


def check_links(tree):
    """User pages name recipes that a program finds in any folder, and no link leads out of what is installed."""
    pages = list((tree / "share/doc/shardc").rglob("*.md"))
    for page in pages:
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if not re.match(r"https?:|mailto:", link) and not (page.parent / link).exists():
                sys.exit(f"{page.relative_to(tree)}: the link to {link} leads nowhere")
    for name in ("README", "docs/install", "docs/first-hour", "docs/fine-tuning", "docs/running", "docs/json", "docs/reading-a-plan", "docs/fsdp"):
        text = (tree / f"share/doc/shardc/{name}.md").read_text(encoding="utf-8")
        if found := re.search(r"^    .*[ \"]recipes/\w+/\w+\.(recipe|sbatch).*$", text, re.M):
            sys.exit(f"{name}.md names a recipe of the source tree: {found[0].strip()}")


def check_plan_library(cmake, tree, source, work, flags):
    build = work / "consumer"
    run(cmake, "-G", "Ninja", "-S", f"{source}/test/tools/consumer", "-B", build, f"-DCMAKE_PREFIX_PATH={tree}", f"-DCMAKE_CXX_FLAGS={flags}")
    run(cmake, "--build", build)
    plans = pathlib.Path(source, "test", "unit", "plan", "plans")
    said = run(build / "verify-plan", plans / "fsdp.plan")
    if "nothing is broken" not in said:
        sys.exit(f"verify-plan said: {said}")
    broken = work / "broken.plan"
    broken.write_text((plans / "fsdp.plan").read_text().replace("for params at 192", "for params at 128", 1))
    done = subprocess.run([build / "verify-plan", broken], capture_output=True, text=True, check=False)
    if done.returncode != 1 or "error:" not in done.stderr:
        sys.exit(f"a broken plan is not refused: {done.returncode} {done.stdout}{done.stderr}")


def main():
    cmake, build, source = sys.argv[1:4]
    flags = sys.argv[4] if len(sys.argv) > 4 else ""
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        run(cmake, "--install", build, "--prefix", work / "first")
        tree = work / "moved to another place"
        os.rename(work / "first", tree)
        check_files(tree, source, build)
        check_links(tree)
        environment = {**os.environ, "PATH": f"{tree}/bin{os.pathsep}{os.environ['PATH']}"}
        print(run("bash", f"{source}/test/tools/installed.sh", "shardc", env=environment))
        check_plan_library(cmake, tree, source, work, flags)


if __name__ == "__main__":
    main()
