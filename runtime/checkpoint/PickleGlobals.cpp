// Decides which names and texts in pickles are harmless, according to PickleGlobals.def.
#include <algorithm>

#include "runtime/checkpoint/Element.h"
#include "runtime/checkpoint/PickleReader.h"

namespace shardc::checkpoint {
namespace {

constexpr unsigned T = 1u << static_cast<unsigned>(PickleContext::TensorRecord);
constexpr unsigned M = 1u << static_cast<unsigned>(PickleContext::Metadata);
constexpr unsigned B = 1u << static_cast<unsigned>(PickleContext::BytesItem);

struct NameRow {
  std::string_view module, names; ///< blanks separate names
  unsigned contexts = 0;
};

constexpr NameRow kAllowed[] = {
#define ALLOW(contexts, module, names) {module, names, contexts},
#include "runtime/checkpoint/PickleGlobals.def"
};

constexpr NameRow kEnums[] = {
#define ENUM(contexts, module, names) {module, names, contexts},
#include "runtime/checkpoint/PickleGlobals.def"
};

constexpr NameRow kMembers[] = {
#define MEMBER(contexts, module, names) {module, names, contexts},
#include "runtime/checkpoint/PickleGlobals.def"
};

constexpr std::string_view kRefusedModules =
#define REFUSE_MODULES(roots) roots
#include "runtime/checkpoint/PickleGlobals.def"
    ;

constexpr NameRow kRefused[] = {
#define REFUSE(module, names) {module, names},
#include "runtime/checkpoint/PickleGlobals.def"
};

constexpr NameRow kSuspect[] = {
#define SUSPECT(module, names) {module, names},
#include "runtime/checkpoint/PickleGlobals.def"
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
