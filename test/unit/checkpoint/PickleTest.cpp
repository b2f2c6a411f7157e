#include <gtest/gtest.h>

#include "runtime/checkpoint/PickleReader.h"
#include "runtime/checkpoint/PickleWriter.h"
#include "runtime/checkpoint/PlainValue.h"
#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

using namespace std::string_literals;

Result<Pickle> read(const std::string &bytes, PickleContext context = PickleContext::BytesItem) {
  return readPickle(bytesOf(bytes), context);
}

/// Reads a pickle of protocol 2 with this body.
Status pickleStatus(const std::string &body, PickleContext context = PickleContext::BytesItem) {
  return read("\x80\x02"s + body + ".", context).status();
}

std::string textIn(const std::string &bytes) {
  Result<Pickle> pickle = read(bytes);
  EXPECT_TRUE(pickle.isOk()) << pickle.status().message();
  Result<PlainValue> value = plainValueOf(pickle->graph, pickle->root);
  EXPECT_TRUE(value.isOk()) << value.status().message();
  return textOf(*value);
}

TEST(Pickle, ReadsNumbersOfEverySize) {
  EXPECT_EQ(
      textIn("\x80\x02(K\x05M\x00\x01J\xff\xff\xff\xff\x8a\x05\x00\x00\x00\x00\x01\x8a\x00t."s),
      "(5, 256, -1, 4294967296, 0)");
  EXPECT_EQ(textIn("\x80\x02\x8a\x09\xd2\x0a\x1f\xeb\x8c\xa9\x54\xab\x00."s),
            "12345678901234567890");
  EXPECT_EQ(textIn("\x80\x02G\x3f\xf8\x00\x00\x00\x00\x00\x00."s), "1.5");
}

TEST(Pickle, BigIntegersKeepTheirValue) {
  for (const char *decimal :
       {"12345678901234567890", "-12345678901234567890", "340282366920938463463374607431768211456",
        "-9223372036854775809", "18446744073709551615"}) {
    PyGraph graph;
    PyId id = addToGraph(graph, PlainBigInt{decimal});
    EXPECT_EQ(integerText(graph, id), decimal);
  }
}

TEST(Pickle, SharesValuesByMemo) {
  EXPECT_EQ(textIn("\x80\x04\x8c\x02hi\x94]\x94(h\x00h\x00j\x00\x00\x00\x00"
                   "e\x86."s),
            "('hi', ['hi', 'hi', 'hi'])");
}

TEST(Pickle, WritesWhatPythonWrites) {
  // pickle.dumps({'lr': 0.001, 'betas': (0.9, 0.95), 'n': None, 'l': [1], 'e': ()}, 2) of
  // Python 3.12.
  PyGraph graph;
  PyId root = addToGraph(graph, PlainEntries{{"lr", 0.001},
                                             {"betas", PlainTuple{{0.9, 0.95}}},
                                             {"n", PlainValue()},
                                             {"l", PlainItems{1}},
                                             {"e", PlainTuple{}}});
  Result<std::string> bytes = writePickle(graph, root);
  ASSERT_TRUE(bytes.isOk());
  EXPECT_EQ(*bytes, "\x80\x02}q\x00(X\x02\x00\x00\x00lrq\x01G?PbM\xd2\xf1\xa9\xfcX\x05\x00\x00\x00"
                    "betasq\x02"
                    "G?\xec\xcc\xcc\xcc\xcc\xcc\xcdG?\xee"
                    "ffffff\x86q\x03X\x01\x00\x00\x00nq\x04NX\x01\x00\x00\x00lq\x05"
                    "]q\x06K\x01"
                    "aX\x01\x00\x00\x00"
                    "eq\x07)u."s);
}

TEST(Pickle, CyclesAreHarmless) {
  Result<Pickle> pickle = read("\x80\x02]q\x00h\x00"
                               "a."s);
  ASSERT_TRUE(pickle.isOk());
  EXPECT_EQ(pickle->graph.items(pickle->root)[0], pickle->root);
  EXPECT_FAILS(plainValueOf(pickle->graph, pickle->root).status(), "levels");
  Result<std::string> again = writePickle(pickle->graph, pickle->root);
  ASSERT_TRUE(again.isOk());
  EXPECT_EQ(*again, "\x80\x02]q\x00h\x00"
                    "a."s);
}

