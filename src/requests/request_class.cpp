#include "src/requests/request_class.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

#include "computron/base/digest.h"
#include "computron/sched/request.h"
#include "src/requests/request_fields.h"

namespace computron {
namespace {

using Kind = JsonValue::Kind;

constexpr std::pair<std::string_view, std::int32_t> kTiers[] = {
    {"auto", 0}, {"default", 0}, {"flex", 0}, {"priority", Request::kInteractive}, {"scale", 0}};

std::int32_t priority_of_tier(const JsonValue& tier) {
  if (tier.kind == Kind::kNull) return 0;
  const auto* const found =
      std::ranges::find(kTiers, std::string_view(tier.text), &std::pair<std::string_view, std::int32_t>::first);
  if (tier.kind == Kind::kString && found != std::end(kTiers)) return found->second;
  invalid_parameter(fmt::format("body.service_tier: must be 'auto', 'default', 'flex', 'priority' or 'scale' (got {})",
                                describe(tier)));
}

// Both are looked at, so that what is wrong of either is told.
std::uint64_t tenant_of(const JsonFields& body) {
  std::uint64_t tenant = 0;
  for (const std::string_view name : {"user", "tenant"}) {
    if (field(body, name).kind == Kind::kNull) continue;
    const std::string& text = required_string(body, "body.", name);
    if (!text.empty()) tenant = digest64(std::as_bytes(std::span(text)));
  }
  return tenant;
}

}  // namespace

RequestClass class_of(const JsonFields& body) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::int32_t of_tier = priority_of_tier(field(body, "service_tier"));
  return {.priority = static_cast<std::int32_t>(OptionalFields(body).integer("priority", -kMost, kMost, of_tier)),
          .tenant = tenant_of(body)};
}

}  // namespace computron
