// Admission to a job: accepts connections, and admits those that prove that they know the job's
// secret and that match the job. A connection that does not know the secret has no effect.
#pragma once

#include "runtime/launch/Rendezvous.h"

namespace shardc::launch {

class Admission {
public:
  /// `options` must outlive it.
  Admission(Socket listener, const RendezvousOptions &options)
      : options_(options), listener_(std::move(listener)) {}

  /// Adds the descriptors that it polls.
  void addTo(std::vector<pollfd> &entries, double now);

  /// Serves connections that have not identified themselves, until one has proved that it knows the
  /// secret and belongs to this job, and returns that one; null once all have been served. The
  /// connection of a process with another protocol version is returned without authentication, so
  /// that the caller can refuse it.
  std::unique_ptr<Connection> next(double now);
  /// Returns the reasons why this rank does not match the job; empty if it does. `ranks`: the ranks
  /// that have been admitted already.
  std::vector<Report> findFaults(const Hello &hello, const Connections &ranks) const;
  /// Adds a relay to `relays`, at most one for each of fanOut equal shares of the `places` (0: in
  /// the order of arrival). If there is no room, redirects the relay to the nearest one, which may
  /// redirect it further, and returns null. So the places below a relay are neighbours, and lists
  /// of their ranks encode compactly.
  Connection *admitRelay(std::unique_ptr<Connection> relay, Connections &relays, int64_t places);
  /// Keeps a connection that has not become a rank until everything queued for it has been sent.
  void seeOff(std::unique_ptr<Connection> connection);
  /// Refuses a connection. The refusal is not authenticated: the other end must treat it as an
  /// unverified claim.
  void refuse(std::unique_ptr<Connection> connection, Refusal::Reason reason);

  /// Accepts waiting connections, a limited number at a time so that ranks are served while
  /// thousands of others connect. Returns an error if a connection cannot be accepted and there is
  /// no other one that could make room for it.
  Status accept(double now);
  /// Number of connections that have not identified themselves.
  int64_t strangersThere() const;

private:
  Connection *oldest(double now, double seconds) const;
  bool serve(Connection &connection, double now);
  bool judge(Connection &connection, const std::string &body);
  void turnAway(Connection &connection, const char *why);
  void warnOnce(const Connection &connection, const char *why);

  const RendezvousOptions &options_;
  Socket listener_;
  Connections strangers_;  ///< not ranks yet, or never
  size_t served_ = 0;      ///< number of them served in this turn
  bool hasWarned_ = false; ///< about an unidentified connection
  double acceptsFrom_ = 0; ///< no connection is accepted before this time
};

} // namespace shardc::launch
