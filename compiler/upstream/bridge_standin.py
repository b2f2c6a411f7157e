"""Runs a Python program that configures Megatron-Bridge, and writes the settings in the form of a saved configuration.

    bridge_standin.py TABLES RESULTS FILE FUNCTION [ARGUMENTS...]

Packages such as megatron and torch need not be installed. They are replaced by stand-ins: their classes record what is
assigned, some functions return what upstream's return, and everything else is an unknown value. If a condition depends
on an unknown value, the process forks, once for each outcome; settings that differ are then unknown.
The result is written to the folder RESULTS: the file `configuration`, or `error` with one line of text. FUNCTION may be
empty.
"""

import ast
import builtins
import copy
import dataclasses
import dis
import enum
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import pathlib
import re
import signal
import sys
import traceback
import types

RUNS_MAX, FINISHED = 128, 3  # the exit status of a process that wrote its outcome
REPLACED = ("megatron", "torch", "transformer_engine", "transformers", "nemo", "nemo_run", "omegaconf", "hydra", "apex")
LAUNCHES = ("pretrain", "finetune", "distill")
HARMLESS = ("validate", "finalize", "to_yaml", "print_yaml", "to_dict", "print_rank_0", "warn_rank_0", "setup_logging")
MARK = "\N{LEFT-POINTING DOUBLE ANGLE QUOTATION MARK}not known: "
MARK_END = "\N{RIGHT-POINTING DOUBLE ANGLE QUOTATION MARK}"
TABLES = {"sections": {}, "classes": {}, "recipes": {}}
# Fields of models as their classes, and conversions from Hugging Face, leave them.
MODEL_DEFAULTS = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "virtual_pipeline_model_parallel_size": None,
                  "context_parallel_size": 1, "expert_model_parallel_size": 1, "expert_tensor_parallel_size": None, "sequence_parallel": False}
ADAPTERS = ("LoRA", "VLMLoRA", "DoRA", "CanonicalLoRA", "MultiLoRA")


class Stop(BaseException):
    """Ends the program, which needs a value that is unknown."""


# Of this process: the outcomes of unknown conditions, those that were asked for, and the configurations that are trained with.
KNOWN, ASKED, LAUNCHED = {}, [], []
OUTCOMES = None  # the file of the outcomes of all processes, one a line


def decide(what):
    """The outcome of an unknown condition. The process forks: the child goes on with one outcome, and then the parent with the other."""
    if what not in KNOWN:
        if os.pread(OUTCOMES.fileno(), os.fstat(OUTCOMES.fileno()).st_size, 0).count(b"\n") >= RUNS_MAX - 1:
            raise Stop(f"more than {RUNS_MAX} combinations of conditions that cannot be known")
        child = os.fork()
        if child and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != FINISHED:
            os._exit(1)
        KNOWN[what] = child == 0
        ASKED.append(what)
    return KNOWN[what]


def plain(value):
    """A short description of a value for messages."""
    text = value._s_what if isinstance(value, Thing) else repr(value)
    return text if len(text) < 80 else text[:80] + "..."


def operator(sign, turned=False):
    def apply(self, other):
        left, right = (other, self) if turned else (self, other)
        return Thing(f"{plain(left)} {sign} {plain(right)}")

    return apply


def needs(what):
    def apply(self, *_):
        raise Stop(f"the program needs {what} of {self._s_what}, which cannot be known")

    return apply


