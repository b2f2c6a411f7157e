// All ranks decide together whether a copy begins, since an image is useful only if every rank has
// one of the same step.
#include "runtime/save/MemorySaves.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>

#include "runtime/base/Crc32.h"
#include "runtime/base/Json.h"
#include "runtime/base/Reports.h"
#include "runtime/base/Thread.h"
#include "runtime/save/BaseWeights.h"
#include "runtime/save/PieceIo.h"

namespace shardc::save {
namespace {

/// Time between two polls for the end of copies.
constexpr std::chrono::microseconds kCopyPoll{500};
constexpr double kNeighbourSeconds = 10;
constexpr int64_t kCopyBytes = 8 << 20; ///< bytes that are copied and checksummed at a time

// Words with which ranks report their progress. The reason follows the last one.
constexpr const char *kIdle = "idle", *kBusy = "busy";
const std::string kFailed = "failed: ";

int64_t nowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

} // namespace

/// Reads pieces of state from the chosen images, in this rank's memory or from other ranks.
class MemorySaves::Reader final : public StateSource {
public:
  Reader(const MemorySaves &saves, ImageChoice choice)
      : saves_(saves), choice_(std::move(choice)) {}

  /// Prepares to read images of one of the plans, which may be for another number of ranks, into
  /// the state of `own`. Checks that they contain everything that this rank reads.
  Status prepare(const plan::Plan &plan, const StateLayout &own) {
    own_ = &own;
    ASSIGN_OR_RETURN(StateLayout layout, StateLayout::create(plan));
    saved_.emplace(std::move(layout));
    ASSIGN_OR_RETURN(std::vector<SnapshotPiece> pieces, snapshotPieces(plan, *saved_));
    ASSIGN_OR_RETURN(images_, ImageLayout::create(plan, *saved_, pieces));
    RETURN_IF_ERROR(images_->findSaved());
    ASSIGN_OR_RETURN(std::vector<StatePiece> mine, own.pieces(saves_.peers_.rank()));
    for (const StatePiece &piece : mine)
      if (!isKeptInBase(plan, plan.params[piece.param]))
        RETURN_IF_ERROR(images_->sourcesOf(piece, own).status());
    return Status::ok();
  }

  /// The progress of the job in an image.
  Result<Progress> progressOf(int64_t owner) const {
    ASSIGN_OR_RETURN(const Image *image, imageOf(owner));
    std::string bytes(static_cast<size_t>(image->info.metaBytes), '\0');
    RETURN_IF_ERROR(readFrom(*image, 0, bytes.data(), image->info.metaBytes));
    return unpackProgress(bytes);
  }
  Result<ImageInfo> infoOf(int64_t owner) const {
    ASSIGN_OR_RETURN(const Image *image, imageOf(owner));
    return image->info;
  }

  Status read(const StatePiece &piece, uint8_t *to) const override {
    ASSIGN_OR_RETURN(std::vector<ImageLayout::Source> sources, images_->sourcesOf(piece, *own_));
    int64_t rowBytes = piece.bytes / piece.box.shape[0]; // bytes in the cell
    std::vector<uint8_t> lower, upper;
    for (const ImageLayout::Source &source : sources) {
      ASSIGN_OR_RETURN(const Image *image, imageOf(source.owner));
      int64_t begin = (source.box.offset[0] - piece.box.offset[0]) * rowBytes;
      int64_t bytes = source.box.shape[0] * rowBytes, state = image->info.metaBytes;
      if (piece.upper == plan::kNone) {
        RETURN_IF_ERROR(readFrom(*image, state + source.at, to + begin, bytes));
        continue;
      }
      lower.resize(static_cast<size_t>(bytes));
      upper.resize(lower.size());
      RETURN_IF_ERROR(readFrom(*image, state + source.at, lower.data(), bytes));
      RETURN_IF_ERROR(readFrom(*image, state + source.upperAt, upper.data(), bytes));
      joinHalves(upper.data(), lower.data(), bytes / 2, to + 2 * begin);
    }
    return Status::ok();
  }

  void end() const override { opened_.clear(); } // other ranks may close their connections

private:
  struct Image {
    ImageInfo info;
    const uint8_t *here = nullptr;   ///< in this rank's memory; null if it is elsewhere
    std::unique_ptr<ImageLink> link; ///< connection to the rank that has it
  };

