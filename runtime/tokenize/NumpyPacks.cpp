#include "runtime/tokenize/NumpyPacks.h"

#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "runtime/base/Reports.h"
#include "runtime/checkpoint/PickleReader.h"

namespace shardc::tokenize {
namespace {

using checkpoint::kNoPy;
using checkpoint::PyGraph;
using checkpoint::PyId;
using checkpoint::PyKind;

bool isMade(const PyGraph &graph, PyId id, std::string_view name) {
  return graph.isObjectOf(id, "numpy.core.multiarray", name) ||
         graph.isObjectOf(id, "numpy._core.multiarray", name);
}

/// The items of a tuple with at least `count` items; empty otherwise.
std::span<const PyId> tupleOf(const PyGraph &graph, PyId id, size_t count) {
  bool isTuple = graph.is(id, PyKind::Tuple) && graph.items(id).size() >= count;
  return isTuple ? graph.items(id) : std::span<const PyId>();
}

/// The state of an array: version, shape, type of elements, order, elements. Empty if it is none.
std::span<const PyId> arrayState(const PyGraph &graph, PyId id) {
  return isMade(graph, id, "_reconstruct") ? tupleOf(graph, graph.object(id).state, 5)
                                           : std::span<const PyId>();
}

/// The code of a type of elements, such as `i8`; empty if it is none of this machine's byte order.
std::string_view codeOf(const PyGraph &graph, PyId id) {
  if (!graph.isObjectOf(id, "numpy", "dtype"))
    return {};
  std::span<const PyId> arguments = tupleOf(graph, graph.object(id).args, 1),
                        state = tupleOf(graph, graph.object(id).state, 2);
  if (arguments.empty() || (!state.empty() && graph.asText(state[1]) == ">"))
    return {};
  return graph.asText(arguments[0]).value_or("");
}

template <typename T> int64_t numberAt(const char *bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return static_cast<int64_t>(value);
}

/// Appends the numbers of an array's bytes. False if the type is not one of whole numbers, or if
/// the bytes are not `count` elements.
bool addElements(std::string_view code, std::string_view bytes, size_t count,
                 std::vector<int64_t> &out) {
  constexpr std::pair<std::string_view, int64_t (*)(const char *)> kTypes[] = {
      {"b1", numberAt<uint8_t>},  {"u1", numberAt<uint8_t>},  {"i1", numberAt<int8_t>},
      {"u2", numberAt<uint16_t>}, {"i2", numberAt<int16_t>},  {"u4", numberAt<uint32_t>},
      {"i4", numberAt<int32_t>},  {"u8", numberAt<uint64_t>}, {"i8", numberAt<int64_t>}};
  for (auto [name, read] : kTypes)
    if (auto width = static_cast<size_t>(name[1] - '0'); name == code) {
      if (bytes.size() / width != count || bytes.size() % width != 0)
        return false;
      for (size_t i = 0; i < count; ++i)
        out.push_back(read(bytes.data() + i * width));
      return true;
    }
  return false;
}

/// Appends a number of Python or of numpy.
bool addNumber(const PyGraph &graph, PyId id, std::vector<int64_t> &out) {
  if (isMade(graph, id, "scalar")) {
    std::span<const PyId> arguments = tupleOf(graph, graph.object(id).args, 2);
    std::optional<std::string> bytes =
        arguments.empty() ? std::nullopt : graph.asBytes(arguments[1]);
    return bytes && addElements(codeOf(graph, arguments[0]), *bytes, 1, out);
  }
  std::optional<bool> flag = graph.asBool(id);
  std::optional<int64_t> number = flag ? int64_t{*flag} : graph.asInteger(id);
  if (graph.is(id, PyKind::Float) && (graph.number(id) == 0 || graph.number(id) == 1))
    number = static_cast<int64_t>(graph.number(id));
  if (number)
    out.push_back(*number);
  return number.has_value();
}

/// The numbers of a list or of an array of one dimension.
std::optional<std::vector<int64_t>> numbersOf(const PyGraph &graph, PyId id) {
  std::vector<int64_t> numbers;
  if (std::span<const PyId> state = arrayState(graph, id); !state.empty()) {
    std::span<const PyId> shape = tupleOf(graph, state[1], 1);
    std::optional<std::string> bytes = graph.asBytes(state[4]);
    std::optional<int64_t> count = shape.size() == 1 ? graph.asInteger(shape[0]) : std::nullopt;
    if (!bytes || !count || *count < 0 ||
        !addElements(codeOf(graph, state[2]), *bytes, static_cast<size_t>(*count), numbers))
      return std::nullopt;
    return numbers;
  }
  if (!graph.is(id, PyKind::List) && !graph.is(id, PyKind::Tuple))
    return std::nullopt;
  for (PyId item : graph.items(id))
    if (!addNumber(graph, item, numbers))
      return std::nullopt;
  return numbers;
}

/// The bytes after the header of the format, which says nothing that the pickle does not say.
std::optional<std::span<const uint8_t>> pickleIn(std::span<const uint8_t> bytes) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  constexpr size_t kFixed = 8; // the magic number and two numbers of the version
  if (bytes.size() < kFixed + 4 || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    return std::nullopt;
  size_t width = bytes[kMagic.size()] == 1 ? 2 : 4, length = 0;
  std::memcpy(&length, bytes.data() + kFixed, width);
  return length <= bytes.size() - kFixed - width
             ? std::optional(bytes.subspan(kFixed + width + length))
             : std::nullopt;
}

} // namespace

Status forNumpyPacks(std::span<const uint8_t> bytes, const std::string &path, const UsePack &use) {
  auto refuse = [&path](std::string_view why) {
    return makeStatus(report::DataRefused, "'{}' is not a file of packs: {}", path, why);
  };
  std::optional<std::span<const uint8_t>> pickled = pickleIn(bytes);
  if (!pickled)
    return refuse("it does not begin as a .npy file");
  Result<checkpoint::Pickle> pickle =
      checkpoint::readPickle(*pickled, checkpoint::PickleContext::BytesItem);
  if (!pickle.isOk())
    return refuse(pickle.status().message());
  const PyGraph &graph = pickle->graph;
  std::span<const PyId> state = arrayState(graph, pickle->root);
  if (state.empty() || !graph.is(state[4], PyKind::List))
    return refuse("it holds no array of objects");
  size_t total = 0;
  for (PyId pack : graph.items(state[4])) {
    std::optional<std::vector<int64_t>> fields[3];
    for (int i = 0; i < 3; ++i)
      if (graph.is(pack, PyKind::Dict))
        fields[i] = numbersOf(
            graph, graph.lookup(pack, std::array{"input_ids", "loss_mask", "seq_start_id"}[i]));
    if (!fields[0] || !fields[1] || !fields[2])
      return refuse("it holds an object that is no pack of whole numbers");
    total += fields[0]->size();
    if (total > bytes.size()) // a small file names one pack many times
      return refuse("its packs have more tokens than the file has bytes");
    RETURN_IF_ERROR(use(*fields[0], *fields[1], *fields[2]));
  }
  return Status::ok();
}

} // namespace shardc::tokenize
