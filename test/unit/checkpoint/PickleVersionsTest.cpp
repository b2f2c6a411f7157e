// Pickles of every CPython that torch runs on: the same contents in the form of each version.
#include <gtest/gtest.h>

#include "runtime/checkpoint/PickleReader.h"
#include "runtime/checkpoint/PickleWriter.h"
#include "runtime/checkpoint/PlainValue.h"
#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

/// Files of the fixture `pickles` with an ending.
std::vector<std::string> files(const std::string &ending) {
  std::vector<std::string> paths;
  for (const auto &entry : std::filesystem::directory_iterator(fixture("pickles")))
    if (std::string path = entry.path().string(); path.ends_with(ending))
      paths.push_back(path);
  return paths;
}

/// Whether a node is the member `fused`, whose value is 2, however it was pickled.
bool isFused(const PyGraph &graph, PyId id) {
  constexpr std::string_view kModule = "megatron.core.transformer.enums", kClass = "AttnBackend";
  if (std::optional<std::string_view> name = graph.memberName(id, kModule, kClass))
    return name == "fused";
  return graph.isObjectOf(id, kModule, kClass) &&
         graph.asInteger(graph.items(graph.object(id).args)[0]) == 2;
}

void expectCommonState(const PyGraph &graph, PyId root) {
  PyId args = graph.lookup(root, "args");
  EXPECT_EQ(textOf(PlainValue(PlainNamespace{plainArguments(graph, args)})),
            "Namespace(num_layers=2, consumed_train_samples=1099511627776, bf16=True, lr=0.001, "
            "names=['a', ('b', None)])");
  PyId state = graph.object(args).state;
  EXPECT_TRUE(isFused(graph, graph.lookup(state, "attention_backend")));
  EXPECT_TRUE(isFused(graph, graph.items(graph.lookup(root, "backends"))[1]));
  EXPECT_FALSE(isFused(graph, graph.items(graph.lookup(root, "backends"))[0]));
  EXPECT_EQ(integerText(graph, graph.lookup(root, "num_floating_point_operations_so_far")),
            "12345678901234567890");
  EXPECT_EQ(graph.asBytes(graph.lookup(root, "bytes")), std::string("\x00\xff", 2));
}

TEST(PickleVersions, SayTheSame) {
  std::vector<std::string> paths = files(".pkl");
  EXPECT_EQ(paths.size(), 14U);
  for (const std::string &path : paths) {
    SCOPED_TRACE(path);
    std::string bytes = contentsOf(path);
    Result<Pickle> pickle = readPickle(bytesOf(bytes), PickleContext::BytesItem);
    ASSERT_OK(pickle.status());
    EXPECT_TRUE(pickle->unknownNames.empty()) << pickle->unknownNames.front();
    expectCommonState(pickle->graph, pickle->root);
    Result<std::string> written = writePickle(pickle->graph, pickle->root);
    ASSERT_OK(written.status());
    Result<Pickle> again = readPickle(bytesOf(*written), PickleContext::BytesItem);
    ASSERT_OK(again.status());
    expectCommonState(again->graph, again->root);
  }
}

TEST(PickleVersions, MetadataIsRead) {
  std::vector<std::string> paths = files(".metadata");
  EXPECT_EQ(paths.size(), 7U);
  for (const std::string &path : paths) {
    std::string bytes = contentsOf(path);
    Result<Metadata> metadata = readMetadata(bytesOf(bytes));
    ASSERT_OK(metadata.status());
    EXPECT_EQ(metadata->tensors.at(0).shape, Shape{2}) << path;
  }
}

/// A pickle (protocol 2) of `getattr(CLASS, "fused")` of Megatron's class, or of another call.
std::string memberPickle(const std::string &global = "megatron.core.transformer.enums\nAttnBackend",
                         const std::string &name = "fused", const std::string &call = "\x86R") {
  std::string length(1, static_cast<char>(name.size()));
  return "\x80\x02"
         "c__builtin__\ngetattr\nc" +
         global + "\nX" + length + std::string("\0\0\0", 3) + name + call + ".";
}

TEST(PickleVersions, GetattrIsTakenInOneFormAlone) {
  auto status = [](const std::string &bytes, PickleContext context = PickleContext::BytesItem) {
    return readPickle(bytesOf(bytes), context).status();
  };
  EXPECT_OK(status(memberPickle()));
  constexpr const char *kTampered = "names 'builtins.getattr', which would run code";
  for (const char *global : {"os\nsystem", "posix\nsystem", "builtins\neval"})
    EXPECT_FALSE(status(memberPickle(global)).isOk()) << global;
  for (const char *global : {"argparse\nNamespace", "mine\nEnum", "builtins\nlist",
                             "megatron.core.transformer.enums\nOther", "signal\nSIGTERM"})
    EXPECT_FAILS(status(memberPickle(global)), kTampered);
  std::string known = "megatron.core.transformer.enums\nAttnBackend";
  for (const char *name : {"__class__", "__init__", "a.b", "", "a b", "mro()"})
    EXPECT_FAILS(status(memberPickle(known, name)), kTampered);
  // A third argument, a single argument, and an object of the function instead of a call.
  for (const char *call : {"N\x87R", "\x85\x86R", "\x86\x81"})
    EXPECT_FAILS(status(memberPickle(known, "fused", call)), kTampered);
  // The function as a value, in a container, as an argument, as a state, and through the memo.
  for (const char *bytes : {"\x80\x02"
                            "c__builtin__\ngetattr\n.",
                            "\x80\x02"
                            "c__builtin__\ngetattr\n\x85.",
                            "\x80\x02]c__builtin__\ngetattr\na.",
                            "\x80\x02}K\x01"
                            "c__builtin__\ngetattr\ns.",
                            "\x80\x02"
                            "ccollections\nOrderedDict\nc__builtin__\ngetattr\n\x85R.",
                            "\x80\x02"
                            "ccollections\nOrderedDict\n)Rc__builtin__\ngetattr\nb.",
                            "\x80\x02"
                            "c__builtin__\ngetattr\nq\x01"
                            "0h\x01\x85."})
    EXPECT_FAILS(status(bytes), kTampered);
  // The enumeration is refused in a context of another enumeration, and in one without
  // enumerations.
  EXPECT_FALSE(status(memberPickle(), PickleContext::Metadata).isOk());
  EXPECT_FALSE(status(memberPickle(), PickleContext::TensorRecord).isOk());
}

TEST(PickleVersions, SignalsAreTheOnlyNamesOfTheirModule) {
  for (const char *name : {"SIGTERM", "SIGUSR1", "Signals"})
    EXPECT_EQ(judgeGlobal(PickleContext::BytesItem, "signal", name), GlobalVerdict::Allowed);
  for (const char *name : {"signal", "raise_signal", "SIGTERM.__class__", "Signals.__init__"})
    EXPECT_EQ(judgeGlobal(PickleContext::BytesItem, "signal", name), GlobalVerdict::Tamper);
  EXPECT_EQ(judgeGlobal(PickleContext::Metadata, "signal", "SIGTERM"), GlobalVerdict::Tamper);
}

} // namespace
} // namespace shardc::checkpoint
