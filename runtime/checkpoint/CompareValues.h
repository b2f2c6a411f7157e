// Compares two objects of checkpoints by their values, as Python would. The bytes of pickles are
// not compared, since they depend on the order of saving and on the program that saved them.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/CheckpointReader.h"

namespace shardc::checkpoint {

/// A position in two objects at which their values differ.
struct ValueDifference {
  std::string path; ///< keys and indices, joined by dots; empty for the object itself
  std::string a, b; ///< both values as text
};

/// All positions at which the objects differ, each once. Dictionaries are equal regardless of the
/// order of keys. Numbers are equal only if they have the same type, and then if their bits are
/// equal, including NaN.
std::vector<ValueDifference> differencesOf(const ObjectValue &a, const ObjectValue &b);

} // namespace shardc::checkpoint
