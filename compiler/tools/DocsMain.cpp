// shardc-docs: writes the reference pages that are generated from tables to a folder, or compares
// them with the files there. Also writes manual pages and completions, generated from the programs'
// help.
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <string>

#include "compiler/config/Explain.h"
#include "compiler/passes/Pipeline.h"
#include "compiler/tools/CommandHelp.h"
#include "compiler/tools/Reference.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Io.h"
#include "runtime/base/Output.h"
#include "runtime/checkpoint/HfFields.h"

namespace shardc {
namespace {

using checkpoint::HfArchitecture;
using checkpoint::HfField;
using checkpoint::HfOuter;
using checkpoint::HfUse;

constexpr const char *kHead = R"(# Models of Hugging Face

<!-- Generated from runtime/checkpoint/HfFields.def by `./dev docs`. -->

This page is for people who train a Hugging Face model further, or export a model in that format.
shardc downloads nothing: the model's folder, with `config.json` and safetensors, must be on this
machine.

The commands follow each other. A test runs them with a small Llama in the folder `llama`. First
the recipe of its `config.json`, and its tensors as a checkpoint:

    $ shardc import hf llama -o my.recipe
    warning: ... set 'model.seq_length'
    $ shardc ckpt import hf llama weights
    'llama' is now 'weights/iter_0000000': 17 tensors

The imported recipe has only the section `model`, because `config.json` does not say how to train.
It begins with a list of settings that you fill in, such as the length of sequences and the weight
of the loss that balances experts. A second recipe says the rest, above all the data: a run that
would train on nothing but random tokens is refused.

    // train.recipe
    recipe train extends "my.recipe" {
      model { seq_length = 32 }
      cluster { gpu = host  nodes = 1  gpus_per_node = 2 }
      dist { use_megatron_fsdp = true }
      ddp { data_parallel_sharding_strategy = optim_grads_params }
      dataset text { data_path = ["docs"]  split = "90,10,0" }  // bytes; see data.md for tokens
      optimizer adam { lr = 1e-5 }
      train { micro_batch_size = 1  global_batch_size = 2  train_iters = 4 }
      checkpoint { pretrained_checkpoint = "weights"  finetune = true  save = "trained" }
    }

    $ shardc run train.recipe
    step 4/4  loss
    saved step 4 to 'trained/iter_0000004'
    $ shardc ckpt export hf trained out
    exported 'trained/iter_0000004' to 'out'

A run is refused if its recipe computes something other than the
imported model ([checkpoints.md](checkpoints.md)).

An export copies `config.json` and the tokenizer from the folder that `--config` names. Without
`--config`, it copies them from the checkpoint, where an import keeps them. A run that
begins with such a checkpoint carries them into those that it saves. If a checkpoint does not have
them, or the run computes something else than their `config.json` says, the export makes a
`config.json` from the run's options, for the architecture that has these options. It then reads the
file as an import would, and refuses the export if an option would differ; the message names the
option.

The import reads experts from one tensor for each expert, or from one tensor for all of them, whose
matrices are transposed or not. If the sizes allow both, they are not, as in transformers. The
export writes one tensor for all experts for gpt-oss and Llama 4, as published models have it, and
otherwise one tensor for each expert.

`test/interop/hf_training.py` trains a small model of each architecture with shardc and with
transformers, from the same weights and on the same data. It compares ten losses and both final
models.

## Architectures

The architecture is `model_type` of `config.json`. If that is not in this table, the class in
`architectures` says the architecture. An import refuses a file whose type and class are both
unknown, and names the architecture that has most of the file's fields.

)";

constexpr const char *kOuter = R"(
## Models of several parts

A model that also takes images has its text model in `text_config`, or, in older files of Qwen,
beside the others' fields. An import takes the text model, and names what it leaves out: fields
(`hf-parts-left-out`) and tensors (`tensors-left-out`). An export writes the text model.

| `model_type` | class of transformers | `model_type` of the text |
|---|---|---|
)";

constexpr const char *kFields = R"(
## Fields

