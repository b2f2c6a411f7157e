#include "runtime/checkpoint/ProcessBarrier.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <unistd.h>

#include "runtime/base/Io.h"
#include "runtime/base/Thread.h"

namespace shardc::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPoll = std::chrono::milliseconds(5);
constexpr auto kPollMax = std::chrono::milliseconds(200);
constexpr auto kBeat = std::chrono::seconds(1);
constexpr uint64_t kFileMax = 1 << 20;

std::string randomName() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

/// Writes a file that is either complete or absent. It is not synced, since a crash of the machine
/// ends the job anyway.
Status put(const std::string &path, std::string_view text) {
  std::string temporary = temporaryOf(path);
  int fd = createNew(temporary, 0644);
  std::FILE *file = fd < 0 ? nullptr : ::fdopen(fd, "wb");
  if (file == nullptr)
    return makeStatus(StatusCode::Io, "cannot create '{}'", temporary);
  bool isWritten = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  isWritten = std::fclose(file) == 0 && isWritten;
  if (isWritten && std::rename(temporary.c_str(), path.c_str()) == 0)
    return Status::ok();
  ::unlink(temporary.c_str());
  return makeStatus(StatusCode::Io, "cannot write '{}'", path);
}

std::optional<std::string> get(const std::string &path) {
  Result<std::string> text = readFile(path, kFileMax);
  return text.isOk() ? std::optional(std::move(*text)) : std::nullopt;
}

constexpr int kRemovals = 5;

/// Removes the folder of a barrier. Other processes may still write to it, so it is first renamed
/// to a name that none of them uses. Leftovers are harmless and are removed like those of a killed
/// job.
Status sweep(const Observers &observers, const std::string &folder) {
  std::filesystem::path path = folder;
  std::string aside = (path.parent_path() / meetingPlace(randomName())).string();
  if (std::rename(folder.c_str(), aside.c_str()) != 0)
    return errno == ENOENT ? Status::ok()
                           : makeStatus(StatusCode::Io, "cannot move '{}' aside: {}", folder,
                                        std::strerror(errno));
  for (int i = 0; i < kRemovals && !removeTree(observers, aside).isOk(); ++i)
    std::this_thread::sleep_for(kPoll);
  return Status::ok();
}

std::string statusText(const Status &status) {
  return fmt::format("{}\n{}", static_cast<int>(status.code()),
                     status.isOk() ? "" : packReport(status.report()));
}

Status statusOf(const std::string &text) {
  int code = std::atoi(text.c_str());
  size_t line = text.find('\n');
  bool isKnown = code >= 0 && code <= static_cast<int>(StatusCode::Internal);
  if (!isKnown || line == std::string::npos)
    return Status(StatusCode::Internal, "a rank's note cannot be read");
  if (code == 0)
    return Status::ok();
  std::optional<Report> report = unpackReport(std::string_view(text).substr(line + 1));
  if (!report)
    return Status(StatusCode::Internal, "a rank's note is of another version of this program");
  return Status(static_cast<StatusCode>(code), report->text).as(*findReport(report->id));
}

/// Sleeps a little longer on each call.
class Pause {
public:
  void wait() {
    std::this_thread::sleep_for(length_);
    length_ = std::min<Clock::duration>(length_ * 3 / 2, kPollMax);
  }

private:
  Clock::duration length_ = kPoll;
};

constexpr std::string_view kPlaceBegin = ".shardc.", kPlaceEnd = ".ranks";

} // namespace

std::string meetingPlace(const std::string &job) {
  return fmt::format("{}{}{}", kPlaceBegin, job, kPlaceEnd);
}

bool isMeetingPlace(std::string_view name) {
  return name.starts_with(kPlaceBegin) && name.ends_with(kPlaceEnd);
}

ProcessBarrier::ProcessBarrier(std::string folder, int rank, int worldSize, Options options)
    : folder_(std::move(folder)), rank_(rank), worldSize_(worldSize), options_(options) {}

ProcessBarrier::~ProcessBarrier() { leave(); }

Result<std::unique_ptr<ProcessBarrier>> ProcessBarrier::join(const std::string &folder, int rank,
                                                             int worldSize, Options options) {
  std::unique_ptr<ProcessBarrier> barrier(new ProcessBarrier(folder, rank, worldSize, options));
  if (rank == 0) {
    RETURN_IF_ERROR(sweep(options.observers, folder));
    RETURN_IF_ERROR(makeFolders(folder));
  }
  if (Status status = barrier->findSession(); !status.isOk()) {
    if (rank == 0)
      static_cast<void>(sweep(options.observers, folder)); // no rank has met there
    return status;
  }
  RETURN_IF_ERROR(startThread(barrier->heart_, [self = barrier.get()] { self->beat(); }));
  return barrier;
}

