#include "src/placement/listed_placements.h"

#include <algorithm>
#include <limits>

#include "computron/placement/list_schedule.h"

namespace computron {
namespace {

constexpr double kNoProfile = std::numeric_limits<double>::infinity();
constexpr std::size_t kMostUnits = 32;  // of a task: of more requests a unit is several

class ListedPlacements {
 public:
  ListedPlacements(const SearchProblem& problem, const std::vector<std::uint32_t>& models,
                   const std::vector<GroupShape>& shapes)
      : problem_(problem), models_(models), shapes_(shapes) {}

  // The requests of each model as `parts` tasks.
  void add(std::size_t parts, std::vector<ModelPlacement>& placements) const {
    std::vector<ListTask> tasks;
    for (const std::uint32_t model : models_) tasks.insert(tasks.end(), parts, task_of(model, parts));
    const ListSchedule schedule = list_schedule(tasks, shapes_.size());
    for (const bool one_each : {false, true}) placements.push_back(placed(schedule, parts, one_each));
  }

  bool can_serve_all() const {
    return std::ranges::all_of(models_, [this](std::uint32_t model) {
      return std::ranges::any_of(
          shapes_, [&](const GroupShape& shape) { return problem_.models[model].find(shape) != nullptr; });
    });
  }

 private:
  // At least a unit, so that every model is somewhere.
  ListTask task_of(std::uint32_t model, std::size_t parts) const {
    const auto requests = static_cast<std::size_t>(std::ranges::count(problem_.arrivals, model, &Arrival::model));
    const std::size_t own = std::max<std::size_t>(1, (requests + parts - 1) / parts);
    ListTask task{.units = std::min(own, kMostUnits), .unit_s = {}};
    const double of_unit = static_cast<double>(own) / static_cast<double>(task.units);
    for (const GroupShape& shape : shapes_) {
      const ShapeProfile* const profile = problem_.models[model].find(shape);
      const double pace_s = profile == nullptr ? kNoProfile : static_cast<double>(std::ranges::max(profile->stage_s));
      task.unit_s.push_back(of_unit * pace_s);
    }
    return task;
  }

  ModelPlacement placed(const ListSchedule& schedule, std::size_t parts, bool one_each) const {
    ModelPlacement placement;
    for (const GroupShape& shape : shapes_) placement.push_back({shape, {}});
    for (std::size_t m = 0; m < models_.size(); ++m) {
      std::vector<std::size_t> units(shapes_.size());
      for (std::size_t part = 0; part < parts; ++part) {
        for (std::size_t g = 0; g < units.size(); ++g) units[g] += schedule.units[m * parts + part][g];
      }
      const auto first = static_cast<std::size_t>(std::ranges::max_element(units) - units.begin());
      for (std::size_t g = 0; g < units.size(); ++g) {
        if (one_each ? g == first : units[g] > 0) placement[g].models.push_back(models_[m]);
      }
    }
    std::erase_if(placement, [](const PlacedGroup& group) { return group.models.empty(); });
    return placement;
  }

  const SearchProblem& problem_;
  const std::vector<std::uint32_t>& models_;
  const std::vector<GroupShape>& shapes_;
};

}  // namespace

std::vector<ModelPlacement> listed_placements(const SearchProblem& problem, const std::vector<std::uint32_t>& models,
                                              const std::vector<GroupShape>& shapes) {
  const ListedPlacements listed(problem, models, shapes);
  std::vector<ModelPlacement> placements;
  if (models.empty() || shapes.empty() || !listed.can_serve_all()) return placements;
  listed.add(1, placements);
  if (shapes.size() > 1) listed.add(shapes.size(), placements);
  return placements;
}

}  // namespace computron
