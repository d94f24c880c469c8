#include "cli/measured_model.h"

#include "cli/loaded_model.h"
#include "weights/synthetic.h"

namespace dsv32 {

MeasuredModel::MeasuredModel(const Options& options) : types_(options.bench.types) {
  if (!options.bench.is_synthetic) file_.emplace(find_model(options));
  args_ = file_ ? read_model_args(*file_) : full_size_args(options.bench.n_layers, options.bench.n_dense);
}

Machine MeasuredModel::machine(const EngineOptions& options) const {
  const std::unique_ptr<Backend> backend = make_backend(options);
  return file_ ? machine_of(*backend, *file_) : machine_of(*backend, synthetic_weight_bytes(args_, types_));
}

std::unique_ptr<Engine> MeasuredModel::open(const EngineOptions& options) const {
  if (file_) return std::make_unique<Engine>(*file_, options);
  return std::make_unique<Engine>(
      args_, synthetic_weight_bytes(args_, types_),
      [&](const ModelArgs& args, Backend& backend) { return synthetic_weights(args, types_, backend); },
      options, [](const CacheLayout&, const Backend&) { return [] { return std::optional(Hash256{1}); }; });
}

}  // namespace dsv32
