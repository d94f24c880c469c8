#include "engine/scheduler.h"

namespace dsv32 {

StepPlan next_step(std::span<const Phase> phases, bool was_prompt, size_t max_parts) {
  StepPlan decode{StepPlan::What::decode, {}}, prompt{StepPlan::What::prompt, {}};
  bool waits = false;
  for (size_t i = 0; i < phases.size(); ++i) {
    if (phases[i] == Phase::decodes && decode.requests.size() < max_parts) decode.requests.push_back(i);
    if (phases[i] == Phase::reads_prompt && prompt.requests.empty()) prompt.requests.push_back(i);
    waits = waits || phases[i] == Phase::waits_for_disk;
  }
  const bool can_decode = !decode.requests.empty(), can_read = !prompt.requests.empty();
  if (can_decode && (was_prompt || !can_read)) return decode;
  if (can_read) return prompt;
  return {waits ? StepPlan::What::wait : StepPlan::What::nothing, {}};
}

}  // namespace dsv32
