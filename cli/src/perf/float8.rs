//! The two 8-bit floating-point types of `nccl.h`: conversion from float32 rounds to nearest even and saturates to the largest finite value (CUDA's
//! `__NV_SATFINITE`); conversion to float32 is exact.

/// What tells one 8-bit format from the other.
struct Format {
    mantissa_bits: u32,
    bias: i32,
    /// Code of the largest finite value.
    largest: u8,
    /// e5m2 has infinities as IEEE types do; e4m3 has none.
    has_infinity: bool,
}

const E4M3: Format = Format { mantissa_bits: 3, bias: 7, largest: 0x7e, has_infinity: false };
const E5M2: Format = Format { mantissa_bits: 2, bias: 15, largest: 0x7b, has_infinity: true };
const NAN: u8 = 0x7f;

/// 2 to the power `n`, for exponents in the normal range of float64.
fn power_of_two(n: i32) -> f64 {
    f64::from_bits(((1023 + n) as u64) << 52)
}

impl Format {
    fn decode(&self, code: u8) -> f32 {
        let magnitude = code & 0x7f;
        let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
        if magnitude > self.largest {
            return if self.has_infinity && magnitude == self.largest + 1 { sign * f32::INFINITY } else { f32::NAN };
        }
        let exponent = i32::from(magnitude >> self.mantissa_bits);
        let mantissa = f64::from(magnitude & ((1 << self.mantissa_bits) - 1)) / f64::from(1u32 << self.mantissa_bits);
        let value =
            if exponent == 0 { mantissa * power_of_two(1 - self.bias) } else { (1.0 + mantissa) * power_of_two(exponent - self.bias) };
        (f64::from(sign) * value) as f32
    }

    fn encode(&self, x: f32) -> u8 {
        if x.is_nan() {
            return NAN;
        }
        let sign = if x.is_sign_negative() { 0x80 } else { 0 };
        let magnitude = f64::from(x.abs());
        if magnitude >= f64::from(self.decode(self.largest)) {
            return sign | self.largest;
        }
        let mantissa_bits = self.mantissa_bits as i32;
        // Every float32 is a normal float64, zero apart, so the exponent field tells the power of two below it.
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - self.bias);
        // Steps of the format's spacing at this magnitude; the scaling is exact, so this is the only rounding.
        let steps = (magnitude * power_of_two(mantissa_bits - exponent)).round_ties_even() as i32;
        // Codes of neighbouring values are neighbours, so a carry out of the mantissa lands in the exponent by itself.
        let code = ((exponent + self.bias - 1) << mantissa_bits) + steps;
        sign | (code as u8).min(self.largest)
    }
}

/// An 8-bit float with 4 exponent bits, without infinities (`ncclFloat8e4m3`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct E4m3(pub u8);

/// An 8-bit float with 5 exponent bits (`ncclFloat8e5m2`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct E5m2(pub u8);

impl E4m3 {
    pub fn from_f32(x: f32) -> Self {
        Self(E4M3.encode(x))
    }
    pub fn to_f32(self) -> f32 {
        E4M3.decode(self.0)
    }
}

impl E5m2 {
    pub fn from_f32(x: f32) -> Self {
        Self(E5M2.encode(x))
    }
    pub fn to_f32(self) -> f32 {
        E5M2.decode(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::inputs::mix;

    #[test]
    fn known_values() {
        for (code, value) in [(0x00, 0.0), (0x01, 0.001953125), (0x08, 0.015625), (0x38, 1.0), (0x7e, 448.0), (0xb8, -1.0)] {
            assert_eq!(E4m3(code).to_f32(), value, "e4m3 {code:#x}");
        }
        for (code, value) in [(0x01, 2f32.powi(-16)), (0x04, 2f32.powi(-14)), (0x3c, 1.0), (0x3d, 1.25), (0x7b, 57344.0)] {
            assert_eq!(E5m2(code).to_f32(), value, "e5m2 {code:#x}");
        }
        assert_eq!(E5m2(0x7c).to_f32(), f32::INFINITY);
        assert_eq!(E5m2(0xfc).to_f32(), f32::NEG_INFINITY);
        assert!(E5m2(0x7d).to_f32().is_nan() && E4m3(0x7f).to_f32().is_nan() && E4m3(0xff).to_f32().is_nan());
    }

    #[test]
    fn every_finite_code_survives_a_round_trip() {
        for code in 0..=255u8 {
            if E4m3(code).to_f32().is_finite() {
                assert_eq!(E4m3::from_f32(E4m3(code).to_f32()).0, code);
            }
            if E5m2(code).to_f32().is_finite() {
                assert_eq!(E5m2::from_f32(E5m2(code).to_f32()).0, code);
            }
        }
    }

    #[test]
    fn out_of_range_saturates_and_nan_stays_nan() {
        for (x, e4m3, e5m2) in [(f32::INFINITY, 0x7e, 0x7b), (f32::NEG_INFINITY, 0xfe, 0xfb), (470.0, 0x7e, 0x5f), (1e30, 0x7e, 0x7b)] {
            assert_eq!(E4m3::from_f32(x).0, e4m3, "{x}");
            assert_eq!(E5m2::from_f32(x).0, e5m2, "{x}");
        }
        assert_eq!(E4m3::from_f32(f32::NAN).0, NAN);
        assert_eq!(E5m2::from_f32(f32::NAN).0, NAN);
        assert_eq!(E4m3::from_f32(-0.0).0, 0x80);
        assert_eq!(E4m3::from_f32(f32::MIN_POSITIVE / 4.0).0, 0);
    }

    /// The nearest finite code by exhaustive search, ties to the even code.
    fn nearest(x: f32, decode: impl Fn(u8) -> f32) -> u8 {
        let distance = |code: u8| (f64::from(decode(code)) - f64::from(x)).abs();
        let finite = (0..=255u8).filter(|code| decode(*code).is_finite() && (code & 0x80 != 0) == x.is_sign_negative());
        finite.min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1)))).unwrap()
    }

    #[test]
    fn random_floats_round_to_the_nearest_code() {
        for i in 0..40_000u64 {
            let hash = mix(i);
            // Exponents from 2^-20 to 2^20: below, inside and above both ranges.
            let exponent = 107 + (hash >> 32) % 40;
            let x = f32::from_bits((hash as u32 & 0x807f_ffff) | (exponent as u32) << 23);
            assert_eq!(E4m3::from_f32(x).0, nearest(x, |c| E4m3(c).to_f32()), "e4m3 {x}");
            assert_eq!(E5m2::from_f32(x).0, nearest(x, |c| E5m2(c).to_f32()), "e5m2 {x}");
        }
    }

    #[test]
    fn ties_go_to_the_even_code() {
        for code in 0..0x7b_u8 {
            let middle = (E5m2(code).to_f32() + E5m2(code + 1).to_f32()) / 2.0;
            assert_eq!(E5m2::from_f32(middle).0, code + (code & 1));
        }
        for code in 0..0x7e_u8 {
            let middle = (E4m3(code).to_f32() + E4m3(code + 1).to_f32()) / 2.0;
            assert_eq!(E4m3::from_f32(middle).0, code + (code & 1));
        }
    }
}
