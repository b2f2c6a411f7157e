// Compares two objects of checkpoints as Python would: by their contents, not by the bytes of their
// pickles, which depend on the order of saving and on the program that saved.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/CheckpointReader.h"

namespace shardc::checkpoint {

/// A place in two objects where their values differ.
struct ValueDifference {
  std::string path; ///< keys and indices with dots between them; empty for the object itself
  std::string a, b; ///< the values as text
};

/// All places where they differ, each once. Dictionaries are equal in any order of their keys, and
/// numbers only if they are of one type; equal bits are equal, NaN or not.
std::vector<ValueDifference> differencesOf(const ObjectValue &a, const ObjectValue &b);

} // namespace shardc::checkpoint
