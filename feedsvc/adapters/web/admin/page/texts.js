// What codes mean to the one who looks at them at night. The service's own close codes come from its registry
// (codes.json); a test holds the reasons of resyncs against the protocol.

export const RESYNCS = {
  token_expired: "the client came back later than the oplog reaches",
  topic_changed: "the client came back with another filter, other fields or other rights",
  source_changed: "the token is of another deployment, tail scope or source epoch",
  history_lost: "a tail of this instance lost its own place in the oplog",
  images_lost: "an exact view needed an image that MongoDB no longer has",
  event_unavailable: "an event could not be read or decoded",
  overflow: "the client read too slowly for the log and the oplog",
  replay_too_large: "the replay was larger than FEEDSVC_MAX_REPLAY_BYTES",
};

export const CLOSES = {
  1000: ["normal", "The client closed."],
  1001: ["going away", "The client left its page or ended."],
  1005: ["no code", "The client closed without a code."],
  1006: ["cut", "The connection ended without a close."],
  1009: ["too big", "A message was too large."],
  1012: ["restart", "The server restarted."],
  other: ["other", "Codes that clients made up."],
};

/** Of events of the log from warnings on, where the service adds no words of its own. */
export const EVENTS = {
  "service.failed": "the process could not start",
  "configuration.warning": "see the log of the start, or feedsvc check",
  "client.failed": "a request of a client met a fault of the service",
  "request.failed": "a request met a fault of the service",
  "source.failed": "MongoDB does not answer",
  "images.unknown": "whether a collection keeps images could not be asked",
  "tail.failed": "a stream failed and is opened anew",
  "tail.stalled": "MongoDB does not answer; clients are told",
  "catch_up.failed": "a stream for clients that came back failed and is opened anew",
  "catch_up.broken": "a stream for clients that came back met a fault of the service",
  "event.failed": "a change could not be made into an event; its topics got resync",
  "snapshot.failed": "a snapshot failed and is tried again",
  "snapshot.given_up": "a snapshot failed for good",
  "jwks.failed": "the issuer's keys could not be fetched",
};

/** How close to its end a position is, by the used part of the window. */
export function closeness(ratio) {
  if (ratio >= 1) return ["lost", "bad"];
  if (ratio >= 0.8) return ["critical", "bad"];
  return ratio >= 0.5 ? ["watch", "warn"] : ["safe", "good"];
}
