// What the host and the device agree on: descriptors, shared regions, status pages. src/executor/layout.rs is the host's twin; both sides
// assert every size and offset in terms of the constants, and a test there compares the constants.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace mk {

constexpr uint32_t kMaxRanks = 64;       // ranks of one communicator
constexpr uint32_t kMaxChannels = 32;    // independent pipes between two ranks
constexpr uint32_t kSlots = 4;           // chunks in flight per pipe
constexpr uint32_t kSlotHead = 128;      // bytes before a slot's chunk; the last eight are the sender's scalar
constexpr uint32_t kPhases = 2;          // 0: inputs travel to whom they concern; 1: results travel back
constexpr uint32_t kInlineOps = 4;       // descriptors in the parameters of a kernel; more make every launch dearer
constexpr uint32_t kMaxOps = 256;        // descriptors of one launch
constexpr uint32_t kMaxLanes = 64;       // communicators one executor serves
constexpr uint32_t kMaxRings = 8;        // queues of commands from one lane to its process's proxy threads
constexpr uint32_t kThreads = 512;       // threads of a block of the collective and executor kernels
constexpr uint32_t kGateThreads = 64;    // threads of a gate

enum Kind : uint8_t { kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter, kAllToAll, kGather, kScatter, kSend, kRecv };
enum Type : uint8_t { kInt8, kUint8, kInt32, kUint32, kInt64, kUint64, kFloat16, kFloat32, kFloat64, kBfloat16, kFloat8e4m3, kFloat8e5m2, kTypes };
enum Redop : uint8_t { kSum, kProd, kMax, kMin, kAvg, kPreMulSum, kRedops };
// How bytes move. Packet: lines of 8 data bytes and a flag, one exchange. Pipe: chunks through staging slots. Direct: peers' buffers are
// addressed where they are.
enum Protocol : uint8_t { kPacket, kPipe, kDirect };

enum OpFlags : uint16_t {
  kScalarOnDevice = 1,  // `scalar` is an address, read when the operation runs
  kOneShot = 2,         // all-reduce through pipes: every rank sends its whole input to all and reduces all of it, in one exchange
  kRails = 4,           // between nodes, data travel along rails only (collective/rails.h)
};

// One operation of one rank. Everything but the addresses and the scalar follows from what all ranks pass alike.
struct OpDesc {
  uint64_t send;       // input address
  uint64_t recv;       // output address
  uint64_t count;      // elements, in the unit of the NCCL call
  uint64_t scalar;     // PreMulSum: the element's bits, or its address
  uint32_t signature;  // hash of what all ranks must agree on (for send/recv: of the bytes)
  int32_t root;        // root, or peer
  uint8_t kind, dtype, redop, protocol;
  uint16_t channels;   // channels this operation uses
  uint16_t flags;
  uint32_t elem_size;  // bytes of one element
  uint32_t reserved[3];
};
static_assert(sizeof(OpDesc) == 64, "OpDesc");
static_assert(offsetof(OpDesc, signature) == 32 && offsetof(OpDesc, kind) == 40 && offsetof(OpDesc, channels) == 44 && offsetof(OpDesc, elem_size) == 48, "OpDesc");

// What a rank says it is doing: written into each peer's region when an operation starts, read only to explain a failure.
struct Announce {
  uint64_t seq;        // operation number on the communicator, from 1
  uint64_t count;
  uint8_t kind, dtype, redop, protocol;
  int32_t root;
  uint32_t signature;
  uint32_t channels;
  uint64_t send;
  uint64_t recv;
  uint64_t reserved[2];  // HostPage::failure_theirs after kPeerFailed: [0] is that rank's `InboxHeader::failed`
};
static_assert(sizeof(Announce) == 64, "Announce");

// 16 bytes that are written in one store and never seen half.
// As a packet line: 8 bytes of data, valid when `flag` is the channel's packet number.
// As a chunk's mark, written after the chunk: `flag` counts the chunks ever sent on this pipe, `data` is the operation's signature.
struct alignas(16) Line {
  uint64_t data;
  uint64_t flag;
};
static_assert(sizeof(Line) == 16, "Line");

