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

  /// Adds what has to be waited for.
  void addTo(std::vector<pollfd> &entries, double now);

  /// Who still comes in depends on where the job is.
  enum class Phase : uint8_t { Joining, Running, Ending };
  /// A connection that proved that it knows the secret.
  struct Arrival {
    enum Kind : uint8_t {
      Fits,    ///< a rank of this job
      TooLate, ///< the job is over, or about to end
      Unfit    ///< a rank of this job that does not match: the job ends
    } kind = Fits;
    std::vector<Report> faults; ///< of one that is unfit
    std::unique_ptr<Connection> connection;
  };
  /// Serves connections that are no ranks, up to the next arrival; none once all were served.
  std::optional<Arrival> next(double now, Phase phase, const RankConnections &ranks);
  /// Why this rank does not fit; none if it does.
  std::vector<Report> findFaults(const Hello &hello, const RankConnections &ranks) const;
  /// Keeps a connection that is no rank until it has what was sent to it.
  void seeOff(std::unique_ptr<Connection> connection);
  /// A refusal has no code: the other end takes it for what somebody said, and no more.
  void refuse(Connection &connection, Refusal::Reason reason);

  /// Takes connections that wait, some at a time, so that ranks are served while others come by the
  /// thousand. Not ok if one cannot be taken, and none is there that may make room for it.
  Status accept(double now);

private:
  int64_t strangersThere() const;
  bool hasOne(double now, double seconds) const;
  bool dropOldest(double now, double seconds);
  std::optional<Arrival> serve(Connection &connection, double now, Phase phase,
                               const RankConnections &ranks);
  std::optional<Arrival> judge(Connection &connection, const std::string &body, Phase phase,
                               const RankConnections &ranks);
  void turnAway(Connection &connection, const char *why);
  void warnOnce(const Connection &connection, const char *why);

  const RendezvousOptions &options_;
  Socket listener_;
  std::vector<std::unique_ptr<Connection>> strangers_; ///< no ranks yet, or never
  size_t served_ = 0;                                  ///< of them in this turn
  bool hasWarned_ = false;                             ///< of a stranger
  double acceptsFrom_ = 0;                             ///< no connection is taken before
};

} // namespace shardc::launch
