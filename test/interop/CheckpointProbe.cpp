// Reads and writes checkpoints for the interop test, whose Python script compares them with
// PyTorch's. Each command prints its result, or fails with a message and status 1.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/Crc32.h"
#include "runtime/base/Io.h"
#include "runtime/checkpoint/CheckpointReader.h"
#include "runtime/checkpoint/CheckpointWriter.h"
#include "runtime/checkpoint/Convert.h"
#include "runtime/checkpoint/FsdpCheckpoint.h"
#include "runtime/checkpoint/PlainValue.h"
#include "runtime/checkpoint/RunState.h"
#include "runtime/checkpoint/SafeTensors.h"

namespace shardc::checkpoint {
namespace {

using Args = std::vector<std::string>;

Result<std::string> readWhole(const CheckpointReader &reader, const TensorMeta &tensor) {
  std::string bytes(static_cast<size_t>(*tensorBytes(tensor.type, tensor.shape)), '\0');
  RETURN_IF_ERROR(reader.read(tensor.name, Box::whole(tensor.shape), tensor.type, bytes.data()));
  return bytes;
}

SaveTarget targetOf(const std::string &folder) {
  std::filesystem::path path(folder);
  return {path.parent_path().string(), path.filename().string()};
}

/// dump DIR: one line per item: for tensors the CRC of their bytes, for objects their text.
Status dump(const Args &args) {
  ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::open(args.at(0), Verify::Whole));
  for (const TensorMeta &tensor : reader.metadata().tensors) {
    RETURN_IF_ERROR(reader.verifyTensor(tensor));
    ASSIGN_OR_RETURN(std::string bytes, readWhole(reader, tensor));
    fmt::print("tensor\t{}\t{}\t{}\t{:08x}\n", tensor.name, torchName(tensor.type),
               shapeText(tensor.shape), crc32(0, bytes.data(), bytes.size()));
  }
  for (const ObjectMeta &object : reader.metadata().objects) {
    RETURN_IF_ERROR(reader.verifyObject(object));
    ASSIGN_OR_RETURN(ObjectValue value, reader.readObject(object.name));
    Result<PlainValue> plain = plainValueOf(value.graph(), value.root());
    fmt::print("object\t{}\t{}\n", object.name, plain.isOk() ? textOf(*plain) : "opaque");
  }
  return Status::ok();
}

/// box DIR NAME DTYPE OFFSET... SHAPE...: the bytes of a box, in hexadecimal.
Status box(const Args &args) {
  ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::open(args.at(0)));
  Shape numbers;
  for (size_t i = 3; i < args.size(); ++i)
    numbers.push_back(std::stoll(args[i]));
  auto middle = numbers.begin() + static_cast<ptrdiff_t>(numbers.size() / 2);
  Box box = {{numbers.begin(), middle}, {middle, numbers.end()}};
  std::optional<Element> type = elementOfTorchName(args.at(2));
  if (!type)
    return makeStatus(StatusCode::InvalidInput, "unknown type '{}'", args.at(2));
  std::vector<uint8_t> bytes(static_cast<size_t>(*tensorBytes(*type, box.shape)));
  RETURN_IF_ERROR(reader.read(args.at(1), box, *type, bytes.data()));
  fmt::print("{:02x}\n", fmt::join(bytes, ""));
  return Status::ok();
}

/// copy IN OUT RANKS: reads everything, and saves it with other ranks, split along rows.
Status copy(const Args &args) {
  ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::open(args.at(0)));
  SaveTarget target = targetOf(args.at(1));
  int ranks = std::stoi(args.at(2));
  std::vector<std::string> data;
  for (const TensorMeta &tensor : reader.metadata().tensors) {
    ASSIGN_OR_RETURN(std::string bytes, readWhole(reader, tensor));
    data.push_back(std::move(bytes));
  }
  RETURN_IF_ERROR(beginSave(target));
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<TensorSlice> slices;
    std::vector<BytesItem> items;
    for (size_t i = 0; i < data.size(); ++i) {
      const TensorMeta &tensor = reader.metadata().tensors[i];
      if (tensor.shape.empty() && rank != 0)
        continue;
      Box box;
      const char *at = data[i].data();
      if (!tensor.shape.empty()) {
        RowRange rows = shareOfRows(tensor.shape[0], rank, ranks);
        box = Box::rows(tensor.shape, rows.begin, rows.end - rows.begin);
        at += rows.begin * *tensorBytes(tensor.type, ShapeView(tensor.shape).subspan(1));
      }
      slices.push_back({tensor.name, tensor.type, tensor.shape, box, at,
                        reader.metadata().paths.at(tensor.name)});
    }
    for (size_t i = static_cast<size_t>(rank); i < reader.metadata().objects.size();
         i += static_cast<size_t>(ranks)) {
      const std::string &name = reader.metadata().objects[i].name;
      ASSIGN_OR_RETURN(std::span<const uint8_t> record, reader.readObjectRecord(name));
      items.push_back(
          {name, std::string(record.begin(), record.end()), reader.metadata().paths.at(name)});
    }
    RETURN_IF_ERROR(writeRank(target, rank, slices, items));
  }
  return commitSave(target, ranks);
}

