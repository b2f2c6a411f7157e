// Writes the format torch_dcp, in which PyTorch's FSDP2 saves.
#include <map>

#include "runtime/plan/Optimizers.h"
#include "runtime/save/FormatWriter.h"

namespace shardc::save {
namespace {

using checkpoint::ItemPath;
using checkpoint::ParamPart;
using checkpoint::PlainItems;
using checkpoint::PlainTuple;
using checkpoint::PlainValue;

/// One entry of `param_groups`: parameters with the same settings.
struct Group {
  checkpoint::GroupMeta meta;
  PlainItems names;
};

using Groups = std::map<checkpoint::GroupKey, Group>;

Groups groupsOf(const plan::Plan &plan, const Progress &progress) {
  Groups groups;
  for (size_t p = 0; p < plan.params.size(); ++p) {
    const plan::Param &param = plan.params[p];
    if (!plan::isTrained(plan, param))
      continue;
    Group &group = groups[groupKeyOf(plan, param)];
    if (group.names.empty())
      group.meta = groupMetaOf(plan, p, progress);
    for (int64_t i = 0; i < param.tensorCount(); ++i)
      group.names.emplace_back(param.tensorName(i));
  }
  return groups;
}

/// Writes the optimizer's groups as torch does, one object per field.
Status addGroups(const plan::Plan &plan, const Progress &progress, checkpoint::RankWriter &writer) {
  int64_t index = 0;
  for (const auto &[key, group] : groupsOf(plan, progress)) {
    const std::pair<const char *, PlainValue> fields[] = {
        {"lr", group.meta.lr},
        {"betas", PlainTuple{{group.meta.beta1, group.meta.beta2}}},
        {"eps", group.meta.eps},
        {"weight_decay", group.meta.weightDecay},
        {"wd_mult", group.meta.weightDecayMult},
        {"lr_mult", group.meta.lrMult},
        {"params", group.names},
    };
    for (const auto &[field, value] : fields)
      RETURN_IF_ERROR(
          writer.add(objectItem({"optimizer", "param_groups", index, std::string(field)}, value)));
    ++index;
  }
  return Status::ok();
}

class TorchDcpWriter final : public FormatWriter {
public:
  explicit TorchDcpWriter(const plan::Plan &plan) : plan_(plan) {}

  Status addObjects(const Progress &progress, checkpoint::RankWriter &writer) const override {
    for (const checkpoint::BytesItem &item : checkpoint::runStateItems(runStateOf(plan_, progress)))
      RETURN_IF_ERROR(writer.add(item));
    RETURN_IF_ERROR(addAmaxHistory(plan_, progress, writer));
    if (!plan_.job.checkpoint.saveOptim)
      return Status::ok();
    for (size_t p = 0; p < plan_.params.size(); ++p) {
      auto step = static_cast<float>(progress.updatesOf(p)); // torch stores it with each parameter
      for (int64_t i = 0; i < plan_.params[p].tensorCount(); ++i) {
        ItemPath path = {"optimizer", "state", plan_.params[p].tensorName(i), "step"};
        RETURN_IF_ERROR(writer.add(checkpoint::TensorSlice{
            checkpoint::nameOfPath(path), checkpoint::Element::F32, {}, {}, &step, path}));
      }
    }
    return addGroups(plan_, progress, writer);
  }

  Status addRows(const checkpoint::TensorSlice &rows, const StatePiece &piece,
                 checkpoint::RankWriter &writer) const override {
    checkpoint::TensorSlice slice = rows;
    slice.path = {"model", rows.name};
    if (piece.part != ParamPart::Weight)
      slice.path = {"optimizer", "state", rows.name, std::string(momentName(piece.part))};
    slice.name = checkpoint::nameOfPath(slice.path);
    return writer.add(slice);
  }

  Status addBuffer(const checkpoint::TensorSlice &buffer,
                   checkpoint::RankWriter &writer) const override {
    checkpoint::TensorSlice slice = buffer;
    slice.path = {"model", buffer.name};
    slice.name = checkpoint::nameOfPath(slice.path);
    return writer.add(slice);
  }

private:
  const plan::Plan &plan_;
};

} // namespace

std::unique_ptr<FormatWriter> makeTorchDcpWriter(const plan::Plan &plan, const StateLayout &) {
  return std::make_unique<TorchDcpWriter>(plan);
}

} // namespace shardc::save
