#include "src/apps/man_page.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "src/apps/version.h"

namespace computron {
namespace {

constexpr const char* kDescription = R"(One MPI job serves many large transformer models from devices that cannot hold them all.
Each rank owns one device and keeps its shard of every model in host memory; rank 0 schedules, and all ranks copy
their slices at the same time while compute goes on. Requests come as JSON lines in the OpenAI batch format, from a
file or from standard input; there is one result line for every request, whatever is killed, as long as the same
command is run again.
)";

// Where the text of an option has no room: what a command is started with, by example.
constexpr const char* kExamples = R"(.EX
computron convert facebook/opt-1.3b opt.h5
mpirun -n 4 computron serve --model opt=opt.h5 --model llama=llama.h5 \e
  --requests requests.jsonl --output results.jsonl --device-memory 16GiB
sbatch jobs/serve.sbatch
.EE
)";

constexpr const char* kExitStatus[][2] = {
    {"0", "Every request has a result."},
    {"64", "The command line or the configuration file is wrong."},
    {"65", "Bad data: the input as a whole, or the content of a checkpoint."},
    {"66", "The input or a checkpoint cannot be read."},
    {"69", "No usable device, or one that failed."},
    {"70", "Internal: an invariant is broken, or the ranks disagree."},
    {"71", "Memory or another resource of the system cannot be had."},
    {"73", "The output cannot be created, or another job holds it."},
    {"74", "Writing or reading failed, a full disk included."},
    {"75", "Stopped early; the same command goes on where this one ended."},
    {"76", "Communication failed or a rank was lost."},
    {"77", "Permission refused."},
    {"78", "The configuration does not fit the checkpoint, the mesh or the other ranks."},
    {"79", "Watchdog: a deadline passed."},
};

// Text that troff takes as it is: no escapes, no hyphens that break, no line that begins with a control character.
std::string plain(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out.find_first_of(".'") == 0 ? "\\&" + out : out;
}

// "--tp INT [4]": names, what it takes, and what it is without.
std::string heading(const CLI::Option& option) {
  std::string text = fmt::format("\\fB{}\\fR", plain(option.get_name(false, true)));
  if (option.get_type_size() > 0) text += fmt::format(" \\fI{}\\fR", plain(option.get_type_name()));
  const std::string& otherwise = option.get_default_str();
  if (!otherwise.empty() && otherwise != "[]") text += fmt::format(" [{}]", plain(otherwise));
  return text + (option.get_required() ? " (required)" : "");
}

// --help is the same everywhere.
bool hidden(const CLI::Option& option) { return option.get_group().empty() || option.get_name() == "--help"; }

std::string synopsis(const CLI::App& command, const std::string& name) {
  std::string text = fmt::format(".B {}\n", plain(name));
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) text += fmt::format(".I {}\n", plain(option->get_name(true)));
  }
  return text + "[\\fIOPTIONS\\fR]\n.br\n";
}

std::string options(const CLI::App& command) {
  std::string text;
  for (const CLI::Option* option : command.get_options()) {
    if (!hidden(*option)) text += fmt::format(".TP\n{}\n{}\n", heading(*option), plain(option->get_description()));
  }
  return text;
}

// Calls each(command, its name) for every command that does something itself, in the order of the table.
template <class Each>
void for_each_command(const CLI::App& app, const std::string& name, const Each& each) {
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  if (commands.empty()) each(app, name);
  for (const CLI::App* command : commands) {
    if (!command->get_group().empty()) for_each_command(*command, name + " " + command->get_name(), each);
  }
}

std::string exit_status() {
  std::string text;
  for (const auto& [code, meaning] : kExitStatus) text += fmt::format(".TP\n.B {}\n{}\n", code, plain(meaning));
  return text;
}

}  // namespace

std::string man_page(const CLI::App& app) {
  std::string synopses, commands;
  for_each_command(app, app.get_name(), [&](const CLI::App& command, const std::string& name) {
    synopses += synopsis(command, name);
    commands += fmt::format(".SS {}\n{}\n{}", plain(name), plain(command.get_description()), options(command));
  });
  return fmt::format(
      ".TH COMPUTRON 1 \"\" \"computron {}\" \"User Commands\"\n"
      ".SH NAME\ncomputron \\- serve many transformer models from one MPI job\n"
      ".SH SYNOPSIS\n{}.SH DESCRIPTION\n{}.SH COMMANDS\n{}.SH EXIT STATUS\n"
      "Every rank ends with the same code.\n{}.SH EXAMPLES\n{}",
      version_number(), synopses, kDescription, commands, exit_status(), kExamples);
}

}  // namespace computron
