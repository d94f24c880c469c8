// See line_editor.h.
//
// libedit gets its characters from here, because its own reader does not come back when a signal arrives. It
// thinks in wide characters of the locale: the C.UTF-8 one, whatever the environment says.
#include "cli/line_editor.h"

#include <cerrno>
#include <clocale>
#include <cstdio>

#include <fcntl.h>
#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/history_file.h"
#include "cli/state_folder.h"

namespace dsv32 {
namespace {

constexpr char kEndOfInput = 4;         // Ctrl-D
constexpr int kPollMilliseconds = 100;  // how long a signal may go unnoticed that comes just before poll()

// Waits for input. False when a stop was requested first.
bool wait_for_input(const GracefulStop& stop) {
  pollfd readable{STDIN_FILENO, POLLIN, 0};
  while (!stop.is_requested())
    if (poll(&readable, 1, kPollMilliseconds) > 0) return true;
  return false;
}

}  // namespace

struct LineEditor::Edit {
  EditLine* line = nullptr;
  History* history = nullptr;
  HistoryFile file;
  const char* prompt = "";
  const GracefulStop* stop = nullptr;

  explicit Edit(const std::string& path) : file(path) {}
  static Edit& of(EditLine* line) {
    void* self = nullptr;
    el_get(line, EL_CLIENTDATA, &self);
    return *static_cast<Edit*>(self);
  }
  static char* show_prompt(EditLine* line) { return const_cast<char*>(of(line).prompt); }

  // One character for libedit: 1, 0 at the end of input, -1 when stopped.
  static int get_character(EditLine* line, wchar_t* character) {
    std::string bytes;
    uint32_t code_point = 0xfffd;
    do {
      if (!wait_for_input(*of(line).stop)) return -1;
      char byte = 0;
      const ssize_t n_read = ::read(STDIN_FILENO, &byte, 1);
      if (n_read <= 0) return n_read == 0 || errno != EINTR ? 0 : -1;
      // A Ctrl-D typed while an answer was printed has become NUL on the terminal's way to raw mode.
      bytes += byte == 0 ? kEndOfInput : byte;
    } while (incomplete_utf8_tail(bytes) > 0);
    decode_utf8(bytes, 0, &code_point);
    *character = static_cast<wchar_t>(code_point);
    return 1;
  }
};

LineEditor::LineEditor(bool is_terminal, const GracefulStop& stop, const std::string& history_path)
    : stop_(stop) {
  if (!is_terminal) return;
  std::setlocale(LC_CTYPE, "C.UTF-8");
  edit_ = std::make_unique<Edit>(history_path);
  edit_->stop = &stop;
  edit_->history = history_init();
  HistEvent event;
  history(edit_->history, &event, H_SETSIZE, static_cast<int>(HistoryFile::kMaxLines));
  history(edit_->history, &event, H_SETUNIQUE, 1);
  if (edit_->file.shorten()) history(edit_->history, &event, H_LOAD, edit_->file.path().c_str());
  edit_->line = el_init("dsv32", stdin, stdout, stderr);
  el_set(edit_->line, EL_CLIENTDATA, edit_.get());
  el_set(edit_->line, EL_EDITOR, "emacs");
  el_set(edit_->line, EL_PROMPT, &Edit::show_prompt);
  el_set(edit_->line, EL_HIST, history, edit_->history);
  el_set(edit_->line, EL_GETCFN, &Edit::get_character);
  el_set(edit_->line, EL_BIND, "^R", "em-inc-search-prev", nullptr);
}

LineEditor::~LineEditor() {
  if (!edit_) return;
  el_end(edit_->line);
  history_end(edit_->history);
}

LineEditor::Event LineEditor::read(const char* prompt, std::string& line) {
  if (!edit_) return read_plainly(line);
  edit_->prompt = prompt;
  el_resize(edit_->line);
  int n_chars = 0;
  const char* typed = el_gets(edit_->line, &n_chars);
  if (stop_.is_requested()) return Event::interrupted;
  if (!typed || n_chars <= 0) return Event::end;
  line = typed;
  if (line.ends_with('\n')) line.pop_back();
  return Event::line;
}

LineEditor::Event LineEditor::read_plainly(std::string& line) {
  size_t end = waiting_.find('\n');
  while (end == std::string::npos) {
    if (!wait_for_input(stop_)) return Event::interrupted;
    char block[4096];
    const ssize_t n_read = ::read(STDIN_FILENO, block, sizeof block);
    if (n_read < 0 && errno == EINTR) continue;
    if (n_read <= 0 && waiting_.empty()) return Event::end;
    waiting_.append(n_read <= 0 ? "\n" : std::string_view(block, static_cast<size_t>(n_read)));
    end = waiting_.find('\n');
  }
  line = waiting_.substr(0, end);
  waiting_.erase(0, end + 1);
  return Event::line;
}

void LineEditor::remember(const std::string& line) {
  HistEvent event;
  if (!edit_ || line.empty() || line[0] == ' ') return;
  const bool is_new = history(edit_->history, &event, H_ENTER, line.c_str()) > 0;  // not the last once more
  if (is_new) edit_->file.append(line);
}

std::string history_path() {
  const std::string folder = state_folder();
  return folder.empty() ? folder : folder + "/history";
}

}  // namespace dsv32
