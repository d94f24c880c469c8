// Standard input, output and error as this program uses them: whole writes, checked, one owner.
//
// Standard output carries what was asked for; a failed write to it is Error{io}, so that a full disk cannot
// end in exit code 0. Standard error carries everything else and may fail in silence. Bytes that need not be
// trusted reach a terminal by write_out() and say() alone, which escape them.
#pragma once

#include <string>
#include <string_view>

namespace dsv32 {

// Gives closed standard streams a place that reads as empty and refuses writes, so that no file opened later
// gets their numbers. Call first.
void open_missing_streams();

bool is_terminal(int fd);

// All of it, or Error{io} naming what standard output refused. A terminal gets it as visible() shows it,
// which leaves JSON the same JSON.
void write_out(std::string_view bytes);
// As it is: what is escaped already, with what moves the cursor.
void write_out_as_is(std::string_view bytes);
// As much as standard error takes.
void write_err(std::string_view bytes);
// A line of it, whose bytes need not be trusted.
void say(const std::string& line);

}  // namespace dsv32
