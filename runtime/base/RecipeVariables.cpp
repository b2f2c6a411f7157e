#include "runtime/base/RecipeVariables.h"

#include <algorithm>
#include <cstring>
#include <unistd.h>
#include <vector>

namespace shardc {
namespace {

bool fits(std::string_view name, std::string_view row) {
  return row.ends_with('*') ? name.starts_with(row.substr(0, row.size() - 1)) : name == row;
}

bool hasPart(std::string_view name, std::string_view part) {
  for (size_t at = 0; at <= name.size();) {
    size_t end = std::min(name.find('_', at), name.size());
    if (name.substr(at, end - at) == part)
      return true;
    at = end + 1;
  }
  return false;
}

/// A copy of the environment for as long as the program runs.
char **copyOfEnvironment() {
  auto *copy = new std::vector<char *>;
  for (char **variable = environ; variable && *variable; ++variable)
    copy->push_back(::strdup(*variable));
  copy->push_back(nullptr);
  return copy->data();
}

} // namespace

VariableUse useOfVariable(std::string_view name) {
#define POSITION(row)                                                                              \
  if (fits(name, row))                                                                             \
    return VariableUse::Position;
#define SECRET(part)                                                                               \
  if (hasPart(name, part))                                                                         \
    return VariableUse::Secret;
#define LOADS(part)                                                                                \
  if (hasPart(name, part))                                                                         \
    return VariableUse::Other;
#define SETTABLE(row)                                                                              \
  if (fits(name, row))                                                                             \
    return VariableUse::Settable;
#include "runtime/base/RecipeVariables.def"
  return VariableUse::Other;
}

char **helperEnvironment() {
  static char **const kept = copyOfEnvironment();
  return kept;
}

} // namespace shardc
