// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <thread>

/// A small HTTP/1.1 server for pages on one's own machine: GET of fixed contents, and one stream of events.
///
/// Debian's cpp-httplib is a shared library that brings OpenSSL, zlib and brotli with it; this binary has to
/// run where none of them is installed, and needs two hundred lines of what they offer. Non-goals: TLS,
/// keep-alive, request bodies, more than a handful of readers.
namespace nibble {

struct HttpRequest {
  std::string method, path, host;
};

/// The request line and the Host header of a request's head. False for what is no HTTP/1.x request.
bool parse_request(std::string_view head, HttpRequest& request);

struct HttpContent {
  std::string type;  ///< "text/html; charset=utf-8"
  std::string_view body;
};

class HttpServer {
 public:
  /// What an event stream sends next: a message without line feeds, or nothing yet. One function a
  /// connection.
  using EventSource = std::function<std::string()>;
  struct Site {
    std::map<std::string, HttpContent> files;  ///< by path
    std::string events_path;                   ///< "/events"
    std::function<EventSource()> make_source;  ///< for a new reader
  };

  /// Listens at once. Throws Error{Usage} for an address that is none or a port that is taken.
  /// `port` 0: any free one.
  HttpServer(const std::string& address, int port, Site site);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const { return port_; }
  const std::string& address() const { return address_; }

 private:
  struct Reader {
    std::thread thread;
    std::atomic<bool> done{false};
  };

  void accept_loop();
  void forget_finished();
  void serve(int socket);
  void answer(int socket, const HttpRequest& request);
  void stream_events(int socket);
  bool host_is_ours(const std::string& host) const;

  std::string address_;
  int port_ = 0, listener_ = -1;
  bool loopback_ = true;
  Site site_;
  std::atomic<bool> stop_{false};
  std::thread acceptor_;
  std::list<Reader> readers_;  ///< touched by the acceptor alone while it runs
};

}  // namespace nibble