class Meta(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Thing(f"{cls.__name__}.{name}", name=True)

    def __or__(cls, _):  # used in annotations
        return cls

    __ror__ = __or__


class Thing(metaclass=Meta):
    """An object that records the fields that the program sets, or an unknown value; `_s_what` describes its origin."""

    def __init__(self, what, name=False, unknown=True, section="", call=None):
        self.__dict__.update(_s_what=what, _s_name=name, _s_unknown=unknown, _s_section=section, _s_call=call)
        self.__dict__.update(_s_target="", _s_read={}, _s_owner=None, _s_changed=False)

    def __getattr__(self, name):
        if name.startswith(("__", "_s_")):
            raise AttributeError(name)
        if name in self._s_read:
            return self._s_read[name]
        fields = TABLES["sections"].get(self._s_section)
        path = f"{self._s_section}.{name}" if self._s_section not in ("", "cfg") else name
        if self._s_section == "cfg" and name in TABLES["sections"]:
            thing = Thing(path, unknown=self._s_unknown, section=name)
        elif self._s_name:
            return Thing(f"{self._s_what}.{name}", name=True)
        elif fields is not None and name not in fields and not decide(f"{path} exists"):
            raise AttributeError(name)
        else:
            if self._s_section == "model" and self._s_call is not None and not self._s_changed and name in MODEL_DEFAULTS:
                return MODEL_DEFAULTS[name]
            thing = Thing(path if self._s_section else f"{self._s_what}.{name}")
        thing.__dict__["_s_owner"] = self
        self._s_read[name] = thing
        return thing

    def __setattr__(self, name, value):
        if isinstance(value, Thing) and self._s_section == "cfg" and not value._s_section and not value._s_name:
            value.__dict__["_s_section"] = name
        self._s_read.pop(name, None)
        self.__dict__[name] = value

    def __getitem__(self, key):
        return self._s_read.setdefault(key, Thing(f"{self._s_what}[{plain(key)}]"))

    def __setitem__(self, key, value):
        self.__setattr__(str(key), value)

    def __call__(self, *args, **kwargs):
        return call(self, args, kwargs)

    def __bool__(self):
        return decide(self._s_what)

    def __eq__(self, other):
        is_same = self is other or isinstance(other, Thing) and self._s_what == other._s_what
        return is_same or Thing(f"{plain(self)} == {plain(other)}")

    def __contains__(self, item):
        return decide(f"{plain(item)} in {self._s_what}")

    def __str__(self):
        return MARK + self._s_what + MARK_END

    def __format__(self, _):
        return str(self)

    __repr__ = __str__

    def __hash__(self):
        return hash(self._s_what) if self._s_name else needs("the value")(self)

    __iter__, __len__ = needs("the elements"), needs("the length")
    __int__ = __index__ = __float__ = needs("the number")
    __lt__, __le__, __gt__, __ge__ = operator("<"), operator("<="), operator(">"), operator(">=")

    def __neg__(self):
        return Thing(f"-{self._s_what}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


for _name, _sign in dict(add="+", sub="-", mul="*", truediv="/", floordiv="//", mod="%", pow="**", or_="|").items():
    setattr(Thing, f"__{_name.strip('_')}__", operator(_sign))
    setattr(Thing, f"__r{_name.strip('_')}__", operator(_sign, True))


def configuration():
    return Thing("cfg", unknown=False, section="cfg")


class Object(Thing):
    """Base class of all classes in the stand-in packages; an instance is a configuration object."""

    def __init__(self, *args, **kwargs):
        bases = [base for base in type(self).__mro__ if base.__dict__.get("_s_standin")]
        upstream = bases[0].__name__
        section = TABLES["classes"].get(upstream, "model" if upstream.endswith(("Provider", "ModelConfig")) else "")
        Thing.__init__(self, section or upstream, unknown=False, section=section, call=list(args))
        self.__dict__["_s_target"] = upstream
        for cls in reversed(type(self).__mro__):
            if issubclass(cls, Object) and not cls.__dict__.get("_s_standin") and cls is not Object:
                for name in cls.__dict__.get("__annotations__", {}):
                    if name in cls.__dict__:
                        self.__dict__[name] = default_of(cls.__dict__[name])
        self.__dict__.update(kwargs)
        if "__post_init__" in dir(type(self)):
            type(self).__post_init__(self)


def default_of(value):
    if not isinstance(value, dataclasses.Field):
        return copy.copy(value)
    return value.default_factory() if value.default is dataclasses.MISSING else value.default


@functools.lru_cache(None)
def standin_class(name):
    return Meta(name, (Object,), {"_s_standin": True, "__module__": "megatron.bridge"})


def things_in(value, depth=0):
    if isinstance(value, Thing):
        yield value
    elif depth < 4 and isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from things_in(item, depth + 1)


def taint(thing, why):
    """Makes every field unknown, since an unknown function may have changed it."""
    thing.__dict__["_s_changed"] = True
    for name, value in {**fields_of(thing), **thing._s_read}.items():
        if isinstance(value, Thing) and (value._s_section or isinstance(value, Object)):
            taint(value, why)
        elif name in thing.__dict__:
            thing.__dict__[name] = Thing(why)


def call(function, args, kwargs):
    name = function._s_what.split(".")[-1]
    if name in LAUNCHES:
        configs = [thing for thing in [*things_in(args), *things_in(kwargs)] if thing._s_section == "cfg"]
        LAUNCHED.extend(configs[:1])
        return None
    row = row_of_call(name, args, kwargs) if function._s_name else None
    if row is not None:
        return recipe(row)
    if function._s_name and name in FUNCTIONS:
        return FUNCTIONS[name](*args, **kwargs)
    what = f"{function._s_what}({', '.join([plain(a) for a in args] + [f'{k}={plain(v)}' for k, v in kwargs.items()])})"
    for thing in [*things_in(args), *things_in(kwargs), *things_in(function._s_owner)]:
        if thing._s_section and name not in HARMLESS:
            taint(thing, f"what {function._s_what}() sets")
    section = "cfg" if name.endswith("_config") and "recipe" in function._s_what else ""
    thing = Thing(what, section=section, call=list(args))
    thing.__dict__["_s_target"] = name
    return thing


def apply_flex_dispatcher_backend(model, moe_flex_dispatcher_backend=None):
    if moe_flex_dispatcher_backend in ("deepep", "hybridep"):
        model.moe_token_dispatcher_type = "flex"
        model.moe_flex_dispatcher_backend = moe_flex_dispatcher_backend
        model.moe_shared_expert_overlap = False


def distributed_fused_adam_with_cosine_annealing(
        precision="bf16-mixed", lr_warmup_iters=2000, lr_decay_iters=None, adam_beta1=0.9, adam_beta2=0.95, adam_eps=1e-8, weight_decay=0.1,
        max_lr=1e-4, min_lr=None, clip_grad=1.0, start_weight_decay=0.033, end_weight_decay=0.033, weight_decay_incr_style="constant",
        lr_decay_style="cosine"):
    optimizer = standin_class("OptimizerConfig")(
        optimizer="adam", lr=max_lr, min_lr=0.1 * max_lr if min_lr is None else min_lr, weight_decay=weight_decay, adam_beta1=adam_beta1,
        adam_beta2=adam_beta2, adam_eps=adam_eps, use_distributed_optimizer=True, clip_grad=clip_grad)
    return optimizer, standin_class("SchedulerConfig")(
        start_weight_decay=start_weight_decay, end_weight_decay=end_weight_decay, weight_decay_incr_style=weight_decay_incr_style,
        lr_decay_style=lr_decay_style, lr_wsd_decay_style="minus_sqrt", lr_wsd_decay_iters=lr_decay_iters, lr_warmup_iters=lr_warmup_iters,
        lr_warmup_init=0.0, lr_decay_iters=lr_decay_iters, override_opt_param_scheduler=True)


def distributed_muon_with_cosine_annealing(
        precision="bf16-mixed", muon_use_nesterov=True, lr_warmup_iters=2000, lr_decay_iters=2000, max_lr=1e-4, min_lr=None, **fields):
    defaults = dict(optimizer="dist_muon", lr=max_lr, min_lr=min_lr, weight_decay=0.1, clip_grad=1.0, muon_momentum=0.95,
                    muon_nesterov=muon_use_nesterov, muon_scale_mode="spectral", muon_fp32_matmul_prec="medium", muon_num_ns_steps=5,
                    muon_tp_mode="blockwise", muon_extra_scale_factor=1.0)
    optimizer = standin_class("OptimizerConfig")(**{**defaults, **fields})
    return optimizer, cosine_annealing("iters", lr_warmup_iters, lr_decay_iters)


def distributed_fused_adam_with_cosine_annealing_samples(lr_warmup_samples=None, lr_decay_samples=None, **fields):
    optimizer, _ = distributed_fused_adam_with_cosine_annealing(**fields)
    return optimizer, cosine_annealing("samples", lr_warmup_samples, lr_decay_samples)


def cosine_annealing(unit, warmup, decay):
    return standin_class("SchedulerConfig")(
        start_weight_decay=0.033, end_weight_decay=0.033, weight_decay_incr_style="constant", lr_decay_style="cosine", lr_warmup_init=0.0,
        override_opt_param_scheduler=True, **{f"lr_warmup_{unit}": warmup, f"lr_decay_{unit}": decay})


def default_peft_config(peft_scheme, **fields):
    if not isinstance(peft_scheme, str):
        return peft_scheme
    classes = {"lora": "LoRA", "dora": "DoRA", "none": None}
    if peft_scheme.lower() not in classes:
        raise ValueError(f"Unknown PEFT scheme: {peft_scheme}")
    name = classes[peft_scheme.lower()]
    return standin_class(name)(**fields) if name else None


def default_squad_config(seq_length, enable_offline_packing=True, pad_seq_to_mult=1):
    dataset = made_of(TABLES["recipes"]["_sft_common"]["dataset"])
    dataset.seq_length, dataset.enable_offline_packing = seq_length, enable_offline_packing
    dataset.dataset_kwargs = {"pad_to_max_length": True} if enable_offline_packing else {}
    dataset.offline_packing_specs = standin_class("PackedSequenceSpecs")(
        packed_sequence_size=seq_length, pad_seq_to_mult=pad_seq_to_mult) if enable_offline_packing else None
    return dataset


def set_cuda_graph_modules(model, modules):
    names = modules.split(",") if isinstance(modules, str) else [getattr(one, "_s_what", one) for one in modules or ()]
    model.cuda_graph_modules, model.cuda_graph_scope = [name.rpartition(".")[2] for name in names if name not in ("", "full")], None


def apply_determinism_overrides(cfg):
    cfg.model.deterministic_mode, cfg.model.cross_entropy_loss_fusion = True, False
    for name, value in dict(CUBLAS_WORKSPACE_CONFIG=":4096:8", NCCL_ALGO="Ring", NVTE_ALLOW_NONDETERMINISTIC_ALGO=0).items():
        cfg.env_vars[name] = value
    if not is_same(cfg.comm_overlap, None):
        cfg.comm_overlap.tp_comm_overlap = False


def set_deepseek_v3_pipeline_model_parallel_layout(model, layout=None, **_):
    model.pipeline_model_parallel_layout = Thing("the layout that Megatron-Bridge has for these stages") if layout is None else layout


# Functions and constants of upstream whose results are known, by name.
FUNCTIONS = {function.__name__: function for function in (
    apply_flex_dispatcher_backend, distributed_fused_adam_with_cosine_annealing, distributed_fused_adam_with_cosine_annealing_samples,
    distributed_muon_with_cosine_annealing, default_peft_config, default_squad_config, set_cuda_graph_modules, apply_determinism_overrides,
    set_deepseek_v3_pipeline_model_parallel_layout)}
CONSTANTS = {"DEFAULT_NULL_TOKENIZER_VOCAB_SIZE": 32000,
             "COMMON_RECIPE_ENV_VARS": {"NCCL_GRAPH_REGISTER": 0, "NCCL_NVLS_ENABLE": 0, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
                                        "TORCH_NCCL_AVOID_RECORD_STREAMS": 1, "TORCH_NCCL_HIGH_PRIORITY": 1}}


def recipe(row):
    """The configuration that a recipe function of upstream returns; `row` contains its sections."""
    config = standin_class("ConfigContainer")()
    for section, value in row.items():
        setattr(config, section, made_of(value))
    return config


def row_of_call(name, args, fields):
    """The sections that a call of upstream's recipe function sets; None if they are not known."""
    given = [*args, *fields.values()]
    is_plain = fields.keys() <= {"peft_scheme"} and all(isinstance(word, str) for word in given)
    return rows_of_recipe(TABLES["recipes"], name.rpartition(".")[2], given) if is_plain else None


def row_name(rows, name):
    """The row of a recipe function. Names without machines are other names, with their words in any order: the row
    llama3_8b_pretrain_16gpu_h100_bf16_16k_config is also llama3_8b_16k_pretrain_config."""
    if name in rows:
        return rows[name] if isinstance(rows[name], str) else name
    words = sorted(name.split("_"))
    return next((row for row in rows if sorted(re.sub("_[0-9]+gpu_h100_bf16(?=_)", "", row).split("_")) == words), name)


def rows_of_recipe(rows, name, given=()):
    """The sections that upstream's recipe function `name` sets for the arguments `given`; None if `rows` lacks them."""
    name = row_name(rows, name)
    if given and not (re.search(r"\w_peft_", name) and list(given) in (["lora"], ["dora"])):
        return None
    row = rows.get(name)
    if list(given) == ["dora"] and row:
        row = rows.get(name + "(dora)", {"_base_": name, "peft": {"_target_": "DoRA", "_args_": []}})
    if not isinstance(row, dict):
        return None
    return laid_over(rows_of_recipe(rows, row["_base_"]) if "_base_" in row else {}, row)


def laid_over(below, above):
    if not isinstance(below, dict) or not isinstance(above, dict) or "_call_" in above or "_args_" in above:
        return above
    below = {key: value for key, value in below.items() if key not in above.get("_without_", ())}
    return {**below, **{key: laid_over(below.get(key), value) for key, value in above.items() if key not in ("_without_", "_base_")}}


def made_of(tree):
    """The object of a tree; the inverse of tree_of()."""
    if not isinstance(tree, dict):
        return copy.copy(tree)
    target = tree.get("_target_", "")
    if target == "shardc.unknown":
        return Thing(tree["_args_"][0])
    if "_call_" in tree:
        return Thing(target, name=True)
    fields = {key: made_of(value) for key, value in tree.items() if key not in ("_target_", "_args_", "_unknown_")}
    if not target:
        return fields
    thing = Thing(tree["_unknown_"], call=[]) if "_unknown_" in tree else standin_class(target)()
    thing.__dict__.update(fields, _s_target=target)
    return thing


# --- stand-in packages ----------------------------------------------------------------------------------------------


class Package(types.ModuleType):
    def __getattr__(self, name):
        if name == "__all__":
            sys.modules["builtins"].__dict__["_s_star"] = True
            return []
        if name.startswith("__"):
            raise AttributeError(name)
        return member(self.__name__, name)


def member(module, name):
    if (name == "PEFT" or name[:1].isupper() and not name.isupper()) and module.split(".")[0] != "torch":
        return standin_class(name)
    if name in CONSTANTS:
        return copy.copy(CONSTANTS[name])
    return Thing(f"{module}.{name}".replace("megatron.bridge.", "").replace("megatron.core.", ""), name=True)


class Packages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports stand-ins for the packages in `names`; if `names` is empty, for all packages not found otherwise."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        root = name.split(".")[0]
        if self.names and root not in self.names or (not self.names and root in sys.stdlib_module_names):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Package(spec.name)

    def exec_module(self, module):
        pass  # its names are made when they are asked for


# --- the program ----------------------------------------------------------------------------------------------------


CONVERSIONS = ("int", "float", "str", "len", "round", "abs")


class Exact(ast.NodeTransformer):
    """Replaces `is` and conversions such as int(), which would apply to the stand-in instead of the unknown value."""

    def visit_Call(self, node):
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in CONVERSIONS and len(node.args) == 1 and not node.keywords:
            node.args.insert(0, node.func)
            node.func = ast.copy_location(ast.Name("_s_convert", ast.Load()), node.func)
        return node

    def visit_Compare(self, node):
        self.generic_visit(node)
        if len(node.ops) != 1 or not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            return node
        call = ast.Call(ast.Name("_s_is", ast.Load()), [node.left, node.comparators[0]], [])
        return ast.copy_location(call if isinstance(node.ops[0], ast.Is) else ast.UnaryOp(ast.Not(), call), node)


def is_same(left, right):
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Thing) and one._s_unknown and not one._s_name and one is not other:
            return decide(f"{plain(one)} is {plain(other)}")
    return left is right


def convert(function, value):
    if isinstance(value, Thing) and value._s_unknown and not value._s_name:
        return Thing(f"{getattr(function, '__name__', function)}({value._s_what})")
    return function(value)


def is_instance(value, classes):
    if isinstance(value, Thing) and value._s_unknown and not value._s_name:
        return decide(f"the class of {plain(value)} is {getattr(classes, '__name__', classes)}")
    if isinstance(classes, tuple):
        return any(is_instance(value, one) for one in classes)
    if isinstance(value, Object) and getattr(classes, "__name__", "") == "PEFT":
        return value._s_target in ADAPTERS
    return not isinstance(classes, Thing) and isinstance(value, classes)


class Names(dict):
    """The builtins of a program, with those that treat unknown values; also the names of `from megatron... import *`, and `cfg` for
    code that does not define it."""

    def __init__(self, container):
        super().__init__(vars(builtins), isinstance=is_instance, _s_is=is_same, _s_convert=convert)
        self.container = container

    def __missing__(self, name):
        if name in ("cfg", "config") and self.container is not None:
            return self.container
        if "_s_star" in vars(builtins) and not name.startswith("_"):
            return member("megatron", name)
        raise KeyError(name)


class Program(importlib.machinery.SourceFileLoader):
    """Loads the program, or a module beside it, with the builtins of Names."""

    container = None

    def get_code(self, name):
        path = self.get_filename(name)
        return compile(ast.fix_missing_locations(Exact().visit(ast.parse(self.get_data(path), path))), path, "exec")

    def exec_module(self, module):
        module.__dict__["__builtins__"] = Names(self.container)
        super().exec_module(module)


class Beside(importlib.abc.MetaPathFinder):
    """Finds modules in the program's folder."""

    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path=None, target=None):
        whole = self.folder.joinpath(*name.split("."))
        for file, inside in ((whole / "__init__.py", [str(whole)]), (whole.with_suffix(".py"), None)):
            if file.is_file():
                return importlib.util.spec_from_file_location(name, file, loader=Program(name, str(file)), submodule_search_locations=inside)
        return importlib.machinery.ModuleSpec(name, None, is_package=True) if whole.is_dir() else None


