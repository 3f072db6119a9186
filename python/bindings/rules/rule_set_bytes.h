// A specification of rules as bytes, for one process to read a new version of the rules and to pass
// it to the process that decides by them. Needs neither Python nor the GIL.
//
// The layout is that of one build: only bytes of a process of the same build may be read.
#ifndef TIDEGATE_PYTHON_BINDINGS_RULE_SET_BYTES_H_
#define TIDEGATE_PYTHON_BINDINGS_RULE_SET_BYTES_H_

#include <optional>
#include <string>
#include <string_view>

#include "tidegate/rule_set.h"

namespace tidegate::python {

std::string BytesOf(const RuleSetSpec& spec);
// Returns nothing if the bytes are too few or too many.
std::optional<RuleSetSpec> SpecOf(std::string_view bytes);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_RULE_SET_BYTES_H_
