//! A job's body: immutable bytes that a job and any replies being sent share.
//!
//! A small body is one block of its exact size. A large one stays in the buffer that collected
//! it, since copying it once more could hold up a turn. Both are sixteen bytes in the job.

use std::{fmt, ops::Deref, rc::Rc};

/// Shared bytes; cloning one copies a pointer.
#[derive(Clone)]
pub struct Body(Shared);

#[derive(Clone)]
enum Shared {
    Small(Rc<[u8]>),
    Large(Rc<Vec<u8>>),
}

/// Up to this many bytes a collected body is copied into a block of its own.
const SMALL: usize = 64 * 1024;

impl Deref for Body {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Shared::Small(bytes) => bytes,
            Shared::Large(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for Body {
    fn from(bytes: &[u8]) -> Self {
        Self(Shared::Small(bytes.into()))
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        if bytes.len() <= SMALL {
            return bytes.as_slice().into();
        }
        Self(Shared::Large(Rc::new(bytes)))
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

const _: () = assert!(size_of::<Body>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_bodies_read_the_same() {
        for len in [0, 1, SMALL, SMALL + 1, 3 * SMALL] {
            let bytes: Vec<u8> = (0..=255).cycle().take(len).collect();
            assert_eq!(&*Body::from(bytes.as_slice()), &bytes[..]);
            assert_eq!(&*Body::from(bytes.clone()).clone(), &bytes[..]);
        }
    }
}
