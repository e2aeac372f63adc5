#include "src/apps/man_page.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "computron/base/launcher.h"
#include "src/apps/version.h"

namespace computron {
namespace {

constexpr const char* kDescription =
    R"(One MPI job serves many large transformer models from devices that cannot hold them all.
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
sbatch --account=... --partition=... \e
  --export=ALL,ROSTER=models.json,REQUESTS=requests.jsonl,OUTPUT=results.jsonl jobs/serve.sbatch
.EE
The last one needs the script, which is installed in share/computron/jobs; its head says what else it takes.
)";

using Table = const char* const[2];  // what, and what of it

constexpr Table kEnvironment[] = {
    {"TMPDIR", "Folder of each rank's last events where --recorder names none; /tmp without it."},
    {"SLURM_JOB_ID, PBS_JOBID, LSB_JOBID",
     "The batch system's job, which holds OUT.lock; Slurm's also stands in the file of --metrics."},
    {"SLURM_RESTART_COUNT", "A job that Slurm has started again takes its output from its own earlier start."},
    {"COMPUTRON_MAX_ISA",
     "The widest vectors that kernels on CPU may use: avx2, avx512, avx512_vnni, avx512_bf16 or amx (on aarch64: "
     "neon). Below avx512_bf16, bfloat16 weights are multiplied in float32; with avx2 and avx512_vnni int8, int4 and "
     "fp4 in integers. Ranks whose widest vectors differ end the job with 78."},
    {"CUBLAS_WORKSPACE_CONFIG, NVIDIA_TF32_OVERRIDE, NCCL_ALGO, NCCL_PROTO",
     "Change what libraries compute: they must be the same on all ranks, or the job ends with 78."},
};

// Set by each launcher of MPI under a name of its own.
constexpr const char* kRankVariables =
    "Set by MPI's launchers: which rank speaks before MPI is up, and that it is the launcher that feeds standard "
    "input.";

constexpr Table kSignals[] = {
    {"SIGTERM, SIGINT, SIGHUP",
     "At any rank of computron serve: the job stops in order and ends with 75. Steps on their way get the time of "
     "--drain. A second signal: at once."},
    {"SIGUSR1",
     "The same as a warning, with the time of --drain-warned. What to send mpirun, which after SIGTERM ends with 1 "
     "whatever the ranks do."},
    {"SIGUSR2", "At any rank or at mpirun: prints how the job stands."},
};

constexpr Table kFiles[] = {
    {"OUT", "The file of --output; appears when every request has its result."},
    {"OUT.partial, OUT.journal, OUT.lock, OUT.spool",
     "Until then: the results, what is known of them and of the input, whose output it is, and what came over standard "
     "input. The same command, run again, goes on from them."},
    {"OUT.done",
     "Which command OUT is the result of: that one, run again, has nothing to do. computron merge knows "
     "from it which shards there are."},
    {"FILE.partial", "What any other file is called until it is whole; a killed command may leave it."},
    {"computron-*-rank*.flight",
     "In the folder of --recorder: the last events of each rank, for computron postmortem. Removed when the job ends "
     "in order."},
    {"share/computron/jobs", "Beside the folder of the program: job scripts for Slurm."},
};

constexpr Table kExitStatus[] = {
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

std::string row(const std::string& what, const std::string& meaning) {
  return fmt::format(".TP\n.B {}\n{}\n", plain(what), plain(meaning));
}

template <std::size_t kRows>
std::string listed(const Table (&table)[kRows]) {
  std::string text;
  for (const auto& [what, meaning] : table) text += row(what, meaning);
  return text;
}

std::string rank_variables() {
  std::string names;
  for (const LauncherVariable& variable : kLauncherVariables) names += fmt::format("{}, ", variable.rank);
  return row(names + "SLURM_PROCID", kRankVariables);
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
      "Every rank ends with the same code.\n{}.SH ENVIRONMENT\n{}.SH FILES\n{}.SH SIGNALS\n{}.SH EXAMPLES\n{}",
      version_number(), synopses, kDescription, commands, listed(kExitStatus), listed(kEnvironment) + rank_variables(),
      listed(kFiles), listed(kSignals), kExamples);
}

}  // namespace computron
