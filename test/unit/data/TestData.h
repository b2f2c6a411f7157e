// Shared by the data tests: the golden values, temporary folders, small helpers to read and write.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/base/Status.h"
#include "runtime/data/BatchFeeder.h"
#include "runtime/data/Sample.h"
#include "test/unit/support/StatusChecks.h"
#include "test/unit/support/TempFolder.h"

namespace shardc::data {

/// The numbers of one line of fixtures/goldens.txt; fails the test if there is none.
std::vector<int64_t> golden(const std::string &name);
std::vector<double> goldenNumbers(const std::string &name);
bool hasGolden(const std::string &name);
/// All names that begin with `prefix` and end with `suffix`, without both.
std::vector<std::string> goldenNames(std::string_view prefix, std::string_view suffix);

inline std::string fixture(const std::string &name) { return SHARDC_FIXTURES "/" + name; }

using test::TempFolder;

std::string contentsOf(const std::string &path);

/// Any integers as int64, to compare with goldens.
template <typename Range> std::vector<int64_t> asInts(const Range &range) {
  std::vector<int64_t> result;
  for (auto value : range)
    result.push_back(static_cast<int64_t>(value));
  return result;
}

/// A sample with memory for all arrays.
struct SampleBuffer {
  explicit SampleBuffer(int64_t length)
      : tokens(static_cast<size_t>(length), -7), labels(tokens), positionIds(tokens),
        documentStarts(static_cast<size_t>(length) + 1, -7),
        lossMask(static_cast<size_t>(length), -7.0f) {}
  Sample view() { return {tokens, labels, lossMask, positionIds, documentStarts}; }

  std::vector<int32_t> tokens, labels, positionIds, documentStarts;
  std::vector<float> lossMask;
};

/// The text of a sample: its tokens and the one that follows.
std::vector<int64_t> textOf(const DataSource &source, int64_t index);

/// Memory for all arrays of one microbatch.
class MicroBatchBuffer {
public:
  MicroBatchBuffer(int64_t microBatch, int64_t sequenceLength) {
    auto rows = static_cast<size_t>(microBatch), width = static_cast<size_t>(sequenceLength);
    for (auto *ofTokens : {&tokens_, &labels_, &positionIds_})
      ofTokens->resize(rows * width);
    lossMask_.resize(rows * width);
    documentStarts_.resize(rows * (width + 1));
    numDocuments_.resize(rows);
  }
  MicroBatch view() {
    return {tokens_, labels_, lossMask_, positionIds_, documentStarts_, numDocuments_, {}};
  }

private:
  std::vector<int32_t> tokens_, labels_, positionIds_, documentStarts_, numDocuments_;
  std::vector<float> lossMask_;
};

} // namespace shardc::data
