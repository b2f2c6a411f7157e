// Whether an option has an effect beside the other values of a configuration, by the column of
// Options.def that names the settings which it needs.
#pragma once

#include <string>
#include <vector>

#include "compiler/config/Config.h"

namespace shardc::config {

/// One setting that an option may need.
struct NeededSetting {
  enum class Kind : uint8_t {
    Set,   ///< `c`: it is on, or has a value
    Equal, ///< `a = x`
    Above, ///< `b > 1`
  };
  Kind kind;
  Opt opt;
  Value value;    ///< of Equal
  double low = 0; ///< of Above
};

/// The settings of which an option needs one; empty if it needs none.
std::vector<NeededSetting> neededSettings(const OptionInfo &option);

/// Whether one of them holds, or none is needed.
bool hasEffect(const Config &config, const OptionInfo &option);

/// The settings in words: `'a = x' or 'b > 1'`.
std::string describeNeeds(const OptionInfo &option);

} // namespace shardc::config
