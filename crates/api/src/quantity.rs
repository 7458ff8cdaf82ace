//! Resource quantities such as `500m`, `1.5Gi` or `2e3`, exact and in canonical form.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

/// Why a text is no quantity; texts are those of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// Not of the form number, suffix.
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    /// More digits than can be kept exactly (38 significant ones).
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    /// No known suffix.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// The family of suffixes a quantity is written with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// `12e6`.
    DecimalExponent,
    /// `12Mi`.
    BinarySi,
    /// `12M`.
    #[default]
    DecimalSi,
}

/// A fixed-point number with the suffix family it was written in.
///
/// The value is `mantissa * 10^exponent`, exact down to one billionth; smaller fractions round
/// away from zero, as in Kubernetes. Equality and order compare values, not formats.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quantity {
    /// Never a multiple of ten, unless zero.
    mantissa: i128,
    /// At least -9; zero for zero.
    exponent: i32,
    format: Format,
}

const NANO: i32 = -9;
const SI: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// Beyond this number of significant digits Kubernetes leaves its fast path.
const FAST_DIGITS: usize = 18;

impl Quantity {
    /// Zero, in decimal suffixes.
    pub const ZERO: Quantity = Quantity {
        mantissa: 0,
        exponent: 0,
        format: Format::DecimalSi,
    };

    /// A whole number written in a format.
    pub fn new(value: i64, format: Format) -> Self {
        Quantity::reduced(i128::from(value), 0, format)
    }

    /// A number of thousandths, e.g. millicores.
    pub fn from_milli(value: i64) -> Self {
        Quantity::reduced(i128::from(value), -3, Format::DecimalSi)
    }

    /// A whole number of bytes, written with binary suffixes.
    pub fn from_bytes(value: i64) -> Self {
        Quantity::new(value, Format::BinarySi)
    }

    fn reduced(mut mantissa: i128, mut exponent: i32, format: Format) -> Self {
        if mantissa == 0 {
            return Quantity {
                mantissa: 0,
                exponent: 0,
                format,
            };
        }
        while exponent < NANO {
            let (quotient, rest) = (mantissa / 10, mantissa % 10);
            mantissa = quotient + if rest == 0 { 0 } else { mantissa.signum() };
            exponent += 1;
            // What is left of a tiny number is one billionth.
            if quotient == 0 {
                exponent = NANO;
            }
        }
        while mantissa % 10 == 0 {
            mantissa /= 10;
            exponent += 1;
        }
        Quantity {
            mantissa,
            exponent,
            format,
        }
    }

    /// Parses any form that Kubernetes takes.
    ///
    /// # Errors
    /// With the texts of Kubernetes, see [`ParseQuantityError`].
    pub fn parse(text: &str) -> Result<Self, ParseQuantityError> {
        QuantityParts::split(text)?.quantity()
    }

