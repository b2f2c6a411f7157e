// The HTML file: the page's own text, style and script, and the data, which come from outside.
#pragma once

#include <string>

#include "compiler/page/PlanData.h"

namespace shardc::page {

/// A self-contained HTML file. `data` cannot end the element that holds it: characters with a
/// meaning in HTML are escaped as JSON allows.
std::string htmlPage(const Json &data);

} // namespace shardc::page
