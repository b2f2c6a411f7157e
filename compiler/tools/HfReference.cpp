#include "compiler/tools/HfReference.h"

#include <fmt/format.h>

#include "runtime/checkpoint/HfFields.h"

namespace shardc::tools {
namespace {

using namespace checkpoint;

constexpr const char *kHead = R"(# Models of Hugging Face

<!-- Generated from runtime/checkpoint/HfFields.def by `./dev docs`. -->

This page is for people who train a model of Hugging Face further, or hand one on. Nothing is
fetched: the model's folder, with `config.json` and safetensors, has to be on this machine.

    shardc import hf FOLDER -o my.recipe            # the recipe of its config.json
    shardc ckpt import hf FOLDER weights            # its tensors, as a checkpoint
    shardc run my.recipe --set='checkpoint.load="weights"' --set=checkpoint.finetune=true \
        --set=dist.use_megatron_fsdp=true --set=ddp.use_megatron_fsdp=true
    shardc ckpt export hf ckpt/my out --config FOLDER

The recipe has the model's section alone. A model does not say how it is to be trained: the recipe
begins with a list of what is to be filled in, such as the length of sequences and the weight of a
loss that balances experts. A run whose recipe computes something else than the model is refused
([checkpoints.md](checkpoints.md)).

An export copies `config.json` and the tokenizer from the folder that `--config` names, or without
it from the checkpoint, in which an import keeps them. A checkpoint that a run saved has none: there
`config.json` is made of the run's options for the architecture that has them; it is read again as
an import reads it, and an option that would differ refuses the export by its name. Experts are
read from one tensor each or from one of all; they are written as hubs have them, one tensor for
each expert, and for gpt-oss and Llama 4 one of all.

`test/interop/hf_training.py` trains a small model of each architecture here and in transformers,
from the same weights and with the same data, and compares ten losses and the models that both end
with.

## Architectures

The architecture is `model_type` of `config.json`. Another one is refused, with the nearest of
these.

)";

constexpr const char *kFields = R"(
## Fields

A field of `config.json` that is not here, or not of the model's architecture, is refused with its
place (`hf-field-unknown`), since it may change what the model computes. So is a value that no
recipe computes (`hf-setting-refused`). Fields that are null say nothing. `rope_parameters` is the
newer name of `rope_scaling` and has the same fields.

| field | architectures | meaning |
|---|---|---|
)";

std::string architecturesOf(const HfField &row) {
  std::string having, lacking;
  size_t numHaving = 0, numLacking = 0;
  for (const HfArchitecture &one : hfArchitectures()) {
    bool has = row.isOf(one.arch);
    std::string &list = has ? having : lacking;
    ++(has ? numHaving : numLacking);
    list += fmt::format("{}{}", list.empty() ? "" : ", ", one.modelType);
  }
  if (numLacking == 0)
    return "all";
  return numLacking < numHaving ? "all but " + lacking : having;
}

std::string meaningOf(const HfField &row) {
  switch (row.use) {
  case HfUse::Copy:
    return fmt::format("`model.{}`{}", row.text,
                       row.fallback.empty() ? ""
                                            : fmt::format("; {} if it is absent", row.fallback));
  case HfUse::Sets:
    return std::string(row.text);
  case HfUse::Needs:
    return fmt::format("`{}` is needed: {}", row.text, row.what);
  case HfUse::Idle:
    return fmt::format("changes nothing: {}", row.text);
  }
  return "";
}

} // namespace

std::string hfReference() {
  std::string out = kHead;
  out += "| `model_type` | class of transformers | `model` of the recipe |\n|---|---|---|\n";
  for (const HfArchitecture &one : hfArchitectures())
    out += fmt::format("| `{}` | `{}` | `{}` |\n", one.modelType, one.className, one.recipeFamily);
  out += kFields;
  for (const HfField &row : hfFields())
    out += fmt::format("| `{}` | {} | {} |\n", row.name, architecturesOf(row), meaningOf(row));
  return out;
}

} // namespace shardc::tools
