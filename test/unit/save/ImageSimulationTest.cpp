// Simulates ranks that keep images of their state in memory, by seeds: copies and transfers take
// time, fail, or are interrupted by the end of a process; machines vanish with their memory; bytes
// are damaged. A restart must continue from one state of all ranks or from none, and no state that
// a complete generation covers may be lost. A thousandth of the seeds runs; all of them with
// SHARDC_LONG=1.
#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/save/ImageChoice.h"
#include "test/unit/save/Images.h"
#include "test/unit/support/Long.h"

namespace shardc::save {
namespace {

class ImageWorld {
public:
  explicit ImageWorld(uint64_t seed) : random_(seed) {
    int64_t nodes = 1 + below(3), perNode = 1 + below(3);
    for (int64_t node = 0; node < nodes; ++node)
      for (int64_t local = 0; local < perNode; ++local)
        places_.push_back({std::to_string(node), local});
    neighbours_ = neighboursOf(places_);
    ranks_.resize(places_.size());
    interval_ = 1 + below(5);
    saveInterval_ = interval_ * (1 + below(20));
    slow_ = below(3) == 0 ? 0.5 : 0.02;
    loss_ = below(3) == 0 ? 0.2 : 0;
  }

  void run() {
    for (int64_t i = 0; i < 200 && !::testing::Test::HasFailure(); ++i) {
      advance();
      if (happens(0.03))
        strike();
    }
  }

  int64_t restarts() const { return attempt_; }
  int64_t fromMemory() const { return fromMemory_; }

private:
  struct Rank {
    Memory own, guest;
    enum class Phase { Idle, Copies, Sends } phase = Phase::Idle;
    int ownSlot = 0, guestSlot = 0; ///< slots being filled
    bool hasFailed = false;         ///< whether the last transfer failed
  };

  int64_t below(int64_t count) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(count));
  }
  bool happens(double chance) { return static_cast<double>(random_() >> 11) * 0x1p-53 < chance; }

  /// Does one step of all ranks, and some work of their threads.
  void advance() {
    ++step_;
    if (step_ % saveInterval_ == 0)
      saved_ = step_;
    if (step_ % interval_ == 0 && std::ranges::all_of(ranks_, [](const Rank &rank) {
          return rank.phase == Rank::Phase::Idle;
        }))
      beginAll();
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      while (ranks_[rank].phase != Rank::Phase::Idle && !happens(slow_))
        work(rank);
    bool isComplete = std::ranges::all_of(ranks_, [](const Rank &rank) {
      return rank.phase == Rank::Phase::Idle && !rank.hasFailed;
    });
    if (isComplete && begun_ > 0)
      complete_ = begun_;
  }

  void beginAll() {
    begun_ = step_;
    for (Rank &rank : ranks_) {
      if (rank.hasFailed) // the neighbour lacks a copy, so the kept generation is incomplete
        complete_ = 0;
      rank.hasFailed = false;
      rank.phase = Rank::Phase::Copies;
      rank.ownSlot = rank.own.slots().next();
      rank.own.slots().begin(rank.ownSlot);
      tear(rank.own, rank.ownSlot);
    }
  }

  /// Damages a slot that is only partly written.
  void tear(const Memory &memory, int slot) {
    memory.slots().bytesOf(slot)[static_cast<size_t>(below(Memory::kImageBytes))] ^= 0x55;
  }

  void work(size_t index) {
    Rank &rank = ranks_[index];
    ImageId id{static_cast<int64_t>(index), attempt_, begun_, std::ssize(ranks_)};
    int to = neighbours_[index];
    if (rank.phase == Rank::Phase::Copies) {
      fill(rank.own.slots(), rank.ownSlot, id);
      rank.phase = to < 0 ? Rank::Phase::Idle : Rank::Phase::Sends;
      if (to < 0)
        return;
      Rank &guest = ranks_[static_cast<size_t>(to)];
      guest.guestSlot = guest.guest.slots().next();
      guest.guest.slots().begin(guest.guestSlot);
      tear(guest.guest, guest.guestSlot);
      return;
    }
    rank.phase = Rank::Phase::Idle;
    rank.hasFailed = happens(loss_); // the connection breaks
    const Rank &guest = ranks_[static_cast<size_t>(to)];
    if (!rank.hasFailed)
      fill(guest.guest.slots(), guest.guestSlot, id);
  }

