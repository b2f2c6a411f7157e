// Packs of Megatron-Bridge in a `.npy` file: a pickled array of dictionaries. They are read without
// Python, since numpy writes to addresses that a forged type of elements determines.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "runtime/base/Status.h"

namespace shardc::tokenize {

/// Receives a pack: its tokens, the marks of those whose successor counts in the loss, and where
/// its rows begin.
using UsePack =
    std::function<Status(std::span<const int64_t> tokens, std::span<const int64_t> masks,
                         std::span<const int64_t> starts)>;

/// Calls `use` for each pack of the file's bytes, until one fails. InvalidInput if they are not an
/// array of dictionaries of whole numbers. `path` is for messages.
Status forNumpyPacks(std::span<const uint8_t> bytes, const std::string &path, const UsePack &use);

} // namespace shardc::tokenize
