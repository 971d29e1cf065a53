// What the host and the device agree on: descriptors, shared regions, status pages. src/executor/layout.rs is the host's twin; both sides
// assert every size and offset in terms of the constants, and a test there compares the constants.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace mk {

constexpr uint32_t kMaxRanks = 64;       // ranks of one communicator on one node
constexpr uint32_t kMaxChannels = 32;    // independent pipes between two ranks
constexpr uint32_t kSlots = 4;           // chunks in flight per pipe
constexpr uint32_t kSlotTail = 128;      // bytes behind a slot's chunk: the sender's scalar
constexpr uint32_t kPhases = 2;          // 0: inputs travel to whom they concern; 1: results travel back
constexpr uint32_t kInlineOps = 4;       // descriptors in the parameters of a kernel; more make every launch dearer
constexpr uint32_t kMaxOps = 256;        // descriptors of one launch
constexpr uint32_t kMaxLanes = 64;       // communicators one executor serves
constexpr uint32_t kThreads = 512;       // threads of a block of the collective and executor kernels
constexpr uint32_t kGateThreads = 64;    // threads of a gate

enum Kind : uint8_t { kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter, kAllToAll, kGather, kScatter, kSend, kRecv };
enum Type : uint8_t { kInt8, kUint8, kInt32, kUint32, kInt64, kUint64, kFloat16, kFloat32, kFloat64, kBfloat16, kFloat8e4m3, kFloat8e5m2, kTypes };
enum Redop : uint8_t { kSum, kProd, kMax, kMin, kAvg, kPreMulSum, kRedops };
// How bytes move. Packet: lines of 8 data bytes and a flag, one exchange. Pipe: chunks through staging slots. Direct: peers' buffers are
// addressed where they are.
enum Protocol : uint8_t { kPacket, kPipe, kDirect };

enum OpFlags : uint16_t { kScalarOnDevice = 1 };  // `scalar` is an address, read when the operation runs

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
  uint64_t reserved[2];
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
enum FailureCode : uint32_t { kNoFailure, kMismatch, kDeadline, kPeerFailed, kAborted };

// Host-visible page of a lane, in pinned memory. Each field has one writer.
struct HostPage {
  uint32_t abort;          // host: non-zero ends every operation of the lane
  uint32_t reserved0[15];
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
  uint32_t reserved1[14];
};
static_assert(offsetof(HostPage, waiting_ns) == 64 && offsetof(HostPage, waiting_op) == 96 && offsetof(HostPage, failure_mine) == 160, "HostPage");
static_assert(offsetof(HostPage, failure_rank) == 288 && sizeof(HostPage) == 352, "HostPage");

// Start of a rank's region, which all ranks of the communicator can address. Behind it, at the offsets of `Geometry`:
// announcements, credits, marks, packet lines, staging slots.
struct RegionHeader {
  uint64_t peer_failed;    // a peer that failed writes (code << 32 | rank + 1) here, so that nobody waits for it
  uint64_t reserved[15];
};
static_assert(sizeof(RegionHeader) == 128, "RegionHeader");

// Where things lie in a region; the same on every rank of a communicator.
struct Geometry {
  uint32_t nranks;
  uint32_t channels;       // pipes per pair of ranks and phase
  uint32_t slot_bytes;     // bytes of one staging slot
  uint32_t packet_lines;   // lines per sender, channel and parity
  uint64_t announce;       // Announce[nranks], by sender
  uint64_t credits;        // uint64_t[kPhases][channels][nranks]: chunks that rank has consumed of mine
  uint64_t marks;          // Line[kPhases][channels][nranks][kSlots], by sender
  uint64_t packets;        // Line[2][channels][nranks][packet_lines], by sender
  uint64_t slots;          // [kPhases][channels][nranks - 1][kSlots][slot_bytes + kSlotTail], by sender, without the owner
  uint64_t bytes;          // of the whole region
};
static_assert(sizeof(Geometry) == 64, "Geometry");

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
  uint64_t regions[kMaxRanks];  // each rank's region as addressed from here
  Geometry geometry;
  uint64_t host_page;      // HostPage*, device address
  uint64_t executor;       // Executor*
  uint32_t rank;
  uint32_t index;          // this lane's number in the executor
  uint64_t reserved2;
  uint64_t deadline_ns;    // longest wait; 0 = for ever
  uint32_t one_gpu;        // all ranks on this GPU: fences need not reach further
  uint32_t reserved0[3];
  // Device.
  uint64_t op_seq;         // operations finished
  uint64_t eager_done;     // launches finished, captured ones not counted
  uint32_t arrived;        // channels that have finished the present launch
  uint32_t failed;         // FailureCode: later operations end at once
  uint64_t reserved1[6];
  Command command;         // the executor's present command
  Channel channel[kMaxChannels];
};
static_assert(offsetof(Lane, geometry) == 512 && offsetof(Lane, host_page) == 576 && offsetof(Lane, rank) == 592, "Lane");
static_assert(offsetof(Lane, deadline_ns) == 608 && offsetof(Lane, one_gpu) == 616 && offsetof(Lane, op_seq) == 632, "Lane");
static_assert(offsetof(Lane, command) == 704 && offsetof(Lane, channel) == 984 && sizeof(Lane) == 68568, "Lane");

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
