//! The vocabulary that every stage of an operation's life shares: data types, reduction operators, operation kinds.
//! The numeric values are those of `nccl.h`; `kernels/layout.h` repeats them for device code.

/// Element type of a buffer (`ncclDataType_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DataType {
    Int8 = 0,
    Uint8 = 1,
    Int32 = 2,
    Uint32 = 3,
    Int64 = 4,
    Uint64 = 5,
    Float16 = 6,
    Float32 = 7,
    Float64 = 8,
    Bfloat16 = 9,
    Float8e4m3 = 10,
    Float8e5m2 = 11,
}

impl DataType {
    pub const ALL: [Self; 12] = [
        Self::Int8,
        Self::Uint8,
        Self::Int32,
        Self::Uint32,
        Self::Int64,
        Self::Uint64,
        Self::Float16,
        Self::Float32,
        Self::Float64,
        Self::Bfloat16,
        Self::Float8e4m3,
        Self::Float8e5m2,
    ];

    /// The type with this `ncclDataType_t` value, if there is one.
    pub fn from_raw(raw: i32) -> Option<Self> {
        usize::try_from(raw).ok().and_then(|i| Self::ALL.get(i).copied())
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 | Self::Float8e4m3 | Self::Float8e5m2 => 1,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }

    /// The name that messages use, as `nccl.h` spells it without the prefix.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
            Self::Int32 => "int32",
            Self::Uint32 => "uint32",
            Self::Int64 => "int64",
            Self::Uint64 => "uint64",
            Self::Float16 => "float16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Bfloat16 => "bfloat16",
            Self::Float8e4m3 => "float8e4m3",
            Self::Float8e5m2 => "float8e5m2",
        }
    }
}

/// What an operation does (the order is the wire and device encoding).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OpKind {
    AllReduce = 0,
    Broadcast = 1,
    Reduce = 2,
    AllGather = 3,
    ReduceScatter = 4,
    AllToAll = 5,
    Gather = 6,
    Scatter = 7,
    Send = 8,
    Recv = 9,
}

impl OpKind {
    pub const ALL: [Self; 10] = [
        Self::AllReduce,
        Self::Broadcast,
        Self::Reduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Gather,
        Self::Scatter,
        Self::Send,
        Self::Recv,
    ];

    /// The operation with this device encoding, if there is one.
    pub fn from_raw(raw: u8) -> Option<Self> {
        Self::ALL.get(usize::from(raw)).copied()
    }

    /// The name that messages use, as `nccl.h` spells it without the prefix.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "AllReduce",
            Self::Broadcast => "Broadcast",
            Self::Reduce => "Reduce",
            Self::AllGather => "AllGather",
            Self::ReduceScatter => "ReduceScatter",
            Self::AllToAll => "AlltoAll",
            Self::Gather => "Gather",
            Self::Scatter => "Scatter",
            Self::Send => "Send",
            Self::Recv => "Recv",
        }
    }
}
