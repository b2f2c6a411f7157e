// Chooses the implementation by `checkpoint.ckpt_format`.
#include "runtime/save/FormatWriter.h"

#include "runtime/base/Reports.h"

namespace shardc::save {
namespace {

using Producer = std::unique_ptr<FormatWriter> (*)(const plan::Plan &, const StateLayout &);

/// The function that creates the writer of a format; null if runs do not write the format.
Producer producerOf(plan::Job::CkptFormat format) {
  switch (format) {
  case plan::Job::CkptFormat::FsdpDtensor:
    return makeFsdpDtensorWriter;
  case plan::Job::CkptFormat::TorchDist:
    return makeTorchDistWriter;
  case plan::Job::CkptFormat::TorchDcp:
    return makeTorchDcpWriter;
  case plan::Job::CkptFormat::Torch:
  case plan::Job::CkptFormat::Zarr:
    break;
  }
  return nullptr;
}

} // namespace

Status checkFormat(const plan::Plan &plan) {
  if (producerOf(plan.job.checkpoint.ckptFormat))
    return Status::ok();
  return makeStatus(report::SaveFormatRefused,
                    "checkpoints of format '{}' cannot be written; the formats are "
                    "'fsdp_dtensor', 'torch_dist' and 'torch_dcp'",
                    plan.job.text(plan::JobField::checkpoint_ckptFormat));
}

Result<std::unique_ptr<FormatWriter>> FormatWriter::create(const plan::Plan &plan,
                                                           const StateLayout &layout) {
  RETURN_IF_ERROR(checkFormat(plan));
  return producerOf(plan.job.checkpoint.ckptFormat)(plan, layout);
}

Status addExpertBias(const plan::Plan &plan, const Progress &progress, const FormatWriter &format,
                     checkpoint::RankWriter &writer) {
  if (progress.expertBias.empty())
    return Status::ok();
  const std::vector<ExpertBuffer> buffers = expertBuffersOf(plan);
  const float *row = progress.expertBias.data();
  for (const ExpertBuffer &buffer : buffers) {
    RETURN_IF_ERROR(format.addBuffer(
        {buffer.name, checkpoint::Element::F32, {buffer.experts}, {{0}, {buffer.experts}}, row},
        writer));
    row += progress.expertBias.size() / buffers.size();
  }
  return Status::ok();
}

} // namespace shardc::save