def run_program(path, function):
    name = path.stem if function else "__main__"
    spec = importlib.util.spec_from_file_location(name, path, loader=Program(name, str(path)))
    spec.loader.container = container = configuration()
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if function:
        return call_function(getattr(module, function, None), function, container)
    if len(LAUNCHED) > 1:
        raise Stop(f"the program starts {len(LAUNCHED)} trainings; name the function that makes one, as FILE:FUNCTION")
    held = {id(value): value for value in vars(module).values() if isinstance(value, Thing) and value._s_section == "cfg"}
    implied = [container] if fields_of(container) or container._s_read else []
    found = LAUNCHED or list(held.values()) or implied
    if len(found) == 1:
        return found[0]
    made = [name for name, value in vars(module).items() if makes_config(value, module, name)]
    if len(made) == 1:
        return call_function(getattr(module, made[0]), made[0], container)
    names = ", ".join(made) or "none"
    raise Stop(f"choose the function that makes the configuration, as FILE:FUNCTION; those that might: {names}")


def makes_config(value, module, name):
    if not isinstance(value, types.FunctionType) or value.__module__ != module.__name__:
        return False
    result = value.__annotations__.get("return")
    return not name.startswith("_") and (name.endswith("config") or getattr(result, "__name__", result) == "ConfigContainer")


