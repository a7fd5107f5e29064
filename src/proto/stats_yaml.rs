//! The format of YAML documents: keys, values, lists and histograms. Spaces and quotes are the same
//! as in the documents of the original: clients compare and split documents, so every byte matters.
//! `server/stats.rs` has the keys of each document in order.

use std::{
    fmt::{self, Display},
    io::Write,
    time::Duration,
};

use super::reply::digits;
use crate::collections::Histogram;

/// The first line of each document.
pub(super) const HEAD: &str = "---\n";

/// A duration in seconds, with as many decimals as needed, up to nine.
#[derive(Debug, Clone, Copy)]
pub struct Seconds(pub Duration);

impl Display for Seconds {
    /// Formats seconds with their fraction, without zeros at the end.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:09}", self.0.as_secs(), self.0.subsec_nanos());
        out.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// A value of a document. Most values are numbers, which are written faster without `write!`.
pub trait Value {
    /// Appends the value to `out`.
    fn append(self, out: &mut Vec<u8>);
}

impl Value for u64 {
    /// Appends a number to a YAML document.
    fn append(self, out: &mut Vec<u8>) {
        // Most numbers are 0.
        if let Ok(digit @ 0..=9) = u8::try_from(self) {
            return out.push(b'0' + digit);
        }
        let mut line = [0; 20];
        let start = digits(&mut line, self);
        out.extend_from_slice(&line[start..]);
    }
}

impl Value for u32 {
    /// Appends a number to a YAML document.
    fn append(self, out: &mut Vec<u8>) {
        u64::from(self).append(out);
    }
}

impl Value for usize {
    /// Appends a number to a YAML document.
    fn append(self, out: &mut Vec<u8>) {
        (self as u64).append(out);
    }
}

impl Value for bool {
    /// Appends `true` or `false` to a YAML document.
    fn append(self, out: &mut Vec<u8>) {
        if self { "true" } else { "false" }.append(out);
    }
}

impl Value for &str {
    /// Appends a text without quotes to a YAML document.
    fn append(self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }
}

/// A text in quotes. As in the original, no character is escaped: neither tube names nor the values
/// of `uname` contain a quote.
#[derive(Debug, Clone, Copy)]
pub struct Quoted<'a>(pub &'a str);

impl Value for Quoted<'_> {
    /// Appends a text in quotes to a YAML document.
    fn append(self, out: &mut Vec<u8>) {
        out.push(b'"');
        self.0.append(out);
        out.push(b'"');
    }
}

/// A duration in seconds with six decimals.
#[derive(Debug, Clone, Copy)]
pub struct Microseconds(pub Duration);

impl Value for Microseconds {
    /// Appends seconds with six decimals to a YAML document.
    fn append(self, out: &mut Vec<u8>) {
        self.0.as_secs().append(out);
        let point = out.len();
        // Adding a million to the microseconds keeps leading zeros; the point replaces the 1.
        (1_000_000 + self.0.subsec_micros()).append(out);
        out[point] = b'.';
    }
}

impl Value for Seconds {
    /// Appends seconds with their fraction to a YAML document.
    fn append(self, out: &mut Vec<u8>) {
        write!(out, "{self}").expect("writing to memory does not fail");
    }
}

/// A YAML mapping under construction.
#[derive(Debug)]
pub struct Document(Vec<u8>);

impl Default for Document {
    /// An empty YAML document, with room for a long document.
    fn default() -> Self {
        Self::with_capacity(1536)
    }
}

impl Document {
    /// A YAML document with only its first line, and with room for `capacity` more bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut text = Vec::with_capacity(HEAD.len() + capacity);
        text.extend_from_slice(HEAD.as_bytes());
        Self(text)
    }

    /// Appends a key and its value to the YAML document.
    pub fn pair(&mut self, key: &str, value: impl Value) {
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(b": ");
        value.append(&mut self.0);
        self.0.push(b'\n');
    }

    /// Appends a key and its value to the YAML document; if there is no value, appends nothing.
    pub fn pair_if(&mut self, key: &str, value: Option<impl Value>) {
        if let Some(value) = value {
            self.pair(key, value);
        }
    }

    /// Appends a key and the items of its list to the YAML document.
    pub fn list(&mut self, key: &str, items: &[&str]) {
        writeln!(self.0, "{key}:").expect("writing to memory does not fail");
        for item in items {
            writeln!(self.0, "- {item}").expect("writing to memory does not fail");
        }
    }

    /// Appends a line for each bound, with the number of durations up to that bound; then the
    /// number of all durations, and their sum.
    pub fn histogram<const BOUNDS: usize, const UNIT: u64>(
        &mut self,
        key: &str,
        histogram: &Histogram<BOUNDS, UNIT>,
    ) {
        for (bound, count) in histogram.cumulative() {
            self.pair(&format!("{key}-le-{}", Seconds(bound)), count);
        }
        self.pair(&format!("{key}-le-inf"), histogram.count());
        self.pair(&format!("{key}-sum"), Seconds(histogram.sum()));
    }

    /// The text of the YAML document.
    pub fn end(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_the_decimals_that_they_need() {
        for (nanoseconds, wanted) in [
            (0, "0"),
            (1, "0.000000001"),
            (20_000, "0.00002"),
            (2_500_000_000, "2.5"),
            (7_200_000_000_000, "7200"),
            (1_000_000_010, "1.00000001"),
            (u64::MAX, "18446744073.709551615"),
        ] {
            assert_eq!(Seconds(Duration::from_nanos(nanoseconds)).to_string(), wanted);
        }
    }
}
