// The HTML file: the page's own text, style and script, and the data, which come from outside.
#pragma once

#include <string>

#include "compiler/page/PlanData.h"

namespace shardc::page {

/// One file that needs nothing else. Nothing in `data` can end the element that holds it: what HTML
/// gives a meaning is escaped as JSON allows.
std::string htmlPage(const Json &data);

} // namespace shardc::page
