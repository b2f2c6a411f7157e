// Rows, or columns, of a joined layer in parts that may have adapters: num_groups groups of `units`
// equal units. The first `first_units` of a group are of the first part, each other one is a part.
// `kept` has a bit for each part with an adapter.
#pragma once

#include "kernels/host/Check.h"

namespace shardc::kernels::host {

/// Null, or the reason why the attributes do not fit this number of rows.
const char *checkParts(const Attrs &attrs, int64_t rows);
/// The index of a row's part among the parts that are kept; -1 if the part is not kept.
int64_t placeOfPart(const Attrs &attrs, int64_t row, int64_t rows);

} // namespace shardc::kernels::host