    /// The form in which Kubernetes stores a text: as given where its parser takes the text for
    /// canonical (`1.500` stays), canonical otherwise (`0.5` becomes `500m`).
    ///
    /// # Errors
    /// Like [`Quantity::parse`].
    pub fn canonicalize(text: &str) -> Result<Cow<'_, str>, ParseQuantityError> {
        if text == "0" {
            return Ok(Cow::Borrowed(text));
        }
        let parts = QuantityParts::split(text)?;
        let quantity = parts.quantity()?;
        if parts.taken_as_canonical() {
            return Ok(Cow::Borrowed(text));
        }
        Ok(Cow::Owned(quantity.to_string()))
    }

    /// Reads a quantity from JSON: text or number.
    ///
    /// # Errors
    /// Like [`Quantity::parse`]; other JSON types are a format error.
    pub fn from_json(value: &Value) -> Result<Self, ParseQuantityError> {
        match value {
            Value::String(s) => Quantity::parse(s.trim()),
            Value::Number(n) => Quantity::parse(&n.to_string()),
            Value::Null => Ok(Quantity::ZERO),
            _ => Err(ParseQuantityError::Format),
        }
    }

    /// The suffix family.
    pub fn format(self) -> Format {
        self.format
    }

    /// Whether the value is zero.
    pub fn is_zero(self) -> bool {
        self.mantissa == 0
    }

    /// -1, 0 or 1.
    pub fn signum(self) -> i32 {
        self.mantissa.signum() as i32
    }

    /// The value as a whole number, fractions rounded away from zero, limited to 64 bits.
    pub fn value(self) -> i64 {
        self.scaled_value(0)
    }

    /// The value in thousandths, rounded away from zero, limited to 64 bits.
    pub fn milli_value(self) -> i64 {
        self.scaled_value(-3)
    }

    /// The value in units of `10^scale`, rounded away from zero, limited to 64 bits.
    pub fn scaled_value(self, scale: i32) -> i64 {
        let limit = if self.mantissa < 0 {
            i64::MIN
        } else {
            i64::MAX
        };
        let shift = self.exponent.saturating_sub(scale);
        let value = if shift >= 0 {
            pow10(shift).and_then(|p| self.mantissa.checked_mul(p))
        } else {
            Some(match pow10(shift.saturating_neg()) {
                Some(p) => div_away(self.mantissa, p),
                None => self.mantissa.signum(),
            })
        };
        value.and_then(|v| i64::try_from(v).ok()).unwrap_or(limit)
    }

    /// Whether the value is a whole number.
    pub fn is_integer(self) -> bool {
        self.exponent >= 0
    }

    /// The value as a whole number of 64 bits, if it is one.
    pub fn as_i64(self) -> Option<i64> {
        let p = pow10(self.exponent.max(0))?;
        (self.exponent >= 0)
            .then(|| self.mantissa.checked_mul(p))
            .flatten()
            .and_then(|v| i64::try_from(v).ok())
    }

    /// The value as a float, for scores and metrics.
    pub fn as_f64(self) -> f64 {
        self.mantissa as f64 * 10f64.powi(self.exponent)
    }

    /// The sum, or none where it cannot be kept exactly.
    pub fn checked_add(self, other: Quantity) -> Option<Quantity> {
        let format = if self.is_zero() {
            other.format
        } else {
            self.format
        };
        if self.is_zero() {
            return Some(Quantity { format, ..other });
        }
        if other.is_zero() {
            return Some(self);
        }
        let exponent = self.exponent.min(other.exponent);
        let align = |q: Quantity| pow10(q.exponent - exponent)?.checked_mul(q.mantissa);
        let sum = align(self)?.checked_add(align(other)?)?;
        Some(Quantity::reduced(sum, exponent, format))
    }

    /// The product, written as the first is, or none where it is too large to be kept exactly. Below one billionth it is rounded
    /// away from zero, as every quantity.
    pub fn checked_mul(self, other: Quantity) -> Option<Quantity> {
        let mantissa = self.mantissa.checked_mul(other.mantissa)?;
        let exponent = self.exponent.checked_add(other.exponent)?;
        Some(Quantity::reduced(mantissa, exponent, self.format))
    }

    /// The difference, or none where it cannot be kept exactly.
    pub fn checked_sub(self, other: Quantity) -> Option<Quantity> {
        self.checked_add(-other)
    }
}

fn pow10(exponent: i32) -> Option<i128> {
    10i128.checked_pow(u32::try_from(exponent).ok()?)
}

fn div_away(value: i128, by: i128) -> i128 {
    let quotient = value / by;
    if value % by == 0 {
        quotient
    } else {
        quotient + value.signum()
    }
}

fn digits(mut value: u128) -> i64 {
    let mut n = 0;
    while value > 0 {
        value /= 10;
        n += 1;
    }
    n
}

/// The pieces of a quantity text.
struct QuantityParts<'a> {
    negative: bool,
    num: &'a str,
    denom: &'a str,
    base: u8,
    exponent: i32,
    format: Format,
}

impl<'a> QuantityParts<'a> {
    fn split(text: &'a str) -> Result<Self, ParseQuantityError> {
        if text.is_empty() {
            return Err(ParseQuantityError::Format);
        }
        let (negative, rest) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let rest = rest.trim_start_matches('0');
        let end = |s: &str| s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
        let (num, rest) = rest.split_at(end(rest));
        let (denom, rest) = match rest.strip_prefix('.') {
            Some(frac) => frac.split_at(end(frac)),
            None => ("", rest),
        };
        let letters = rest
            .find(|c| !"eEinumkKMGTP".contains(c))
            .unwrap_or(rest.len());
        let tail = &rest[letters..];
        let tail = tail.strip_prefix(['-', '+']).unwrap_or(tail);
        if !tail.bytes().all(|b| b.is_ascii_digit()) {
            return Err(ParseQuantityError::Format);
        }
        let (base, exponent, format) = suffix(rest)?;
        Ok(QuantityParts {
            negative,
            num: if num.is_empty() { "0" } else { num },
            denom,
            base,
            exponent,
            format,
        })
    }

