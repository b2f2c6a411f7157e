// Looks for the secret in this order: SHARDC_JOB_SECRET, mpirun's variable, a file in the home
// folder, which is created if it does not exist. A file beside the recipe is not used, since
// whoever wrote the recipe could know it.
#include "runtime/launch/Secret.h"

#include <cerrno>
#include <filesystem>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/Io.h"
#include "runtime/base/Reports.h"

namespace shardc::launch {
namespace {

namespace fs = std::filesystem;

constexpr const char *kFolder = ".shardc", *kFile = "secret";
constexpr size_t kCharactersMin = 16, kBytesMax = 4096;
/// Open MPI's mpirun draws this key for each job, for its own transports, and puts it only into the
/// environment.
constexpr const char *kMpiVariable = "OMPI_MCA_orte_precondition_transports";
constexpr const char *kWayOut =
    "set SHARDC_JOB_SECRET to the same text of 16 characters or more for all ranks";

Key keyOf(std::string_view text) { return deriveKey(Key{}, {"job secret", text}); }

std::string_view withoutBlanks(std::string_view text) {
  constexpr const char *kBlanks = " \t\r\n";
  size_t begin = text.find_first_not_of(kBlanks);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

Result<Secret> secretOf(std::string_view text, std::string source) {
  text = withoutBlanks(text);
  if (text.size() < kCharactersMin)
    return makeStatus(report::NoJobSecret,
                      "{} has a secret of {} characters; at least {} are needed", source,
                      text.size(), kCharactersMin);
  return Secret{keyOf(text), std::move(source)};
}

/// Reads a secret from a file. NotFound if there is no file.
Result<Secret> readSecret(const std::string &path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  bool isLink = !file.isOpen() && errno == ELOOP;
  if (!file.isOpen() && !isLink)
    return systemError("open", path, errno);
  struct stat found = {};
  if (!isLink && ::fstat(file.fd(), &found) != 0)
    return systemError("read", path, errno);
  if (isLink || !S_ISREG(found.st_mode) || found.st_uid != ::geteuid())
    return makeStatus(report::NoJobSecret,
                      "'{}' is not a regular file of this user; remove it, or {}", path, kWayOut);
  if ((found.st_mode & 077) != 0)
    return makeStatus(
        report::NoJobSecret,
        "'{}' holds the secret of jobs and has mode {:04o}, so others may know it; remove "
        "it, or {}",
        path, found.st_mode & 07777, kWayOut);
  ASSIGN_OR_RETURN(std::string text, readDescriptor(file.fd(), kBytesMax));
  return secretOf(text, fmt::format("'{}'", path));
}

std::string drawText() {
  std::string text;
  for (uint8_t byte : randomBytes32())
    text += fmt::format("{:02x}", byte);
  return text + "\n";
}

/// Creates the file with the secret. Several ranks, on several machines, may do so at once: the
/// first file stays.
Status makeSecret(const fs::path &folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return systemError("create", folder, errno);
  std::string path = folder / kFile, draft = temporaryOf(path);
  Descriptor file(createNew(draft, 0600));
  if (!file.isOpen())
    return systemError("create", draft, errno);
  Status status = writeAll(file.fd(), drawText(), draft);
  if (status.isOk() && ::fsync(file.fd()) != 0)
    status = systemError("sync", draft, errno);
  if (status.isOk() && ::link(draft.c_str(), path.c_str()) != 0 && errno != EEXIST)
    status = systemError("create", path, errno);
  ::unlink(draft.c_str());
  return status;
}

Result<Secret> readOrMake(const fs::path &folder) {
  Result<Secret> secret = readSecret(folder / kFile);
  if (secret.status().code() != StatusCode::NotFound)
    return secret;
  RETURN_IF_ERROR(makeSecret(folder));
  return readSecret(folder / kFile);
}

} // namespace

Result<Secret> findSecret(const JobPosition &position, const GetEnv &get) {
  auto value = [&get](const char *name) -> std::string_view {
    const char *text = get(name);
    return text ? text : "";
  };
  if (std::string_view text = value(kSecretVariable); !text.empty())
    return secretOf(text, fmt::format("the environment's {}", kSecretVariable));
  if (std::string_view text = value(kMpiVariable);
      position.launcher == Launcher::OpenMpi && text.size() >= kCharactersMin)
    return secretOf(text, "mpirun's environment");
  fs::path home = value("HOME");
  Result<Secret> secret = home.is_absolute() ? readOrMake(home / kFolder)
                                             : Status(StatusCode::NotFound, "HOME names no folder");
  if (secret.isOk() || secret.status().code() == StatusCode::InvalidInput)
    return secret;
  return makeStatus(report::NoJobSecret, "the job has no secret: {}; {}", secret.status().message(),
                    kWayOut);
}

} // namespace shardc::launch
