// Decides which names and texts in pickles are harmless.
#include <algorithm>

#include "runtime/checkpoint/Element.h"
#include "runtime/checkpoint/PickleReader.h"

namespace shardc::checkpoint {
namespace {

// The contexts: a tensor record, `.metadata`, and an object item.
constexpr unsigned T = 1u << static_cast<unsigned>(PickleContext::TensorRecord);
constexpr unsigned M = 1u << static_cast<unsigned>(PickleContext::Metadata);
constexpr unsigned B = 1u << static_cast<unsigned>(PickleContext::BytesItem);

/// Names of a module, between blanks. A name ending in `*` is a prefix.
struct NameRow {
  std::string_view module, names;
  unsigned contexts = 0;
};

/// Known and harmless in these contexts.
constexpr NameRow kAllowed[] = {
    {"torch._utils", "_rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter", T | B},
    {"torch.storage", "UntypedStorage TypedStorage", T | B},
    {"collections", "OrderedDict", T | M | B},
    {"torch", "Size", T | M | B},
    {"torch.distributed.checkpoint.metadata",
     "Metadata TensorStorageMetadata "
     "BytesStorageMetadata ChunkStorageMetadata TensorProperties MetadataIndex StorageMeta",
     M | B},
    {"torch.distributed._shard.sharded_tensor.metadata", "TensorProperties", M | B},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo _StoragePrefix", M | B},
    {"torch.serialization", "_get_layout", M | B},
    {"pathlib", "PosixPath PurePosixPath WindowsPath", M | B},
    {"pathlib._local", "PosixPath PurePosixPath WindowsPath", M | B},
    {"collections", "defaultdict", M | B},
    {"builtins", "list dict set slice", M | B},
    {"__builtin__", "list dict set slice", M | B},
    {"torch.distributed.checkpoint.planner",
     "SavePlan WriteItem TensorWriteData "
     "BytesIOWriteData",
     M | B},
    {"megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata MCoreSavePlan", M | B},
    {"argparse", "Namespace", B},
    {"types", "SimpleNamespace", B},
    {"_codecs", "encode", B},
    {"torch", "device", B},
    {"numpy", "ndarray dtype", B},
    {"numpy._core.multiarray", "_reconstruct scalar", B},
    {"numpy.core.multiarray", "_reconstruct scalar", B},
    {"__builtin__", "bytes bytearray complex frozenset tuple int long float bool str", B},
    {"builtins", "bytes bytearray complex frozenset tuple int float bool str", B},
    {"io", "BytesIO", B},
    {"_io", "BytesIO", B},
};

/// Enumerations, also allowed. CPython 3.11.0 to 3.11.3 pickle a member as `getattr(class,
/// member)`, which is accepted only for these classes.
constexpr NameRow kEnums[] = {
    {"torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING MEM_FORMAT_ENCODING", M | B},
    {"torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING", M | B},
    {"torch.distributed.checkpoint.planner", "WriteItemType", M | B},
    {"megatron.core.enums", "ModelType Fp8Recipe Fp4Recipe", B},
    {"megatron.core.transformer.enums",
     "ModelType LayerType AttnType AttnMaskType AttnBackend "
     "CudaGraphModule CudaGraphScope InferenceCudaGraphScope",
     B},
    {"megatron.core.rerun_state_machine",
     "RerunDiagnostic RerunMode RerunState "
     "RerunValidationStatus",
     B},
    {"megatron.core.dist_checkpointing.validation", "StrictHandling", B},
    {"megatron.core.datasets.data_schedule", "PackingSchedulerEnum", B},
    {"megatron.core.inference.config",
     "PrefixCachingEvictionPolicy "
     "PrefixCachingCoordinatorPolicy KVCacheManagementMode CudaGraphSizingDistribution "
     "AsyncScheduleMode",
     B},
    {"megatron.core.inference.moe", "InferenceGroupedGemmBackend", B},
    {"signal", "Signals", B},
};

/// Members of an enumeration that are named like classes, as some versions pickle those of the
/// standard library. They contain no dot.
constexpr NameRow kMembers[] = {
    {"signal", "SIG*", B},
};

/// Any name in these top-level modules counts as tampering, since the file would run code under
/// Python.
constexpr std::string_view kRefusedModules =
    "os posix posixpath nt ntpath sys subprocess _posixsubprocess importlib imp pkgutil "
    "zipimport runpy shutil socket _socket ctypes _ctypes cffi pty commands webbrowser "
    "marshal code codeop pickle _pickle cPickle cloudpickle dill joblib shelve pdb bdb "
    "pydoc doctest timeit profile cProfile trace platform multiprocessing threading "
    "_thread asyncio concurrent signal requests urllib http ftplib smtplib telnetlib "
    "tempfile pip setuptools distutils ensurepip venv idlelib lib2to3";

/// The same for names of a module.
constexpr NameRow kRefused[] = {
    {"types", "CodeType FunctionType LambdaType MethodType ModuleType"},
    {"io", "open* FileIO"},
    {"_io", "open* FileIO"},
    {"torch", "load"},
    {"torch.serialization", "load*"},
    {"torch.storage", "_load_from_bytes"},
    {"torch.package", "*"},
    {"torch.hub", "*"},
    {"torch.jit", "*"},
    {"torch.ops", "*"},
    {"torch.classes", "*"},
    {"torch.utils.cpp_extension", "*"},
    {"torch._inductor.codecache", "*"},
    {"torch.distributed.rpc", "*"},
    {"numpy", "load* fromfile memmap"},
    {"numpy.testing", "*"},
    {"numpy.testing._private.utils", "*"},
    {"numpy.f2py", "*"},
    {"numpy.distutils", "*"},
};

/// Run no code while loading, but can help other names to do so; kept opaque with a warning.
constexpr NameRow kSuspect[] = {
    {"functools", "partial"},
    {"operator", "attrgetter itemgetter methodcaller"},
    {"_operator", "attrgetter itemgetter methodcaller"},
    {"copyreg", "*"},
    {"copy_reg", "*"},
};

/// Whether one of the names is `name`, or a prefix of it.
bool isAmong(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    std::string_view each = names.substr(0, names.find(' '));
    names.remove_prefix(std::min(each.size() + 1, names.size()));
    bool isPrefix = each.ends_with('*');
    if (isPrefix ? name.starts_with(each.substr(0, each.size() - 1)) : name == each)
      return true;
  }
  return false;
}

bool matches(const NameRow &row, std::string_view module, std::string_view name) {
  return row.module == module && isAmong(row.names, name);
}

bool isRefusedModule(std::string_view component) { return isAmong(kRefusedModules, component); }

/// Names of builtins that create or reach code.
bool isRefusedBuiltin(std::string_view name) {
  return isAmong("eval exec execfile compile open file getattr setattr delattr hasattr __import__ "
                 "apply input raw_input globals locals vars breakpoint help map filter type super",
                 name);
}

/// Whether a name may lead to code. Protocol 4 resolves attributes at each dot, which reaches any
/// module that the first one has imported (`torch.serialization` has `os`). Dunder names lead from
/// any object to all of Python.
bool reachesCode(std::string_view name) {
  while (true) {
    size_t dot = name.find('.');
    std::string_view part = name.substr(0, dot);
    bool isDunder = part.size() > 4 && part.starts_with("__") && part.ends_with("__");
    if (dot == std::string_view::npos)
      return isDunder;
    if (isDunder || isRefusedModule(part) || part == "builtins")
      return true;
    name.remove_prefix(dot + 1);
    if (isRefusedModule(name.substr(0, name.find('.'))))
      return true;
  }
}

bool isTorchTypeName(std::string_view module, std::string_view name) {
  return module == "torch" && (elementOfTorchName(name) || elementOfTorchStorage(name));
}

} // namespace