def call_function(function, name, container):
    if not callable(function):
        raise Stop(f"the program has no function {name}")
    given = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and parameter.default is parameter.empty:
            is_config = parameter.name in ("cfg", "config") or "ConfigContainer" in str(parameter.annotation)
            given[parameter.name] = container if is_config else Thing(parameter.name)
    result = function(**given)
    for thing in things_in(container if result is None and container in given.values() else result):
        return thing
    raise Stop(f"the function {name} returns no configuration")


# --- the result -----------------------------------------------------------------------------------------------------


def fields_of(thing):
    return {name: value for name, value in thing.__dict__.items() if not name.startswith("_s_")}


def unknown(what):
    return {"_target_": "shardc.unknown", "_args_": [what]}


def tree_of_thing(thing):
    if thing._s_name and not fields_of(thing):
        return {"_target_": thing._s_what, "_call_": False}
    tree = {"_target_": thing._s_target} if thing._s_target else {}
    if thing._s_call:
        tree["_args_"] = [tree_of(arg) for arg in thing._s_call]
    read = {name: value for name, value in thing._s_read.items() if has_fields(value)}
    tree.update({str(name): tree_of(value) for name, value in {**read, **fields_of(thing)}.items()})
    if thing._s_unknown and thing._s_call is not None:
        tree["_unknown_"] = thing._s_what
    elif thing._s_unknown and not tree:
        return unknown(thing._s_what)
    return tree