  /// The image of a rank of the earlier job, in this rank's memory or through a connection to the
  /// rank that holds it. Images are opened once.
  Result<const Image *> imageOf(int64_t owner) const {
    auto known = opened_.find(owner);
    if (known != opened_.end())
      return &known->second;
    Image image;
    ImageId id = choice_.idOf(static_cast<size_t>(owner));
    int holder = choice_.holders[static_cast<size_t>(owner)];
    if (holder == saves_.peers_.rank()) {
      for (const ImageSlots *slots : {&saves_.held_.own, &saves_.held_.guest})
        if (std::optional<int> slot = slots->find(id); slot && !image.here) {
          image.info = *slots->at(*slot);
          image.here = slots->bytesOf(*slot).data();
        }
      if (!image.here)
        return makeStatus(StatusCode::Internal, "rank {}'s state is not in memory any more", owner);
    } else {
      ASSIGN_OR_RETURN(image.link, ImageLink::open(saves_.addresses_[static_cast<size_t>(holder)],
                                                   saves_.peers_.jobKey(), saves_.peers_.rank(),
                                                   saves_.options_.timeoutSeconds));
      ASSIGN_OR_RETURN(image.info, image.link->find(id, saves_.options_.timeoutSeconds));
    }
    return &opened_.emplace(owner, std::move(image)).first->second;
  }

  Status readFrom(const Image &image, int64_t begin, void *to, int64_t bytes) const {
    if (begin + bytes > image.info.bytes())
      return makeStatus(StatusCode::Internal,
                        "rank {}'s image has {} bytes, of which {} to {} are needed",
                        image.info.id.owner, image.info.bytes(), begin, begin + bytes);
    if (image.link)
      return image.link->read(begin, to, bytes, saves_.options_.timeoutSeconds);
    std::memcpy(to, image.here + begin, static_cast<size_t>(bytes));
    return Status::ok();
  }

