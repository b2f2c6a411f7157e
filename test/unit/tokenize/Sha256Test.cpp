#include "runtime/base/Sha256.h"

#include <gtest/gtest.h>

namespace shardc {
namespace {

// The values are those of the standard's examples.
TEST(Sha256, IsThatOfTheStandard) {
  Sha256 digest;
  EXPECT_EQ(digest.hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  digest.add("ab");
  digest.add("c");
  EXPECT_EQ(digest.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 million;
  for (int i = 0; i < 1000; ++i)
    million.add(std::string(1000, 'a'));
  EXPECT_EQ(million.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

} // namespace
} // namespace shardc