TEST(Pickle, RefusesWhatWouldRunCode) {
  for (const char *name : {"os\nsystem",
                           "posix\nsystem",
                           "nt\nsystem",
                           "subprocess\nPopen",
                           "builtins\neval",
                           "__builtin__\nexec",
                           "builtins\ngetattr",
                           "builtins\n__import__",
                           "importlib\nimport_module",
                           "runpy\nrun_path",
                           "shutil\nrmtree",
                           "socket\nsocket",
                           "ctypes\nCDLL",
                           "pty\nspawn",
                           "webbrowser\nopen",
                           "marshal\nloads",
                           "code\ninteract",
                           "pickle\nloads",
                           "sys\nexit",
                           "os.path\njoin",
                           "torch.storage\n_load_from_bytes",
                           "torch.hub\nload",
                           "types\nCodeType",
                           "torch.serialization\nos.system",
                           "collections\nabc.sys.modules",
                           "a\nb.__globals__"})
    EXPECT_FAILS(pickleStatus("c"s + name + "\n)R"), "tampered with");
  EXPECT_FAILS(pickleStatus("\x8c\x02os\x8c\x06system\x93)R"s), "os.system");
}

// A name with a line end would become another name when it is written again.
TEST(Pickle, NamesHoldNoLineEnds) {
  EXPECT_FAILS(pickleStatus("\x8c\x01"
                            "a\x8c\x0e"
                            "b\nR.cos\nsystem\x93"s),
               "whose name is not valid");
  EXPECT_FAILS(pickleStatus("\x8c\x00\x8c\x01"
                            "b\x93"s),
               "whose name is not valid");
  EXPECT_FAILS(pickleStatus("ca\n\n"s), "whose name is not valid");
}

TEST(Pickle, UnknownClassesStayOpaqueInObjectsOnly) {
  std::string body = "cmy.module\nThing\n)\x81}X\x01\x00\x00\x00xK\x01sb"s;
  std::string whole = "\x80\x02" + body + "."; // the texts of the graph point into this string
  Result<Pickle> pickle = read(whole);
  ASSERT_TRUE(pickle.isOk()) << pickle.status().message();
  EXPECT_TRUE(pickle->graph.isObjectOf(pickle->root, "my.module", "Thing"));
  EXPECT_EQ(pickle->graph.asInteger(pickle->graph.lookup(pickle->root, "x")), 1);
  EXPECT_FAILS(pickleStatus(body, PickleContext::Metadata), "does not belong here");
  EXPECT_FAILS(pickleStatus(body, PickleContext::TensorRecord), "does not belong here");
}

TEST(Pickle, SuspectNamesAreReported) {
  Result<Pickle> pickle = read("\x80\x02"
                               "cfunctools\npartial\n)R."s);
  ASSERT_TRUE(pickle.isOk());
  ASSERT_EQ(pickle->warnings.size(), 1u);
  EXPECT_EQ(pickle->warnings[0].id, "odd-metadata");
  EXPECT_NE(pickle->warnings[0].text.find("functools.partial"), std::string::npos);
}

TEST(Pickle, TensorRecordsTakeOnlyWhatTorchTakes) {
  EXPECT_FAILS(pickleStatus("\x8c\x01x"s, PickleContext::TensorRecord), "0x8c is not allowed");
  EXPECT_FAILS(pickleStatus("cargparse\nNamespace\n"s, PickleContext::TensorRecord),
               "does not belong");
  EXPECT_FAILS(pickleStatus("cpathlib\nPosixPath\n"s, PickleContext::TensorRecord),
               "does not belong");
}