def whole_tree(thing, variables):
    """The tree of a configuration, or of the section `thing`, and of variables of the environment."""
    tree = tree_of(thing)
    if thing._s_section == "cfg":
        tree.pop("_target_", None)  # only some of its fields are written
    elif thing._s_section:
        tree = {thing._s_section: tree}
    if variables and isinstance(tree.setdefault("env_vars", {}), dict):
        tree["env_vars"].update(variables)
    return tree


def has_fields(value):
    return isinstance(value, Thing) and bool(fields_of(value) or any(map(has_fields, value._s_read.values())))


def tree_of(value):
    if isinstance(value, Thing):
        return tree_of_thing(value)
    if isinstance(value, (str, pathlib.PurePath)):
        text = str(value)
        return unknown(text.partition(MARK)[2].partition(MARK_END)[0]) if MARK in text else text
    if isinstance(value, signal.Signals):
        return {"_target_": "signal.Signals", "_args_": [int(value)]}
    if value is None or isinstance(value, (bool, int)):
        return int(value) if isinstance(value, enum.IntEnum) else value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, (list, tuple)):
        return [tree_of(item) for item in value]
    if isinstance(value, dict):
        return {str(key): tree_of(item) for key, item in value.items()}
    if isinstance(value, type) and issubclass(value, Object):
        return {"_target_": value.__name__, "_call_": False}
    return unknown(f"a value of type {type(value).__name__}")


