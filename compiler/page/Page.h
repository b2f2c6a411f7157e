// Writes the HTML file: a fixed text, style and script, with the data embedded.
#pragma once

#include <string>

#include "compiler/page/PlanData.h"

namespace shardc::page {

/// Returns a self-contained HTML file. `data` may contain any text: `<`, `>` and `&` are escaped as
/// in JSON, so that no text can end the script element.
std::string htmlPage(const Json &data);

} // namespace shardc::page