// Why an operation ended early.
enum FailureCode : uint32_t { kNoFailure, kMismatch, kDeadline, kPeerFailed, kAborted, kLinkFailed };

// Host-visible page of a lane, in pinned memory. Each field has one writer.
struct HostPage {
  uint32_t abort;          // host: non-zero ends every operation of the lane
  uint32_t link_failed;    // host: rank + 1 of another node that cannot be reached any more
  uint32_t reserved0[14];
  // Device, when a wait has lasted long: for the watchdog.
  uint64_t waiting_ns;     // how long the present wait has lasted; 0 = none
  uint64_t waiting_seq;    // operation number
  uint64_t waiting_for;    // bit r: rank r is awaited
  uint32_t waiting_channel;
  uint32_t reserved2;
  Announce waiting_op;
  // Device, once: the first failure. `failure` is written last.
  Announce failure_mine;
  Announce failure_theirs;
  uint32_t failure_rank;   // the other side
  uint32_t failure;        // FailureCode
  uint64_t launches_done;  // device, between nodes: like `Lane::eager_done`, so that the proxy knows when it may rest
  uint32_t reserved1[12];
};
static_assert(offsetof(HostPage, waiting_ns) == 64 && offsetof(HostPage, waiting_op) == 96 && offsetof(HostPage, failure_mine) == 160, "HostPage");
static_assert(offsetof(HostPage, failure_rank) == 288 && sizeof(HostPage) == 352, "HostPage");

// What one rank writes for one other begins with this (an *inbox*, seen from the reader). Behind it, at the offsets of `Geometry`: credits and
// marks. The staging slots are a block of their own. Inside a node both lie in the reader's region. Between nodes there are two copies in pinned
// host memory, one on each side, and the proxies carry what changes from the writer's to the reader's.
struct InboxHeader {
  uint64_t failed;         // once the writer has given up: its FailureCode, and << 32 the rank because of which
  uint64_t reserved[7];
  Announce announce;
};
static_assert(sizeof(InboxHeader) == 128, "InboxHeader");

// Sizes and offsets; the same on every rank of a communicator. A rank's region in device memory: packet lines, Line[2][channels][nranks]
// [packet_lines]; then the inboxes of the other ranks of its node, then their slots.
struct Geometry {
  uint32_t nranks;
  uint32_t channels;       // pipes per pair of ranks and phase
  uint32_t slot_bytes;     // bytes of a chunk
  uint32_t packet_lines;   // lines per sender, channel and parity; 0: the communicator spans nodes and has no packets
  uint64_t credits;        // in an inbox: uint64_t[kPhases][channels], chunks that the writer has consumed of the reader's
  uint64_t marks;          // in an inbox: Line[kPhases][channels][kSlots]
  uint64_t inbox_bytes;
  uint64_t slots_bytes;    // of the slots of one sender: [kPhases][channels][kSlots][kSlotHead + slot_bytes]
  uint64_t packets_bytes;
  uint32_t ranks_per_node; // where every node has as many, in order of rank; 0: one node, or another layout
  uint32_t reserved;
};
static_assert(sizeof(Geometry) == 64, "Geometry");

// A rank as another one reaches it.
struct Peer {
  uint64_t packets;        // packet lines in its region; 0: none
  uint64_t in;             // InboxHeader*, what it writes for this rank
  uint64_t in_slots;
  uint64_t out;            // InboxHeader*, where this rank writes for it
  uint64_t out_slots;
  uint64_t taken;          // between nodes: uint32_t*, announcements to it that the proxy has taken; 0: its memory is addressed
  uint64_t reserved[2];
};
static_assert(sizeof(Peer) == 64, "Peer");

// Commands to a proxy thread: Lines in pinned host memory, whose flag is the command's number, from 1, and whose data says kind (bits 0 to 3),
// phase (4 to 7), slot (8 to 15), channel (16 to 23), peer (24 to 31) and bytes (32 to 63). A ring holds every command that can be
// under way at once, so nobody checks for room: a pipe has at most kSlots marks and as many credits, a peer one failure and one announcement.
enum CommandKind : uint32_t { kCommandMark = 1, kCommandCredit, kCommandAnnounce, kCommandFailed };

