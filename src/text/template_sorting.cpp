#include "src/text/template_sorting.h"

#include <algorithm>
#include <numeric>

#include "src/text/template_text.h"

namespace computron::jinja {
namespace {

bool is_true(const Value* value) { return value != nullptr && value->truth(); }

// By what items are compared: what a path leads to (none: themselves), texts without regard to case unless `by_case`.
Value key_of(const Value& item, const Value& path, bool by_case, Work& work) {
  Value key = path_of(item, path);
  work.charge();
  if (by_case || key.text() == nullptr) return key;
  work.charge_text(key.text()->size());
  return lower(*key.text());
}

// The paths of "name,age", each a key.
List paths_of(const Value* attribute) {
  if (attribute == nullptr) return {Value(None{})};
  if (attribute->text() == nullptr) return {*attribute};
  List paths;
  for (std::string_view names = *attribute->text();;) {
    const std::size_t comma = names.find(',');
    paths.emplace_back(names.substr(0, comma));
    if (comma == names.npos) return paths;
    names.remove_prefix(comma + 1);
  }
}

bool less_by_keys(const List& a, const List& b) {
  const auto [x, y] = std::mismatch(a.begin(), a.end(), b.begin(), equal);
  return x != a.end() && less(*x, *y);
}

// Equal items stay in their order, in a descending list, too. `keys`: of each item.
List in_order(const List& items, const std::vector<List>& keys, bool descends) {
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return descends ? less_by_keys(keys[b], keys[a]) : less_by_keys(keys[a], keys[b]);
  });
  List ordered;
  ordered.reserve(items.size());
  for (const std::size_t place : order) ordered.push_back(items[place]);
  return ordered;
}

}  // namespace

Value sorted(const Value& value, const Arguments& arguments, Work& work) {
  const bool by_case = is_true(arguments.find(1, "case_sensitive"));
  const List paths = paths_of(arguments.find(2, "attribute")), items = items_of(value, work);
  std::vector<List> keys;
  for (const Value& item : items) {
    List& own = keys.emplace_back();
    for (const Value& path : paths) own.push_back(key_of(item, path, by_case, work));
  }
  return in_order(items, keys, is_true(arguments.find(0, "reverse")));
}

Value sorted_entries(const Value& value, const Arguments& arguments, Work& work) {
  if (!arguments.values.empty() || !arguments.named.empty()) fail("dictsort: its arguments");
  const List items = items_of(call_method("items", value, {}, work), work);
  std::vector<List> keys;
  for (const Value& entry : items) {
    keys.push_back({key_of(entry, Value(std::int64_t{0}), /*by_case=*/false, work)});
  }
  return in_order(items, keys, /*descends=*/false);
}

Value unique(const Value& value, const Arguments& arguments, Work& work) {
  const bool by_case = is_true(arguments.find(0, "case_sensitive"));
  const Value* given = arguments.find(1, "attribute");
  const Value path = given == nullptr ? Value(None{}) : *given;
  List kept, keys;
  for (const Value& one : items_of(value, work)) {
    const Value key = key_of(one, path, by_case, work);
    work.charge(kept.size());
    if (std::any_of(keys.begin(), keys.end(), [&key](const Value& k) { return equal(k, key); })) continue;
    keys.push_back(key);
    kept.push_back(one);
  }
  return kept;
}

}  // namespace computron::jinja