bool isEnum(PickleContext context, std::string_view module, std::string_view name) {
  unsigned here = 1u << static_cast<unsigned>(context);
  return std::ranges::any_of(kEnums, [&](const NameRow &row) {
    return (row.contexts & here) != 0 && matches(row, module, name);
  });
}

/// The order of the checks is a security property: harmless enumerations first, then everything
/// that could run code, then the lists of names that are allowed in this context. A name on no list
/// is refused, except in objects whose classes are kept without being interpreted.
GlobalVerdict judgeGlobal(PickleContext context, std::string_view module, std::string_view name) {
  unsigned here = 1u << static_cast<unsigned>(context);
  if (isEnum(context, module, name)) // allowed even in modules that are otherwise refused
    return GlobalVerdict::Allowed;
  for (const NameRow &row : kMembers)
    if ((row.contexts & here) != 0 && matches(row, module, name) &&
        name.find('.') == std::string_view::npos)
      return GlobalVerdict::Allowed;
  bool isBuiltin = module == "builtins" || module == "__builtin__";
  if (isRefusedModule(module.substr(0, module.find('.'))) ||
      (isBuiltin && isRefusedBuiltin(name)) || reachesCode(name))
    return GlobalVerdict::Tamper;
  for (const NameRow &row : kRefused)
    if (matches(row, module, name))
      return GlobalVerdict::Tamper;
  if (isTorchTypeName(module, name))
    return GlobalVerdict::Allowed;
  for (const NameRow &row : kAllowed)
    if ((row.contexts & here) != 0 && matches(row, module, name))
      return GlobalVerdict::Allowed;
  if (context != PickleContext::BytesItem)
    return GlobalVerdict::Refused;
  for (const NameRow &row : kSuspect)
    if (matches(row, module, name))
      return GlobalVerdict::Suspect;
  return isBuiltin ? GlobalVerdict::Refused : GlobalVerdict::Opaque;
}

} // namespace shardc::checkpoint
