// Generator states right after seeding: Mersenne Twister as Python, numpy and torch seed it
// (Matsumoto and Nishimura, "Mersenne Twister", ACM TOMACS 8(1), 1998), and the 16 bytes of a CUDA
// generator.
#include <array>
#include <cstring>

#include "runtime/checkpoint/PickleWriter.h"
#include "runtime/checkpoint/RunState.h"
#include "runtime/checkpoint/TensorRecord.h"

namespace shardc::checkpoint {
namespace {

constexpr size_t kWords = 624;
constexpr size_t kTorchStateBytes = 5056;
using TwisterState = std::array<uint32_t, kWords>;

/// Seeds the state with one number, as numpy and torch do.
TwisterState seededByNumber(uint32_t seed) {
  TwisterState state;
  state[0] = seed;
  for (uint32_t i = 1; i < kWords; ++i)
    state[i] = 1812433253u * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
  return state;
}

/// Seeds the state with an array of one number, as Python does.
TwisterState seededByArray(uint32_t key) {
  TwisterState state = seededByNumber(19650218u);
  size_t i = 1;
  auto step = [&](uint32_t factor) {
    return state[i] ^ ((state[i - 1] ^ (state[i - 1] >> 30)) * factor);
  };
  auto advance = [&] {
    if (++i == kWords) {
      state[0] = state[kWords - 1];
      i = 1;
    }
  };
  for (size_t count = 0; count < kWords; ++count, advance())
    state[i] = step(1664525u) + key;
  for (size_t count = 0; count < kWords - 1; ++count, advance())
    state[i] = step(1566083941u) - static_cast<uint32_t>(i);
  state[0] = 0x80000000u;
  return state;
}

PyId pythonState(PyGraph &graph, uint32_t seed) {
  std::vector<PyId> words;
  for (uint32_t word : seededByArray(seed))
    words.push_back(graph.makeInteger(word));
  words.push_back(graph.makeInteger(kWords)); // the next draw generates new words
  PyId internal = graph.tuple(words);
  return graph.tuple({graph.makeInteger(3), internal, graph.makeNone()});
}

/// An array of 32-bit words in the form of numpy's own pickles.
PyId numpyWords(PyGraph &graph, const TwisterState &state) {
  PyId ndarray = graph.global("numpy", "ndarray");
  PyId array = graph.call("numpy._core.multiarray", "_reconstruct",
                          {ndarray, graph.tuple({graph.makeInteger(0)}), graph.bytes("b")});
  PyId dtype =
      graph.call("numpy", "dtype", {graph.str("u4"), graph.makeBool(false), graph.makeBool(true)});
  graph.mutableObject(dtype).state = graph.tuple(
      {graph.makeInteger(3), graph.str("<"), graph.makeNone(), graph.makeNone(), graph.makeNone(),
       graph.makeInteger(-1), graph.makeInteger(-1), graph.makeInteger(0)});
  std::string raw(reinterpret_cast<const char *>(state.data()), sizeof state);
  graph.mutableObject(array).state =
      graph.tuple({graph.makeInteger(1), graph.tuple({graph.makeInteger(kWords)}), dtype,
                   graph.makeBool(false), graph.bytes(raw)});
  return array;
}

PyId numpyState(PyGraph &graph, uint32_t seed) {
  PyId words = numpyWords(graph, seededByNumber(seed));
  return graph.tuple({graph.str("MT19937"), words, graph.makeInteger(kWords), graph.makeInteger(0),
                      graph.makeFloat(0.0)});
}

/// torch's CPU generator: seed, words left, whether it is seeded, next word, 64-bit words, and a
/// normal number kept for later.
std::string torchState(uint32_t seed) {
  std::string bytes(kTorchStateBytes, '\0');
  auto put = [&](size_t at, auto value) { std::memcpy(bytes.data() + at, &value, sizeof value); };
  put(0, uint64_t{seed});
  put(8, int32_t{1});
  put(12, int32_t{1});
  TwisterState state = seededByNumber(seed);
  for (size_t i = 0; i < kWords; ++i)
    put(24 + 8 * i, uint64_t{state[i]});
  return bytes;
}

/// A CUDA generator: its seed and the offset of its counter.
std::string cudaState(uint64_t seed) {
  std::string bytes(16, '\0');
  std::memcpy(bytes.data(), &seed, 8);
  return bytes;
}

/// A tensor of bytes in an object; its storage is the archive's entry `key`.
PyId bytesTensor(PyGraph &graph, const char *key, size_t size) {
  const int64_t shape[] = {static_cast<int64_t>(size)};
  return addTensorToGraph(graph, Element::U8, shape, key);
}

constexpr uint64_t kModelParallelSeed = 2718; ///< Megatron's, for tensor-parallel regions

} // namespace

Result<BytesItem> torchDistRngItem(uint32_t seed) {
  const std::string states[] = {torchState(seed), cudaState(seed),
                                cudaState(uint64_t{seed} + kModelParallelSeed)};
  PyGraph graph;
  PyId tracker =
      graph.dict({graph.str("model-parallel-rng"), bytesTensor(graph, "2", states[2].size())});
  PyId state = graph.dict({graph.str("random_rng_state"), pythonState(graph, seed),
                           graph.str("np_rng_state"), numpyState(graph, seed),
                           graph.str("torch_rng_state"), bytesTensor(graph, "0", states[0].size()),
                           graph.str("cuda_rng_state"), bytesTensor(graph, "1", states[1].size()),
                           graph.str("rng_tracker_states"), tracker});
  const PyId items[] = {state};
  ASSIGN_OR_RETURN(std::string pickle, writePickle(graph, graph.list(items)));
  std::vector<ArchiveEntry> entries;
  constexpr const char *kNames[] = {"data/0", "data/1", "data/2"};
  for (size_t i = 0; i < std::size(states); ++i)
    entries.push_back(
        {kNames[i], {reinterpret_cast<const uint8_t *>(states[i].data()), states[i].size()}});
  ASSIGN_OR_RETURN(std::string record, objectRecord(pickle, entries));
  std::string name = "rng_state/shard_0.0_1.1";
  return BytesItem{name, std::move(record), {name}};
}

/// The items of `rng_state` for one pipeline and tensor rank. They are the states of Python, numpy,
/// torch, CUDA and Megatron's tracker right after seeding.
Result<RngItems> rngItems(uint32_t seed, int pipelineRank, int tensorRank) {
  RngItems items;
  ItemPath root = {"rng_state", fmt::format("({}, {})", pipelineRank, tensorRank), int64_t{0}};
  auto pathOf = [&](std::initializer_list<const char *> names) {
    ItemPath path = root;
    path.insert(path.end(), names.begin(), names.end());
    return path;
  };
  auto addTensor = [&](ItemPath path, std::string bytes) {
    const std::string &kept = items.storage.emplace_back(std::move(bytes));
    Shape shape = {static_cast<int64_t>(kept.size())};
    items.tensors.push_back(
        {nameOfPath(path), Element::U8, shape, Box::whole(shape), kept.data(), path});
  };
  PyGraph graph;
  ASSIGN_OR_RETURN(BytesItem python,
                   objectItem(pathOf({"random_rng_state"}), graph, pythonState(graph, seed)));
  ASSIGN_OR_RETURN(BytesItem numpy,
                   objectItem(pathOf({"np_rng_state"}), graph, numpyState(graph, seed)));
  items.objects.push_back(std::move(python));
  items.objects.push_back(std::move(numpy));
  addTensor(pathOf({"torch_rng_state"}), torchState(seed));
  addTensor(pathOf({"cuda_rng_state"}), cudaState(seed));
  // Megatron's tracker uses a separate seed per rank for dropout inside tensor-parallel regions.
  addTensor(pathOf({"rng_tracker_states", "model-parallel-rng"}),
            cudaState(uint64_t{seed} + kModelParallelSeed + static_cast<uint64_t>(tensorRank)));
  return items;
}

} // namespace shardc::checkpoint