If this table does not list a field of `config.json` for the model's architecture, the
architecture's class in transformers does not read it, so it changes nothing. An import leaves such
a field out and names it (`hf-fields-unread`). `test/interop/hf_fields.py` compares the table with
the sources of transformers.

An import refuses a field that may change what the model computes (`hf-field-unknown`): one that
transformers reads and no recipe has, one whose name resembles that of a known field, and, if
`auto_map` names code in the model's folder, every field that is not known. It names all of them.
`--accept-field=NAME` leaves a field out; it may be given several times. An import also refuses a
value that no recipe can express (`hf-setting-refused`).

Ministral 3 scales queries from position `original_max_position_embeddings` on, which no recipe
does; in shorter sequences the scale is 1. Such a model is imported for these, usually up to 16,384
tokens, with `--accept-field=rope_parameters.llama_4_scaling_beta`.

Fields that are null are ignored. `rope_parameters` is the newer name of `rope_scaling` and has the
same fields. In the table, "the library" is transformers.

| field | architectures | meaning |
|---|---|---|
)";

std::string architecturesOf(const HfField &row) {
  std::string having, lacking;
  size_t numHaving = 0, numLacking = 0;
  for (const HfArchitecture &one : checkpoint::hfArchitectures()) {
    bool has = row.isOf(one.arch);
    std::string &list = has ? having : lacking;
    ++(has ? numHaving : numLacking);
    list += fmt::format("{}{}", list.empty() ? "" : ", ", one.modelType);
  }
  if (numLacking == 0)
    return "all";
  return numLacking < numHaving ? "all but " + lacking : having;
}

std::string fallbackOf(const HfField &row) {
  return row.fallback.empty() ? "" : fmt::format("; {} if it is absent", row.fallback);
}

/// The text for layers with biases: all linear layers, or only those of queries, keys and values.
std::string biasedLayers(const checkpoint::HfBiases &parts) {
  std::string list = parts.ofQkv ? "queries, keys and values" : "";
  for (const auto &[isOne, name] : {std::pair(parts.ofProjection, "the output of attention"),
                                    std::pair(parts.ofMlp, "feed-forward layers")})
    if (isOne)
      list += (list.empty() ? "" : ", ") + std::string(name);
  return list;
}

/// If several fields map to one option, all must have the value of the first one. Says so for the
/// others; empty for the first one.
std::string firstOf(const HfField &row) {
  for (const HfArchitecture &one : checkpoint::hfArchitectures())
    if (const HfField *first = checkpoint::findHfCopy(one.arch, row.text);
        row.isOf(one.arch) && first != &row)
      return fmt::format(", must equal `{}`", first->name);
  return "";
}

std::string meaningOf(const HfField &row) {
  switch (row.use) {
  case HfUse::Copy:
    return fmt::format("`model.{}`{}{}", row.text, firstOf(row), fallbackOf(row));
  case HfUse::Sets:
    return std::string(row.text) + fallbackOf(row);
  case HfUse::Biases:
    return fmt::format("biases of {}{}", biasedLayers(row.parts), fallbackOf(row));
  case HfUse::Agrees:
    return std::string(row.text);
  case HfUse::Needs:
    return fmt::format("must be `{}`: {}", row.text, row.what);
  case HfUse::Idle:
    return fmt::format("changes nothing: {}", row.text);
  }
  return "";
}

/// The text of docs/hugging-face.md.
std::string hfReference() {
  std::string out = kHead;
  out += "| `model_type` | class of transformers | `model` of the recipe |\n|---|---|---|\n";
  for (const HfArchitecture &one : checkpoint::hfArchitectures())
    out += fmt::format("| `{}` | `{}` | `{}` |\n", one.modelType, one.className, one.recipeFamily);
  out += kOuter;
  for (const HfOuter &one : checkpoint::hfOuters())
    out += fmt::format("| `{}` | `{}` | `{}` |\n", one.modelType, one.className, one.textType);
  out += kFields;
  for (const HfField &row : checkpoint::hfFields())
    out += fmt::format("| `{}` | {} | {} |\n", row.name, architecturesOf(row), meaningOf(row));
  return out;
}

