// SPDX-License-Identifier: Apache-2.0
// The live view: a log that grows, is cut and is continued; the server as a browser and as a hostile client
// see it.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/watch/http_server.h"
#include "cli/watch/run_tail.h"
#include "cli/watch/site.h"
#include "cli/watch/terminal_chart.h"
#include "io/file.h"
#include "io/test_dir.h"
#include "telemetry/jsonl_sink.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

void append(const std::filesystem::path& path, const std::string& text) {
  FileWriter out(path, FileWriter::Mode::Append);
  out.write(text);
}

std::string train(std::int64_t step, double loss) {
  return json_line(TrainEvent{.step = step, .loss = loss, .lr = 0.1, .grad_norm = 1, .tokens_per_s = 1000}) +
         "\n";
}

class WatchTest : public ::testing::Test {
 protected:
  WatchTest() : folder_(dir_ / "runs" / "tiny"), log_(folder_ / "metrics.jsonl") {
    std::filesystem::create_directories(folder_);
    write_file(log_, json_line(HeaderEvent{.recipe = "nvfp4", .steps = 100}) + "\n" + train(1, 5) +
                         train(2, 4.5) + json_line(EvalEvent{.step = 2, .loss = 4.75}) + "\n");
  }
  TestDir dir_;
  std::filesystem::path folder_, log_;
};

TEST_F(WatchTest, ATailTakesWholeLinesAsTheyComeAndBeginsAnewWhenTheLogWasCut) {
  RunTail tail("tiny", log_);
  tail.poll();
  ASSERT_EQ(tail.run().rows.size(), 2u);
  EXPECT_EQ(tail.run().steps, 100);
  EXPECT_EQ(tail.run().evaluations.at(0).loss, 4.75);
  const std::string line = train(3, 4);
  append(log_, line.substr(0, 20));
  tail.poll();
  EXPECT_EQ(tail.run().rows.size(), 2u);
  append(log_, line.substr(20));
  tail.poll();
  ASSERT_EQ(tail.run().rows.size(), 3u);
  EXPECT_EQ(tail.run().generation, 0);
  // A resumed run cuts its log and writes the steps again, here even to more bytes than before.
  write_file(log_, json_line(HeaderEvent{.recipe = "nvfp4", .steps = 100}) + "\n" + train(1, 5) +
                       train(2, 4.25) + train(3, 4.125) + train(4, 4) + train(5, 3.5));
  tail.poll();
  EXPECT_EQ(tail.run().generation, 1);
  ASSERT_EQ(tail.run().rows.size(), 5u);
  EXPECT_EQ(tail.run().rows[1].loss, 4.25);
  append(log_, "no json\n[1]\n{\"type\":7}\n" + train(6, std::nan("")));
  tail.poll();
  EXPECT_EQ(tail.run().passed_over, 3);
  EXPECT_TRUE(std::isnan(tail.run().rows.back().loss));
}

TEST_F(WatchTest, AlarmsOfOneSubjectAreOneLineAndANewOneIsNews) {
  WatchedRuns runs({folder_});
  std::vector<WatchedRuns::Seen> seen;
  AlarmEvent alarm{.step = 25, .rule = "amax_drift", .where = {"a", 0, "fprop", "x"}, .text = "amax rose"};
  for (const char* last : {"warning, step 25: amax rose", "warning, steps 25 to 50, 2 times: amax rose"}) {
    append(log_, json_line(alarm) + "\n");
    runs.poll();
    const auto news = nlohmann::json::parse(runs.news(seen, 100));
    EXPECT_EQ(news[0]["alarms"], nlohmann::json::array({last}));
    alarm.step += 25;
  }
}

TEST_F(WatchTest, NewsAreWhatAPageHasNotYet) {
  WatchedRuns runs({folder_, dir_ / "runs" / "later"});
  std::vector<WatchedRuns::Seen> seen;
  const auto all = nlohmann::json::parse(runs.news(seen, 100));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0]["name"], "tiny");
  EXPECT_EQ(all[0]["rows"].size(), 2u);
  EXPECT_EQ(runs.news(seen, 100), "");
  append(log_, train(3, 4));
  runs.poll();
  const auto more = nlohmann::json::parse(runs.news(seen, 100));
  ASSERT_EQ(more[0]["rows"].size(), 1u);
  EXPECT_EQ(more[0]["rows"][0][0], 3);
  EXPECT_FALSE(more[0]["anew"]);
  // A comparison that begins later is found, an arm each.
  for (const char* arm : {"candidate", "baseline"}) {
    std::filesystem::create_directories(dir_ / "runs" / "later" / arm);
    write_file(dir_ / "runs" / "later" / arm / "metrics.jsonl", train(1, 3));
  }
  runs.poll();
  const auto arms = nlohmann::json::parse(runs.news(seen, 100));
  ASSERT_EQ(arms.size(), 2u);
  EXPECT_EQ(arms[0]["name"], "later/baseline");
}

TEST_F(WatchTest, ALongRunIsThinnedForANewPage) {
  std::string text;
  for (int s = 3; s <= 2000; ++s) text += train(s, 4);
  append(log_, text);
  const WatchedRuns runs({folder_});
  std::vector<WatchedRuns::Seen> seen;
  const auto all = nlohmann::json::parse(runs.news(seen, 100));
  EXPECT_LE(all[0]["rows"].size(), 100u);
  EXPECT_EQ(all[0]["rows"].back()[0], 2000);
}

