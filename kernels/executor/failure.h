// How a wait ends when nothing comes: looks at abort words, at the peers' announcements and at the deadline, tells the host who is awaited,
// and ends the operation as failed. Called when a step moved nothing; costs nothing while data flows.
#pragma once
#include "executor/work.h"

namespace mk {

constexpr uint64_t kFirstLookNs = 100'000;         // an operation that moves never gets here
constexpr uint64_t kLookEveryNs = 50'000;
constexpr uint64_t kAnnounceAfterNs = 20'000'000;  // then peers may want to know what we wait in
constexpr uint64_t kBlameAfterNs = 200'000'000;    // a peer's failure is taken over only when we had time to see its cause ourselves
constexpr uint64_t kReportAfterNs = 500'000'000;
constexpr uint64_t kReportEveryNs = 25'000'000;

MK_DEVICE Announce view_of(const Work& w) {
  const OpDesc& op = w.ops[w.op];
  Announce a = {};
  a.seq = w.seq;
  a.count = op.count;
  a.kind = op.kind;
  a.dtype = op.dtype;
  a.redop = op.redop;
  a.protocol = op.protocol;
  a.root = op.root;
  a.signature = op.signature;
  a.channels = op.channels;
  a.send = op.send;
  a.recv = op.recv;
  return a;
}

// Writes this rank's view into a peer's inbox. By thread 0, or by each thread for its own peers.
MK_DEVICE void announce_to(const Work& w, uint32_t peer) {
  Lane& lane = *w.lane;
  const Announce a = view_of(w);
  const uint64_t* from = reinterpret_cast<const uint64_t*>(&a);
  uint64_t* to = reinterpret_cast<uint64_t*>(&outbox_of(lane, peer)->announce);
  store_relaxed(to, 0ull);  // what is there now is neither the old announcement nor the new one
  fence(false);
  for (uint32_t i = 1; i < sizeof(Announce) / 8; i++) store_relaxed(to + i, from[i]);
  fence(false);
  store_relaxed(to, from[0]);
  if (is_remote(lane, peer)) carry_announcement(lane, peer);
}

// Whether rank `p` is in a collective of this one's number that is another one. The number is read again after the rest, so that half an
// announcement is not taken for one.
MK_DEVICE bool is_elsewhere(const Work& w, uint32_t p, uint32_t signature) {
  const Announce* a = &inbox_of(*w.lane, p)->announce;
  if (load_acquire(&a->seq) != w.seq) return false;
  const uint32_t theirs = load_relaxed(&a->signature);
  const bool collective = *static_cast<const volatile uint8_t*>(&a->kind) < kSend;
  fence(false);
  return collective && theirs != signature && load_relaxed(&a->seq) == w.seq;
}

// Between the host's page, a region and this thread's own memory: volatile, because relaxed accesses are for global memory only.
MK_SLOW void copy_announce(Announce* to, const Announce* from) {
  volatile uint64_t* t = reinterpret_cast<volatile uint64_t*>(to);
  const volatile uint64_t* f = reinterpret_cast<const volatile uint64_t*>(from);
  for (uint32_t i = 0; i < sizeof(Announce) / 8; i++) t[i] = f[i];
}

// What `InboxHeader::failed` says: why the rank gave up, and because of which other rank.
MK_DEVICE uint64_t failure_word(uint32_t code, uint32_t rank) { return code | static_cast<uint64_t>(rank) << 32; }

// Tells every peer what this rank is doing. By one thread.
MK_DEVICE void announce_to_all(Work& w) {
  w.announced = 1;
  for (uint32_t p = 0; p < w.lane->geometry.nranks; p++)
    if (p != w.lane->rank) announce_to(w, p);
}

// Ends this rank's part: the first failure is recorded for the host, and peers are told, with what they need to explain theirs. By one thread.
MK_SLOW void fail(Work& w, uint32_t code, uint32_t rank, const Announce& theirs) {
  Lane& lane = *w.lane;
  w.give_up = code;
  if (exchange_if(&lane.failed, kNoFailure, code) != kNoFailure) return;
  HostPage* page = reinterpret_cast<HostPage*>(lane.host_page);
  const Announce mine = view_of(w);
  copy_announce(&page->failure_mine, &mine);
  copy_announce(&page->failure_theirs, &theirs);
  store_relaxed(&page->failure_rank, rank);
  fence(false);
  store_relaxed(&page->failure, code);
  if (code == kAborted) return;  // peers have their own host to tell them
  if (!w.announced) announce_to_all(w);
  // A rank that gave up because of another one names that one.
  const uint64_t cause = code == kPeerFailed ? theirs.reserved[0] : failure_word(code, rank);
  for (uint32_t p = 0; p < lane.geometry.nranks; p++) {
    if (p == lane.rank) continue;
    store_relaxed(&outbox_of(lane, p)->failed, cause);
    if (is_remote(lane, p)) give_command(lane, 0, command_word(kCommandFailed, p, 0, 0, 0, 0));
  }
  fence(false);
}

// What rank `p` has announced. It may just be saying it once more (another channel, or because it has waited long): then the number is 0 for a
// moment.
MK_SLOW void read_announcement(const Work& w, uint32_t p, Announce* theirs) {
  for (uint32_t tries = 0; tries < 1000; tries++) {
    copy_announce(theirs, &inbox_of(*w.lane, p)->announce);
    if (theirs->seq != 0) return;
  }
}

// The same as `fail`, when rank `p` has announced another operation in the place of this one.
MK_DEVICE void fail_by_announcement(Work& w, uint32_t p) {
  Announce theirs;
  read_announcement(w, p, &theirs);
  fail(w, kMismatch, p, theirs);
}

// One look, by thread 0, when the wait has lasted `waited` ns.
MK_SLOW void look_around(Work& w, uint64_t waited) {
  Lane& lane = *w.lane;
  const OpDesc& op = w.ops[w.op];
  HostPage* page = reinterpret_cast<HostPage*>(lane.host_page);
  const Announce nothing = {};
  const uint32_t n = lane.geometry.nranks;
  uint32_t first_awaited = lane.rank;
  for (uint32_t p = 0; p < n; p++)
    if (w.awaited >> p & 1) { first_awaited = p; break; }

  if (load_relaxed(&page->abort) != 0) return fail(w, kAborted, lane.rank, nothing);
  if (load_relaxed(&lane.failed) != kNoFailure) { w.give_up = lane.failed; return; }  // another channel of this operation

  if (waited >= kAnnounceAfterNs && !w.announced) announce_to_all(w);
  // A peer in the same numbered collective that says something else.
  if (!is_point_to_point(op))
    for (uint32_t p = 0; p < n; p++)
      if (p != lane.rank && is_elsewhere(w, p, op.signature)) return fail_by_announcement(w, p);
  // A chunk that is not of this operation.
  if (w.suspect != 0 && waited >= kBlameAfterNs) {
    const uint32_t p = static_cast<uint32_t>(w.suspect - 1), signature = static_cast<uint32_t>(w.suspect_data);
    Announce theirs;
    read_announcement(w, p, &theirs);
    if (theirs.signature != signature) {  // its operation is over: only the chunk is left to tell
      theirs = {};
      if (is_point_to_point(op) && (signature & 1) == 0) {  // a send's signature is twice its bytes
        theirs.seq = w.seq + 1;
        theirs.kind = kSend;
        theirs.dtype = kUint8;
        theirs.count = signature >> 1;
        theirs.root = static_cast<int32_t>(lane.rank);
      }
    }
    return fail(w, kMismatch, p, theirs);
  }
  if (waited >= kBlameAfterNs) {
    for (uint32_t p = 0; p < n; p++) {
      if (p == lane.rank) continue;
      Announce theirs = {};
      theirs.reserved[0] = load_relaxed(&inbox_of(lane, p)->failed);
      if (theirs.reserved[0] != 0) return fail(w, kPeerFailed, p, theirs);
    }
    const uint32_t unreachable = load_relaxed(&page->link_failed);
    if (unreachable != 0) return fail(w, kLinkFailed, unreachable - 1, nothing);
  }
  if (lane.deadline_ns != 0 && waited >= lane.deadline_ns) return fail(w, kDeadline, first_awaited, nothing);

  if (waited >= kReportAfterNs) {
    w.reported = 1;
    const Announce mine = view_of(w);
    copy_announce(&page->waiting_op, &mine);
    store_relaxed(&page->waiting_seq, w.seq);
    store_relaxed(&page->waiting_for, w.awaited);
    store_relaxed(&page->waiting_channel, w.channel);
    store_relaxed(&page->waiting_ns, waited);
  }
}

// Thread 0, after a step that moved something.
MK_DEVICE void wait_over(Work& w) {
  if (w.reported != 0) store_relaxed(&reinterpret_cast<HostPage*>(w.lane->host_page)->waiting_ns, 0);
  w.wait_started = 0;
  w.idle_steps = 0;
  w.reported = 0;
  w.suspect = 0;
}

// Thread 0, after a step that moved nothing. Sets w.give_up when the wait must end.
MK_DEVICE void keep_waiting(Work& w) {
  if ((++w.idle_steps & 31) != 0) return;
  const uint64_t now = now_ns();
  if (w.wait_started == 0) { w.wait_started = now; w.last_look = now; return; }
  const uint64_t waited = now - w.wait_started;
  const uint64_t every = w.reported != 0 ? kReportEveryNs : kLookEveryNs;
  if (waited < kFirstLookNs || now - w.last_look < every) return;
  look_around(w, waited);
  w.last_look = now;
}

}  // namespace mk
