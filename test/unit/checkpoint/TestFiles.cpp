#include "test/unit/checkpoint/TestFiles.h"

#include <cstdlib>
#include <fstream>

#include "runtime/checkpoint/PlainValue.h"

namespace shardc::checkpoint {

std::string fixture(const std::string &name) { return std::string(SHARDC_FIXTURES) + "/" + name; }

namespace {

std::filesystem::path rootOfTests() {
  std::error_code error;
  std::filesystem::path memory = "/dev/shm";
  return std::filesystem::is_directory(memory, error) ? memory
                                                      : std::filesystem::temp_directory_path();
}

} // namespace

TempFolder::TempFolder() : test::TempFolder(rootOfTests()) {}

std::string contentsOf(const std::string &path) {
  Result<std::string> text = readFile(path);
  EXPECT_TRUE(text.isOk()) << text.status().message();
  return text.isOk() ? *text : std::string();
}

void putContents(const std::string &path, std::string_view contents) {
  std::ofstream(path, std::ios::binary)
      .write(contents.data(), static_cast<std::streamsize>(contents.size()));
}

void copyFolder(const std::string &from, const std::string &to) {
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
}

std::string replaced(std::string text, const std::string &from, const std::string &to) {
  size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string objectText(const CheckpointReader &reader, const std::string &name) {
  Result<ObjectValue> object = reader.readObject(name);
  EXPECT_TRUE(object.isOk()) << object.status().message();
  Result<PlainValue> value = plainValueOf(object->graph(), object->root());
  return value.isOk() ? textOf(*value) : value.status().message();
}

} // namespace shardc::checkpoint
