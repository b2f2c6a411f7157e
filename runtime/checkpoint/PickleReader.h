// Reads a Python pickle into a PyGraph without executing anything: no class is imported and no
// function called. PickleGlobals.cpp says which names are accepted where. Every length is checked
// against the remaining bytes before memory is reserved.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/Status.h"
#include "runtime/checkpoint/PyGraph.h"

namespace shardc::checkpoint {

/// Where the pickle occurs, which decides the names and opcodes that it may use.
enum class PickleContext : uint8_t {
  TensorRecord, ///< data.pkl of a tensor: what torch's restricted loader accepts
  Metadata,     ///< a checkpoint's `.metadata`
  BytesItem,    ///< data.pkl of an object; unknown classes stay opaque
};

/// What a pickle may use before it is refused, so that a small file cannot exhaust memory.
struct PickleLimits {
  uint64_t bytesMax = uint64_t{4} << 30;
  uint32_t valuesMax = 50'000'000; ///< nodes of the graph
  uint32_t depthMax = 1000;        ///< nesting of marks, and nesting of values
  uint32_t globalsMax = 100'000;   ///< uses of class names that the table lacks
};

/// The classification of a name by the table.
enum class GlobalVerdict : uint8_t {
  Allowed,
  Opaque,  ///< unknown: kept as a name, and an error only if it is needed
  Suspect, ///< opaque, with a warning
  Refused, ///< cannot occur in this context
  Tamper,  ///< would run code under Python
};
/// The classification of `module.name` in this context.
GlobalVerdict judgeGlobal(PickleContext context, std::string_view module, std::string_view name);
/// Whether the name is that of an enumeration in the table. Members may also be written as
/// `getattr(class, member)`. Such a member stays an Object of `builtins.getattr`, which
/// PyGraph::memberName recognises.
bool isEnum(PickleContext context, std::string_view module, std::string_view name);

/// A pickle that was read. Nothing of it was executed.
struct Pickle {
  PyGraph graph;
  PyId root = kNoPy;
  size_t bytesUsed = 0;         ///< including STOP
  std::vector<Report> warnings; ///< about trailing bytes and suspect names
  /// Names `module.name` of classes and functions that the table lacks or marks as suspect; sorted
  /// and without duplicates. What they do when they are loaded is unknown.
  std::vector<std::string> unknownNames;
};

/// Reads one pickle. Texts of the graph point into `bytes`, which must outlive it. InvalidInput,
/// with the reason and the byte position, on failure.
Result<Pickle> readPickle(std::span<const uint8_t> bytes, PickleContext context,
                          const PickleLimits &limits = {});

} // namespace shardc::checkpoint
