//! Element types: how they lie in memory, what they accumulate in, and how inputs are made for them.
//!
//! Reductions fold in rank order in the accumulator (float32; float64 for float64; the integers in their own type, wrapping) and round once, to
//! nearest even; 8-bit floats saturate to the largest finite value. This is written apart from the library's device code so that it can judge it.

use half::{bf16, f16};
use std::sync::LazyLock;

/// Element types in the order of their codes in `nccl.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Type {
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

impl Type {
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

    pub fn code(self) -> i32 {
        self as i32
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
}

/// How far apart inputs' magnitudes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Spread {
    /// Around 1, full mantissas: every sum and product rounds, none overflows by much.
    Near,
    /// Across most of the type's range, subnormal numbers included: overflow and underflow.
    Wide,
}

/// Arithmetic of an accumulator.
pub trait Accumulator: Copy {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    /// A NaN loses, and of equal values the earlier stays.
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
}

/// A value of an element type.
pub trait Element: Copy {
    type Accumulator: Accumulator;
    fn widen(self) -> Self::Accumulator;
    /// Rounds once.
    fn round(accumulator: Self::Accumulator) -> Self;
    /// The mean, from the accumulated sum. Integers: the sum in the type, divided, truncated toward zero.
    fn average(sum: Self::Accumulator, ranks: usize) -> Self;
    /// An input from 64 random bits. Never NaN, infinite or zero for floats.
    fn random(bits: u64, spread: Spread) -> Self;
    fn write(self, bytes: &mut [u8]);
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
        }
        impl Element for $type {
            type Accumulator = Self;
            fn widen(self) -> Self {
                self
            }
            fn round(accumulator: Self) -> Self {
                accumulator
            }
            fn average(sum: Self, ranks: usize) -> Self {
                // In 128 bits, because the number of ranks may not fit the type.
                (i128::from(sum) / ranks as i128) as Self
            }
            fn random(bits: u64, _: Spread) -> Self {
                bits as Self
            }
            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
integer!(i8, u8, i32, u32, i64, u64);

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
                if other > self || self.is_nan() { other } else { self }
            }
            fn smaller(self, other: Self) -> Self {
                if other < self || self.is_nan() { other } else { self }
            }
        }
    )*};
}
float_accumulator!(f32, f64);

/// Random bits of a binary float with the exponent field limited to `exponents` (inclusive) and the mantissa kept non-zero where the field is 0.
fn random_bits(bits: u64, mantissa_bits: u32, sign_bit: u32, exponents: (u64, u64)) -> u64 {
    let mantissa = bits & ((1 << mantissa_bits) - 1);
    let (low, high) = exponents;
    let exponent = low + (bits >> 54) % (high - low + 1);
    let sign = (bits >> 53 & 1) << sign_bit;
    let mantissa = if exponent == 0 { mantissa | 1 } else { mantissa };
    sign | exponent << mantissa_bits | mantissa
}

macro_rules! float {
    ($type:ty, $accumulator:ty, $bits:ty, mantissa $mantissa:expr, near $near:expr, wide $wide:expr, $widen:expr, $round:expr) => {
        impl Element for $type {
            type Accumulator = $accumulator;
            fn widen(self) -> $accumulator {
                $widen(self)
            }
            fn round(accumulator: $accumulator) -> Self {
                $round(accumulator)
            }
            fn average(sum: $accumulator, ranks: usize) -> Self {
                $round(sum / ranks as $accumulator)
            }
            fn random(bits: u64, spread: Spread) -> Self {
                let exponents = if spread == Spread::Near { $near } else { $wide };
                Self::from_bits(random_bits(bits, $mantissa, <$bits>::BITS - 1, exponents) as $bits)
            }
            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_bits().to_le_bytes());
            }
        }
    };
}

