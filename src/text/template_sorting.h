// Jinja2's filters that compare items: texts without regard to case unless they are told otherwise.
#pragma once

#include "src/text/template_functions.h"

namespace computron::jinja {

// Arguments reverse, case_sensitive, attribute: one path or several with commas between. TemplateError of items that
// have no order.
Value sorted(const Value& value, const Arguments& arguments, Work& work);
// Of a map, by its keys. It takes no arguments.
Value sorted_entries(const Value& value, const Arguments& arguments, Work& work);
// Arguments case_sensitive, attribute. The first of items that are equal.
Value unique(const Value& value, const Arguments& arguments, Work& work);

}  // namespace computron::jinja