    fn quantity(&self) -> Result<Quantity, ParseQuantityError> {
        let mut mantissa: i128 = 0;
        let mut exponent: i64 = -(self.denom.len() as i64);
        // Zeros at the end are kept as exponent so that long round numbers stay exact.
        let mut zeros: u32 = 0;
        for b in self.num.bytes().chain(self.denom.bytes()) {
            if b == b'0' {
                zeros += 1;
                continue;
            }
            mantissa = 10i128
                .checked_pow(zeros + 1)
                .and_then(|p| mantissa.checked_mul(p))
                .or((mantissa == 0).then_some(0))
                .and_then(|m| m.checked_add(i128::from(b - b'0')))
                .ok_or(ParseQuantityError::Numeric)?;
            zeros = 0;
        }
        exponent += i64::from(zeros);
        let mut format = self.format;
        if self.base == 10 {
            exponent += i64::from(self.exponent);
        } else {
            let scaled = mantissa.checked_mul(1i128 << self.exponent);
            (mantissa, exponent) = capped_binary(scaled, exponent);
            let below_one = exponent < 0
                && i32::try_from(-exponent)
                    .ok()
                    .and_then(pow10)
                    .is_none_or(|one| mantissa < one);
            if mantissa != 0 && below_one {
                format = Format::DecimalSi;
            }
        }
        if self.negative {
            mantissa = -mantissa;
        }
        let exponent = exponent.clamp(i64::from(i32::MIN / 2), i64::from(i32::MAX / 2)) as i32;
        Ok(Quantity::reduced(mantissa, exponent, format))
    }

    /// Whether the upstream parser keeps the text instead of formatting the value anew.
    fn taken_as_canonical(&self) -> bool {
        let len = self.num.len() + self.denom.len();
        match self.format {
            Format::BinarySi => {
                let room = 15 - self.num.len() as i64 - i64::from(self.exponent) * 3 / 10 - 1;
                let odd = self.num.parse::<u64>().is_ok_and(|v| v & 7 != 0);
                self.denom.is_empty() && room >= 0 && odd
            }
            _ => {
                let scale = i64::from(self.exponent) - self.denom.len() as i64;
                let ends_in_zeros = if self.denom.len() >= 3 {
                    self.denom.ends_with("000")
                } else {
                    format!("{}{}", self.num, self.denom).ends_with("000")
                };
                len <= FAST_DIGITS
                    && scale >= i64::from(NANO)
                    && scale % 3 == 0
                    && !ends_in_zeros
                    && !self.num.starts_with('0')
            }
        }
    }
}

/// Binary quantities are limited to 2^63-1; a mantissa that overflowed is far above that.
fn capped_binary(mantissa: Option<i128>, exponent: i64) -> (i128, i64) {
    const MAX: i128 = i64::MAX as i128;
    let Some(mantissa) = mantissa else {
        return (MAX, 0);
    };
    let over = if exponent >= 0 {
        i32::try_from(exponent)
            .ok()
            .and_then(pow10)
            .and_then(|p| mantissa.checked_mul(p))
            .is_none_or(|v| v > MAX)
    } else {
        i32::try_from(-exponent)
            .ok()
            .and_then(pow10)
            .is_some_and(|p| mantissa / p > MAX || mantissa / p == MAX && mantissa % p != 0)
    };
    if over && mantissa != 0 {
        (MAX, 0)
    } else {
        (mantissa, exponent)
    }
}

