// Lets fmt print llvm::StringRef.
#pragma once

#include <string_view>

#include <fmt/format.h>

#include "llvm/ADT/StringRef.h"

template <> struct fmt::formatter<llvm::StringRef> : fmt::formatter<std::string_view> {
  template <typename Context> auto format(llvm::StringRef text, Context &context) const {
    return fmt::formatter<std::string_view>::format(std::string_view(text.data(), text.size()),
                                                    context);
  }
};