  /// Ends all processes with their work; the memory of machines may be lost too.
  void strike() {
    int64_t lost = happens(0.5) ? below(static_cast<int64_t>(ranks_.size())) : -1;
    int64_t lostToo = happens(0.1) ? below(static_cast<int64_t>(ranks_.size())) : -1;
    bool isDamaged = happens(0.2);
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      for (int64_t gone : {lost, lostToo})
        if (gone >= 0 && places_[rank].machine == places_[static_cast<size_t>(gone)].machine) {
          ranks_[rank].own.clear();
          ranks_[rank].guest.clear();
        }
    if (isDamaged) {
      const Rank &rank = ranks_[static_cast<size_t>(below(static_cast<int64_t>(ranks_.size())))];
      tear(happens(0.5) ? rank.own : rank.guest, static_cast<int>(below(2)));
    }
    // If at most one of several machines is lost, the newest complete generation must remain.
    bool isCovered = !isDamaged && lostToo < 0 && complete_ > 0 &&
                     (lost < 0 || places_.front().machine != places_.back().machine) &&
                     std::ranges::find(neighbours_, -1) == neighbours_.end();
    restart(isCovered);
  }

  std::vector<std::vector<ImageId>> held() const {
    std::vector<std::vector<ImageId>> held;
    for (const Rank &rank : ranks_) {
      std::vector<ImageId> &ids = held.emplace_back();
      for (const Memory *memory : {&rank.own, &rank.guest})
        for (int slot : {0, 1})
          if (std::optional<ImageInfo> info = memory->slots().at(slot))
            ids.push_back(info->id);
    }
    return held;
  }

  /// The slot in which a rank has an image.
  std::pair<ImageSlots, int> find(int rank, const ImageId &id) const {
    const Rank &holder = ranks_[static_cast<size_t>(rank)];
    for (const Memory *memory : {&holder.own, &holder.guest})
      if (std::optional<int> slot = memory->slots().find(id))
        return {memory->slots(), *slot};
    ADD_FAILURE() << "a chosen image is not there";
    return {ranks_.front().own.slots(), 0};
  }

  std::optional<ImageChoice> choose() const {
    std::vector<std::vector<ImageId>> all = held();
    while (std::optional<ImageChoice> choice = chooseImages(all, saved_)) {
      bool areIntact = true;
      for (size_t owner = 0; owner < ranks_.size(); ++owner) {
        ImageId id = choice->idOf(owner);
        auto [slots, slot] = find(choice->holders[owner], id);
        if (slots.isIntact(slot))
          continue;
        areIntact = false;
        std::erase(all[static_cast<size_t>(choice->holders[owner])], id);
      }
      if (areIntact)
        return choice;
    }
    return std::nullopt;
  }

  void restart(bool isCovered) {
    std::optional<ImageChoice> choice = choose();
    for (size_t owner = 0; choice && owner < ranks_.size(); ++owner) {
      ImageId id = choice->idOf(owner);
      auto [slots, slot] = find(choice->holders[owner], id);
      std::vector<uint8_t> wanted(Memory::kImageBytes);
      writeBytes(id, wanted);
      ASSERT_TRUE(std::ranges::equal(wanted, slots.bytesOf(slot).first(wanted.size())))
          << "other bytes of rank " << owner;
    }
    int64_t from = choice ? choice->step : saved_;
    ASSERT_LE(from, step_);
    ASSERT_GE(from, saved_);
    if (isCovered) {
      ASSERT_GE(from, complete_) << "a complete generation was lost";
    }
    for (const Rank &rank : ranks_)
      for (const Memory *memory : {&rank.own, &rank.guest})
        for (int slot : {0, 1}) {
          std::optional<ImageInfo> info = memory->slots().at(slot);
          if (!choice || !info || info->id.attempt != choice->attempt ||
              info->id.step != choice->step)
            memory->slots().begin(slot);
        }
    for (Rank &rank : ranks_) {
      rank.phase = Rank::Phase::Idle;
      rank.hasFailed = false;
    }
    step_ = from;
    // Until a new generation is complete, losing another rank may lose both copies of an image.
    begun_ = complete_ = 0;
    ++attempt_;
    fromMemory_ += choice.has_value();
  }

  std::mt19937_64 random_;
  std::vector<RankPlace> places_;
  std::vector<int> neighbours_;
  std::vector<Rank> ranks_;
  int64_t interval_, saveInterval_;
  double slow_, loss_;
  int64_t step_ = 0, saved_ = 0;     ///< step of the job, and of its newest checkpoint
  int64_t begun_ = 0, complete_ = 0; ///< steps of this attempt's newest generations
  int64_t attempt_ = 0, fromMemory_ = 0;
};

TEST(ImageSimulation, GoesOnFromOneStateOfAllRanks) {
  int64_t seeds = test::isLong() ? 100'000 : 100, restarts = 0, fromMemory = 0;
  for (int64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(seed);
    ImageWorld world(static_cast<uint64_t>(seed));
    world.run();
    if (::testing::Test::HasFailure())
      return;
    restarts += world.restarts();
    fromMemory += world.fromMemory();
  }
  std::printf("%ld seeds: %ld restarts, %ld of them from memory\n", seeds, restarts, fromMemory);
  EXPECT_GT(fromMemory, seeds);
  EXPECT_LT(fromMemory, restarts);
}

} // namespace
} // namespace shardc::save