/// Adds one rank's part of a parameter, whose element i is i + `first`, and of its moments.
void addParam(std::deque<std::vector<float>> &storage, std::vector<TensorSlice> &slices,
              const std::string &name, Shape shape, int rank, int ranks, bool isGated) {
  for (ParamPart part : kParamParts) {
    RowRange rows = shareOfRows(shape[0], rank, ranks);
    int64_t rowSize = *elementCount(ShapeView(shape).subspan(1));
    std::vector<float> &values = storage.emplace_back();
    for (int64_t i = rows.begin * rowSize; i < rows.end * rowSize; ++i)
      values.push_back(static_cast<float>(i) + 1000.0f * static_cast<float>(part));
    Box box = Box::rows(shape, rows.begin, rows.end - rows.begin);
    Status status =
        addParamSlices({name, Element::F32, shape, box, values.data()}, part, isGated, slices);
    SHARDC_CHECK(status.isOk(), "{}", status.message());
  }
}

/// fsdp ROOT RANKS: a complete `fsdp_dtensor` checkpoint of a small model under ROOT/iter_0000100.
Status fsdp(const Args &args) {
  SaveTarget target = SaveTarget::iteration(args.at(0), 100);
  int ranks = std::stoi(args.at(1));
  RunState state;
  state.iteration = 100;
  state.consumedTrainSamples = 3200;
  state.floatingPointOperations = 1e21;
  state.args = {{"num_layers", 2},
                {"hidden_size", 8},
                {"num_attention_heads", 2},
                {"params_dtype", Element::BF16}};
  state.scheduler = {{"max_lr", 1e-3}, {"num_steps", 3200}, {"lr_decay_style", "cosine"}};
  RETURN_IF_ERROR(beginSave(target));
  const std::pair<const char *, Shape> params[] = {
      {"embedding.word_embeddings.weight", {7, 8}},
      {"decoder.layers.0.mlp.linear_fc1.weight", {12, 8}},
      {"decoder.layers.1.mlp.experts.linear_fc1.weight3", {4, 2}},
      {"decoder.final_layernorm.weight", {8}},
  };
  for (int rank = 0; rank < ranks; ++rank) {
    std::deque<std::vector<float>> storage;
    std::vector<TensorSlice> slices;
    std::vector<BytesItem> items;
    ASSIGN_OR_RETURN(RngItems rng, rngItems(1234, 0, 0));
    if (rank == 0) {
      items = runStateItems(state);
      items.insert(items.end(), rng.objects.begin(), rng.objects.end());
      slices.insert(slices.end(), rng.tensors.begin(), rng.tensors.end());
    }
    for (const auto &[name, shape] : params) {
      addParam(storage, slices, name, shape, rank, ranks, /*isGated=*/true);
      GroupMeta meta;
      meta.lr = 1e-3;
      meta.step = 100;
      if (rank == ranks - 1)
        for (BytesItem &item : groupMetaItems(name, meta))
          items.push_back(std::move(item));
    }
    RETURN_IF_ERROR(writeRank(target, rank, slices, items));
  }
  ASSIGN_OR_RETURN(std::string trainState, trainStateFile(state));
  RETURN_IF_ERROR(addFile(target, "train_state.pt", trainState));
  RETURN_IF_ERROR(commitSave(target, ranks));
  return writeFileAtomic(args.at(0) + "/latest_train_state.pt", trainState);
}

/// rng FILE SEED: the record of generator states in a torch_dist checkpoint.
Status rng(const Args &args) {
  ASSIGN_OR_RETURN(BytesItem item, torchDistRngItem(static_cast<uint32_t>(std::stoul(args.at(1)))));
  return writeFileAtomic(args.at(0), item.record);
}