/// `ncclFloat8e4m3`: 4 exponent bits, bias 7, no infinities; 0x7f is NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct E4m3(u8);
/// `ncclFloat8e5m2`: 5 exponent bits, bias 15, infinities and NaNs as IEEE types have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct E5m2(u8);

/// The non-negative finite values of an 8-bit float, by code. Neighbouring codes are neighbouring values.
fn small_float_values(mantissa_bits: i32, bias: i32, largest: u8) -> Vec<f32> {
    (0..=i32::from(largest))
        .map(|code| {
            let (exponent, mantissa) = (code >> mantissa_bits, (code & ((1 << mantissa_bits) - 1)) as f32);
            let implied = if exponent == 0 { 0.0 } else { 1.0 };
            (implied + mantissa / (1 << mantissa_bits) as f32) * 2f32.powi(exponent.max(1) - bias)
        })
        .collect()
}

static E4M3_VALUES: LazyLock<Vec<f32>> = LazyLock::new(|| small_float_values(3, 7, 0x7e));
static E5M2_VALUES: LazyLock<Vec<f32>> = LazyLock::new(|| small_float_values(2, 15, 0x7b));

/// The code of the nearest value; of two equally near, the even code; beyond the largest, the largest.
fn nearest_code(values: &[f32], x: f32) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = x.abs();
    let above = values.partition_point(|value| *value < magnitude);
    let code = if above == values.len() {
        above - 1
    } else if above == 0 {
        0
    } else {
        // In float64 the two distances are exact.
        let up = f64::from(values[above]) - f64::from(magnitude);
        let down = f64::from(magnitude) - f64::from(values[above - 1]);
        if up < down || (up == down && above % 2 == 0) { above } else { above - 1 }
    };
    sign | code as u8
}

macro_rules! small_float {
    ($type:ident, $values:ident, nan $nan:expr) => {
        impl $type {
            fn to_f32(self) -> f32 {
                let magnitude = $values.get(usize::from(self.0 & 0x7f)).copied().unwrap_or($nan(self.0 & 0x7f));
                if self.0 & 0x80 == 0 { magnitude } else { -magnitude }
            }
            fn from_f32(x: f32) -> Self {
                Self(nearest_code(&$values, x))
            }
            fn from_bits(bits: u8) -> Self {
                Self(bits)
            }
            fn to_bits(self) -> u8 {
                self.0
            }
        }
    };
}
small_float!(E4m3, E4M3_VALUES, nan | _ | f32::NAN);
small_float!(E5m2, E5M2_VALUES, nan | code | if code == 0x7c { f32::INFINITY } else { f32::NAN });

float!(f16, f32, u16, mantissa 10, near (12, 17), wide (0, 30), f16::to_f32, f16::from_f32);
float!(bf16, f32, u16, mantissa 7, near (123, 130), wide (0, 254), bf16::to_f32, bf16::from_f32);
float!(f32, f32, u32, mantissa 23, near (123, 130), wide (0, 254), |x| x, |x| x);
float!(f64, f64, u64, mantissa 52, near (1019, 1026), wide (0, 2046), |x| x, |x| x);
float!(E4m3, f32, u8, mantissa 3, near (5, 8), wide (0, 14), E4m3::to_f32, E4m3::from_f32);
float!(E5m2, f32, u8, mantissa 2, near (13, 16), wide (0, 30), E5m2::to_f32, E5m2::from_f32);

