// The grammar of an answer that may call tools, in V3.2's notation:
//
//   text\n\n<｜DSML｜function_calls>
//   <｜DSML｜invoke name="NAME">
//   <｜DSML｜parameter name="KEY" string="true|false">VALUE</｜DSML｜parameter>
//   </｜DSML｜invoke>
//   </｜DSML｜function_calls>
//
// A value with string="true" is text as it is, any other is JSON. A strict tool gets what its schema accepts;
// no text holds the beginning of its end tag. Other tools get any values for the parameters that their
// schemas name.
#pragma once

#include "constrain/terms.h"
#include "text/json.h"

namespace dsv32 {

// `spec`: a constraint of the form with tools (constraint.h), which must outlive the call. Throws
// Error{usage}.
Terms::Id tools_term(Terms& terms, const Json& spec);

}  // namespace dsv32
