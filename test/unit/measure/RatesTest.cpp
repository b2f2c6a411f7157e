// Files of measured rates: a written file is read back, and each fault is reported with its line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/Rates.h"

namespace shardc {
namespace {

using ::testing::HasSubstr;

RateFile someFile() {
  RateFile file;
  file.machine = {"cuda", "NVIDIA H100 80GB HBM3", 16, 2, "shardc-run 1; NCCL 2"};
  for (Rate rate : computeGrid(/*isQuick=*/false)) {
    rate.seconds = rate.work() / 1e12;
    file.rates.push_back(rate);
  }
  for (auto [members, inNode] : {std::pair(8, 8), {2, 1}, {16, 8}})
    for (Rate rate : collectiveGrid(members, inNode, /*isQuick=*/false)) {
      rate.seconds = 1e-5 + rate.work() / 3e11;
      file.rates.push_back(rate);
    }
  return file;
}

/// The fault of a file with a correct first line, one rate, and this line.
std::string faultOf(const std::string &line) {
  RateFile file;
  file.machine = {"host", "P", 1, 1, "v"};
  file.rates = {computeGrid(true).front()};
  file.rates[0].seconds = 1e-3;
  RateFault fault;
  EXPECT_FALSE(parseRates(printRates(file) + line + "\n", fault)) << line;
  EXPECT_EQ(fault.line, 3u) << line;
  return fault.text;
}

constexpr const char *kGood =
    R"({"kind":"memory","op":"copy","dtype":"bf16","bytes":1000,"seconds":1e-6,)"
    R"("rate":1,"device":"P"})";

/// The correct line with one text replaced.
std::string with(const std::string &from, const std::string &to) {
  std::string line = kGood;
  size_t at = line.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return line.replace(at, from.size(), to);
}

TEST(Rates, AreReadAsTheyWereWritten) {
  RateFile file = someFile();
  RateFault fault;
  std::optional<RateFile> read = parseRates(printRates(file), fault);
  ASSERT_TRUE(read) << fault.line << ": " << fault.text;
  EXPECT_EQ(read->machine.device, file.machine.device);
  EXPECT_EQ(read->machine.ranks, 16);
  ASSERT_EQ(read->rates.size(), file.rates.size());
  for (size_t i = 0; i < file.rates.size(); ++i) {
    EXPECT_TRUE(read->rates[i].isLike(file.rates[i])) << file.rates[i].text();
    EXPECT_DOUBLE_EQ(read->rates[i].seconds, file.rates[i].seconds);
    std::optional<Rate> again = Rate::ofWords(file.rates[i].words());
    ASSERT_TRUE(again) << file.rates[i].words();
    EXPECT_EQ(again->words(), file.rates[i].words());
  }
}

TEST(Rates, CountTheWorkOfEachKind) {
  auto rateOf = [](const char *words) { return Rate::ofWords(words)->rate(); };
  EXPECT_DOUBLE_EQ(rateOf("product matmul bf16 1000 1000 1000 0.002"), 1);
  // Attention has two products, and half of the scores are visible.
  EXPECT_DOUBLE_EQ(rateOf("attention attention bf16 1 1000 5 5 100 0.001"), 1);
  EXPECT_DOUBLE_EQ(rateOf("attention attention_bwd bf16 1 1000 2 2 100 0.001"), 1);
  EXPECT_DOUBLE_EQ(rateOf("memory add bf16 1000000 0.001"), 1);
  EXPECT_DOUBLE_EQ(rateOf("collective all_gather bf16 4 4 4000000 0.003"), 1);
  EXPECT_DOUBLE_EQ(rateOf("collective all_reduce bf16 4 4 2000000 0.003"), 1);
  EXPECT_DOUBLE_EQ(rateOf("collective send bf16 2 1 3000000 0.003"), 1);
}

TEST(Rates, HaveNoWordsOfSomethingElse) {
  for (const char *words :
       {"", "product", "product matmul bf16 1 1 1", "product matmul bf16 1 1 1 0",
        "product matmul bf16 0 1 1 1", "product matmul bf17 1 1 1 1", "product copy bf16 1 1 1 1",
        "memory copy bf16 1 1 1", "memory copy bf16 1x 1", "memory copy bf16 1 nan",
        "collective send bf16 1 1 8 1", "memory  copy bf16 1 1"})
    EXPECT_FALSE(Rate::ofWords(words)) << words;
}

TEST(Rates, NameFaultsOfLines) {
  EXPECT_EQ(faultOf("{"), "this is no JSON");
  EXPECT_EQ(faultOf("[1]"), "a line is a JSON object");
  EXPECT_EQ(faultOf(""), "the line is empty");
  EXPECT_EQ(faultOf("{}"), "there is no 'kind'");
  EXPECT_EQ(faultOf(with("memory", "speed")),
            "unknown kind \"speed\"; kinds are product, attention, memory and collective");
  EXPECT_EQ(faultOf(with("memory", "machine")), "kind 'machine' is only for the first line");
  EXPECT_EQ(faultOf(with("copy", "jump")),
            "'op' is \"jump\"; of kind 'memory' it is one of copy, add, to_device, to_host");
  EXPECT_EQ(faultOf(with("bf16", "bf17")), "'dtype' is \"bf17\", which is no element type");
  EXPECT_THAT(faultOf(with("1000", "-1000")), HasSubstr("'bytes' is -1000; it must be a whole"));
  EXPECT_THAT(faultOf(with("1000", "10.5")), HasSubstr("'bytes' is 10.5; it must be a whole"));
  EXPECT_THAT(faultOf(with("1e-6", "-1e-6")),
              HasSubstr("'seconds' is -1e-06; it must be a number"));
  EXPECT_THAT(faultOf(with("1e-6", "1e6")), HasSubstr("and 3600 at most"));
  EXPECT_THAT(faultOf(with("1e-6", "[[1]]")), HasSubstr("'seconds' is a list"));
  EXPECT_EQ(faultOf(with("\"rate\":1", "\"rate\":2")),
            "'rate' is 2, but sizes and seconds give 1 GB/s");
  EXPECT_EQ(faultOf(with("\"P\"", "\"Q\"")), "'device' is \"Q\", but the first line says 'P'");
  EXPECT_THAT(faultOf(with("\"op\"", "\"colour\":1,\"op\"")), HasSubstr("unknown key \"colour\""));
  EXPECT_THAT(faultOf(std::string(5000, ' ')), HasSubstr("the line has 5000 characters"));
  EXPECT_EQ(faultOf(R"({"kind":"collective","op":"send","dtype":"bf16","members":3,"in_node":2,)"
                    R"("bytes":8,"group":"node","seconds":1,"rate":1,"device":"P"})"),
            "3 members with 2 on each node are no group");
  EXPECT_EQ(faultOf(R"({"kind":"collective","op":"send","dtype":"bf16","members":2,"in_node":1,)"
                    R"("bytes":8,"group":"node","seconds":1,"rate":1,"device":"P"})"),
            "'group' is \"node\"; 2 members with 1 on each node are 'nodes'");
}

TEST(Rates, AreThereOnce) {
  RateFault fault;
  RateFile file;
  file.machine = {"host", "P", 1, 1, "v"};
  EXPECT_FALSE(parseRates(printRates(file) + kGood + "\n" + kGood + "\n", fault));
  EXPECT_EQ(fault.line, 3u);
  EXPECT_EQ(fault.text, "'memory copy bf16 1000' is in line 2 too");
  EXPECT_FALSE(parseRates("", fault));
  EXPECT_EQ(fault.text, "the file is empty");
  EXPECT_FALSE(parseRates(kGood, fault));
  EXPECT_EQ(fault.text, "the first line has the kind 'machine'; this one has \"memory\"");
}

TEST(Rates, KnowKindsOfDevices) {
  EXPECT_TRUE(isGpuOfKind("NVIDIA H100 80GB HBM3", "h100"));
  EXPECT_TRUE(isGpuOfKind("NVIDIA A100-SXM4-40GB", "a100_40gb"));
  EXPECT_FALSE(isGpuOfKind("NVIDIA A100-SXM4-80GB", "a100_40gb"));
  EXPECT_FALSE(isGpuOfKind("NVIDIA H200", "h20"));
  EXPECT_FALSE(isGpuOfKind("NVIDIA GB200", "b200"));
}

} // namespace
} // namespace shardc
