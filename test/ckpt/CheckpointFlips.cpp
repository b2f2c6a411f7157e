// Flips single bits in records of checkpoints, and runs every reader of checkpoints on them. Each
// result must be an error, or bitwise equal. Prints counts; fails if a result has changed.
//
//     checkpoint_flips COUNT ALL SEED WORK CHECKPOINT...
//
// With SHARDC_LONG=1 it flips ALL bits instead of COUNT.
// The checkpoints are copied to WORK without shardc's own block checksums, so they are like those
// of other programs, which have one checksum for the values of each record. A small model is added
// as another one.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "runtime/base/Io.h"
#include "runtime/checkpoint/CheckpointFormat.h"
#include "runtime/checkpoint/CheckpointView.h"
#include "runtime/checkpoint/Convert.h"
#include "runtime/checkpoint/HfConvert.h"
#include "runtime/checkpoint/SafeTensors.h"
#include "runtime/checkpoint/TorchDist.h"
#include "test/unit/support/Long.h"

namespace shardc::checkpoint {
namespace fs = std::filesystem;

namespace {

constexpr int kRanksMax = 4;

/// The whole result of a reader as text: equal texts are equal results.
using Outcome = Result<std::string>;

/// The files of a folder with their names and bytes.
Outcome filesOf(const std::string &folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry &entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file())
      continue;
    ASSIGN_OR_RETURN(std::string bytes, readFile(entry.path().string()));
    files[entry.path().lexically_relative(folder).string()] = std::move(bytes);
  }
  std::string all;
  for (const auto &[name, bytes] : files)
    all += fmt::format("{} {}\n", name, bytes.size()) + bytes;
  return all;
}

Outcome verifyAll(const std::string &folder) {
  ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::open(folder, Verify::Whole));
  for (const TensorMeta &tensor : reader.metadata().tensors)
    RETURN_IF_ERROR(reader.verifyTensor(tensor));
  for (const ObjectMeta &object : reader.metadata().objects)
    RETURN_IF_ERROR(reader.verifyObject(object));
  RETURN_IF_ERROR(reader.verifyFiles());
  RETURN_IF_ERROR(CheckpointView::open(folder).status());
  return std::string("whole");
}

/// What a rank of a run reads: its rows of every tensor, and the state that all ranks read.
Outcome loadRank(const std::string &folder, int rank, int ranks) {
  ASSIGN_OR_RETURN(CheckpointView view, CheckpointView::open(folder));
  std::vector<ViewTensor> tensors = view.tensors();
  for (ViewTensor &param : view.params())
    tensors.push_back(std::move(param));
  std::string all;
  for (const ViewTensor &tensor : tensors) {
    Box box;
    if (!tensor.shape.empty()) {
      RowRange rows = shareOfRows(tensor.shape[0], rank, ranks);
      box = Box::rows(tensor.shape, rows.begin, rows.end - rows.begin);
    }
    size_t at = all.size();
    all.resize(at + static_cast<size_t>(tensorBytes(tensor.type, box.shape).value_or(0)));
    RETURN_IF_ERROR(tensor.read(box, tensor.type, all.data() + at));
  }
  for (const ObjectMeta &object : view.reader().metadata().objects) {
    ASSIGN_OR_RETURN(ObjectValue value, view.reader().readObject(object.name));
    Result<PlainValue> plain = plainValueOf(value.graph(), value.root());
    all += plain.isOk() ? textOf(*plain) : plain.status().message();
    for (const ArchiveEntry &entry : value.archive.entries())
      if (entry.name.starts_with("data/"))
        all.append(entry.data.begin(), entry.data.end());
  }
  if (const TorchDistCheckpoint *dist = view.torchDist())
    for (const CommonLeaf &leaf : dist->common()) {
      Result<PlainValue> value = plainValueOf(dist->commonGraph(), leaf.value);
      all += nameOfPath(leaf.path) + (value.isOk() ? textOf(*value) : value.status().message());
    }
  return all;
}

Outcome load(const std::string &folder, int ranks) {
  std::string all;
  for (int rank = 0; rank < ranks; ++rank) { // in a run, each rank is a process
    ASSIGN_OR_RETURN(std::string part, loadRank(folder, rank, ranks));
    all += part;
  }
  return all;
}

