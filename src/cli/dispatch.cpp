// See dispatch.h.
#include "cli/dispatch.h"

#include "cli/batch/batch.h"
#include "cli/chat/chat.h"
#include "cli/inspect/completion.h"
#include "cli/inspect/config.h"
#include "cli/inspect/inspect.h"
#include "cli/warm/warm.h"

namespace dsv32 {

int run_asked(const Options& options) {
  switch (options.command) {
    case Command::run:
      return options.batch.is_each || options.batch.is_lines ? run_many(options) : run_command(options);
    case Command::batch: return batch_command(options);
    case Command::chat: return chat_command(options);
    case Command::inspect_model: return inspect_model(options);
    case Command::inspect_plan: return inspect_plan(options);
    case Command::inspect_tokens: return inspect_tokens(options);
    case Command::inspect_prompt: return inspect_prompt(options);
    case Command::inspect_logits: return inspect_logits(options);
    case Command::check: return check_command(options);
    case Command::cache_list:
    case Command::cache_show:
    case Command::cache_verify:
    case Command::cache_prune:
    case Command::cache_clear:
    case Command::cache_path: return cache_command(options);
    case Command::talks_list:
    case Command::talks_show:
    case Command::talks_rename:
    case Command::talks_delete:
    case Command::talks_export: return talks_command(options);
    case Command::bench: return bench_model_command(options);
    case Command::bench_batch: return bench_batch_command(options);
    case Command::config: return config_command(options);
    case Command::warm_start: return warm_start_command(options);
    case Command::warm_status: return warm_status_command(options);
    case Command::warm_stop: return warm_stop_command(options);
    case Command::completion: return completion_command(options);
  }
  return 0;
}

}  // namespace dsv32
