// SPDX-License-Identifier: Apache-2.0
#include "cli/watch/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/error.h"

namespace nibble {
namespace {

constexpr std::size_t kMostHead = 8192;
constexpr std::size_t kMostReaders = 32;
constexpr int kBacklog = 32, kRequestMs = 5000, kPollMs = 200, kPingMs = 15000;

bool send_all(int socket, std::string_view text) {
  while (!text.empty()) {
    pollfd ready{socket, POLLOUT, 0};
    if (::poll(&ready, 1, kRequestMs) <= 0) return false;
    const auto n = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

std::string head_of(int code, const char* reason, const std::string& type,
                    std::optional<std::size_t> length) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", code, reason, type);
  if (length) head += fmt::format("Content-Length: {}\r\n", *length);
  return head +
         "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
         "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
         "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
         "Connection: close\r\n\r\n";
}

void refuse(int socket, int code, const char* reason) {
  const std::string body = fmt::format("{} {}\n", code, reason);
  send_all(socket, head_of(code, reason, "text/plain; charset=utf-8", body.size()) + body);
}

/// Reads up to the empty line. Nothing: too long, too slow or closed; `code` says which answer it gets.
std::optional<std::string> read_head(int socket, const std::atomic<bool>& stop, int& code) {
  std::string head;
  code = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kRequestMs);
  while (head.find("\r\n\r\n") == std::string::npos) {
    if (head.size() > kMostHead) return code = 431, std::nullopt;
    if (stop) return {};
    if (std::chrono::steady_clock::now() > end) return code = 408, std::nullopt;
    pollfd ready{socket, POLLIN, 0};
    if (::poll(&ready, 1, kPollMs) <= 0) continue;
    char buffer[2048];
    const auto n = ::recv(socket, buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return code = head.empty() ? 0 : 400, std::nullopt;
    head.append(buffer, static_cast<std::size_t>(n));
  }
  return head;
}

/// Takes what still comes for a moment: closing with bytes unread would take the answer back.
void drain(int socket) {
  ::shutdown(socket, SHUT_WR);
  char buffer[2048];
  for (int i = 0; i < 8; ++i) {
    pollfd ready{socket, POLLIN, 0};
    if (::poll(&ready, 1, 50) <= 0 || ::recv(socket, buffer, sizeof buffer, MSG_DONTWAIT) <= 0) return;
  }
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

std::string trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return std::string(text);
}

}  // namespace

bool parse_request(std::string_view head, HttpRequest& request) {
  const auto line_end = head.find("\r\n");
  if (line_end == std::string_view::npos) return false;
  const std::string_view line = head.substr(0, line_end);
  const auto first = line.find(' '), second = line.rfind(' ');
  if (first == std::string_view::npos || second == first || first == 0) return false;
  const std::string_view version = line.substr(second + 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return false;
  std::string_view path = line.substr(first + 1, second - first - 1);
  if (path.empty() || path.front() != '/' || path.find(' ') != std::string_view::npos) return false;
  request.method = line.substr(0, first);
  request.path = path.substr(0, path.find('?'));
  request.host.clear();
  for (std::size_t at = line_end + 2; at < head.size();) {
    const auto end = head.find("\r\n", at);
    if (end == std::string_view::npos || end == at) break;
    const std::string_view header = head.substr(at, end - at);
    const auto colon = header.find(':');
    if (colon == std::string_view::npos || colon == 0) return false;
    if (lower(header.substr(0, colon)) == "host") request.host = trimmed(header.substr(colon + 1));
    at = end + 2;
  }
  return true;
}

HttpServer::HttpServer(const std::string& address, int port, Site site)
    : address_(address), site_(std::move(site)) {
  sockaddr_in6 six{};
  sockaddr_in four{};
  const bool is_six = ::inet_pton(AF_INET6, address.c_str(), &six.sin6_addr) == 1;
  check_usage(is_six || ::inet_pton(AF_INET, address.c_str(), &four.sin_addr) == 1,
              "--listen {} is no address; 127.0.0.1 is this machine alone, 0.0.0.0 every network it is on",
              address);
  loopback_ = is_six ? address == "::1" : (ntohl(four.sin_addr.s_addr) >> 24) == 127;
  six.sin6_family = AF_INET6, four.sin_family = AF_INET;
  six.sin6_port = four.sin_port = htons(static_cast<std::uint16_t>(port));
  auto* at = is_six ? reinterpret_cast<sockaddr*>(&six) : reinterpret_cast<sockaddr*>(&four);
  socklen_t length = is_six ? sizeof six : sizeof four;
  listener_ = ::socket(is_six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  check(listener_ >= 0, "cannot make a socket: {}", std::strerror(errno));
  const int yes = 1;
  ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(listener_, at, length) != 0 || ::listen(listener_, kBacklog) != 0) {
    const int error = errno;
    ::close(listener_);
    fail_usage("cannot listen on {} port {}: {}; --port 0 takes a free one", address, port,
               std::strerror(error));
  }
  ::getsockname(listener_, at, &length);
  port_ = ntohs(is_six ? six.sin6_port : four.sin_port);
  acceptor_ = std::thread([this] { accept_loop(); });
}

HttpServer::~HttpServer() {
  stop_ = true;
  acceptor_.join();
  for (Reader& r : readers_) r.thread.join();
  ::close(listener_);
}

void HttpServer::accept_loop() {
  while (!stop_) {
    pollfd ready{listener_, POLLIN, 0};
    if (::poll(&ready, 1, kPollMs) <= 0) continue;
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) continue;
    forget_finished();
    if (readers_.size() >= kMostReaders) {
      refuse(socket, 503, "Service Unavailable");
      ::close(socket);
      continue;
    }
    Reader& reader = readers_.emplace_back();
    reader.thread = std::thread([this, socket, &reader] {
      serve(socket);
      drain(socket);
      ::close(socket);
      reader.done = true;
    });
  }
}

void HttpServer::forget_finished() {
  for (auto it = readers_.begin(); it != readers_.end();) {
    if (!it->done) {
      ++it;
      continue;
    }
    it->thread.join();
    it = readers_.erase(it);
  }
}

void HttpServer::serve(int socket) {
  int code = 0;
  const auto head = read_head(socket, stop_, code);
  if (!head) {
    if (code == 431) refuse(socket, 431, "Request Header Fields Too Large");
    if (code == 408) refuse(socket, 408, "Request Timeout");
    if (code == 400) refuse(socket, 400, "Bad Request");
    return;
  }
  HttpRequest request;
  if (!parse_request(*head, request)) return refuse(socket, 400, "Bad Request");
  answer(socket, request);
}

/// A page of another site may not read this one through a name that points here.
bool HttpServer::host_is_ours(const std::string& host) const {
  if (!loopback_ || host.empty()) return true;
  const auto colon = host.rfind(':');
  const bool has_port = colon != std::string::npos && host.back() != ']';
  const std::string name = lower(has_port ? host.substr(0, colon) : host);
  return name == "localhost" || name == address_ || name == "[" + address_ + "]";
}

void HttpServer::answer(int socket, const HttpRequest& request) {
  if (request.method != "GET" && request.method != "HEAD") return refuse(socket, 405, "Method Not Allowed");
  if (!host_is_ours(request.host)) return refuse(socket, 403, "Forbidden");
  if (request.path == site_.events_path && request.method == "GET") return stream_events(socket);
  const auto it = site_.files.find(request.path);
  if (it == site_.files.end()) return refuse(socket, 404, "Not Found");
  std::string text = head_of(200, "OK", it->second.type, it->second.body.size());
  if (request.method == "GET") text += it->second.body;
  send_all(socket, text);
}

void HttpServer::stream_events(int socket) {
  if (!send_all(socket, head_of(200, "OK", "text/event-stream; charset=utf-8", {}))) return;
  const EventSource source = site_.make_source();
  int quiet_ms = 0;
  while (!stop_) {
    const std::string message = source();
    if (!message.empty()) {
      if (!send_all(socket, "data: " + message + "\n\n")) return;
      quiet_ms = 0;
    } else if (quiet_ms >= kPingMs) {
      if (!send_all(socket, ": still here\n\n")) return;
      quiet_ms = 0;
    }
    // A reader that leaves closes its side; one that sends more is not spoken to.
    pollfd gone{socket, POLLIN, 0};
    if (::poll(&gone, 1, kPollMs) > 0) {
      char byte;
      if (::recv(socket, &byte, 1, MSG_DONTWAIT) <= 0) return;
    }
    quiet_ms += kPollMs;
  }
}

}  // namespace nibble
