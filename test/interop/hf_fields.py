"""Checks that HfFields.def has a row for each field of `config.json` that transformers reads.

usage: hf_fields.py TABLE

TABLE is runtime/checkpoint/HfFields.def. An import ignores a field without a row there, apart from mentioning it, since
no code of the architecture's class reads the field. So each name that the library's sources read of a configuration
needs a row: one with its meaning, or `HF_READ`, by which an import refuses the field. The sources are the
architecture's own modules (configuration and model) and the library modules that these import. A name that only an
unrelated part of such a module reads needs a row too; at worst this refuses too much. Prints the names that lack a row.
Exits with 77 without transformers.
"""

import ast
import importlib.util
import pathlib
import re
import sys

ARCHITECTURE = re.compile(r'^HF_ARCHITECTURE\((\w+),\s*"(\w+)"', re.M)
CONFIGS = {"config", "text_config"}
ACCESSORS = {"get", "pop", "setdefault"}
SHARED = ("cache_utils", "masking_utils", "modeling_layers", "modeling_rope_utils", "modeling_utils", "loss/loss_utils",
          "integrations/eager_paged", "integrations/sdpa_attention", "utils/generic", "utils/output_capturing")


def package():
    spec = importlib.util.find_spec("transformers")
    if spec is None:
        print("skipped: transformers is not there")
        sys.exit(77)
    return pathlib.Path(spec.origin).parent


def is_config(node, names):
    return (isinstance(node, ast.Name) and node.id in names) or (isinstance(node, ast.Attribute) and node.attr in CONFIGS)


def text_of(node):
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def reads_of(path, is_configuration=False):
    """Names of attributes that a module reads of a configuration. The configuration's own module reads `self` and
    `kwargs`."""
    names = CONFIGS | ({"self", "kwargs"} if is_configuration else set())
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and is_config(node.value, names):
            found.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and is_configuration and isinstance(node.target, ast.Name):
            if "ClassVar" not in ast.unparse(node.annotation):
                found.add(node.target.id)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr") and len(node.args) > 1 and is_config(node.args[0], names):
                found.add(text_of(node.args[1]))
            if isinstance(node.func, ast.Attribute) and node.func.attr in ACCESSORS and is_config(node.func.value, names) and node.args:
                found.add(text_of(node.args[0]))
    return found - {None}


def shared_reads(root):
    """The names that models of any architecture read. Options for loading a configuration (`configuration_utils`) are
    not fields."""
    found = {name for part in SHARED for name in reads_of(root / f"{part}.py")}
    for node in ast.walk(ast.parse((root / "configuration_utils.py").read_text())):
        if isinstance(node, ast.ClassDef) and node.name == "PreTrainedConfig":
            found |= {part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and "ClassVar" not in ast.unparse(part.annotation)}
    return found


def architectures_of(expression, names):
    return eval(expression.replace("\n", " "), {"__builtins__": {}}, names)  # a set's expression in the table, such as `Rotary & ~Gpt2`


def rows_of(text):
    """The names with a row, by architecture."""
    text = re.sub(r"//.*", "", text)
    types = dict(ARCHITECTURE.findall(text))
    names = {enumerator: 1 << i for i, enumerator in enumerate(types)}
    names["All"] = (1 << len(types)) - 1
    for name, expression in re.findall(r"^HF_SET\((\w+),\s*([^)]*)\)", text, re.M):
        names[name] = architectures_of(expression, names)
    rows = {enumerator: set() for enumerator in types}
    for expression, texts in re.findall(r'^HF_(?:COPY|SETS|BIASES|AGREES|NEEDS|IDLE|READ)\(([^"]*?),\s*((?:"[^"]*"\s*)+)', text, re.M):
        for enumerator in types:
            if architectures_of(expression, names) & names[enumerator]:
                rows[enumerator] |= set(texts.replace('"', "").split())
    return types, rows


def class_names(paths):
    """Attributes of a configuration's class that are not fields: methods, and constants of the class."""
    names = {"rope_parameters", "text_config", "sub_configs", "is_heterogeneous", "name_or_path", "standardize_rope_params",
             "nested_rope_parameter_keys", "_attn_implementation_internal", "_experts_implementation_internal", *ACCESSORS, "items", "update"}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                for part in node.body:
                    if isinstance(part, ast.FunctionDef):
                        names.add(part.name)
                    elif isinstance(part, ast.Assign):
                        names |= {target.id for target in part.targets if isinstance(target, ast.Name)}
                    elif isinstance(part, ast.AnnAssign) and "ClassVar" in ast.unparse(part.annotation):
                        names.add(part.target.id)
    return names


def main():
    root, table = package(), pathlib.Path(sys.argv[1]).read_text()
    types, rows = rows_of(table)
    shared, common = shared_reads(root), root / "configuration_utils.py"
    missing = {}
    for enumerator, model_type in types.items():
        folder = root / "models" / model_type.removesuffix("_text")
        own, no_fields = set(), class_names([common, *folder.glob("configuration_*.py")])
        for path in sorted(folder.glob("configuration_*.py")) + sorted(folder.glob("modeling_*.py")):
            own |= reads_of(path, path.name.startswith("configuration"))
        for name in (own | shared) - no_fields - rows[enumerator]:
            if not name.startswith("__"):
                missing.setdefault(name, []).append(enumerator)
    for name, enumerators in sorted(missing.items()):
        print(f"{name}: {' | '.join(enumerators) if len(enumerators) < len(types) else 'All'}")
    if missing:
        sys.exit(f"{len(missing)} names that transformers reads have no row")
    print("each name that transformers reads has a row")


if __name__ == "__main__":
    main()