  const MemorySaves &saves_;
  ImageChoice choice_;
  const StateLayout *own_ = nullptr;        ///< layout of the plan that continues
  std::optional<StateLayout> saved_;        ///< layout of the plan of the images
  std::optional<ImageLayout> images_;       ///< image layout of that plan
  mutable std::map<int64_t, Image> opened_; ///< by owner, opened on first use
};

Result<int64_t> imageBytesMax(std::span<const plan::Plan> plans) {
  int64_t most = 0;
  for (const plan::Plan &plan : plans) {
    if (plan.job.checkpoint.inMemoryInterval == 0)
      continue;
    ASSIGN_OR_RETURN(StateLayout layout, StateLayout::create(plan));
    ASSIGN_OR_RETURN(std::vector<SnapshotPiece> pieces, snapshotPieces(plan, layout));
    ASSIGN_OR_RETURN(ImageLayout images, ImageLayout::create(plan, layout, pieces));
    for (uint32_t role = 0; role < plan.roles.size(); ++role)
      most = std::max(most, images.stateBytes(role) + progressBytesMax(plan));
  }
  return most;
}

MemorySaves::MemorySaves(hal::Peers &peers, MemoryOptions options)
    : peers_(peers), options_(std::move(options)) {
  held_.own = ImageSlots(options_.own);
  if (!options_.guest.empty())
    held_.guest = ImageSlots(options_.guest);
}

Result<std::unique_ptr<MemorySaves>> MemorySaves::create(std::span<const plan::Plan> plans,
                                                         hal::Peers &peers, MemoryOptions options) {
  std::unique_ptr<MemorySaves> saves(new MemorySaves(peers, std::move(options)));
  saves->interval_ = std::max<int64_t>(plans.front().job.checkpoint.inMemoryInterval, 1);
  for (const plan::Plan &plan : plans) {
    ASSIGN_OR_RETURN(StateLayout layout, StateLayout::create(plan));
    Phase &phase = saves->phases_.emplace_back(Phase{&plan, std::move(layout), {}, {}});
    ASSIGN_OR_RETURN(phase.pieces, snapshotPieces(plan, phase.layout));
    ASSIGN_OR_RETURN(phase.images, ImageLayout::create(plan, phase.layout, phase.pieces));
  }
  RETURN_IF_ERROR(saves->meet());
  RETURN_IF_ERROR(startThread(saves->thread_, [raw = saves.get()] { raw->run(); }));
  return saves;
}

MemorySaves::~MemorySaves() {
  {
    std::lock_guard lock(mutex_);
    isEnding_ = true;
    if (link_)
      link_->breakOff();
  }
  changed_.notify_all();
  if (thread_.joinable())
    thread_.join();
}

// ---- choice of images ----

std::vector<ImageId> MemorySaves::idsHeld() const {
  std::vector<ImageId> ids;
  for (const ImageSlots *slots : {&held_.own, &held_.guest})
    for (int slot = 0; slots->isThere() && slot < ImageSlots::kCount; ++slot)
      if (std::optional<ImageInfo> info = slots->at(slot);
          info && info->planHash == options_.planHash)
        ids.push_back(info->id);
  return ids;
}

std::string MemorySaves::introduction() const {
  nlohmann::json ids = nlohmann::json::array();
  for (const ImageId &id : idsHeld())
    ids.push_back({id.owner, id.attempt, id.step, id.ranks});
  return toText(nlohmann::json{
             {"machine", options_.machine}, {"local", peers_.localRank()}, {"images", ids}}) +
         "\n" + server_->address().pack();
}

/// Each rank has sent one line of JSON (its machine and the images it holds) and its address. Every
/// rank computes the same neighbours from them.
Status MemorySaves::takeIntroductions(const std::vector<std::string> &all) {
  std::vector<RankPlace> places;
  for (const std::string &text : all) {
    size_t line = text.find('\n');
    nlohmann::json said = parseJson(std::string_view(text).substr(0, line));
    if (line == std::string::npos || !said.is_object())
      return makeStatus(StatusCode::Internal, "a rank has not said what it has in memory");
    ASSIGN_OR_RETURN(ImageAddress address,
                     ImageAddress::unpack(std::string_view(text).substr(line + 1)));
    addresses_.push_back(std::move(address));
    places.push_back({said.value("machine", ""), said.value("local", int64_t{0})});
    std::vector<ImageId> &ids = heldByRank_.emplace_back();
    for (const auto &id : said["images"])
      ids.push_back(
          {id[0].get<int64_t>(), id[1].get<int64_t>(), id[2].get<int64_t>(), id[3].get<int64_t>()});
  }
  if (!held_.guest.isThere())
    return Status::ok();
  std::vector<int> neighbours = neighboursOf(places);
  neighbour_ = neighbours[static_cast<size_t>(peers_.rank())];
  if (auto alone = std::ranges::find(neighbours, -1); alone != neighbours.end())
    options_.emit(makeReport(report::MemoryWithoutNeighbour, alone - neighbours.begin(),
                             std::ranges::count(neighbours, -1), neighbours.size()));
  return Status::ok();
}

Status MemorySaves::meet() {
  Result<std::unique_ptr<ImageServer>> server =
      ImageServer::start(peers_.address(), peers_.jobKey(), held_);
  RETURN_IF_ERROR(peers_.agree("serving state in memory", server.status()));
  server_ = std::move(*server);
  ASSIGN_OR_RETURN(std::vector<std::string> all,
                   peers_.allGather("what ranks have in memory", introduction()));
  return takeIntroductions(all);
}

/// For each rank, the owners of its chosen images whose bytes have changed.
Result<std::vector<std::vector<int>>> MemorySaves::findDamaged(const ImageChoice &choice) {
  nlohmann::json mine = nlohmann::json::array();
  for (size_t owner = 0; owner < choice.holders.size(); ++owner) {
    if (choice.holders[owner] != peers_.rank())
      continue;
    ImageId id = choice.idOf(owner);
    bool isIntact = false;
    for (const ImageSlots *slots : {&held_.own, &held_.guest})
      if (std::optional<int> slot = slots->find(id))
        isIntact = isIntact || slots->isIntact(*slot);
    if (!isIntact)
      mine.push_back(owner);
  }
  ASSIGN_OR_RETURN(std::vector<std::string> all,
                   peers_.allGather("whether state in memory is damaged", toText(mine)));
  std::vector<std::vector<int>> damaged;
  for (const std::string &text : all) {
    std::vector<int> &owners = damaged.emplace_back();
    for (const auto &owner : parseJson(text))
      owners.push_back(owner.get<int>());
  }
  return damaged;
}

Result<std::optional<ImageChoice>> MemorySaves::choose(int64_t newerThan) {
  while (std::optional<ImageChoice> choice = chooseImages(heldByRank_, newerThan)) {
    ASSIGN_OR_RETURN(std::vector<std::vector<int>> damaged, findDamaged(*choice));
    bool isAnyDamaged = false;
    for (size_t rank = 0; rank < damaged.size(); ++rank)
      for (int owner : damaged[rank]) {
        isAnyDamaged = true;
        std::erase(heldByRank_[rank], choice->idOf(static_cast<size_t>(owner)));
        options_.emit(makeReport(report::MemoryCopyDamaged, rank, owner, choice->step));
      }
    if (!isAnyDamaged)
      return choice;
  }
  return std::optional<ImageChoice>();
}

/// Removes all images that were not chosen, since a later restart would mistake them for newer
/// ones.
void MemorySaves::keepOnly(const std::optional<ImageChoice> &choice) const {
  for (const ImageSlots *slots : {&held_.own, &held_.guest})
    for (int slot = 0; slots->isThere() && slot < ImageSlots::kCount; ++slot) {
      std::optional<ImageInfo> info = slots->at(slot);
      bool isChosen = info && choice && info->planHash == options_.planHash &&
                      info->id == choice->idOf(static_cast<size_t>(info->id.owner));
      if (!isChosen)
        slots->begin(slot);
    }
}

std::string MemorySaves::whose(const ImageChoice &choice) const {
  std::string others;
  if (std::ssize(choice.holders) != peers_.worldSize())
    return fmt::format("the state of {} ranks", choice.holders.size());
  for (size_t owner = 0; owner < choice.holders.size(); ++owner)
    if (choice.holders[owner] != static_cast<int>(owner))
      others += fmt::format("{}rank {} from the copy of rank {}", others.empty() ? "" : ", ", owner,
                            choice.holders[owner]);
  return others.empty() ? "each rank from its own" : others + ", the others from their own";
}

/// Reads the progress of the job from an image. Rank 0 calls it for all ranks, once all images were
/// chosen.
Result<MemorySaves::Position> MemorySaves::positionIn(const Reader &images,
                                                      const ImageChoice &choice) const {
  ASSIGN_OR_RETURN(ImageInfo info, images.infoOf(0));
  ASSIGN_OR_RETURN(const plan::Plan *plan, planOf(choice, info.phase));
  ASSIGN_OR_RETURN(Progress progress, images.progressOf(0));
  if (std::optional<int64_t> holder = rankWithExpertBias(*plan)) {
    ASSIGN_OR_RETURN(Progress its, images.progressOf(*holder));
    progress.expertBias = std::move(its.expertBias);
  }
  return Position{info.phase, info.endedNs, std::move(progress)};
}

/// The plan whose state the images contain.
Result<const plan::Plan *> MemorySaves::planOf(const ImageChoice &choice, int64_t phase) const {
  std::vector<const plan::Plan *> phases;
  for (const plan::Plan &plan : options_.plans)
    if (plan.worldSize() == std::ssize(choice.holders))
      phases.push_back(&plan);
  if (phase < 0 || phase >= std::ssize(phases) || phase >= std::ssize(phases_))
    return makeStatus(StatusCode::Internal, "an image is of plan {} of {}", phase, phases.size());
  return phases[static_cast<size_t>(phase)];
}

/// All ranks take the position that rank 0 has.
Result<MemorySaves::Position> MemorySaves::sharePosition(Result<Position> mine) {
  bool isFirst = peers_.rank() == 0;
  RETURN_IF_ERROR(
      peers_.agree("reading the position in memory", isFirst ? mine.status() : Status::ok()));
  std::string text;
  if (isFirst)
    text = fmt::format("{} {}\n", mine->phase, mine->endedNs) + packProgress(mine->progress);
  ASSIGN_OR_RETURN(std::vector<std::string> all,
                   peers_.allGatherLong("the position in memory", text));
  Position position;
  size_t line = all[0].find('\n');
  if (line == std::string::npos ||
      std::sscanf(all[0].c_str(), "%" SCNd64 " %" SCNd64, &position.phase, &position.endedNs) != 2)
    return makeStatus(StatusCode::Internal, "rank 0 has not said the position in memory");
  ASSIGN_OR_RETURN(position.progress, unpackProgress(std::string_view(all[0]).substr(line + 1)));
  return position;
}

Result<MemoryState> MemorySaves::read(const ImageChoice &choice) {
  auto reader = std::make_unique<Reader>(*this, choice);
  Result<Position> mine = Position();
  if (peers_.rank() == 0)
    mine = positionIn(*reader, choice);
  ASSIGN_OR_RETURN(Position position, sharePosition(std::move(mine)));
  auto prepare = [&]() -> Status {
    ASSIGN_OR_RETURN(const plan::Plan *plan, planOf(choice, position.phase));
    return reader->prepare(*plan, phases_[static_cast<size_t>(position.phase)].layout);
  };
  RETURN_IF_ERROR(peers_.agree("reading state in memory", prepare()));
  MemoryState state;
  state.phase = static_cast<size_t>(position.phase);
  state.progress = std::move(position.progress);
  state.secondsLost = static_cast<double>(nowNs() - position.endedNs) / 1e9;
  state.whose = whose(choice);
  state.source = std::move(reader);
  return state;
}

Result<std::optional<MemoryState>> MemorySaves::restore(int64_t newerThan) {
  ASSIGN_OR_RETURN(std::optional<ImageChoice> choice, choose(newerThan));
  keepOnly(choice);
  if (!choice)
    return std::optional<MemoryState>();
  Result<MemoryState> state = read(*choice);
  if (!state.isOk()) { // the status is the same on all ranks
    keepOnly(std::nullopt);
    options_.emit(makeReport(report::MemorySaveSkipped, choice->step,
                             "a rank cannot read it: " + state.status().message(),
                             "of no use then"));
    return std::optional<MemoryState>();
  }
  newest_ = choice->step;
  return std::optional<MemoryState>(std::move(*state));
}

// ---- creation of images ----

void MemorySaves::attach(size_t phase, exec::Executable &executable) {
  SHARDC_CHECK(executable.rankCount() == 1, "{} ranks of one process", executable.rankCount());
  std::lock_guard lock(mutex_);
  phase_ = phase;
  executable_ = &executable;
}

void MemorySaves::release() {
  std::unique_lock lock(mutex_);
  if (task_ && !task_->isCopied)
    task_->isCancelled = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !task_ || task_->isCopied; });
  executable_ = nullptr;
}

