// Peers of a test, which are in this process.
#pragma once

#include <string>
#include <vector>

#include "runtime/hal/Peers.h"

namespace shardc::test {

/// Peers that give the answers that the test sets.
struct ToldPeers final : hal::Peers {
  int rank() const override { return 0; }
  int worldSize() const override { return static_cast<int>(others.size()) + 1; }
  int localRank() const override { return 0; }
  int localSize() const override { return worldSize(); }
  std::string address() const override { return "127.0.0.1"; }
  Key jobKey() const override { return {}; }
  Result<std::vector<std::string>> exchange(std::string_view, const std::vector<int> &,
                                            std::string_view mine, Fold fold) override {
    std::vector<std::string> all = others;
    all.emplace_back(mine);
    return folded(std::move(all), fold);
  }
  void reportLost(int, std::string_view) override {}
  std::vector<std::string> others;
};

} // namespace shardc::test
