// Whether an option has an effect, given the other values of a configuration. Options.def lists the
// settings that an option needs.
#pragma once

#include <string>
#include <vector>

#include "compiler/config/Config.h"

namespace shardc::config {

/// One setting that an option may need.
struct NeededSetting {
  enum class Kind : uint8_t {
    Set,   ///< `c`: the option is on, or has a value
    Equal, ///< `a = x`; of `a = none`, also a value that follows from other options
    Above, ///< `b > 1`
  };
  Kind kind;
  Opt opt;
  Value value;    ///< of Equal
  double low = 0; ///< of Above
};

/// The settings of which an option needs at least one, or one of each list; empty if it needs none.
std::vector<NeededSetting> neededSettings(const OptionInfo &option);

/// Whether one of the settings holds, such as `a = x or b > 1 or c`, or the text is empty. Between
/// several lists stands `and`.
bool holds(const Config &config, llvm::StringRef settings);

/// Whether the needed settings hold, or none is needed.
bool hasEffect(const Config &config, const OptionInfo &option);

/// Whether a stronger layer than the one that sets the option chooses what the option needs: the
/// needed option, the kind of its section, or a preset.
bool isLeftBehind(const Config &config, const OptionInfo &option);

/// Whether the option is on to save memory or time, and shardc ignores it.
bool isSavingIgnored(const Config &config, const OptionInfo &option);

/// The options that name data; all are lists.
inline constexpr Opt kDataPaths[] = {Opt::DatasetDataPath, Opt::DatasetBlend,
                                     Opt::DatasetTrainDataPath, Opt::DatasetValidDataPath,
                                     Opt::DatasetTestDataPath};

/// The option of these that names the training data; nothing if none does.
std::optional<Opt> trainingData(const Config &config);

/// The last path of an option that names data; before it, a blend has a weight.
const std::string &lastPath(const Config &config, Opt paths);

/// The kind of the data with this name: that of the files that exist, or else what the ending of
/// the name tells; nothing if neither does.
std::optional<DatasetKind> dataKindOf(llvm::StringRef path);

/// Whether the option has a value that asks for something: not none, false or an empty list.
bool isNamed(const Config &config, Opt opt);

/// Whether the model is the same without the option: it is marked as layout(), or has an effect
/// only with such options.
bool isOfLayout(const OptionInfo &option);

/// The settings in words: `'a = x' or 'b > 1'`.
std::string describeNeeds(const OptionInfo &option);

} // namespace shardc::config
