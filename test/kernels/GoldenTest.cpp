// Compares kernels with PyTorch's results on the same inputs: golden/golden.txt, made by
// golden/make_golden.py, whose head describes the file. golden/router.txt has Megatron-Core's
// results.
#include "test/kernels/Harness.h"

#include "runtime/base/StepState.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

namespace shardc::kernels::test {
namespace {

struct Expected {
  Array array;
  double tolerance;
};

/// One case of the file: a call and its expected results.
struct GoldenCase {
  std::string name;
  KernelRun run{""};
  std::vector<Expected> expected;
};

void setAttr(Attrs &attrs, const std::string &name, double value) {
#define ATTR_BOOL(field, default_, doc)                                                            \
  if (name == #field)                                                                              \
    return void(attrs.field = value != 0);
#define ATTR_INT(field, default_, least, most, doc)                                                \
  if (name == #field)                                                                              \
    return void(attrs.field = static_cast<int64_t>(value));
#define ATTR_FLOAT(field, default_, doc)                                                           \
  if (name == #field)                                                                              \
    return void(attrs.field = value);
#include "runtime/base/Attrs.def"
  ADD_FAILURE() << "no attribute " << name;
}

/// Parses "2,3" and the numbers after "…:" in the rest of a line.
Array parseArray(DType dtype, const std::string &shape, std::istream &line) {
  Array result = {dtype, {}, {}};
  std::istringstream extents(shape);
  for (std::string extent; std::getline(extents, extent, ',');)
    result.shape.push_back(std::stoll(extent));
  for (std::string value; line >> value;) // also -inf, which streams cannot parse
    result.values.push_back(roundTo(dtype, std::stod(value)));
  return result;
}

Array stateArray(std::istream &line) {
  StepState state = {};
  line >> state.lr >> state.gradScale >> state.applied;
  unsigned char bytes[sizeof state];
  std::memcpy(bytes, &state, sizeof state);
  return {DType::U8, {sizeof state}, std::vector<double>(bytes, bytes + sizeof state)};
}

void parseLine(const std::string &text, std::vector<GoldenCase> &cases) {
  std::istringstream line(text);
  std::string kind, first, second, tolerance;
  line >> kind >> first;
  if (kind == "case") {
    line >> second;
    cases.push_back({first, KernelRun(second), {}});
    return;
  }
  ASSERT_FALSE(cases.empty());
  GoldenCase &current = cases.back();
  if (kind == "attr") {
    double value = 0;
    line >> value;
    setAttr(current.run.attrs, first, value);
  } else if (kind == "index") {
    line >> second >> current.run.groupSize;
    current.run.index = std::stoll(first);
  } else if (kind == "state") {
    std::istringstream rest(text.substr(text.find(' ')));
    current.run.in(stateArray(rest));
  } else if (kind == "row") { // elements per row of the parameter, and turns of rows
    current.run.ranges.assign(1, {});
    current.run.ranges[0].row = std::stoll(first);
    for (int32_t &turn : current.run.ranges[0].turns)
      line >> turn;
  } else if (kind == "in") {
    line >> second;
    current.run.in(parseArray(*parseDType(first), second, line));
  } else {
    line >> second >> tolerance;
    DType dtype = kind == "out" ? *parseDType(first) : DType::F32;
    Array array = parseArray(dtype, second, line);
    kind == "out" ? current.run.out(dtype, array.shape) : current.run.inPlace(std::stoi(first));
    current.expected.push_back({array, std::stod(tolerance)});
    if (kind == "place") { // an optimizer's shard has one parameter
      current.run.ranges.resize(1);
      current.run.ranges[0].end = array.numel();
    }
  }
}

std::vector<GoldenCase> readGolden(const std::filesystem::path &path) {
  std::vector<GoldenCase> cases;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    parseLine(line, cases);
  return cases;
}

void compare(std::vector<GoldenCase> cases) {
  for (GoldenCase &golden : cases) {
    std::vector<Array> got = golden.run.run();
    ASSERT_EQ(got.size(), golden.expected.size()) << golden.name;
    for (size_t r = 0; r < got.size(); ++r)
      expectClose(got[r], golden.expected[r].array.values, {golden.expected[r].tolerance, 2},
                  golden.name + " result " + std::to_string(r));
  }
}

TEST(Golden, AgreesWithPyTorch) {
  std::vector<GoldenCase> cases = readGolden(SHARDC_GOLDEN);
  ASSERT_GT(cases.size(), 40u) << SHARDC_GOLDEN;
  compare(std::move(cases));
}

/// The head of golden/make_router.py names the version.
TEST(Golden, RoutersAgreeWithMegatronCore) {
  auto path = std::filesystem::path(SHARDC_GOLDEN).replace_filename("router.txt");
  std::vector<GoldenCase> cases = readGolden(path);
  ASSERT_GT(cases.size(), 40u) << path;
  compare(std::move(cases));
}

} // namespace
} // namespace shardc::kernels::test
