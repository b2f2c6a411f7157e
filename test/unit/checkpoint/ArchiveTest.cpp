#include <gtest/gtest.h>

#include "runtime/checkpoint/TensorRecord.h"
#include "runtime/checkpoint/TorchArchive.h"
#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

using namespace std::string_literals;

std::string sampleArchive() {
  StringSink sink;
  float values[6] = {0, 1, 2, 3, 4, 5};
  std::string_view data(reinterpret_cast<const char *>(values), sizeof values);
  EXPECT_OK(writeTensorRecord(sink, Element::F32, Shape{2, 3}, {&data, 1}));
  return sink.bytes;
}

Status openStatus(const std::string &bytes) { return ArchiveReader::open(bytesOf(bytes)).status(); }

TEST(Archive, ReadsWhatItWrites) {
  std::string bytes = sampleArchive();
  Result<ArchiveReader> archive = ArchiveReader::open(bytesOf(bytes));
  ASSERT_TRUE(archive.isOk()) << archive.status().message();
  EXPECT_EQ(archive->prefix(), "archive");
  EXPECT_TRUE(archive->hasChecksums());
  ASSERT_NE(archive->find("data/0"), nullptr);
  EXPECT_EQ((archive->find("data/0")->data.data() - bytesOf(bytes).data()) % 64, 0);
  EXPECT_OK(archive->verify(*archive->find("data/0")));
  Result<TensorView> view = readTensorRecord(*archive);
  ASSERT_TRUE(view.isOk()) << view.status().message();
  EXPECT_EQ(view->shape, (Shape{2, 3}));
  EXPECT_EQ(view->strides, denseStrides(view->shape));
}

TEST(Archive, RefusesCompressedEncryptedAndForeignEntries) {
  std::string bytes = sampleArchive(), central = "PK\x01\x02"s;
  size_t at = bytes.find(central);
  std::string method = bytes, flags = bytes, name = bytes;
  method[at + 10] = 8;
  EXPECT_FAILS(openStatus(method), "compressed");
  flags[at + 8] |= 1;
  EXPECT_FAILS(openStatus(flags), "encrypted");
  name[at + 46] = 'x';
  EXPECT_FAILS(openStatus(name), "name");
  EXPECT_FAILS(openStatus(replaced(bytes, "archive/version", "archive/vers..n")), "name");
}

TEST(Archive, RefusesOtherVersionsAndByteOrders) {
  auto record = [](const char *version, const char *order) {
    StringSink sink;
    ArchiveWriter writer(sink);
    EXPECT_OK(writer.add("data.pkl", "\x80\x02N."s));
    EXPECT_OK(writer.add("byteorder", order));
    EXPECT_OK(writer.add("version", version));
    EXPECT_OK(writer.finish());
    return sink.bytes;
  };
  EXPECT_OK(openStatus(record("3\n", "little")));
  EXPECT_FAILS(openStatus(record("11\n", "little")), "version '11'");
  EXPECT_FAILS(openStatus(record("0\n", "little")), "version '0'");
  EXPECT_FAILS(openStatus(record("3\n", "big")), "byte order 'big'");
}

TEST(Archive, RefusesWhatLacksItsPickle) {
  StringSink sink;
  ArchiveWriter writer(sink);
  EXPECT_OK(writer.add("version", "3\n"));
  EXPECT_OK(writer.finish());
  EXPECT_FAILS(openStatus(sink.bytes), "no 'data.pkl'");
}

TEST(Archive, FindsWrongChecksums) {
  std::string bytes = sampleArchive();
  Result<ArchiveReader> good = ArchiveReader::open(bytesOf(bytes));
  auto dataAt = static_cast<size_t>(good->find("data/0")->data.data() - bytesOf(bytes).data());
  std::string flipped = bytes;
  flipped[dataAt + 5] ^= 1;
  Result<ArchiveReader> bad = ArchiveReader::open(bytesOf(flipped));
  ASSERT_TRUE(bad.isOk());
  EXPECT_FAILS(bad->verify(*bad->find("data/0")), "damaged");
  EXPECT_FAILS(openStatus(replaced(bytes, "_rebuild_tensor_v2", "_rebuild_tensor_v3")), "checksum");
  EXPECT_FAILS(openStatus(replaced(bytes, "_rebuild_tensor_v2", "_rebuild_tensor_v3")),
               "[checkpoint-damaged]");
}

TEST(Archive, EveryTruncationIsRefused) {
  std::string bytes = sampleArchive();
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(openStatus(bytes.substr(0, size)).isOk()) << size;
}

TEST(Archive, OverlappingEntriesAreRefused) {
  std::string bytes = sampleArchive();
  // The directory entry of `version` points to that of `byteorder`, which then occurs twice.
  size_t order = bytes.rfind("archive/byteorder") - 46,
         version = bytes.rfind("archive/version") - 46;
  bytes.replace(version + 42, 4, bytes.substr(order + 42, 4));
  EXPECT_FALSE(openStatus(bytes).isOk());
}

TEST(TensorRecord, RefusesWhatReachesOutOfItsStorage) {
  auto status = [](const std::string &from, const std::string &to) {
    StringSink sink;
    ArchiveWriter writer(sink);
    EXPECT_OK(writer.add("data.pkl", replaced(tensorPickle(Element::F32, Shape{2, 3}), from, to)));
    EXPECT_OK(writer.add("data/0", std::string(24, '\0')));
    EXPECT_OK(writer.add("version", "3\n"));
    EXPECT_OK(writer.finish());
    return readTensorRecord(*ArchiveReader::open(bytesOf(sink.bytes))).status();
  };
  EXPECT_OK(status("K\x02K\x03\x86"s, "K\x01K\x03\x86"s)); // less than the storage is fine
  EXPECT_FAILS(status("K\x02K\x03\x86"s, "K\x02K\x04\x86"s), "reaches element 6 of a storage of 6");
  EXPECT_FAILS(status("K\x03K\x01\x86"s, "K\x04K\x01\x86"s), "reaches element");
  EXPECT_FAILS(status("QK\x00"s, "QK\x01"s), "reaches element");
  EXPECT_FAILS(status("cpuq\x04K\x06"s, "cpuq\x04K\x07"s), "24 bytes");
  EXPECT_FAILS(status("FloatStorage"s, "LongStorage"s), "24 bytes");
}

} // namespace
} // namespace shardc::checkpoint
