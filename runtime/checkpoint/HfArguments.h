// What a Hugging Face `config.json` says of how its model computes, as options of a recipe. Shapes
// do not show it, so an import keeps it with the weights, and a run compares its recipe with it.
#pragma once

#include <string>
#include <string_view>

#include "runtime/checkpoint/HfModel.h"
#include "runtime/checkpoint/PlainValue.h"

namespace shardc::checkpoint {

/// Which biases the model has beside its weights, by its tensors.
struct HfBiases {
  bool ofQkv = false, ofProjection = false, ofMlp = false;
};

/// Those that `config.json` says, for a model whose tensors are not there.
HfBiases biasesSaid(const HfConfig &config, std::string_view text);

/// The options that a recipe of this model has, named by the last segments of their paths, as runs
/// save theirs; Megatron's own names of some beside them. HfSettingRefused with the field and its
/// value for what no recipe computes. `text` is the file's, `path` where messages say it is from;
/// `place` receives the dotted name of a field that is refused, if not null.
Result<PlainEntries> hfArguments(const HfConfig &config, const HfBiases &biases,
                                 std::string_view text, const std::string &path,
                                 std::string *place = nullptr);

} // namespace shardc::checkpoint