/// Calls `$function::<T>(...)` with the Rust type that stands for a run-time element type.
macro_rules! with_element {
    ($dtype:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $dtype {
            $crate::element::Type::Int8 => $function::<i8>($($argument),*),
            $crate::element::Type::Uint8 => $function::<u8>($($argument),*),
            $crate::element::Type::Int32 => $function::<i32>($($argument),*),
            $crate::element::Type::Uint32 => $function::<u32>($($argument),*),
            $crate::element::Type::Int64 => $function::<i64>($($argument),*),
            $crate::element::Type::Uint64 => $function::<u64>($($argument),*),
            $crate::element::Type::Float16 => $function::<half::f16>($($argument),*),
            $crate::element::Type::Float32 => $function::<f32>($($argument),*),
            $crate::element::Type::Float64 => $function::<f64>($($argument),*),
            $crate::element::Type::Bfloat16 => $function::<half::bf16>($($argument),*),
            $crate::element::Type::Float8e4m3 => $function::<$crate::element::E4m3>($($argument),*),
            $crate::element::Type::Float8e5m2 => $function::<$crate::element::E5m2>($($argument),*),
        }
    };
}
pub(crate) use with_element;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::mix;

    #[test]
    fn eight_bit_floats_have_the_published_values() {
        for (code, value) in [(0x00, 0.0), (0x01, 0.001953125), (0x08, 0.015625), (0x38, 1.0), (0x7e, 448.0), (0xb8, -1.0)] {
            assert_eq!(E4m3(code).to_f32(), value, "e4m3 {code:#x}");
        }
        for (code, value) in
            [(0x01, 2f32.powi(-16)), (0x04, 2f32.powi(-14)), (0x3c, 1.0), (0x3d, 1.25), (0x7b, 57344.0), (0x7c, f32::INFINITY)]
        {
            assert_eq!(E5m2(code).to_f32(), value, "e5m2 {code:#x}");
        }
        assert!(E4m3(0x7f).to_f32().is_nan() && E4m3(0xff).to_f32().is_nan() && E5m2(0x7d).to_f32().is_nan());
    }

    #[test]
    fn eight_bit_floats_round_to_even_and_saturate() {
        // 1.0625 lies between 1.0 (0x38) and 1.125 (0x39), 1.1875 between 0x39 and 0x3a.
        assert_eq!(E4m3::from_f32(1.0625), E4m3(0x38));
        assert_eq!(E4m3::from_f32(1.1875), E4m3(0x3a));
        assert_eq!(E4m3::from_f32(1.062_500_1), E4m3(0x39));
        for (x, code) in [(464.0, 0x7e), (f32::INFINITY, 0x7e), (-1e30, 0xfe), (-0.0, 0x80), (2f32.powi(-11), 0), (f32::NAN, 0x7f)] {
            assert_eq!(E4m3::from_f32(x), E4m3(code), "{x}");
        }
        assert_eq!(E5m2::from_f32(f32::INFINITY), E5m2(0x7b));
        for code in 0..=0x7bu8 {
            assert_eq!(E5m2::from_f32(E5m2(code).to_f32()), E5m2(code));
        }
    }

    #[test]
    fn integers_wrap_and_means_truncate_toward_zero() {
        assert_eq!(Accumulator::add(i8::MAX, 1), i8::MIN);
        assert_eq!(Accumulator::multiply(200u8, 2), 144);
        assert_eq!(i32::average(-7, 2), -3);
        assert_eq!(i8::average(-128, 5), -25);
        assert_eq!(u64::average(u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn a_nan_loses_and_the_earlier_zero_stays() {
        assert_eq!(f32::NAN.larger(1.0), 1.0);
        assert_eq!(1f32.larger(f32::NAN), 1.0);
        assert!((-0f32).larger(0.0).is_sign_negative());
        assert!(0f64.smaller(-0.0).is_sign_positive());
    }

    #[test]
    fn inputs_are_finite_and_not_zero() {
        fn check<E: Element<Accumulator = f32>>() {
            for i in 0..5000 {
                for spread in [Spread::Near, Spread::Wide] {
                    let x = E::random(mix(i), spread).widen();
                    assert!(x.is_finite() && x != 0.0, "{x}");
                    if spread == Spread::Near {
                        assert!((0.03..32.0).contains(&x.abs()), "{x}");
                    }
                }
            }
        }
        check::<f16>();
        check::<bf16>();
        check::<f32>();
        check::<E4m3>();
        check::<E5m2>();
    }
}
