// Reads a Python pickle into a PyGraph without running anything: no class is imported, no function
// called. The table PickleGlobals.def says which names are accepted where the pickle occurs. Every
// length is checked against the remaining bytes before memory is reserved.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/checkpoint/PyGraph.h"

namespace shardc::checkpoint {

/// The place of the pickle, which decides the names and opcodes that it may use.
enum class PickleContext : uint8_t {
  TensorRecord, ///< data.pkl of a tensor: what torch's restricted loader takes
  Metadata,     ///< a checkpoint's `.metadata`
  BytesItem,    ///< data.pkl of an object; unknown classes stay opaque
};

struct PickleLimits {
  uint64_t bytesMax = uint64_t{4} << 30;
  uint32_t valuesMax = 50'000'000; ///< nodes of the graph
  uint32_t depthMax = 1000;        ///< of marks and of nested values
  uint32_t globalsMax = 100'000;   ///< uses of class names that are not in the table
};

/// What the table says about a name.
enum class GlobalVerdict : uint8_t {
  Allowed,
  Opaque,  ///< unknown: kept as a name; an error only where it is needed
  Suspect, ///< opaque, and worth a warning
  Refused, ///< not possible in this context
  Tamper,  ///< the file would run code under Python
};
GlobalVerdict judgeGlobal(PickleContext context, std::string_view module, std::string_view name);
/// Whether the table says that the name is an enumeration. A member of one may also be written as
/// `getattr(class, member)`, which stays an Object of `builtins.getattr`; PyGraph::memberName
/// recognises it.
bool isEnum(PickleContext context, std::string_view module, std::string_view name);

struct Pickle {
  PyGraph graph;
  PyId root = kNoPy;
  size_t bytesUsed = 0;         ///< up to and with STOP
  std::vector<Report> warnings; ///< trailing bytes, suspect names
  /// Classes and functions, `module.name`, that the table does not know, or knows as suspect; each
  /// once, sorted. Their effect when they are loaded is unknown.
  std::vector<std::string> unknownNames;
};

/// Reads one pickle. The graph's texts point into `bytes`, which must outlive it.
/// Fails with InvalidInput that says what is wrong and at which byte.
Result<Pickle> readPickle(std::span<const uint8_t> bytes, PickleContext context,
                          const PickleLimits &limits = {});

} // namespace shardc::checkpoint
