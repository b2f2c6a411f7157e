// Generates docs/hugging-face.md from the table of architectures and fields.
#pragma once

#include <string>

namespace shardc::tools {

/// The text of docs/hugging-face.md.
std::string hfReference();

} // namespace shardc::tools
