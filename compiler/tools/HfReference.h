// The page on models of Hugging Face, of the table of their architectures and fields.
#pragma once

#include <string>

namespace shardc::tools {

/// The text of docs/hugging-face.md.
std::string hfReference();

} // namespace shardc::tools