def merged(trees, why):
    """The settings that are equal in all runs; all others become unknown."""
    first = trees[0]
    if all(tree == first and type(tree) is type(first) for tree in trees):
        return first
    targets = {tree.get("_target_") if isinstance(tree, dict) else "shardc.unknown" for tree in trees}
    if len(targets) > 1 or "shardc.unknown" in targets:
        return unknown(why)
    keys, missing = dict.fromkeys(key for tree in trees for key in tree), object()
    return {key: merged([tree.get(key, missing) for tree in trees], why) for key in keys}


# --- all runs -------------------------------------------------------------------------------------------------------


def is_refused(error):
    """Whether the program itself refuses this outcome: by `raise`, `assert`, exit, or an attribute assumed missing."""
    at = error.__traceback__
    while at.tb_next:
        at = at.tb_next
    code = at.tb_frame.f_code
    is_raised = code.co_filename.endswith(".py") and dis.opname[code.co_code[at.tb_lasti]] == "RAISE_VARARGS"
    return isinstance(error, SystemExit) or (isinstance(error, AttributeError) if code.co_filename == __file__ else is_raised)


def place_of(error):
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    frames = [frame for frame in frames if not frame.filename.startswith("<")] or frames
    return f"line {frames[-1].lineno} of {os.path.basename(frames[-1].filename)}: " if frames else ""


