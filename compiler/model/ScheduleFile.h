// Pipeline schedules as files, in PyTorch's format: a row for each stage, a cell for each pass.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "compiler/model/PassOrder.h"

namespace shardc::model {

/// Reads a schedule: cells such as `2F0`, `2B0`, `2I0`, `2W0` and `(2F4;5B1)OVERLAP_F_B`, with
/// blanks and quotes as in CSV. The placement is that of the rows. Gathers (`2UNSHARD`), releases
/// (`2RESHARD`), reductions (`2REDUCE_GRAD`), transfers (`2SEND_F0`) and waits are derived for
/// every schedule; those of the file must not contradict its passes. An order that is returned has
/// no fault.
std::variant<PassOrder, OrderFault> readSchedule(std::string_view text, int64_t stages,
                                                 int64_t microbatches);
/// The same for a text that has been read before.
PassOrder readFaultless(std::string_view text, int64_t stages, int64_t microbatches);
/// The cell of a line, from column 1, without blanks around it; the whole line for column 0.
std::string_view cellOf(std::string_view line, int64_t column);
/// The text of the file: what readSchedule() turns into this order. In jobs, '|' ends a row.
std::string writeSchedule(const PassOrder &order, char rowEnd = '\n');

} // namespace shardc::model