Outcome made(const Status &status, const std::string &folder) {
  RETURN_IF_ERROR(status);
  return filesOf(folder);
}

/// A checkpoint in WORK, and the results of all readers while it is undamaged.
struct Source {
  std::string folder;
  std::map<std::string, Outcome> expected;
  std::vector<std::pair<std::string, uint64_t>> files; ///< files with records, and their sizes
};

class Flips {
public:
  explicit Flips(std::string work) : work_(std::move(work)), out_(work_ + "/out") {
    fs::remove_all(work_);
    fs::create_directories(work_);
  }

  Status add(const std::string &from);
  Status addModel();
  Status run(int count, uint32_t seed);
  bool print() const;

private:
  std::map<std::string, Outcome> outcomes(const std::string &folder);
  Outcome make(const std::function<Status(const SaveTarget &)> &save);
  Status flip(const Source &source, std::mt19937 &random);

  struct Count {
    int same = 0, refused = 0, changed = 0;
  };
  std::string work_, out_, hub_;
  std::vector<Source> sources_;
  std::map<std::string, Count> counts_;
  int found_ = 0, harmless_ = 0;
};

Outcome Flips::make(const std::function<Status(const SaveTarget &)> &save) {
  fs::remove_all(out_);
  return made(save({out_, "iter_0000001"}), out_ + "/iter_0000001");
}

std::map<std::string, Outcome> Flips::outcomes(const std::string &folder) {
  std::map<std::string, Outcome> all;
  all.emplace("verify", verifyAll(folder));
  for (int ranks = 1; ranks <= kRanksMax; ++ranks) {
    all.emplace(fmt::format("load on {}", ranks), load(folder, ranks));
    all.emplace(fmt::format("reshard to {}", ranks), make([&](const SaveTarget &target) {
                  ReshardOptions options;
                  options.ranks = ranks;
                  return reshard(folder, target, options);
                }));
  }
  all.emplace("convert to fsdp_dtensor", make([&](const SaveTarget &target) {
                return convertTorchDistToFsdp(folder, target, {});
              }));
  all.emplace("convert to torch_dist", make([&](const SaveTarget &target) {
                return convertFsdpToTorchDist(folder, target, {});
              }));
  fs::remove_all(out_);
  all.emplace("export", made(hub_.empty() ? Status(StatusCode::NotFound, "no model")
                                          : exportHf(folder, hub_, out_),
                             out_));
  return all;
}

Status Flips::add(const std::string &from) {
  Source source;
  source.folder = fmt::format("{}/{}", work_, sources_.size());
  fs::copy(from, source.folder, fs::copy_options::recursive);
  fs::remove(source.folder + "/" + kIntegrityFile);
  ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::open(source.folder));
  std::map<std::string, uint64_t> ends;
  for (const TensorMeta &tensor : reader.metadata().tensors)
    for (const Chunk &chunk : tensor.chunks)
      ends[chunk.record.file] =
          std::max(ends[chunk.record.file], chunk.record.offset + chunk.record.length);
  for (const ObjectMeta &object : reader.metadata().objects)
    ends[object.record.file] =
        std::max(ends[object.record.file], object.record.offset + object.record.length);
  if (fs::exists(source.folder + "/common.pt"))
    ends["common.pt"] = fs::file_size(source.folder + "/common.pt");
  source.files.assign(ends.begin(), ends.end());
  source.expected = outcomes(source.folder);
  for (const char *needed : {"verify", "load on 1", "reshard to 1"})
    RETURN_IF_ERROR(source.expected.at(needed).status());
  sources_.push_back(std::move(source));
  return Status::ok();
}