struct Page {
  const char *name;
  std::string text;
};

/// The programs beside this one whose commands a page lists.
Result<std::string> commandPage() {
  std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  std::vector<tools::HelpPage> programs;
  for (const char *name : {"shardc", "shardc-run"}) {
    ASSIGN_OR_RETURN(tools::HelpPage help, tools::readHelp((here / name).string()));
    programs.push_back(std::move(help));
  }
  return tools::commandReference(programs);
}

std::vector<Page> pages(std::string commands) {
  return {{"commands.md", std::move(commands)},
          {"coming-from-others.md", tools::foreignReference()},
          {"options.md", config::optionReference()},
          {"rules.md", config::ruleReference()},
          {"diagnostics.md", tools::diagnosticReference()},
          {"messages.md", tools::messageReference()},
          {"ops.md", tools::opReference()},
          {"kinds.md", tools::kindReference()},
          {"passes.md", tools::passReference()},
          {"devices.md", tools::deviceReference()},
          {"job.md", tools::jobReference()},
          {"hugging-face.md", hfReference()}};
}

/// A page of prose whose tables, between two marks, come from the code.
Result<Page> environmentPage(const std::string &folder) {
  constexpr std::string_view kBegin = "<!-- made from runtime/base/Launchers.def -->\n",
                             kEnd = "<!-- end -->\n";
  ASSIGN_OR_RETURN(std::string text, readFile(folder + "/environment.md"));
  size_t begin = text.find(kBegin), end = text.find(kEnd);
  if (begin == text.npos || end == text.npos)
    return makeStatus(StatusCode::InvalidInput, "environment.md lacks a mark of its tables");
  begin += kBegin.size();
  text.replace(begin, end - begin, "\n" + tools::launcherReference() + "\n");
  return Page{"environment.md", std::move(text)};
}

/// Whether the file in the folder equals the page that the tables give.
bool isCurrent(const Page &page, const std::string &path) {
  Result<std::string> text = readFile(path);
  if (text.isOk() && *text == page.text)
    return true;
  std::fprintf(stderr, "%s differs from the tables; './dev docs' writes it again\n", path.c_str());
  return false;
}

int run(const std::string &folder, bool check) {
  Result<std::string> commands = commandPage();
  if (!commands.isOk()) {
    std::fprintf(stderr, "shardc-docs: error: %s\n", commands.status().message().c_str());
    return 3;
  }
  Result<Page> environment = environmentPage(folder);
  if (!environment.isOk()) {
    std::fprintf(stderr, "shardc-docs: error: %s\n", environment.status().message().c_str());
    return 3;
  }
  std::vector<Page> all = pages(*commands);
  all.push_back(*environment);
  bool good = true;
  for (const Page &page : all) {
    std::string path = folder + "/" + page.name;
    if (check) {
      good &= isCurrent(page, path);
    } else if (Status status = writeFileAtomic(path, page.text); !status.isOk()) {
      std::fprintf(stderr, "shardc-docs: error: %s\n", status.message().c_str());
      return 3;
    }
  }
  return good ? 0 : 1;
}

} // namespace
} // namespace shardc

int main(int argc, char **argv) {
  using namespace shardc;
  prepareOutput();
  cli::Program app("writes the reference pages that are generated from the tables", "shardc-docs");
  std::string folder;
  bool check = false;
  app.option("folder", folder, "folder of the pages").required();
  app.flag("--check", check, "write nothing; fail if a page is not current");
  std::vector<std::string> programs;
  app.option("--share", programs, "write manual pages and completions of these programs instead");
  if (std::optional<int> ended = app.parse(argc, argv))
    return *ended;
  if (programs.empty())
    return run(folder, check);
  Status status = tools::writeShare(folder, programs);
  if (!status.isOk())
    std::fprintf(stderr, "shardc-docs: error: %s\n", status.message().c_str());
  return status.isOk() ? 0 : 3;
}
