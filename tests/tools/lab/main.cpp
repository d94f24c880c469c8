// lab: the developers' instruments. `lab answers` asks a model questions whose answers are known, `lab
// buffer` replays buffer policies on what its indexer selects, `lab matvec` and `lab experts` time the CPU's
// products, `lab prefixes` prompts that are known on disk, `lab steps` the parts of a decode step, `lab
// logits` writes what a model says to each token of a prompt.
#include "base/error.h"
#include "cli/options/flags.h"
#include "cli/terminal/streams.h"
#include "tests/tools/lab/lab_options.h"

int main(int argc, char** argv) {
  using namespace dsv32;
  open_missing_streams();
  try {
    return run_lab({argv + (argc > 0), argv + argc});
  } catch (const Error& error) {
    write_err(error_text(error.what(), error.hint()));
    return exit_code(error.kind());
  } catch (const std::exception& error) {
    write_err(error_text(error.what()));
    return exit_code(ErrorKind::internal);
  }
}
