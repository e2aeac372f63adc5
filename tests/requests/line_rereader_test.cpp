#include "computron/requests/line_rereader.h"

#include <gmock/gmock.h>

#include <thread>

#include "tests/requests/requests_support.h"

namespace computron {
namespace {

std::string simple_line(const std::string& id) { return line_with(R"("prompt":[4,5])", id); }

// A file with all its lines read once.
class ReadFile {
 public:
  explicit ReadFile(const std::string& text)
      : path_(folder_.write("in.jsonl", text)), reader_(path_, RequestParser(two_models(), {}), {}) {
    while (!reader_.finished()) {
      if (auto incoming = reader_.poll()) lines_.push_back(std::move(*incoming));
    }
  }
  const std::vector<IncomingRequest>& lines() const { return lines_; }
  const std::string& path() const { return path_; }
  void write(const std::string& text) const { folder_.write("in.jsonl", text); }

  void ask(std::size_t line) { reader_.rereader()->ask(lines_.at(line).place); }
  IncomingRequest next() {
    for (;;) {
      if (auto incoming = reader_.rereader()->poll()) return std::move(*incoming);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

 private:
  TemporaryFolder folder_;
  std::string path_;
  RequestReader reader_;
  std::vector<IncomingRequest> lines_;
};

TEST(LineRereader, LinesAreAsTheyWereWhateverStandsBetweenThem) {
  ReadFile file("\xEF\xBB\xBF" + simple_line("a") + "\n\n" + simple_line("b") + "\r\n \t\r\n{\n" + simple_line("c"));
  ASSERT_EQ(file.lines().size(), 4u);
  for (const std::size_t i : {3, 0, 1, 3}) file.ask(i);
  for (const std::size_t i : {3, 0, 1, 3}) {
    const IncomingRequest &before = file.lines()[i], again = file.next();
    EXPECT_EQ(again.line, before.line);
    EXPECT_EQ(again.key, before.key);
    EXPECT_EQ(again.custom_id, before.custom_id);
    ASSERT_TRUE(std::holds_alternative<RequestParts>(again.content)) << "no duplicate of itself";
    const Request &parsed = std::get<RequestParts>(again.content)[0],
                  &first = std::get<RequestParts>(before.content)[0];
    EXPECT_EQ(parsed.id, first.id);
    EXPECT_EQ(parsed.prompt, first.prompt);
    EXPECT_EQ(parsed.sampling.key, first.sampling.key);
  }
}

TEST(LineRereader, LineThatHasChangedIsAnErrorThatNamesItBehindThoseThatHaveNot) {
  const std::string before = simple_line("a") + "\n" + simple_line("b") + "\n" + simple_line("c") + "\n";
  const std::string now[] = {simple_line("a") + "\n" + simple_line("x") + "\n" + simple_line("c") + "\n",
                             simple_line("a") + "\n"};
  for (const std::string& text : now) {
    ReadFile file(before);
    file.write(text);
    file.ask(0);
    file.ask(1);
    EXPECT_EQ(file.next().custom_id, "a");
    expect_error(ExitCode::kData, "'" + file.path() + "' has changed since it was read: line 1 is another one",
                 [&] { file.next(); });
  }
}

// Somebody may move a file away, or another one into its place.
TEST(LineRereader, ReadsTheFileThatWasOpenedWhateverBecomesOfItsName) {
  ReadFile file(simple_line("a") + "\n");
  std::filesystem::rename(file.path(), file.path() + ".old");
  file.write(simple_line("x") + "\n");
  file.ask(0);
  EXPECT_EQ(file.next().custom_id, "a");
}

TEST(LineRereader, EndsWhileItIsAskedFor) {
  ReadFile file(simple_line("a") + "\n");
  for (int i = 0; i < 1000; ++i) file.ask(0);
}

TEST(LineRereader, WarnsOfNothingTwice) {
  ReadFile file(line_with(R"("prompt":[4],"no_such_field":1)", "a") + "\n");
  const CapturedLog log;
  file.ask(0);
  file.next();
  EXPECT_EQ(log.text(), "");
}

}  // namespace
}  // namespace computron