def run_once(path, function):
    """The settings of one run, or how it failed."""
    before = dict(os.environ)
    try:
        thing = run_program(path, function)
        if not thing._s_section and not has_fields(thing):
            raise Stop(f"{thing._s_what} is not a configuration")
        changed = {name: os.environ.get(name) for name in sorted({*before, *os.environ}) if before.get(name) != os.environ.get(name)}
        return {"tree": whole_tree(thing, tree_of(changed))}
    except Stop as stop:
        return {"stop": place_of(stop) + str(stop)}
    except BaseException as error:
        refused = bool(ASKED) and is_refused(error)
        return {"refused" if refused else "stop": f"{place_of(error)}{type(error).__name__}: {error}"}


def run_all(path, function):
    """The settings of all runs. Each is a process, since the program may change global state."""
    global OUTCOMES
    OUTCOMES = open(os.memfd_create("outcomes"), "w+b")
    child = os.fork()
    if child == 0:
        outcome = run_once(path, function)
        OUTCOMES.write(json.dumps({**outcome, "asked": ASKED}).encode() + b"\n")
        OUTCOMES.flush()
        os._exit(1 if "stop" in outcome else FINISHED)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    OUTCOMES.seek(0)
    done = [json.loads(line) for line in OUTCOMES]
    if status != FINISHED:
        raise Stop(next((outcome["stop"] for outcome in done if "stop" in outcome), "the program ended its process"))
    trees = [outcome["tree"] for outcome in done if "tree" in outcome]
    if not trees:
        raise Stop(done[0]["refused"])
    conditions = list(dict.fromkeys(what for outcome in done if "tree" in outcome for what in outcome["asked"]))
    why = " and ".join(conditions[:2]) + (f" and {len(conditions) - 2} more" if len(conditions) > 2 else "")
    return merged(trees, f"depends on {why}")