fn suffix(text: &str) -> Result<(u8, i32, Format), ParseQuantityError> {
    if let Some((_, exponent)) = SI.iter().find(|(s, _)| *s == text) {
        return Ok((10, *exponent, Format::DecimalSi));
    }
    if let Some(i) = BINARY.iter().position(|s| *s == text) {
        return Ok((2, i as i32 * 10, Format::BinarySi));
    }
    text.strip_prefix(['e', 'E'])
        .filter(|digits| !digits.is_empty())
        .and_then(|digits| digits.parse::<i32>().ok())
        .map(|exponent| (10, exponent, Format::DecimalExponent))
        .ok_or(ParseQuantityError::Suffix)
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return f.pad("0");
        }
        if self.format == Format::BinarySi
            && let Some(text) = self.binary_text()
        {
            return f.pad(&text);
        }
        // The exponent must be a multiple of three, zeros go to the mantissa.
        let zeros = self.exponent.rem_euclid(3);
        let exponent = self.exponent - zeros;
        let mantissa = format!("{}{}", self.mantissa, &"00"[..zeros as usize]);
        let si = SI.iter().find(|(_, e)| *e == exponent);
        let text = match (self.format, si) {
            (Format::DecimalSi | Format::BinarySi, Some((suffix, _))) => {
                format!("{mantissa}{suffix}")
            }
            _ if exponent == 0 => mantissa,
            _ => format!("{mantissa}e{exponent}"),
        };
        f.pad(&text)
    }
}

impl Quantity {
    /// The text with a binary suffix; none where that would hide a fraction or a small number.
    fn binary_text(self) -> Option<String> {
        let mut value = (self.exponent >= 0)
            .then(|| pow10(self.exponent).and_then(|p| self.mantissa.checked_mul(p)))
            .flatten()?;
        if value.abs() < 1024 {
            return None;
        }
        let mut i = 0;
        while value % 1024 == 0 && i + 1 < BINARY.len() {
            value /= 1024;
            i += 1;
        }
        Some(format!("{value}{}", BINARY[i]))
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Quantity::parse(s)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.mantissa == other.mantissa && self.exponent == other.exponent
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        let sign = self.mantissa.signum().cmp(&other.mantissa.signum());
        if sign != Ordering::Equal || self.is_zero() {
            return sign;
        }
        let magnitude = |q: &Quantity| digits(q.mantissa.unsigned_abs()) + i64::from(q.exponent);
        let by_size = magnitude(self).cmp(&magnitude(other));
        let order = if by_size != Ordering::Equal {
            by_size
        } else {
            // Of the same size, so aligning needs no more digits than the longer mantissa has.
            let exponent = self.exponent.min(other.exponent);
            let align = |q: &Quantity| {
                pow10(q.exponent - exponent).and_then(|p| q.mantissa.checked_abs()?.checked_mul(p))
            };
            align(self)
                .unwrap_or(i128::MAX)
                .cmp(&align(other).unwrap_or(i128::MAX))
        };
        if self.mantissa < 0 {
            order.reverse()
        } else {
            order
        }
    }
}

impl std::hash::Hash for Quantity {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.mantissa.hash(state);
        self.exponent.hash(state);
    }
}

impl Neg for Quantity {
    type Output = Quantity;

    fn neg(self) -> Quantity {
        Quantity {
            mantissa: -self.mantissa,
            ..self
        }
    }
}

/// Sums that cannot be kept exactly keep the operand of the larger magnitude: a difference of more
/// than 38 digits is none that a cluster could count.
impl Add for Quantity {
    type Output = Quantity;

    fn add(self, other: Quantity) -> Quantity {
        self.checked_add(other).unwrap_or_else(|| {
            let size = |q: &Quantity| digits(q.mantissa.unsigned_abs()) + i64::from(q.exponent);
            if size(&self) >= size(&other) {
                self
            } else {
                other
            }
        })
    }
}

impl Sub for Quantity {
    type Output = Quantity;

    fn sub(self, other: Quantity) -> Quantity {
        let format = if self.is_zero() {
            other.format
        } else {
            self.format
        };
        Quantity {
            format,
            ..self + -other
        }
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Quantity) {
        *self = *self + other;
    }
}

impl SubAssign for Quantity {
    fn sub_assign(&mut self, other: Quantity) {
        *self = *self - other;
    }
}

impl Sum for Quantity {
    fn sum<I: Iterator<Item = Quantity>>(iter: I) -> Quantity {
        iter.fold(Quantity::ZERO, Add::add)
    }
}

impl From<i64> for Quantity {
    fn from(value: i64) -> Self {
        Quantity::new(value, Format::DecimalSi)
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Quantity::from_json(&value).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
