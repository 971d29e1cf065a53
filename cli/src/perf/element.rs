//! Element types and their arithmetic by the exact rule: fold in rank order in the accumulator type (float32 for floats up to 32 bits, float64 for
//! float64, the type itself, wrapping, for integers), then round once to the element type.

use super::float8::{E4m3, E5m2};
use super::inputs::Spread;
use half::{bf16, f16};

/// An element type of `nccl.h`, in the order of its codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    Int8,
    Uint8,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Float16,
    Float32,
    Float64,
    Bfloat16,
    Float8e4m3,
    Float8e5m2,
}

impl ElementType {
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

    /// The name that nccl-tests uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
            Self::Int32 => "int32",
            Self::Uint32 => "uint32",
            Self::Int64 => "int64",
            Self::Uint64 => "uint64",
            Self::Float16 => "half",
            Self::Float32 => "float",
            Self::Float64 => "double",
            Self::Bfloat16 => "bfloat16",
            Self::Float8e4m3 => "f8e4m3",
            Self::Float8e5m2 => "f8e5m2",
        }
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

    /// Largest n such that every integer up to n has an exact value in the type (capped; integers wrap and need no limit).
    pub fn exact_integers(self) -> u32 {
        match self {
            Self::Float8e5m2 => 8,
            Self::Float8e4m3 => 16,
            Self::Bfloat16 => 256,
            Self::Float16 => 2048,
            _ => 1 << 24,
        }
    }

    /// The code in `nccl.h`.
    pub fn nccl_code(self) -> i32 {
        self as i32
    }
}

/// Arithmetic of an accumulator type.
pub trait Accumulator: Copy {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    /// For `avg`: integers truncate toward zero.
    fn divide_by_ranks(self, ranks: usize) -> Self;
}

/// A value of an element type, as it lies in memory.
pub trait Element: Copy {
    type Accumulator: Accumulator;
    fn widen(self) -> Self::Accumulator;
    /// Rounds to nearest even, once.
    fn round(accumulator: Self::Accumulator) -> Self;
    fn from_f64(x: f64) -> Self;
    fn from_hash(hash: u64, rank: usize, spread: Spread) -> Self;
    /// Writes the value into a slice of exactly its size.
    fn store(self, bytes: &mut [u8]);
}

macro_rules! integer {
    ($($type:ty),*) => {$(
        impl Accumulator for $type {
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
            fn divide_by_ranks(self, ranks: usize) -> Self {
                // In 128 bits, because the number of ranks may not fit the type.
                (i128::from(self) / ranks as i128) as Self
            }
        }
        impl Element for $type {
            type Accumulator = Self;
            fn widen(self) -> Self {
                self
            }
            fn round(accumulator: Self) -> Self {
                accumulator
            }
            fn from_f64(x: f64) -> Self {
                x as Self
            }
            fn from_hash(hash: u64, _: usize, _: Spread) -> Self {
                hash as Self
            }
            fn store(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

macro_rules! float_accumulator {
    ($($type:ty),*) => {$(
        impl Accumulator for $type {
            fn add(self, other: Self) -> Self {
                self + other
            }
            fn multiply(self, other: Self) -> Self {
                self * other
            }
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
            fn divide_by_ranks(self, ranks: usize) -> Self {
                self / ranks as Self
            }
        }
    )*};
}

macro_rules! float {
    ($type:ty, $accumulator:ty, $widen:expr, $round:expr, $bits:expr) => {
        impl Element for $type {
            type Accumulator = $accumulator;
            fn widen(self) -> $accumulator {
                $widen(self)
            }
            fn round(accumulator: $accumulator) -> Self {
                $round(accumulator)
            }
            fn from_f64(x: f64) -> Self {
                $round(x as $accumulator)
            }
            fn from_hash(hash: u64, rank: usize, spread: Spread) -> Self {
                Self::from_f64(spread.value(hash, rank))
            }
            fn store(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&$bits(self));
            }
        }
    };
}

integer!(i8, u8, i32, u32, i64, u64);
float_accumulator!(f32, f64);
float!(f32, f32, |x| x, |x| x, f32::to_le_bytes);
float!(f64, f64, |x| x, |x| x, f64::to_le_bytes);
float!(f16, f32, f16::to_f32, f16::from_f32, f16::to_le_bytes);
float!(bf16, f32, bf16::to_f32, bf16::from_f32, bf16::to_le_bytes);
float!(E4m3, f32, E4m3::to_f32, E4m3::from_f32, |x: E4m3| [x.0]);
float!(E5m2, f32, E5m2::to_f32, E5m2::from_f32, |x: E5m2| [x.0]);

/// Calls `$function::<T>($arguments)` with the Rust type that stands for a run-time element type.
macro_rules! with_element {
    ($dtype:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $dtype {
            $crate::perf::element::ElementType::Int8 => $function::<i8>($($argument),*),
            $crate::perf::element::ElementType::Uint8 => $function::<u8>($($argument),*),
            $crate::perf::element::ElementType::Int32 => $function::<i32>($($argument),*),
            $crate::perf::element::ElementType::Uint32 => $function::<u32>($($argument),*),
            $crate::perf::element::ElementType::Int64 => $function::<i64>($($argument),*),
            $crate::perf::element::ElementType::Uint64 => $function::<u64>($($argument),*),
            $crate::perf::element::ElementType::Float16 => $function::<half::f16>($($argument),*),
            $crate::perf::element::ElementType::Float32 => $function::<f32>($($argument),*),
            $crate::perf::element::ElementType::Float64 => $function::<f64>($($argument),*),
            $crate::perf::element::ElementType::Bfloat16 => $function::<half::bf16>($($argument),*),
            $crate::perf::element::ElementType::Float8e4m3 => $function::<$crate::perf::float8::E4m3>($($argument),*),
            $crate::perf::element::ElementType::Float8e5m2 => $function::<$crate::perf::float8::E5m2>($($argument),*),
        }
    };
}
pub(crate) use with_element;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_nccl_h() {
        for (code, dtype) in ElementType::ALL.into_iter().enumerate() {
            assert_eq!(dtype.nccl_code(), code as i32);
        }
    }

    #[test]
    fn integers_wrap_and_averages_truncate_toward_zero() {
        assert_eq!(Accumulator::add(i8::MAX, 1), i8::MIN);
        assert_eq!(Accumulator::multiply(200u8, 2), 144);
        assert_eq!((-7i32).divide_by_ranks(2), -3);
        assert_eq!(7i32.divide_by_ranks(2), 3);
        assert_eq!(u64::MAX.divide_by_ranks(1), u64::MAX);
        assert_eq!(100i8.divide_by_ranks(200), 0);
    }
}