TEST(WatchRequest, IsReadOrRefused) {
  HttpRequest r;
  EXPECT_TRUE(parse_request("GET /a?b=c HTTP/1.1\r\nHost: localhost:1\r\n\r\n", r));
  EXPECT_EQ(r.path, "/a");
  EXPECT_EQ(r.host, "localhost:1");
  EXPECT_TRUE(parse_request("GET / HTTP/1.0\r\nhOST:\t x \r\n\r\n", r));
  EXPECT_EQ(r.host, "x");
  for (const char* bad :
       {"", "\r\n\r\n", "GET\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/2\r\n\r\n", " / HTTP/1.1\r\n\r\n",
        "GET a HTTP/1.1\r\n\r\n", "GET / x HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nnocolon\r\n\r\n"})
    EXPECT_FALSE(parse_request(bad, r)) << bad;
}

/// Sends bytes and reads until `until` is in what came, the other side closed, or two seconds passed.
std::string talk(int port, const std::string& text, const std::string& until = "") {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET, at.sin_port = htons(static_cast<std::uint16_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (::connect(socket, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0 &&
      ::send(socket, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size())) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    char buffer[4096];
    while (std::chrono::steady_clock::now() < end && (until.empty() || answer.find(until) == answer.npos)) {
      pollfd ready{socket, POLLIN, 0};
      if (::poll(&ready, 1, 50) <= 0) continue;
      const auto n = ::recv(socket, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      answer.append(buffer, static_cast<std::size_t>(n));
    }
  }
  ::close(socket);
  return answer;
}

std::string get(const std::string& path) { return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n"; }

TEST_F(WatchTest, ServesThePageItsPartsAndTheEventsOfALogThatGrows) {
  WatchedRuns runs({folder_});
  const HttpServer server("127.0.0.1", 0, watch_site(runs));
  ASSERT_GT(server.port(), 0);
  const std::string page = talk(server.port(), get("/"));
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, HasSubstr("<title>nibble watch</title>"));
  EXPECT_THAT(page.substr(page.find("\r\n\r\n")), Not(HasSubstr("http"))) << "the page names another place";
  EXPECT_THAT(talk(server.port(), get("/uplot.js")), HasSubstr("uPlot"));
  EXPECT_THAT(talk(server.port(), get("/uplot-license.txt")), HasSubstr("MIT License"));
  for (const char* path : {"/watch.js", "/watch.css", "/uplot.css"})
    EXPECT_THAT(talk(server.port(), get(path)), StartsWith("HTTP/1.1 200 OK\r\n")) << path;
  EXPECT_THAT(talk(server.port(), get("/events"), "\n\n"), HasSubstr("data: [{\"alarms\":[]"));
  append(log_, train(3, 4.0625));
  runs.poll();
  EXPECT_THAT(talk(server.port(), get("/events"), "4.0625"), HasSubstr("4.0625"));
}

TEST_F(WatchTest, RefusesWhatIsMalformedForeignOrTooLong) {
  const WatchedRuns runs({folder_});
  const HttpServer server("127.0.0.1", 0, watch_site(runs));
  EXPECT_THAT(talk(server.port(), "nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(talk(server.port(), get("/../etc/passwd")), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(talk(server.port(), "POST / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(talk(server.port(), "GET / HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n"),
              StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(talk(server.port(), "GET / HTTP/1.1\r\nx: " + std::string(9000, 'a')),
              StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(talk(server.port(), get("/")), StartsWith("HTTP/1.1 200 OK")) << "it still serves";
}

TEST(WatchServer, RefusesAddressesAndPortsThatAreTaken) {
  const HttpServer server("127.0.0.1", 0, {});
  EXPECT_THROW(HttpServer("127.0.0.1", server.port(), {}), Error);
  EXPECT_THROW(HttpServer("localhost.example", 0, {}), Error);
}

TEST_F(WatchTest, TheTerminalDrawsACurveThatFits) {
  WatchedRun run{.name = "tiny", .steps = 200};
  for (int s = 1; s <= 100; ++s) run.rows.push_back({s, 6.0 - 0.02 * s, 1, 0.1, 1000, 10});
  const auto lines_of = [](const std::string& frame) { return std::count(frame.begin(), frame.end(), '\n'); };
  const std::string braille =
      terminal_frame({run}, {.columns = 60, .rows = 20, .braille = true, .colour = false});
  EXPECT_EQ(lines_of(braille), 19);
  EXPECT_THAT(braille, HasSubstr("\xE2\xA1"));
  EXPECT_THAT(braille, HasSubstr("step 100/200 loss 4.0000"));
  // Two runs without colours are told apart by their marks.
  WatchedRun other = run;
  for (WatchRow& r : other.rows) r.loss += 0.5;
  const std::string ascii =
      terminal_frame({run, other}, {.columns = 60, .rows = 20, .braille = true, .colour = false});
  EXPECT_THAT(ascii, HasSubstr("*"));
  EXPECT_THAT(ascii, HasSubstr("+"));
  for (std::size_t at = 0; at < ascii.size();) {
    const auto end = ascii.find('\n', at);
    EXPECT_LE(end - at, 60u) << ascii.substr(at, end - at);
    at = end + 1;
  }
  EXPECT_THAT(terminal_frame({}, {.columns = 10, .rows = 3}), HasSubstr("training loss"));
  WatchedRun broken{.name = "broken", .steps = 2, .rows = {{1, std::nan(""), std::nan(""), 0, 0, 0}}};
  EXPECT_THAT(terminal_frame({broken}, {.colour = false}), HasSubstr("not finite"));
}

}  // namespace
}  // namespace nibble