def dataclass(cls=None, /, **options):
    """Replaces dataclasses.dataclass: classes derived from a stand-in keep its recording constructor."""
    if cls is None:
        return lambda given: dataclass(given, **options)
    return cls if issubclass(cls, Object) else PYTHONS_DATACLASS(cls, **options)


PYTHONS_DATACLASS, PYTHONS_REPLACE = dataclasses.dataclass, dataclasses.replace


def replace(thing, /, **changes):
    if not isinstance(thing, Thing):
        return PYTHONS_REPLACE(thing, **changes)
    thing = copy.copy(thing)
    thing.__dict__.update(changes, _s_read=dict(thing._s_read))
    return thing


def main():
    dataclasses.dataclass, dataclasses.replace = dataclass, replace
    tables, results, file, function, *arguments = sys.argv[1:]
    TABLES.update(json.loads(pathlib.Path(tables).read_text()))
    path = pathlib.Path(file).resolve()
    sys.argv = [file, *arguments]
    sys.dont_write_bytecode = True
    sys.meta_path[:0] = [Packages(REPLACED), Beside(path.parent)]
    sys.meta_path.append(Packages(()))
    try:
        tree = run_all(path, function)
        text, name = json.dumps(tree, indent=1, ensure_ascii=False), "configuration"
    except Stop as stop:
        text, name = " ".join(str(stop).split()), "error"
    (pathlib.Path(results) / name).write_text(text)


if __name__ == "__main__":
    main()
