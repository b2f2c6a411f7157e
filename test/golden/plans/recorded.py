"""Lists the plans that are recorded, and compiles them."""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
RECIPES = ROOT / "recipes"
sys.path += [str(ROOT / "test" / "plan" / "Inputs"), str(ROOT / "test" / "e2e" / "Inputs")]

import compile_recipes  # noqa: E402
import proof  # noqa: E402

ATTRIBUTE = re.compile(r"^ATTR_(BOOL|INT|FLOAT|ENUM)\((\w+), ([^,]+),(?: \"([^\"]*)\",)?", re.MULTILINE)
RUNS = re.compile(r"^shardc:(\S+) .* yes$", re.MULTILINE)


def call(*command, cwd=None, env=None):
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\nstatus {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def attribute_defaults():
    """The defaults of ops' attributes. Plans do not write attributes at their defaults."""
    out = {}
    for kind, name, default, names in ATTRIBUTE.findall((ROOT / "runtime" / "base" / "Attrs.def").read_text(encoding="utf-8")):
        out[name] = {"BOOL": lambda: default == "true", "INT": lambda: int(default), "FLOAT": lambda: float(default),
                     "ENUM": lambda: names.split("|")[int(default)]}[kind]()
    return out


def cases(bin_):
    """The name, recipe and options of each plan: all recipes that compile, and the small plans of the proofs."""
    runs = set(RUNS.findall(call(pathlib.Path(bin_) / "shardc", "recipes")))
    for recipe in sorted(RECIPES.rglob("*.recipe")):
        name = str(recipe.relative_to(RECIPES))
        options = compile_recipes.plan_options(recipe)
        if name in runs or options:
            yield name, recipe, options
    overlay = ROOT / "test" / "plan" / "Inputs" / "small_llama.recipe"
    for name, recipe, settings in proof.variants():
        yield (f"small/{name}", RECIPES / "debug" / f"{recipe}.recipe",
               ["--overlay", str(overlay), *(f"--set={setting}" for setting in settings)])


def compile_plan(bin_, recipe, options):
    """The text of the plan."""
    with tempfile.TemporaryDirectory() as folder:
        plan = pathlib.Path(folder) / "a.plan"
        call(pathlib.Path(bin_).resolve() / "shardc", "dump-plan", recipe, "-o", plan, *options, cwd=folder)
        return plan.read_text(encoding="utf-8")