TEST(Pickle, RefusesOldAndExtensionOpcodes) {
  for (const char *body :
       {"I1\n", "L1L\n", "F1.0\n", "S'x'\n", "Vx\n", "Px\n", "ios\nsystem\n", "(cos\nsystem\no",
        "\x82\x01", "\x83\x01", "\x84\x01", "\x97", "\x98", "\x92", "\xff"})
    EXPECT_FALSE(pickleStatus(body).isOk()) << body;
  EXPECT_FAILS(read("I1\n."s).status(), "does not begin with PROTO");
  EXPECT_FAILS(read("\x80\x06N."s).status(), "protocol 6");
}

TEST(Pickle, RefusesBrokenStacksAndMemos) {
  for (const std::string &body :
       {"t"s,        "0"s,    "]a"s,   "a"s,    "NNa"s,   "(NNu"s,  "}(Nu"s, "}](Ns"s,
        "R"s,        "NNR"s,  "b"s,    "]Nb"s,  "h\x05"s, "q\x00"s, "Q"s,    "NQ"s,
        "(NNNNNtQ"s, "\x81"s, "}]Ns"s, "\x93"s, "NN"s,    "("s,     ""s,     "K\x01K\x02\x90"s,
        "1"s,        "\x85"s})
    EXPECT_FALSE(pickleStatus(body).isOk()) << testing::PrintToString(body);
  EXPECT_FAILS(read("\x80\x02N"s).status(), "without STOP");
}

TEST(Pickle, LengthsAreCheckedAgainstWhatIsLeft) {
  EXPECT_FAILS(pickleStatus("X\xff\xff\xff\x7f"
                            "a"s),
               "are left");
  EXPECT_FAILS(pickleStatus("\x8d\xff\xff\xff\xff\xff\xff\xff\xff"s), "are left");
  EXPECT_FAILS(pickleStatus("\x8e\xff\xff\xff\xff\xff\xff\xff\x7f"s), "are left");
  EXPECT_FAILS(pickleStatus("\x8b\xff\xff\xff\x7f"s), "the limit is 64");
  EXPECT_FAILS(pickleStatus("\x95\xff\xff\x00\x00\x00\x00\x00\x00N"s), "frame");
  EXPECT_FAILS(pickleStatus("X\x02\x00\x00\x00\xc3\x28"s), "not UTF-8");
}

TEST(Pickle, NestingIsLimited) {
  EXPECT_FAILS(pickleStatus(std::string(2000, '(')), "1000 deep");
  EXPECT_FAILS(pickleStatus(std::string(2000, ']') + std::string(1999, 'a')), "1000 deep");
  EXPECT_FAILS(pickleStatus("N" + std::string(2000, '\x85')), "1000 deep");
}

TEST(Pickle, WideSharingDoesNotBlowUp) { // 2^60 values when written out
  std::string body = "]q\x00"s;
  for (char i = 0; i < 60; ++i)
    body += "](h"s + i + "h" + i + "eq" + static_cast<char>(i + 1);
  Result<Pickle> pickle = read("\x80\x02"s + "(" + body + "l.");
  ASSERT_TRUE(pickle.isOk()) << pickle.status().message();
  EXPECT_FALSE(plainValueOf(pickle->graph, pickle->root).isOk());
}

TEST(Pickle, TrailingBytesAreReported) {
  Result<Pickle> pickle = read("\x80\x02N.xyz"s);
  ASSERT_TRUE(pickle.isOk());
  EXPECT_EQ(pickle->bytesUsed, 4u);
  EXPECT_EQ(pickle->warnings.size(), 1u);
}

TEST(Pickle, BytesOfProtocol2) {
  PyGraph graph;
  std::string raw = "\x00\x7f\x80\xff"s;
  Result<std::string> bytes = writePickle(graph, graph.bytes(raw));
  ASSERT_TRUE(bytes.isOk());
  EXPECT_EQ(*bytes, "\x80\x02"
                    "c_codecs\nencode\nq\x00X\x06\x00\x00\x00\x00\x7f\xc2\x80\xc3\xbfq\x01"
                    "X\x06\x00\x00\x00latin1q\x02\x86q\x03Rq\x04."s);
  Result<Pickle> back = read(*bytes);
  ASSERT_TRUE(back.isOk());
  EXPECT_EQ(back->graph.asBytes(back->root), raw);
}

} // namespace
} // namespace shardc::checkpoint