/// Adds a model that can be exported: imported from Hugging Face files, which are written here.
Status Flips::addModel() {
  hub_ = work_ + "/hub";
  fs::create_directories(hub_);
  std::ofstream(hub_ + "/config.json")
      << R"({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "vocab_size": 10, )"
         R"("num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 6})";
  std::vector<SafeTensorSource> tensors;
  auto add = [&](const std::string &name, Shape shape) {
    std::vector<float> values(static_cast<size_t>(elementCount(shape).value_or(0)));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i) + 0.5F * static_cast<float>(tensors.size());
    tensors.push_back({name, Element::F32, shape, [values](ByteSink &sink) {
                         return sink.write(values.data(), values.size() * sizeof(float));
                       }});
  };
  for (const char *name : {"model.embed_tokens", "lm_head"})
    add(fmt::format("{}.weight", name), {10, 8});
  add("model.norm.weight", {8});
  for (const auto &[name, rows, columns] : {std::tuple("self_attn.q_proj", 8, 8),
                                            {"self_attn.k_proj", 4, 8},
                                            {"self_attn.v_proj", 4, 8},
                                            {"self_attn.o_proj", 8, 8},
                                            {"mlp.gate_proj", 6, 8},
                                            {"mlp.up_proj", 6, 8},
                                            {"mlp.down_proj", 8, 6}})
    add(fmt::format("model.layers.0.{}.weight", name), {rows, columns});
  for (const char *name : {"input_layernorm", "post_attention_layernorm"})
    add(fmt::format("model.layers.0.{}.weight", name), {8});
  RETURN_IF_ERROR(writeSafeTensors(hub_ + "/model.safetensors", tensors));
  RETURN_IF_ERROR(importHf(hub_, {work_, "model"}));
  RETURN_IF_ERROR(this->add(work_ + "/model"));
  return sources_.back().expected.at("export").status();
}

Status flipBit(const std::string &path, uint64_t byte, int bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(byte));
  int value = file.get();
  file.seekp(static_cast<std::streamoff>(byte));
  file.put(static_cast<char>(value ^ (1 << bit)));
  file.flush();
  return file.good() ? Status::ok() : makeStatus(StatusCode::Io, "cannot change '{}'", path);
}

Status Flips::flip(const Source &source, std::mt19937 &random) {
  const auto &[name, size] = source.files[random() % source.files.size()];
  std::string path = source.folder + "/" + name;
  uint64_t byte = random() % size;
  int bit = static_cast<int>(random() % 8);
  RETURN_IF_ERROR(flipBit(path, byte, bit));
  bool isFound = false;
  for (const auto &[what, outcome] : outcomes(source.folder)) {
    const Outcome &expected = source.expected.at(what);
    if (!expected.isOk()) // this reader does not accept such a checkpoint
      continue;
    Count &count = counts_[what];
    isFound = isFound || !outcome.isOk();
    if (!outcome.isOk()) {
      ++count.refused;
    } else if (*outcome == *expected) {
      ++count.same;
    } else {
      ++count.changed;
      fmt::print("changed: {} of '{}' with bit {} of byte {} flipped in '{}'\n", what,
                 source.folder, bit, byte, name);
    }
  }
  ++(isFound ? found_ : harmless_);
  return flipBit(path, byte, bit);
}

Status Flips::run(int count, uint32_t seed) {
  std::mt19937 random(seed);
  for (int i = 0; i < count; ++i)
    RETURN_IF_ERROR(flip(sources_[static_cast<size_t>(i) % sources_.size()], random));
  return Status::ok();
}

/// Prints the counts. Returns true if no result has changed.
bool Flips::print() const {
  int changed = 0;
  for (const auto &[what, count] : counts_) {
    fmt::print("{}: {} refused, {} the same, {} changed\n", what, count.refused, count.same,
               count.changed);
    changed += count.changed;
  }
  fmt::print("{} flips in {} checkpoints: {} found, {} without effect, {} changed a result\n",
             found_ + harmless_, sources_.size(), found_, harmless_, changed);
  return changed == 0;
}

Status work(int argc, char **argv, bool &isFine) {
  if (argc < 6)
    return makeStatus(StatusCode::InvalidInput, "COUNT ALL SEED WORK CHECKPOINT... are needed");
  int count = std::atoi(argv[test::isLong() ? 2 : 1]);
  Flips flips(argv[4]);
  RETURN_IF_ERROR(flips.addModel());
  for (int i = 5; i < argc; ++i)
    RETURN_IF_ERROR(flips.add(argv[i]));
  RETURN_IF_ERROR(flips.run(count, static_cast<uint32_t>(std::atoi(argv[3]))));
  isFine = flips.print();
  return Status::ok();
}

} // namespace
} // namespace shardc::checkpoint

int main(int argc, char **argv) {
  using namespace shardc;
  using namespace shardc::checkpoint;
  bool isFine = false;
  Status status = work(argc, argv, isFine);
  if (!status.isOk())
    fmt::print(stderr, "{}\n", status.message());
  return status.isOk() && isFine ? 0 : 1;
}
