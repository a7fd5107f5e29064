//! sys
/// mono
pub fn monotonic_nanoseconds() -> u64 {
    0
}