Status ProcessBarrier::findSession() {
  std::string mine = randomName(), names;
  Clock::time_point end = Clock::now() + options_.patience;
  int met = 0;
  for (Pause pause; Clock::now() < end; pause.wait()) {
    RETURN_IF_ERROR(options_.observers.checkInterrupted());
    if (rank_ != 0) {
      std::optional<std::string> session = get(pathOf("session"));
      size_t line =
          session ? session->find(fmt::format("\n{} {}\n", rank_, mine)) : std::string::npos;
      if (line != std::string::npos) {
        session_ = session->substr(0, session->find('\n'));
        return Status::ok();
      }
      RETURN_IF_ERROR(showName(mine));
      continue;
    }
    RETURN_IF_ERROR(
        makeFolders(folder_)); // another process may have removed the folder as a leftover
    names.clear();
    met = 1;
    for (int rank = 1; rank < worldSize_; ++rank)
      if (std::optional<std::string> name = get(pathOf(fmt::format("hello.{}", rank)))) {
        names += fmt::format("\n{} {}", rank, *name);
        ++met;
      }
    if (met == worldSize_) {
      session_ = mine;
      return put(pathOf("session"), session_ + names + "\n");
    }
  }
  return rank_ == 0
             ? makeStatus(StatusCode::Aborted, "{} of {} ranks reached '{}' within {} s", met,
                          worldSize_, folder_, options_.patience.count())
             : makeStatus(StatusCode::Aborted, "rank {} of {} was not admitted at '{}' within {} s",
                          rank_, worldSize_, folder_, options_.patience.count());
}

Status ProcessBarrier::showName(const std::string &name) {
  std::string path = pathOf(fmt::format("hello.{}", rank_));
  if (get(path) == name || put(path, name).isOk())
    return Status::ok();
  std::filesystem::path there = folder_;
  std::error_code error;
  while (!there.empty() && !std::filesystem::exists(there, error))
    there = there == there.parent_path() ? "" : there.parent_path();
  if (there.empty())
    there = ".";
  if (::access(there.c_str(), W_OK | X_OK) != 0)
    return makeStatus(StatusCode::Io, "cannot write in '{}': {}", there.string(),
                      std::strerror(errno));
  return Status::ok();
}

void ProcessBarrier::beat() {
  for (uint64_t count = 0; !isEnding_; ++count) {
    static_cast<void>(put(pathOf(fmt::format("{}.alive.{}", session_, rank_)),
                          std::to_string(count))); // the others report it if it is missing
    for (auto slept = Clock::duration::zero(); slept < kBeat && !isEnding_; slept += kPoll * 4)
      std::this_thread::sleep_for(kPoll * 4);
  }
}

Result<std::string> ProcessBarrier::await(const std::string &name, int from) {
  std::string path = pathOf(fmt::format("{}.{}", session_, name));
  std::string alive = pathOf(fmt::format("{}.alive.{}", session_, from));
  std::string left = pathOf(fmt::format("{}.left.{}", session_, from));
  std::optional<std::string> lastBeat;
  Clock::time_point lastSeen = Clock::now();
  for (Pause pause;; pause.wait()) {
    bool hasLeft = get(left).has_value(); // read first, since it is written last
    if (std::optional<std::string> text = get(path))
      return *text;
    if (hasLeft)
      return makeStatus(StatusCode::Aborted, "rank {} has ended before the others", from);
    if (std::optional<std::string> beat = get(alive); beat != lastBeat) {
      lastBeat = std::move(beat);
      lastSeen = Clock::now();
    }
    if (Clock::now() - lastSeen > options_.silence)
      return makeStatus(StatusCode::Aborted, "rank {} has not responded for {} s", from,
                        options_.silence.count());
  }
}

Status ProcessBarrier::meet(const Status &status) {
  int number = meetings_++;
  if (rank_ != 0) {
    RETURN_IF_ERROR(
        put(pathOf(fmt::format("{}.{}.{}", session_, number, rank_)), statusText(status)));
    ASSIGN_OR_RETURN(std::string answer, await(fmt::format("{}.all", number), 0));
    return statusOf(answer);
  }
  Status all = status;
  for (int rank = 1; rank < worldSize_; ++rank) {
    Result<std::string> text = await(fmt::format("{}.{}", number, rank), rank);
    Status theirs =
        text.isOk() ? statusOf(*text).withContext(fmt::format("rank {}", rank)) : text.status();
    if (all.isOk())
      all = std::move(theirs);
  }
  RETURN_IF_ERROR(put(pathOf(fmt::format("{}.{}.all", session_, number)), statusText(all)));
  return all;
}

void ProcessBarrier::leave() {
  if (hasLeft_ || session_.empty())
    return;
  hasLeft_ = true;
  // Without this file, the others would wait until they miss this rank's heartbeats.
  static_cast<void>(put(pathOf(fmt::format("{}.left.{}", session_, rank_)), ""));
  bool areGone = rank_ == 0;
  for (int rank = 1; rank < worldSize_ && areGone; ++rank)
    areGone = await(fmt::format("left.{}", rank), rank).isOk();
  isEnding_ = true;
  if (heart_.joinable())
    heart_.join();
  if (areGone) // otherwise the next meeting removes the folder
    static_cast<void>(sweep(options_.observers, folder_));
}

} // namespace shardc::checkpoint