/// types OUT: a checkpoint with a tensor of 6 elements for each of torch's types; bytes alternate
/// between 0 and 1.
Status types(const Args &args) {
  std::string bytes;
  for (int i = 0; i < 6 * 16; ++i)
    bytes.push_back(static_cast<char>(i % 2)); // also valid as booleans
  std::vector<TensorSlice> slices;
#define ELEMENT(enumerator, torchName, storage, safetensors, bits)                                 \
  if (std::strlen(torchName) != 0)                                                                 \
    slices.push_back(                                                                              \
        {"t." torchName, Element::enumerator, {2, 3}, Box::whole({2, 3}), bytes.data()});
#include "runtime/checkpoint/ElementTypes.def"
  return save(targetOf(args.at(0)), 0, 1, slices, {});
}

/// large OUT BYTES: a record like torch.save's of BYTES bytes with value 7, to compare with
/// torch's.
Status large(const Args &args) {
  struct FileSink : ByteSink {
    explicit FileSink(const std::string &path) : file(std::fopen(path.c_str(), "wb")) {}
    ~FileSink() override { std::fclose(file); }
    Status write(const void *data, size_t size) override {
      return std::fwrite(data, 1, size, file) == size ? Status::ok()
                                                      : Status(StatusCode::Io, "cannot write");
    }
    std::FILE *file;
  } sink(args.at(0));
  std::string bytes(std::stoull(args.at(1)), '\x07');
  std::string_view data = bytes;
  return writeTensorRecord(sink, Element::U8, Shape{static_cast<int64_t>(bytes.size())},
                           {&data, 1});
}

/// safetensors IN OUT BYTES: reads a model's folder, and writes it in files of at most BYTES.
Status safetensors(const Args &args) {
  ASSIGN_OR_RETURN(SafeTensorsModel model, SafeTensorsModel::open(args.at(0)));
  std::vector<SafeTensorSource> sources;
  for (const auto &[name, file] : model.names()) {
    const SafeTensor *tensor = model.find(name);
    std::span<const uint8_t> bytes = model.bytes(name);
    sources.push_back({name, tensor->type, tensor->shape,
                       [bytes](ByteSink &sink) { return sink.write(bytes.data(), bytes.size()); }});
  }
  return writeSafeTensorsModel(args.at(1), std::move(sources), std::stoull(args.at(2)));
}

/// convert IN OUT [--swiglu] [--weights-only] [--groups JSON]: torch_dist to fsdp_dtensor.
Status convert(const Args &args) {
  ConvertOptions options;
  options.pieceBytes = 1000;
  for (size_t i = 2; i < args.size(); ++i) {
    options.isSwiglu |= args[i] == "--swiglu";
    options.weightsOnly |= args[i] == "--weights-only";
    if (args[i] == "--groups") {
      ASSIGN_OR_RETURN(options.groups, readGroupMapJson(args.at(++i)));
    }
  }
  return convertTorchDistToFsdp(args.at(0), targetOf(args.at(1)), options);
}

/// back IN OUT: fsdp_dtensor to torch_dist.
Status back(const Args &args) {
  return convertFsdpToTorchDist(args.at(0), targetOf(args.at(1)), {});
}

/// groups DIR: the JSON form of a dumped group map.
Status groups(const Args &args) { return writeGroupMapJson(args.at(0)); }

int run(int argc, char **argv) {
  const std::pair<const char *, Status (*)(const Args &)> commands[] = {
      {"dump", dump},
      {"box", box},
      {"copy", copy},
      {"fsdp", fsdp},
      {"types", types},
      {"large", large},
      {"convert", convert},
      {"back", back},
      {"rng", rng},
      {"groups", groups},
      {"safetensors", safetensors}};
  for (const auto &[name, command] : commands) {
    if (argc < 3 || std::strcmp(argv[1], name) != 0)
      continue;
    Status status = command(Args(argv + 2, argv + argc));
    if (!status.isOk())
      fmt::print(stderr, "checkpoint_probe: {}\n", status.message());
    return status.isOk() ? 0 : 1;
  }
  fmt::print(stderr,
             "usage: checkpoint_probe COMMAND ARGUMENT...; commands are explained in the source\n");
  return 2;
}

} // namespace
} // namespace shardc::checkpoint

int main(int argc, char **argv) { return shardc::checkpoint::run(argc, argv); }
