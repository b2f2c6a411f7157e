// A text that the model has continued after an evaluation, as a run reports it.
#pragma once

#include <string>

namespace shardc::run {

struct SaidText {
  std::string prompt; ///< from the validation data
  std::string said;   ///< by the model
  std::string data;   ///< how the data go on
};

} // namespace shardc::run
