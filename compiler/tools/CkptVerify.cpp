// shardc ckpt verify: checks that a checkpoint is complete and undamaged, and lists all faults.
#include <filesystem>
#include <set>

#include "compiler/tools/CkptTools.h"
#include "runtime/base/CommandLine.h"
#include "runtime/base/Json.h"
#include "runtime/base/Output.h"
#include "runtime/base/Reports.h"
#include "runtime/base/Thread.h"
#include "runtime/checkpoint/CheckpointView.h"
#include "runtime/checkpoint/ConvertWork.h"
#include "runtime/plan/Text.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/SHA256.h"

namespace shardc::tools {
namespace fs = std::filesystem;
namespace {

using checkpoint::CheckpointReader;
using checkpoint::TensorMeta;

constexpr uint64_t kIntegrityMax = 64 << 20;

struct VerifyOptions {
  std::string path;
  int threads = defaultThreads();
};

/// Collects the faults that several threads find.
class Findings {
public:
  void add(const Status &status) {
    std::lock_guard lock(mutex_);
    if (!status.isOk())
      list_.push_back(status);
  }
  void print() const {
    for (size_t i = 0; i < std::min(list_.size(), kListed); ++i)
      finishCkpt(list_[i]);
    if (list_.size() > kListed)
      reportCkpt(makeReport(report::MoreFindings, list_.size() - kListed));
  }
  size_t size() const { return list_.size(); }

private:
  std::mutex mutex_;
  std::vector<Status> list_;
};

void verifyItems(const CheckpointReader &reader, int threads, Findings &findings) {
  const checkpoint::Metadata &metadata = reader.metadata();
  int64_t total = 0;
  for (const TensorMeta &tensor : metadata.tensors)
    total += tensorBytes(tensor.type, tensor.shape).value_or(0);
  ProgressBar bar("verifying");
  checkpoint::ConvertProgress emit = bar.callback();
  checkpoint::ProgressSum progress(emit, total);
  auto verify = [&](size_t i, size_t) {
    if (i < metadata.tensors.size()) {
      const TensorMeta &tensor = metadata.tensors[i];
      findings.add(reader.verifyTensor(tensor));
      progress.add(tensorBytes(tensor.type, tensor.shape).value_or(0));
    } else {
      findings.add(reader.verifyObject(metadata.objects[i - metadata.tensors.size()]));
    }
    return Status::ok(); // later items are checked, too
  };
  findings.add(runOnThreads(static_cast<size_t>(threads),
                            metadata.tensors.size() + metadata.objects.size(), verify));
}

/// Checks the files against Megatron's own `integrity.json`, which has a SHA-256 for each file.
Status verifyIntegrityJson(const UntrustedFolder &folder, Findings &findings, bool &isThere) {
  constexpr const char *kFile = "integrity.json";
  std::string path = folder.path() + "/" + kFile;
  isThere = folder.has(kFile);
  if (!isThere)
    return Status::ok();
  ASSIGN_OR_RETURN(std::string text, folder.read(kFile, kIntegrityMax));
  nlohmann::json json = parseJson(text);
  if (!json.is_object() || !json.contains("files") || !json["files"].is_object())
    return makeStatus(StatusCode::InvalidInput, "'{}' lists no files", path);
  if (json.value("algorithm", nlohmann::json("")) != "sha256")
    return makeStatus(StatusCode::InvalidInput, "'{}' uses another algorithm than sha256", path);
  for (const auto &[name, digest] : json["files"].items()) {
    if (!checkpoint::isPlainFileName(name) || !digest.is_string())
      return makeStatus(StatusCode::InvalidInput, "'{}' has an entry '{}' that names no file", path,
                        name);
    Result<MappedFile> file = folder.map(name);
    if (!file.isOk()) {
      findings.add(file.status());
      continue;
    }
    llvm::SHA256 hash;
    hash.update(llvm::ArrayRef<uint8_t>(file->bytes().data(), file->bytes().size()));
    std::string found = llvm::toHex(hash.final(), /*LowerCase=*/true);
    if (found != digest.get<std::string>())
      findings.add(makeStatus(report::CheckpointDamaged,
                              "'{}/{}' is damaged: its SHA-256 is {}, '{}' says {}", folder.path(),
                              name, found, path, digest.get<std::string>()));
  }
  return Status::ok();
}

/// Remarks on data files that no item refers to: leftovers of a save with more ranks.
void remarkStrayFiles(const CheckpointReader &reader) {
  std::set<std::string> named;
  for (const TensorMeta &tensor : reader.metadata().tensors)
    for (const checkpoint::Chunk &chunk : tensor.chunks)
      named.insert(chunk.record.file);
  for (const checkpoint::ObjectMeta &object : reader.metadata().objects)
    named.insert(object.record.file);
  std::error_code error;
  for (fs::directory_iterator at(reader.folder(), error), end; !error && at != end;
       at.increment(error)) {
    std::string name = at->path().filename().string();
    uint64_t size = name.ends_with(".distcp") ? at->file_size(error) : 0;
    if (size > 0 && !named.contains(name))
      reportCkpt(makeReport(report::StrayFile, at->path().string()));
  }
}

/// Runs every check even after one has failed, so that one call lists all faults. The last line
/// names what cannot be checked because the format has no checksum for it.
Status verify(const VerifyOptions &options, Findings &findings) {
  ASSIGN_OR_RETURN(std::string folder, checkpoint::findCheckpoint(options.path));
  ASSIGN_OR_RETURN(checkpoint::CheckpointFormat format, checkpoint::detectFormat(folder));
  ASSIGN_OR_RETURN(CheckpointReader reader,
                   CheckpointReader::open(folder, checkpoint::Verify::Whole, reportCkpt));
  findings.add(reader.checkIntegrity());
  verifyItems(reader, options.threads, findings);
  findings.add(reader.verifyFiles());
  bool hasJson = false;
  findings.add(verifyIntegrityJson(reader.files(), findings, hasJson));
  if (findings.size() == 0) // checks that the items fit together
    findings.add(checkpoint::CheckpointView::open(folder).status());
  for (const Report &warning : reader.metadata().warnings)
    reportCkpt(warning);
  remarkStrayFiles(reader);
  findings.print();
  if (findings.size() == 0)
    printOut("'{}' is undamaged: {}, {}; checked by {}\n", plan::printable(folder),
             formatName(format), contentsText(folder),
             reader.hasIntegrity() ? "the checksums of every file"
             : hasJson             ? "SHA-256 of its files and the checksums of its records"
                                   : "the checksums of its records; '.metadata' has none");
  return Status::ok();
}

} // namespace

void addCkptVerify(cli::Command &ckpt, int &status) {
  auto options = std::make_shared<VerifyOptions>();
  cli::Command &command =
      ckpt.addCommand("verify", "check structure, coverage, sizes and checksums");
  command.option("checkpoint", options->path, "its folder, or a folder of checkpoints").required();
  command.option("--threads", options->threads, "threads that read").threadCount().showsDefault();
  command.onUse([options, &status] {
    Findings findings;
    status = finishCkpt(verify(*options, findings));
    if (findings.size() > 0)
      status = 1; // regardless of their kind
  });
}

} // namespace shardc::tools
