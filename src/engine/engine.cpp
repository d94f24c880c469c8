#include "engine/engine.h"

#include "backend/cpu_backend.h"
#include "base/error.h"
#include "base/text.h"
#ifdef DSV32_CUDA
#include "cuda/cuda_backend.h"
#endif

namespace dsv32 {
namespace {

std::vector<std::string> warnings_about(const GgufFile& file, const ModelArgs& args) {
  std::vector<std::string> warnings;
  if (!args.has_indexer())
    warnings.push_back(
        format("%s has architecture deepseek2 and no indexer: attention runs dense, answers may be a little "
               "worse and long "
               "contexts slower",
               visible(file.path()).c_str()));
  return warnings;
}

}  // namespace

std::unique_ptr<Backend> make_backend(const EngineOptions& options) {
#ifdef DSV32_CUDA
  if (options.backend == "cuda" || (options.backend == "auto" && has_cuda_device()))
    return make_cuda_backend(options.device);
#endif
  if (options.backend == "cpu" || options.backend == "auto")
    return std::make_unique<CpuBackend>(options.n_threads);
  if (options.backend == "cuda")
    fail(ErrorKind::usage, "--backend is 'cuda', which this build does not have", "build with CUDA=1");
  fail(ErrorKind::usage,
       format("--backend is '%s', expected cpu, cuda or auto", visible(options.backend).c_str()));
}

Engine::Engine(const GgufFile& file, const EngineOptions& options)
    : Engine(
          read_model_args(file),
          [&](const ModelArgs& args, Backend& backend) { return load_weights(file, args, backend); },
          options) {
  warnings_ = warnings_about(file, args_);
}

Engine::Engine(const ModelArgs& args, const LoadWeights& load, const EngineOptions& options)
    : args_(args),
      backend_(make_backend(options)),
      weights_(load(args_, *backend_)),
      plan_(make_plan(args_, options, backend_->memory_info(Place::host).n_bytes_free)) {
  plan_.n_weight_bytes = weights_.n_bytes_used;
  plan_.n_skipped_bytes = weights_.n_bytes_skipped;
  cache_ = std::make_unique<LatentCache>(*backend_, plan_.cache);
  forward_ =
      std::make_unique<Forward>(*backend_, args_, weights_, *cache_, plan_.chunk, plan_.cache.max_tokens);
}

}  // namespace dsv32
