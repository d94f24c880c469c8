#include "cli/inspect/measured_model.h"

#include "base/text.h"
#include "cli/options/model_lookup.h"
#include "cli/warm/loaded_model.h"
#include "weights/synthetic.h"

namespace dsv32 {

// DeepSeek-V3.2's own; a bench may go further.
constexpr int64_t kRealContext = 163840;

MeasuredModel::MeasuredModel(const Options& options) : types_(options.bench.types) {
  if (!options.bench.is_synthetic) file_.emplace(find_model(options));
  args_ = file_ ? read_model_args(*file_) : full_size_args(options.bench.n_layers, options.bench.n_dense);
  if (options.command == Command::inspect_plan && !file_) args_.max_seq_len = kRealContext;
  bytes_ = file_ ? model_bytes(*file_, args_) : model_bytes(args_, types_);
}

std::string MeasuredModel::name() const {
  if (file_) return visible(file_->path());
  const std::string formats =
      types_.mix ? types_.mix->name : type_name(types_.matrices) + std::string("-pure");
  return "the 671B model in " + formats + ", without a file";
}

uint64_t MeasuredModel::n_bytes_unused() const {
  if (!file_) return 0;
  uint64_t n_bytes = 0;
  for (const GgufTensor& tensor : file_->tensors()) n_bytes += tensor.n_bytes;
  return n_bytes - total_bytes(bytes_);
}

Machine MeasuredModel::machine(const EngineOptions& options) const {
  return machine_of(make_backends(options, suffice_for(args_, bytes_, options)), bytes_);
}

std::unique_ptr<Engine> MeasuredModel::open(const EngineOptions& options) const {
  if (file_) return std::make_unique<Engine>(*file_, options);
  const ModelSource source(
      args_, bytes_,
      [&](const ModelArgs& args, const WeightPlaces& places) {
        return synthetic_weights(args, types_, places);
      },
      [](const CacheLayout&, const std::string&) { return [] { return std::optional(Hash256{1}); }; });
  return std::make_unique<Engine>(source, options);
}

}  // namespace dsv32
