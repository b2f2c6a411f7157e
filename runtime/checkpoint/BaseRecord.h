// The record of base weights in a checkpoint of adapters: the folder from which the run took them,
// and a fingerprint of each tensor. It shows whether adapters meet the weights for which they were
// trained.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "runtime/checkpoint/ParamSource.h"
#include "runtime/plan/Plan.h"

namespace shardc::checkpoint {

inline constexpr const char *kBaseFile = "adapter_base.json";

struct BaseRecord {
  std::string folder;                              ///< empty if the record does not say it
  std::map<std::string, std::string> fingerprints; ///< by tensor
};
/// An empty record if the checkpoint has none.
Result<BaseRecord> readBaseRecord(const CheckpointReader &adapters);
std::string baseRecordText(const BaseRecord &record);

/// Reads a box of a tensor in the given type.
using ReadBox = std::function<Status(const Box &box, Element type, void *dst)>;
/// Whether a parameter has a row for each token of the vocabulary, and may have rows of padding.
bool isTable(std::string_view name);
/// The shape of a tensor without rows that pad the vocabulary of this size; 0: unknown.
Shape withoutPadding(std::string_view name, Shape shape, int64_t vocabSize);
/// The digest of a tensor's shape and of a few rows in this type. It is cheap, and equal for every
/// checkpoint format.
Result<std::string> fingerprintOf(const Shape &shape, Element type, const ReadBox &read);

/// The shape of a tensor and how to read it; nothing if there is no such tensor.
using FindTensor = std::function<std::optional<std::pair<Shape, ReadBox>>(const plan::Param &param,
                                                                          const std::string &name)>;
/// Fingerprints of the plan's tensors that are found, in bf16, so that they compare models which
/// are stored in other types.
Result<std::map<std::string, std::string>> fingerprintsOf(const plan::Plan &plan,
                                                          const FindTensor &find);

/// Says that `base` has other weights than the record, and which.
std::string otherBaseText(const BaseRecord &record, const std::string &base,
                          const std::string &adapters, const std::vector<std::string> &tensors);
/// Warns if weights of `base` are not those for which the adapters were trained. Tables of tokens
/// are not compared, since their padding depends on the run.
Status warnOfOtherBase(const CheckpointReader &adapters, const ParamSource &base,
                       const ReportSink &emit);

} // namespace shardc::checkpoint