// A channel's place in its pipes: how much has gone by since the communicator began. Only the block that runs the channel touches it.
struct Channel {
  uint64_t sent[kPhases][kMaxRanks];
  uint64_t received[kPhases][kMaxRanks];
  uint64_t packets;        // packet operations so far
  uint64_t reserved[7];
};
static_assert(sizeof(Channel) == 2112, "Channel");

// Operations for one launch, or one command of the executor.
struct Command {
  uint64_t more_ops;       // address of all descriptors when they are more than kInlineOps, else 0
  uint32_t nops;
  uint32_t channels;       // blocks that take part: the widest operation's channels
  uint32_t eager;          // 1: counts towards `eager_done`; 0: captured in a graph
  uint32_t reserved;
  OpDesc ops[kInlineOps];
};
static_assert(offsetof(Command, ops) == 24 && sizeof(Command) == 280, "Command");

// A communicator on one rank, in device memory. The first part is written by the host at init and constant; the rest belongs to the device.
struct Lane {
  Peer peers[kMaxRanks];
  Geometry geometry;
  uint64_t host_page;      // HostPage*, device address
  uint64_t executor;       // Executor*
  uint32_t rank;
  uint32_t index;          // this lane's number in the executor
  uint64_t deadline_ns;    // longest wait; 0 = for ever
  uint32_t one_gpu;        // all ranks on this GPU: fences need not reach further
  uint32_t rings;          // queues to the proxy, 0 on a single node; channel c uses c % rings
  uint32_t ring_lines;     // a power of two
  uint32_t reserved0;
  uint64_t ring[kMaxRings];  // Line*
  // Device.
  uint64_t op_seq;         // operations finished
  uint64_t eager_done;     // launches finished, captured ones not counted
  uint32_t arrived;        // channels that have finished the present launch
  uint32_t failed;         // FailureCode: later operations end at once
  uint64_t ring_next[kMaxRings];   // commands given so far
  uint32_t announced[kMaxRanks];   // between nodes: announcements given to the proxy
  Command command;         // the executor's present command
  Channel channel[kMaxChannels];
};
static_assert(offsetof(Lane, geometry) == 4096 && offsetof(Lane, rank) == 4176 && offsetof(Lane, deadline_ns) == 4184, "Lane");
static_assert(offsetof(Lane, ring) == 4208 && offsetof(Lane, op_seq) == 4272 && offsetof(Lane, ring_next) == 4296, "Lane");
static_assert(offsetof(Lane, command) == 4616 && offsetof(Lane, channel) == 4896 && sizeof(Lane) == 72480, "Lane");

// The words of one generation of the executor, in pinned memory; src/executor/handshake.rs has the protocol and its model.
struct Generation {
  uint64_t posted;         // host: operations registered with this generation
  uint32_t number;         // host, before the launch: which generation this is
  uint32_t reserved0[13];
  uint32_t closing;        // device: `number` while it means to leave
  uint32_t closed;         // device: `number` once it has left
  uint32_t reserved1[14];
  uint32_t leave;          // host: leave as soon as there is nothing to do
  uint32_t reserved2[15];
  // Device, for the residency policy: how the time was spent.
  uint64_t serving_ns, waiting_ns, idle_ns, served;
  uint64_t reserved3[4];
};
static_assert(offsetof(Generation, closing) == 64 && offsetof(Generation, leave) == 128 && offsetof(Generation, serving_ns) == 192, "Generation");

// The executor of one process and GPU, in device memory.
struct Executor {
  uint64_t posted[kMaxLanes];  // per lane: number of the latest command << 8 | its channels; written by gates, polled by every block
  uint64_t done[kMaxLanes];    // per lane: number of the latest finished command; written by its last channel, polled by the gate
  uint64_t lanes[kMaxLanes];   // Lane*, written by the host at init
  uint64_t finished;           // commands finished in this generation; zeroed by the host before each launch, in stream order
  uint32_t leaving;            // block 0 tells the others to leave; zeroed likewise
  uint32_t lane_count;         // lanes in use, written by the host
};
static_assert(sizeof(Executor) == 1552, "Executor");

}  // namespace mk