void MemorySaves::passOver(int64_t step, std::string_view why) {
  if (!isLate_)
    options_.emit(
        makeReport(report::MemorySaveSkipped, step, why,
                   newest_ >= 0 ? fmt::format("that after step {}", newest_) : "none yet"));
  isLate_ = true;
}

/// Applies a test's fault before the next image begins. At that time the other ranks most likely
/// have completed theirs.
void MemorySaves::strike() {
  ImageId id{peers_.rank(), peers_.attempt(), begun_, peers_.worldSize()};
  std::optional<int> slot = held_.own.find(id);
  {
    std::lock_guard lock(mutex_);
    if (task_ || !slot)
      return;
  }
  auto bytes = static_cast<size_t>(held_.own.at(*slot)->bytes());
  options_.imageFault(begun_, held_.own.bytesOf(*slot).first(bytes));
}

/// Whether a copy of this step may begin on all ranks. It is skipped if any rank is still busy with
/// an earlier one. The previous copy counts as the newest only now, when all ranks have reported
/// that theirs is complete.
Result<bool> MemorySaves::mayBegin(int64_t step, bool isHostFree) {
  if (options_.imageFault)
    strike();
  std::string mine = kIdle;
  {
    std::lock_guard lock(mutex_);
    if (task_ || !isHostFree)
      mine = kBusy;
    else if (!outcome_.isOk())
      mine = kFailed + outcome_.message();
  }
  ASSIGN_OR_RETURN(std::vector<hal::Peers::Kind> all,
                   peers_.allKinds("how far state in memory is", mine));
  std::string late;
  bool hasFailed = false;
  for (const auto &[said, ranks] : all) {
    if (said == kBusy)
      late = fmt::format("rank {} still copies or sends its state after an earlier step",
                         ranks.back());
    if (!said.starts_with(kFailed))
      continue;
    if (!hasFailed && !hasReportedFailure_)
      options_.emit(makeReport(report::MemoryCopyNotSent, ranks.front(), begun_,
                               said.substr(kFailed.size())));
    hasFailed = true;
  }
  if (!late.empty()) {
    passOver(step, late);
    return false;
  }
  if (!hasFailed && begun_ >= 0)
    newest_ = begun_;
  hasReportedFailure_ = hasFailed;
  isLate_ = false;
  begun_ = step;
  return true;
}

