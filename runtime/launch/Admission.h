// Who comes into a job: takes connections, and lets those in that prove that they know the job's
// secret and fit it. A connection that does not know the secret has no effect.
#pragma once

#include "runtime/launch/Rendezvous.h"

namespace shardc::launch {

class Admission {
public:
  /// The options outlive it.
  Admission(Socket listener, const RendezvousOptions &options)
      : options_(options), listener_(std::move(listener)) {}

  /// Adds the descriptors to poll.
  void addTo(std::vector<pollfd> &entries, double now);

  /// Serves connections that have not said who they are, up to the next that has proved that it
  /// knows the secret and is of this job; null once all were served. One of another version is not
  /// sealed.
  std::unique_ptr<Connection> next(double now);
  /// Why this rank does not fit; none if it does.
  /// `ranks`: that have their places already.
  std::vector<Report> findFaults(const Hello &hello, const Connections &ranks) const;
  /// Puts a relay to the others, of each of fanOut shares of `places` one (0: whoever comes first).
  /// One for which there is no room goes to the nearest of them, which may send it on; null then.
  /// So those below a relay are neighbours, which lists of ranks name with a few numbers.
  Connection *admitRelay(std::unique_ptr<Connection> relay, Connections &relays, int64_t places);
  /// Keeps a connection that is no rank until it has what was sent to it.
  void seeOff(std::unique_ptr<Connection> connection);
  /// A refusal is not authenticated: the other end must treat it as an unverified claim.
  void refuse(std::unique_ptr<Connection> connection, Refusal::Reason reason);

  /// Takes connections that wait, some at a time, so that ranks are served while others come by the
  /// thousand. Not ok if one cannot be taken, and none is there that may make room for it.
  Status accept(double now);
  /// Connections that have not said who they are.
  int64_t strangersThere() const;

private:
  Connection *oldest(double now, double seconds) const;
  bool serve(Connection &connection, double now);
  bool judge(Connection &connection, const std::string &body);
  void turnAway(Connection &connection, const char *why);
  void warnOnce(const Connection &connection, const char *why);

  const RendezvousOptions &options_;
  Socket listener_;
  Connections strangers_;  ///< no ranks yet, or never
  size_t served_ = 0;      ///< of them in this turn
  bool hasWarned_ = false; ///< of a stranger
  double acceptsFrom_ = 0; ///< no connection is taken before
};

} // namespace shardc::launch
