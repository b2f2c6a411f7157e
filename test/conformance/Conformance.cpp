#include "test/conformance/Conformance.h"

#include <algorithm>
#include <cstring>

namespace shardc::conformance {
namespace {

template <typename T>
uint8_t *putNarrow(Conformance &test, int rank, const std::vector<float> &values) {
  std::vector<T> narrow(values.size());
  std::ranges::transform(values, narrow.begin(), fromFloat<T>);
  return reinterpret_cast<uint8_t *>(test.put(rank, narrow));
}

template <typename T>
std::vector<float> getNarrow(Conformance &test, int rank, const uint8_t *from, int64_t count) {
  std::vector<float> wide(static_cast<size_t>(count));
  std::ranges::transform(test.get(rank, reinterpret_cast<const T *>(from), wide.size()),
                         wide.begin(), [](T value) { return toFloat(value); });
  return wide;
}

} // namespace

uint8_t *putValues(Conformance &test, int rank, DType type, const std::vector<float> &values) {
  return type == DType::F32    ? putNarrow<float>(test, rank, values)
         : type == DType::BF16 ? putNarrow<BF16>(test, rank, values)
                               : putNarrow<F16>(test, rank, values);
}

std::vector<float> getValues(Conformance &test, int rank, DType type, const uint8_t *from,
                             int64_t count) {
  return type == DType::F32    ? getNarrow<float>(test, rank, from, count)
         : type == DType::BF16 ? getNarrow<BF16>(test, rank, from, count)
                               : getNarrow<F16>(test, rank, from, count);
}

void Conformance::startWith(const std::function<Result<std::unique_ptr<hal::Backend>>(int)> &make,
                            int ranks) {
  Result<std::unique_ptr<hal::Backend>> made = make(ranks);
  if (!made.isOk() && made.status().code() == StatusCode::Unavailable)
    GTEST_SKIP() << made.status().message();
  ASSERT_TRUE(made.isOk()) << made.status().message();
  backend = std::move(*made);
  ASSERT_EQ(backend->devices().size(), static_cast<size_t>(ranks));
}

hal::Stream &Conformance::stream(int rank, const std::string &name) {
  for (Named &named : streams_)
    if (named.rank == rank && named.name == name)
      return *named.stream;
  Result<std::unique_ptr<hal::Stream>> made = device(rank).createStream(
      name,
      name == "gather" || name == "reduce" ? hal::StreamUse::Transfer : hal::StreamUse::Compute);
  EXPECT_TRUE(made.isOk());
  streams_.push_back({rank, name, std::move(*made)});
  return *streams_.back().stream;
}

std::unique_ptr<hal::Event> Conformance::event(int rank) {
  Result<std::unique_ptr<hal::Event>> made = device(rank).createEvent();
  EXPECT_TRUE(made.isOk());
  return std::move(*made);
}

uint8_t *Conformance::memory(int rank, int64_t bytes) {
  auto made = device(rank).allocate(hal::MemoryKind::Sym, bytes, "test");
  EXPECT_TRUE(made.isOk());
  buffers_.push_back(std::move(*made));
  return buffers_.back()->data();
}

void Conformance::write(int rank, void *to, const void *from, int64_t bytes) {
  auto staging = device(rank).allocate(hal::MemoryKind::Host, bytes, "staging");
  ASSERT_TRUE(staging.isOk());
  std::memcpy((*staging)->data(), from, static_cast<size_t>(bytes));
  ASSERT_STATUS(stream(rank, "transfer").copy(to, (*staging)->data(), bytes, "write"));
  ASSERT_STATUS(backend->synchronize());
}

void Conformance::read(int rank, void *to, const void *from, int64_t bytes) {
  auto staging = device(rank).allocate(hal::MemoryKind::Host, bytes, "staging");
  ASSERT_TRUE(staging.isOk());
  ASSERT_STATUS(stream(rank, "transfer").copy((*staging)->data(), from, bytes, "read"));
  ASSERT_STATUS(backend->synchronize());
  std::memcpy(to, (*staging)->data(), static_cast<size_t>(bytes));
}

kernels::Call &Conformance::addCall(const float *in, float *out, int64_t count, double value) {
  calls_.push_back(std::make_unique<kernels::Call>());
  kernels::Call &call = *calls_.back();
  call.inCount = call.outCount = 1;
  call.in[0] = {const_cast<float *>(in), DType::F32, 1, false, {count}};
  call.out[0] = {out, DType::F32, 1, false, {count}};
  call.attrs.value = value;
  return call;
}

} // namespace shardc::conformance