void MemorySaves::begin(int64_t step) {
  {
    std::lock_guard lock(mutex_);
    SHARDC_CHECK(!task_, "the state after step {} is still kept", task_->step);
    task_ = Task{.step = step};
    outcome_ = Status::ok();
  }
  changed_.notify_all();
}

std::optional<int64_t> MemorySaves::awaitedStep() {
  std::lock_guard lock(mutex_);
  return task_ && !task_->progress ? std::optional(task_->step) : std::nullopt;
}

void MemorySaves::setProgress(const Progress &progress) {
  {
    std::lock_guard lock(mutex_);
    if (task_) {
      task_->progress = progress;
      task_->endedNs = nowNs();
    }
  }
  changed_.notify_all();
}

void MemorySaves::awaitCopied() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !task_ || task_->isCopied; });
}

Status MemorySaves::awaitKept() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !task_; });
  }
  return peers_.agree("keeping state in memory", Status::ok());
}

// ---- background thread ----

void MemorySaves::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return isEnding_ || task_; });
    if (isEnding_)
      return;
    Status status = keep(lock);
    outcome_ = std::move(status);
    task_.reset();
    changed_.notify_all();
  }
}

/// Creates the image of a step, and sends it to the neighbour. The mutex is held on entry and on
/// return.
Status MemorySaves::keep(std::unique_lock<std::mutex> &lock) {
  if (!awaitState(lock))
    return Status::ok(); // abandoned
  Task task = *task_;
  lock.unlock();
  Result<int> slot = copy(task);
  lock.lock();
  task_->isCopied = true;
  changed_.notify_all();
  RETURN_IF_ERROR(slot.status());
  lock.unlock();
  Status sent = neighbour_ >= 0 ? send(*slot) : Status::ok();
  lock.lock();
  return sent;
}

/// Waits until the step has ended and its state is in arena `host`; false if the image is
/// abandoned. It polls, since a thread that waits in the backend takes part in its detection of
/// deadlocks.
bool MemorySaves::awaitState(std::unique_lock<std::mutex> &lock) {
  changed_.wait(lock, [&] { return isEnding_ || task_->isCancelled || task_->progress; });
  while (!isEnding_ && !task_->isCancelled) {
    if (executable_->isBackgroundDone())
      return true;
    lock.unlock();
    std::this_thread::sleep_for(kCopyPoll);
    lock.lock();
  }
  return false;
}

/// Copies the state to this rank's memory, and returns the slot of the image.
Result<int> MemorySaves::copy(const Task &task) {
  const Phase &phase = phases_[phase_];
  const exec::Arenas &arenas = executable_->arenas(0);
  uint32_t role = exec::roleOf(*phase.plan, executable_->worldRank(0));
  std::string meta = packProgress(*task.progress);
  ImageInfo info;
  info.id = {peers_.rank(), peers_.attempt(), task.step, peers_.worldSize()};
  info.planHash = options_.planHash;
  info.phase = static_cast<int64_t>(phase_);
  info.metaBytes = static_cast<int64_t>(meta.size());
  info.stateBytes = phase.images->stateBytes(role);
  info.endedNs = task.endedNs;
  if (info.bytes() > held_.own.imageBytesMax())
    return makeStatus(StatusCode::Internal, "an image of {} bytes is larger than the {} for it",
                      info.bytes(), held_.own.imageBytesMax());
  int slot = held_.own.next();
  held_.own.begin(slot);
  uint8_t *to = held_.own.bytesOf(slot).data();
  uint32_t crc = 0;
  auto add = [&](const void *data, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += kCopyBytes) { // the checksum reads the cache
      auto count = static_cast<size_t>(std::min(kCopyBytes, bytes - at));
      std::memcpy(to, static_cast<const uint8_t *>(data) + at, count);
      crc = crc32(crc, to, count);
      to += count;
    }
  };
  add(meta.data(), info.metaBytes);
  for (const SnapshotCopy &each : phase.images->copies(role)) {
    ASSIGN_OR_RETURN(uint8_t * data, arenas.resolve(each.place, each.bytes, "a snapshot"));
    add(data, each.bytes);
  }
  info.crc = crc;
  held_.own.complete(slot, info);
  return slot;
}

Status MemorySaves::send(int slot) {
  ImageInfo info = *held_.own.at(slot);
  auto fail = [&](const Status &status) {
    {
      std::lock_guard lock(mutex_);
      link_.reset();
    }
    return makeStatus(status.code(), "rank {}: {}", neighbour_, status.message());
  };
  if (!link_) {
    Result<std::unique_ptr<ImageLink>> made =
        ImageLink::open(addresses_[static_cast<size_t>(neighbour_)], peers_.jobKey(), peers_.rank(),
                        kNeighbourSeconds);
    if (!made.isOk())
      return fail(made.status());
    std::lock_guard lock(mutex_);
    link_ = std::move(*made);
    if (isEnding_)
      link_->breakOff();
  }
  Status status = link_->send(info, held_.own.bytesOf(slot), options_.timeoutSeconds);
  return status.isOk() ? status : fail(status);
}

} // namespace shardc::save
